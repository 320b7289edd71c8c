#include "core/routing/sticky_policies.h"

#include <cstddef>
#include <span>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/base/status.h"
#include "core/routing/cost_policies.h"
#include "core/routing/prefix_key.h"

namespace warmpath {
namespace {

// Behind every count of requests.
constexpr double kBehind = 1e12;

// A target's draw for a key: the highest takes it. Depends on nothing but the two names.
std::uint64_t Draw(std::uint64_t key, const TargetState& state) {
  return XXH3_64bits_withSeed(state.worker_id.data(), state.worker_id.size(),
                              key + state.spec.rank * 0x9e3779b97f4a7c15ULL);
}

// Targets that still load their snapshot take no keys while any other is there: they would only
// move keys twice.
bool TakesKeys(const TargetState& state, bool any_ready) {
  return !any_ready || state.lifecycle == Lifecycle::kReady;
}

bool AnyReady(const PolicyContext& context, const CandidateTable& candidates) {
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (context.targets[candidates.target(i)].lifecycle == Lifecycle::kReady) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<PolicyInput> PrefixAwarePolicy::Prepare(const Query& query,
                                                       const PoolConfig& config) const {
  WARMPATH_ASSIGN_OR_RETURN(PrefixKey key, MakePrefixKey(query, config.prefix_aware.prefix_length));
  return PolicyInput{.has_key = true, .key = key.hash, .note = std::move(key.note)};
}

PickReason PrefixAwarePolicy::Score(const PolicyInput& input, const PolicyContext& context,
                                    CandidateTable& candidates) const {
  constexpr std::size_t kNobody = ~std::size_t{0};
  const bool any_ready = AnyReady(context, candidates);
  const std::span<double> scores = candidates.scores();
  std::size_t chosen = kNobody;
  std::uint64_t highest = 0;
  bool all_at_threshold = true;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const TargetState& state = context.targets[candidates.target(i)];
    scores[i] = candidates.inflight(i);
    candidates.SetAtLimit(
        i, candidates.inflight(i) >= context.config.prefix_aware.concurrency_threshold);
    all_at_threshold = all_at_threshold && candidates.at_limit(i);
    if (!TakesKeys(state, any_ready)) continue;
    const std::uint64_t draw = Draw(input.key, state);
    if (chosen == kNobody || draw > highest) {
      chosen = i;
      highest = draw;
    }
  }
  if (all_at_threshold) return PickReason::kAllAtThreshold;
  if (candidates.at_limit(chosen)) {
    scores[chosen] = kBehind;
    return PickReason::kOverflow;
  }
  scores[chosen] = -1;
  return PickReason::kPrefixKey;
}

absl::StatusOr<PolicyInput> SessionPolicy::Prepare(const Query& query,
                                                   const PoolConfig& /*config*/) const {
  if (query.session_key.empty()) {
    return PolicyInput{.note = "session: the request has no session_key; chosen by cost"};
  }
  return PolicyInput{.has_key = true,
                     .key = XXH3_64bits(query.session_key.data(), query.session_key.size())};
}

PickReason SessionPolicy::Score(const PolicyInput& input, const PolicyContext& context,
                                CandidateTable& candidates) const {
  if (!input.has_key) {
    ScoreByCost(context, 0, candidates.size(), candidates);
    return PickReason::kNoSessionKey;
  }
  const bool any_ready = AnyReady(context, candidates);
  const std::span<double> scores = candidates.scores();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const TargetState& state = context.targets[candidates.target(i)];
    const std::uint64_t draw = Draw(input.key, state);
    // Fallbacks follow in the order in which the key would move.
    scores[i] = 1.0 - static_cast<double>(draw) * 0x1.0p-64 + (TakesKeys(state, any_ready) ? 0 : 1);
  }
  return PickReason::kSession;
}

// Only without a key: by cost.
void SessionPolicy::Rescore(const PolicyContext& context, std::size_t candidate,
                            CandidateTable& candidates) const {
  ScoreByCost(context, candidate, candidate + 1, candidates);
}

}  // namespace warmpath
