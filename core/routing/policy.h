// A policy gives each candidate a score; the least wins, ties uniformly. All else of a pick (match,
// filter, verification, reservation, explanation) is the picker's and the same for all.
#ifndef WARMPATH_CORE_ROUTING_POLICY_H_
#define WARMPATH_CORE_ROUTING_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/random.h"
#include "core/fleet/fleet.h"
#include "core/fleet/pool.h"
#include "core/routing/candidate_table.h"
#include "core/routing/cost.h"
#include "core/routing/query.h"
#include "core/routing/tenant_charge.h"

namespace warmpath {

// Why a target was chosen: short, machine-readable, a metric label.
enum class PickReason : std::uint8_t {
  kPrefix,       // nobody holds more of the prompt than the chosen target
  kCost,         // somebody holds more, but there it costs more
  kNoPrefix,     // nobody holds any of it
  kShortPrompt,  // no full block to look for: by load alone
  kTurn,
  kRandom,
  kLeastOutstanding,
  kTwoChoices,
  kPrefixKey,
  kOverflow,        // the prefix key's target has reached its threshold
  kAllAtThreshold,  // all have
  kSession,
  kNoSessionKey,  // session policy without a key: chosen by cost
};
inline constexpr std::size_t kPickReasonCount = 13;
std::string_view PickReasonName(PickReason reason);

// What a policy may look at, beside the candidates.
struct PolicyContext {
  const PoolConfig& config;
  std::span<const TargetState> targets;
  CostShared costs;
  PickState& state;
  Random& random;
  TenantCharge tenant = {};
};

// What Prepare made of the query, before the pool's mutex is taken.
struct PolicyInput {
  bool has_key = false;
  std::uint64_t key = 0;
  std::string note;  // for the explanation
};

// Stateless and thread-safe; one constant per policy, never destroyed through this type.
class Policy {
 public:
  virtual std::string_view name() const = 0;
  virtual absl::StatusOr<PolicyInput> Prepare(const Query& query, const PoolConfig& config) const;

  // True when a corrected match changes the choice: then Rescore is called for it.
  virtual bool ScoresMatch(const PolicyInput& /*input*/) const { return false; }

  // Sets the score of each candidate. REQUIRES: candidates not empty.
  virtual PickReason Score(const PolicyInput& input, const PolicyContext& context,
                           CandidateTable& candidates) const = 0;
  // Sets the score of one, whose match was corrected, anew.
  virtual void Rescore(const PolicyContext& /*context*/, std::size_t /*candidate*/,
                       CandidateTable& /*candidates*/) const {}

 protected:
  ~Policy() = default;
};

// In the order of documentation; the default first.
std::span<const Policy* const> AllPolicies();

// Position in AllPolicies() by name or alias; INVALID_ARGUMENT listing the names.
absl::StatusOr<std::size_t> FindPolicy(std::string_view name);

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_POLICY_H_
