#include "core/routing/cost_policies.h"

namespace warmpath {

void ScoreByCost(const PolicyContext& context, std::size_t first, std::size_t last,
                 CandidateTable& candidates) {
  MarginalCosts(context.costs, candidates.costs(), first, last, candidates.scores().data());
  if (!context.tenant.charges()) return;
  for (std::size_t i = first; i < last; ++i) {
    candidates.scores()[i] +=
        context.tenant.Seconds(candidates.target(i), candidates.InputOf(i, context.costs));
  }
}

// Both return kCost; the picker tells apart what became of the prefix once the winner is verified.
PickReason MarginalCostPolicy::Score(const PolicyInput& /*input*/, const PolicyContext& context,
                                     CandidateTable& candidates) const {
  ScoreByCost(context, 0, candidates.size(), candidates);
  return PickReason::kCost;
}

void MarginalCostPolicy::Rescore(const PolicyContext& context, std::size_t candidate,
                                 CandidateTable& candidates) const {
  ScoreByCost(context, candidate, candidate + 1, candidates);
}

PickReason MinTtftPolicy::Score(const PolicyInput& /*input*/, const PolicyContext& context,
                                CandidateTable& candidates) const {
  TimesToFirstToken(context.costs, candidates.costs(), 0, candidates.size(),
                    candidates.scores().data());
  return PickReason::kCost;
}

void MinTtftPolicy::Rescore(const PolicyContext& context, std::size_t candidate,
                            CandidateTable& candidates) const {
  TimesToFirstToken(context.costs, candidates.costs(), candidate, candidate + 1,
                    candidates.scores().data());
}

}  // namespace warmpath
