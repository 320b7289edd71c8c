#include "core/routing/sticky_policies.h"

#include <algorithm>
#include <string>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/base/status.h"
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
bool TakesKeys(const Candidate& candidate, bool any_ready) {
  return !any_ready || candidate.state->lifecycle == Lifecycle::kReady;
}

bool AnyReady(std::span<const Candidate> candidates) {
  return std::any_of(candidates.begin(), candidates.end(),
                     [](const Candidate& c) { return c.state->lifecycle == Lifecycle::kReady; });
}

}  // namespace

absl::StatusOr<PolicyInput> PrefixAwarePolicy::Prepare(const Query& query,
                                                       const PoolConfig& config) const {
  WARMPATH_ASSIGN_OR_RETURN(PrefixKey key, MakePrefixKey(query, config.prefix_aware.prefix_length));
  return PolicyInput{.has_key = true, .key = key.hash, .note = std::move(key.note)};
}

PickReason PrefixAwarePolicy::Score(const PolicyInput& input, const PolicyContext& context,
                                    std::span<Candidate> candidates) const {
  const bool any_ready = AnyReady(candidates);
  Candidate* chosen = nullptr;
  std::uint64_t highest = 0;
  bool all_at_threshold = true;
  for (Candidate& candidate : candidates) {
    candidate.score = candidate.load.inflight;
    candidate.at_limit =
        candidate.load.inflight >= context.config.prefix_aware.concurrency_threshold;
    all_at_threshold = all_at_threshold && candidate.at_limit;
    if (!TakesKeys(candidate, any_ready)) continue;
    const std::uint64_t draw = Draw(input.key, *candidate.state);
    if (chosen == nullptr || draw > highest) {
      chosen = &candidate;
      highest = draw;
    }
  }
  if (all_at_threshold) return PickReason::kAllAtThreshold;
  if (chosen->at_limit) {
    chosen->score = kBehind;
    return PickReason::kOverflow;
  }
  chosen->score = -1;
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

PickReason SessionPolicy::Score(const PolicyInput& input, const PolicyContext& /*context*/,
                                std::span<Candidate> candidates) const {
  if (!input.has_key) {
    for (Candidate& candidate : candidates) candidate.score = candidate.terms.Sum();
    return PickReason::kNoSessionKey;
  }
  const bool any_ready = AnyReady(candidates);
  for (Candidate& candidate : candidates) {
    const std::uint64_t draw = Draw(input.key, *candidate.state);
    // Fallbacks follow in the order in which the key would move.
    candidate.score =
        1.0 - static_cast<double>(draw) * 0x1.0p-64 + (TakesKeys(candidate, any_ready) ? 0 : 1);
  }
  return PickReason::kSession;
}

}  // namespace warmpath
