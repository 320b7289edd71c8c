// The policies that score in seconds.
#ifndef WARMPATH_CORE_ROUTING_COST_POLICIES_H_
#define WARMPATH_CORE_ROUTING_COST_POLICIES_H_

#include <cstddef>
#include <string_view>

#include "core/routing/policy.h"

namespace warmpath {

// The score of all candidates in [first, last): what they cost by docs/policy.md.
void ScoreByCost(const PolicyContext& context, std::size_t first, std::size_t last,
                 CandidateTable& candidates);

// The default: predicted time to first token plus what the choice costs others.
class MarginalCostPolicy final : public Policy {
 public:
  std::string_view name() const override { return "marginal_cost"; }
  bool ScoresMatch(const PolicyInput& /*input*/) const override { return true; }
  PickReason Score(const PolicyInput& input, const PolicyContext& context,
                   CandidateTable& candidates) const override;
  void Rescore(const PolicyContext& context, std::size_t candidate,
               CandidateTable& candidates) const override;
};

// W + T + P: the predicted time to first token alone.
class MinTtftPolicy final : public Policy {
 public:
  std::string_view name() const override { return "min_ttft"; }
  bool ScoresMatch(const PolicyInput& /*input*/) const override { return true; }
  PickReason Score(const PolicyInput& input, const PolicyContext& context,
                   CandidateTable& candidates) const override;
  void Rescore(const PolicyContext& context, std::size_t candidate,
               CandidateTable& candidates) const override;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_COST_POLICIES_H_
