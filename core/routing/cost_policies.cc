#include "core/routing/cost_policies.h"

namespace warmpath {

// Both return kCost; the picker tells apart what became of the prefix once the winner is verified.
PickReason MarginalCostPolicy::Score(const PolicyInput& /*input*/, const PolicyContext& /*context*/,
                                     std::span<Candidate> candidates) const {
  for (Candidate& candidate : candidates) candidate.score = candidate.terms.Sum();
  return PickReason::kCost;
}

PickReason MinTtftPolicy::Score(const PolicyInput& /*input*/, const PolicyContext& /*context*/,
                                std::span<Candidate> candidates) const {
  for (Candidate& candidate : candidates) candidate.score = candidate.terms.TimeToFirstToken();
  return PickReason::kCost;
}

}  // namespace warmpath
