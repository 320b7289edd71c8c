#include "core/fleet/pool.h"

#include <algorithm>
#include <utility>

namespace warmpath {

namespace {

// 0 for none; of an even number the lower one: errs low.
double LowerMedian(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Pool::Pool(PoolConfig config, std::unique_ptr<Index> index, std::uint64_t random_seed,
           std::uint32_t max_reservations, std::uint32_t number)
    : config_(std::move(config)),
      index_(std::move(index)),
      max_reservations_(max_reservations),
      number_(number),
      random_(random_seed) {}

void Pool::FixBlockSize(std::uint32_t tokens) {
  LoadLedger::Options options;
  options.block_size = tokens;
  options.pool_number = number_;
  options.id_seed = random_();
  options.max_reservations = max_reservations_;
  // Up to a quarter of the index's bound: 16 bytes for each block, in the reservation and the
  // overlay.
  options.max_chain_blocks =
      std::max(std::uint64_t{1} << 20, std::uint64_t{config_.index_bound_bytes} / 64);
  ledger_ = LoadLedger::Create(options);
  block_size_.store(tokens, std::memory_order_release);
}

void Pool::RefreshPeerRates() {
  observed_ = 0;
  std::vector<double> rates;
  std::vector<double> shares;
  for (const TargetState& target : targets_) {
    const double rate = target.rate.tokens_per_s();
    if (!target.in_use || rate == 0) continue;
    rates.push_back(rate);
    if (target.spec.prefill_tokens_per_s > 0) {
      shares.push_back(rate / target.spec.prefill_tokens_per_s);
    }
  }
  peer_rates_ = {.median = LowerMedian(rates), .share_of_hint = LowerMedian(shares)};
}

void Pool::ObservePrefill(TargetId target, double work, double seconds) {
  LearnedRate& rate = targets_[target].rate;
  const bool knew = rate.tokens_per_s() > 0;
  rate.Observe(work, seconds);
  if (rate.tokens_per_s() == 0) return;
  // The first word of a target counts at once.
  if (++observed_ * 2 >= targets_.size() || !knew) RefreshPeerRates();
}

void Pool::ForgetOutcomes(TargetId target) {
  TargetState& state = targets_[target];
  state.rate.Reset();
  state.drifting = false;
  state.shortfalls.clear();
  state.shortfall_next = 0;
  RefreshPeerRates();
}

TargetId Pool::AddTarget(TargetState state) {
  state.in_use = true;
  const std::uint64_t capacity_blocks = state.spec.kv_capacity_tokens / routing_block_size();
  // What a worker says of its capacity bounds no memory of ours.
  const std::uint64_t predicted_bound =
      capacity_blocks > 0 ? std::min(capacity_blocks, config_.predicted_bound_blocks)
                          : config_.predicted_bound_blocks;
  TargetId target;
  if (free_targets_.empty()) {
    target = static_cast<TargetId>(targets_.size());
    targets_.emplace_back();
  } else {
    target = free_targets_.back();
    free_targets_.pop_back();
  }
  ledger_->AddTarget(target, state.spec.has_events, predicted_bound);
  targets_[target] = std::move(state);
  return target;
}

void Pool::RemoveTarget(TargetId target, absl::Time now) {
  if (target >= targets_.size() || !targets_[target].in_use) return;
  ledger_->RemoveTarget(target, now);
  targets_[target] = TargetState();
  free_targets_.push_back(target);
  RefreshPeerRates();
}

}  // namespace warmpath
