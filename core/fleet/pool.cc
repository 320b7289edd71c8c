#include "core/fleet/pool.h"

#include <algorithm>
#include <utility>

namespace warmpath {

double MedianLearnedRate(std::span<const TargetState> targets) {
  std::vector<double> rates;
  for (const TargetState& target : targets) {
    const double rate = target.rate.tokens_per_s();
    if (target.in_use && rate > 0) rates.push_back(rate);
  }
  if (rates.empty()) return 0;
  // The lower median of an even number: errs low.
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>((rates.size() - 1) / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

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
  ledger_ = LoadLedger::Create(options);
  block_size_.store(tokens, std::memory_order_release);
}

TargetId Pool::AddTarget(TargetState state) {
  state.in_use = true;
  const std::uint64_t capacity_blocks = state.spec.kv_capacity_tokens / routing_block_size();
  const std::uint64_t predicted_bound =
      capacity_blocks > 0 ? capacity_blocks : config_.predicted_bound_blocks;
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
}

}  // namespace warmpath
