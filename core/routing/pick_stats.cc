#include "core/routing/pick_stats.h"

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "core/routing/picker.h"

namespace warmpath {
namespace {

constexpr std::size_t kFreshnessCount = 3;

}  // namespace

void CountPick(std::size_t policy, PickReason reason, Freshness freshness, PickState& state) {
  if (state.picks.empty()) {
    state.picks.resize(AllPolicies().size() * kPickReasonCount * kFreshnessCount);
  }
  ++state.picks[(policy * kPickReasonCount + static_cast<std::size_t>(reason)) * kFreshnessCount +
                static_cast<std::size_t>(freshness)];
}

std::vector<PickCount> PickCountsOf(const Fleet& fleet) {
  std::vector<PickCount> counts;
  for (const std::shared_ptr<Pool>& pool : fleet.Pools()) {
    std::vector<std::uint64_t> picks;
    {
      absl::MutexLock lock(&pool->mu());
      picks = pool->pick_state().picks;
    }
    for (std::size_t i = 0; i < picks.size(); ++i) {
      if (picks[i] == 0) continue;
      const std::size_t pair = i / kFreshnessCount;
      const auto reason = static_cast<PickReason>(pair % kPickReasonCount);
      counts.push_back(
          PickCount{.pool = pool->name(),
                    .policy = std::string(AllPolicies()[pair / kPickReasonCount]->name()),
                    .reason = std::string(PickReasonName(reason)),
                    .freshness = static_cast<Freshness>(i % kFreshnessCount),
                    .count = picks[i]});
    }
  }
  return counts;
}

std::vector<PoolTraffic> TrafficOf(const Fleet& fleet) {
  std::vector<PoolTraffic> all;
  for (const std::shared_ptr<Pool>& pool : fleet.Pools()) {
    PoolTraffic traffic;
    traffic.pool = pool->name();
    std::array<std::uint64_t, kCloseCauseCount> closed{};
    {
      absl::MutexLock lock(&pool->mu());
      const PickState& state = pool->pick_state();
      traffic.prompt_tokens = state.prompt_tokens;
      traffic.matched_tokens = state.matched_tokens;
      traffic.predicted_cached_tokens = state.predicted_cached_tokens;
      traffic.actual_cached_tokens = state.actual_cached_tokens;
      traffic.shed = state.shed;
      traffic.not_finite = state.not_finite;
      // No ledger before the first registration has fixed the block size.
      if (pool->routing_block_size() != 0) {
        traffic.reservations_opened = pool->ledger().opened();
        traffic.reservations_open = pool->ledger().open();
        closed = pool->ledger().closed();
      }
    }
    for (std::size_t i = 0; i < closed.size(); ++i) {
      traffic.closed_by_cause.emplace_back(CloseCauseName(static_cast<CloseCause>(i)), closed[i]);
    }
    all.push_back(std::move(traffic));
  }
  return all;
}

}  // namespace warmpath
