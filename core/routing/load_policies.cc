#include "core/routing/load_policies.h"

namespace warmpath {
namespace {

// Behind every count of requests, so that whoever is not meant to win still has an order.
constexpr double kBehind = 1e12;

}  // namespace

PickReason RoundRobinPolicy::Score(const PolicyInput& /*input*/, const PolicyContext& context,
                                   CandidateTable& candidates) const {
  // Distance in a ring of 2^32 from the one after the last; kNoTarget + 1 is 0.
  const std::span<double> scores = candidates.scores();
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = static_cast<double>(candidates.target(i) - (context.state.last_turn + 1u));
  }
  return PickReason::kTurn;
}

PickReason RandomPolicy::Score(const PolicyInput& /*input*/, const PolicyContext& context,
                               CandidateTable& candidates) const {
  for (double& score : candidates.scores()) score = context.random.Unit();
  return PickReason::kRandom;
}

PickReason LeastOutstandingPolicy::Score(const PolicyInput& /*input*/,
                                         const PolicyContext& /*context*/,
                                         CandidateTable& candidates) const {
  const std::span<double> scores = candidates.scores();
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = candidates.inflight(i);
  return PickReason::kLeastOutstanding;
}

PickReason PowerOfTwoPolicy::Score(const PolicyInput& /*input*/, const PolicyContext& context,
                                   CandidateTable& candidates) const {
  const std::size_t n = candidates.size();
  const std::size_t first = context.random.Below(n);
  std::size_t second = first;
  if (n > 1) {
    second = context.random.Below(n - 1);
    if (second >= first) ++second;
  }
  const std::span<double> scores = candidates.scores();
  for (std::size_t i = 0; i < n; ++i) {
    scores[i] = candidates.inflight(i) + (i == first || i == second ? 0 : kBehind);
  }
  return PickReason::kTwoChoices;
}

}  // namespace warmpath
