// The policies that look at load alone, or at nothing.
#ifndef WARMPATH_CORE_ROUTING_LOAD_POLICIES_H_
#define WARMPATH_CORE_ROUTING_LOAD_POLICIES_H_

#include <string_view>

#include "core/routing/policy.h"

namespace warmpath {

// Targets in turn, those that may not be picked skipped.
class RoundRobinPolicy final : public Policy {
 public:
  std::string_view name() const override { return "round_robin"; }
  PickReason Score(const PolicyInput& input, const PolicyContext& context,
                   CandidateTable& candidates) const override;
};

class RandomPolicy final : public Policy {
 public:
  std::string_view name() const override { return "random"; }
  PickReason Score(const PolicyInput& input, const PolicyContext& context,
                   CandidateTable& candidates) const override;
};

// Fewest requests in flight.
class LeastOutstandingPolicy final : public Policy {
 public:
  std::string_view name() const override { return "least_outstanding"; }
  PickReason Score(const PolicyInput& input, const PolicyContext& context,
                   CandidateTable& candidates) const override;
};

// Of two random candidates the one with fewer requests in flight.
class PowerOfTwoPolicy final : public Policy {
 public:
  std::string_view name() const override { return "power_of_two"; }
  PickReason Score(const PolicyInput& input, const PolicyContext& context,
                   CandidateTable& candidates) const override;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_LOAD_POLICIES_H_
