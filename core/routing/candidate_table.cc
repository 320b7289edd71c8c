#include "core/routing/candidate_table.h"

#include <algorithm>
#include <cmath>

namespace warmpath {

template <typename Visit>
void CandidateTable::ForEachColumn(Visit visit) {
  visit(target_);
  visit(freshness_);
  visit(at_limit_);
  visit(blocks_);
  visit(cached_tokens_);
  visit(rate_);
  visit(wait_s_);
  visit(inflight_);
  visit(kv_tokens_);
  visit(kv_capacity_);
  visit(copied_tokens_);
  visit(far_tokens_);
  visit(copy_s_);
  visit(start_s_);
  visit(score_);
}

CandidateTable* CandidateTable::Reserve(std::size_t most) {
  size_ = 0;
  has_copies_ = false;
  if (target_.size() < most) {
    ForEachColumn([most](auto& column) { column.resize(most); });
  }
  std::fill_n(at_limit_.begin(), most, 0);
  return this;
}

CandidateTable::Filler::Filler(CandidateTable* table, std::size_t most)
    : table_(table->Reserve(most)),
      target_(table->target_.data()),
      freshness_(table->freshness_.data()),
      blocks_(table->blocks_.data()),
      cached_tokens_(table->cached_tokens_.data()),
      rate_(table->rate_.data()),
      wait_s_(table->wait_s_.data()),
      inflight_(table->inflight_.data()),
      kv_tokens_(table->kv_tokens_.data()),
      kv_capacity_(table->kv_capacity_.data()) {}

std::size_t CandidateTable::DropNotFinite() {
  const double* const scores = score_.data();
  // x - x is 0 for every finite number and NaN for all others: no branch in the usual case.
  double sum = 0;
  for (std::size_t i = 0; i < size_; ++i) sum += scores[i] - scores[i];
  if (sum == 0) return 0;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    if (!std::isfinite(score_[i])) continue;
    ForEachColumn([kept, i](auto& column) { column[kept] = column[i]; });
    ++kept;
  }
  const std::size_t dropped = size_ - kept;
  size_ = kept;
  return dropped;
}

void CandidateTable::StartCopies() {
  has_copies_ = true;
  std::fill_n(copied_tokens_.begin(), size_, 0);
  std::fill_n(far_tokens_.begin(), size_, 0);
  std::fill_n(copy_s_.begin(), size_, 0);
  std::copy_n(wait_s_.begin(), size_, start_s_.begin());
}

std::uint32_t CandidateTable::MostBlocks() const {
  std::uint32_t most = 0;
  for (std::size_t i = 0; i < size_; ++i) most = std::max(most, blocks_[i]);
  return most;
}

CostColumns CandidateTable::costs() const {
  return CostColumns{.cached_tokens = cached_tokens_.data(),
                     .rate = rate_.data(),
                     .start_s = has_copies_ ? start_s_.data() : wait_s_.data(),
                     .inflight = inflight_.data(),
                     .kv_tokens = kv_tokens_.data(),
                     .kv_capacity = kv_capacity_.data()};
}

CostInput CandidateTable::InputOf(std::size_t i, const CostShared& shared) const {
  const double capacity = std::isfinite(kv_capacity_[i]) ? std::min(kv_capacity_[i], 0x1p63) : 0;
  return CostInput{.prompt_tokens = shared.prompt_tokens,
                   .cached_tokens = static_cast<std::uint64_t>(cached_tokens_[i]),
                   .output_tokens = shared.output_tokens,
                   .residence_s = shared.residence_s,
                   .rho = shared.rho,
                   .pool_rate = shared.pool_rate,
                   .unequal = shared.unequal,
                   .rate = rate_[i],
                   .ctx_half = shared.ctx_half,
                   .wait_s = wait_s_[i],
                   .copy_s = copy_s(i),
                   .inflight = static_cast<std::uint32_t>(inflight_[i]),
                   .kv_tokens = static_cast<std::uint64_t>(kv_tokens_[i]),
                   .kv_capacity = static_cast<std::uint64_t>(capacity)};
}

}  // namespace warmpath
