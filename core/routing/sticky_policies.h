// The policies that send equal keys to equal targets, by rendezvous hashing: a target that joins or
// leaves moves only its own share of the keys.
#ifndef WARMPATH_CORE_ROUTING_STICKY_POLICIES_H_
#define WARMPATH_CORE_ROUTING_STICKY_POLICIES_H_

#include <cstddef>
#include <string_view>

#include "core/routing/policy.h"

namespace warmpath {

// Amazon SageMaker's PREFIX_AWARE: a key of the first PrefixLength units of the prompt chooses the
// target until ConcurrencyThreshold requests are in flight there; then the least outstanding of the
// others. docs/sagemaker.md.
class PrefixAwarePolicy final : public Policy {
 public:
  std::string_view name() const override { return "prefix_aware"; }
  // INVALID_ARGUMENT for a prompt of chain hashes only, and for a prefix-aware id out of bounds.
  absl::StatusOr<PolicyInput> Prepare(const Query& query, const PoolConfig& config) const override;
  PickReason Score(const PolicyInput& input, const PolicyContext& context,
                   CandidateTable& candidates) const override;
};

// Requests with one session key stay on one target while it may be picked. Without a key: by cost.
class SessionPolicy final : public Policy {
 public:
  std::string_view name() const override { return "session"; }
  absl::StatusOr<PolicyInput> Prepare(const Query& query, const PoolConfig& config) const override;
  bool ScoresMatch(const PolicyInput& input) const override { return !input.has_key; }
  PickReason Score(const PolicyInput& input, const PolicyContext& context,
                   CandidateTable& candidates) const override;
  void Rescore(const PolicyContext& context, std::size_t candidate,
               CandidateTable& candidates) const override;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_STICKY_POLICIES_H_
