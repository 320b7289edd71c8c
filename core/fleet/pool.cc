#include "core/fleet/pool.h"

#include <algorithm>
#include <limits>
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

// Upper median, so that one of two capacities is the larger: capacity is what is not scarce.
std::uint64_t MedianCapacity(std::span<const TargetState> targets) {
  std::vector<std::uint64_t> known;
  for (const TargetState& target : targets) {
    if (target.in_use && target.spec.kv_capacity_tokens > 0) {
      known.push_back(target.spec.kv_capacity_tokens);
    }
  }
  if (known.empty()) return 0;
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>(known.size() / 2);
  std::nth_element(known.begin(), middle, known.end());
  return *middle;
}

// `median_capacity` stands in where the target tells none; 0: nobody tells any.
PickRow RowOf(const TargetState& state, const PeerRates& peers, std::uint64_t median_capacity) {
  const std::uint64_t own = state.spec.kv_capacity_tokens;
  const std::uint64_t capacity = own > 0 ? own : median_capacity;
  return PickRow{.eligible = state.eligible(),
                 .capacity_known = own > 0,
                 .freshness = state.freshness(),
                 .slot = state.slot,
                 .rate = RateInUse(state.rate, state.spec.prefill_tokens_per_s, peers),
                 .kv_capacity = capacity > 0 ? static_cast<double>(capacity)
                                             : std::numeric_limits<double>::infinity()};
}

}  // namespace

std::vector<PickRow> PickRowsOf(std::span<const TargetState> targets, const PeerRates& peers) {
  const std::uint64_t median_capacity = MedianCapacity(targets);
  std::vector<PickRow> rows;
  rows.reserve(targets.size());
  for (const TargetState& state : targets) rows.push_back(RowOf(state, peers, median_capacity));
  return rows;
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
  // Up to an eighth of the index's bound: 8 bytes for each block, in the overlay's runs.
  options.max_chain_blocks =
      std::max(std::uint64_t{1} << 20, std::uint64_t{config_.index_bound_bytes} / 64);
  if (!config_.overlay) options.max_chain_blocks = 0;
  ledger_ = LoadLedger::Create(options);
  block_size_.store(tokens, std::memory_order_release);
}

void Pool::Edit(TargetId target, absl::FunctionRef<void(TargetState&)> edit) {
  TargetState& state = targets_[target];
  const std::uint64_t capacity = state.spec.kv_capacity_tokens;
  const double hint = state.spec.prefill_tokens_per_s;
  edit(state);
  if (state.spec.kv_capacity_tokens != capacity) rows_stale_ = true;
  // Another hint is another share of it, for the peers too.
  if (state.spec.prefill_tokens_per_s != hint) RefreshPeerRates();
  UpdateRow(target);
}

void Pool::UpdateRow(TargetId target) {
  rows_[target] = RowOf(targets_[target], peer_rates_, median_capacity_);
}

void Pool::RefreshRows() {
  median_capacity_ = MedianCapacity(targets_);
  double sum = 0;
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  std::size_t count = 0;
  for (TargetId target = 0; target < targets_.size(); ++target) {
    UpdateRow(target);
    if (!targets_[target].in_use) continue;
    const double rate = rows_[target].rate;
    sum += rate;
    least = std::min(least, rate);
    most = std::max(most, rate);
    ++count;
  }
  mean_rate_ = count == 0 ? 0 : sum / static_cast<double>(count);
  unequal_ = most > kUnequal * least;
  rows_stale_ = false;
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
  rows_stale_ = true;
}

void Pool::ObservePrefill(TargetId target, double work, double seconds) {
  LearnedRate& rate = targets_[target].rate;
  const bool knew = rate.tokens_per_s() > 0;
  rate.Observe(work, seconds);
  if (rate.tokens_per_s() == 0) return;
  UpdateRow(target);
  // The first word of a target counts at once.
  if (++observed_ * 2 >= targets_.size() || !knew) RefreshPeerRates();
}

void Pool::ForgetOutcomes(TargetId target) {
  TargetState& state = targets_[target];
  state.rate.Reset();
  state.copy_rate.Reset();
  state.drifting = false;
  state.shortfalls.clear();
  state.shortfall_next = 0;
  RefreshPeerRates();  // and so all rows
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
    rows_.emplace_back();
  } else {
    target = free_targets_.back();
    free_targets_.pop_back();
  }
  ledger_->AddTarget(target, state.spec.has_events, predicted_bound);
  targets_[target] = std::move(state);
  rows_stale_ = true;
  return target;
}

void Pool::RemoveTarget(TargetId target, absl::Time now) {
  if (target >= targets_.size() || !targets_[target].in_use) return;
  ledger_->RemoveTarget(target, now);
  targets_[target] = TargetState();
  free_targets_.push_back(target);
  RefreshPeerRates();  // and so all rows
}

}  // namespace warmpath
