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
#include "core/fleet/load_ledger.h"
#include "core/fleet/pool.h"
#include "core/routing/cost.h"
#include "core/routing/query.h"

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

// One target that could be picked. Lives for one pick, under the pool's mutex.
struct Candidate {
  TargetId target = kNoTarget;
  const TargetState* state = nullptr;
  TargetLoad load;
  CostInput input;
  CostTerms terms;
  std::uint32_t event_blocks = 0;    // leading blocks by the index's match, not verified
  std::uint32_t written_blocks = 0;  // by what picks wrote: in flight and predicted
  Freshness freshness = Freshness::kNone;
  bool verified = false;
  // Set by the policy.
  double score = 0;
  bool at_limit = false;  // may be chosen when nobody else is left, but is no fallback
};

// What a policy may look at. `key` is what Prepare returned.
struct PolicyContext {
  std::uint64_t key = 0;
  const PoolConfig& config;
  PickState& state;
  Random& random;
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

  // True when a corrected match changes the choice. Then Score must judge each candidate by itself.
  virtual bool ScoresMatch(const PolicyInput& /*input*/) const { return false; }

  // Sets the score of each candidate. REQUIRES: candidates not empty, ordered by target.
  virtual PickReason Score(const PolicyInput& input, const PolicyContext& context,
                           std::span<Candidate> candidates) const = 0;

 protected:
  ~Policy() = default;
};

// In the order of documentation; the default first.
std::span<const Policy* const> AllPolicies();

// Position in AllPolicies() by name or alias; INVALID_ARGUMENT listing the names.
absl::StatusOr<std::size_t> FindPolicy(std::string_view name);

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_POLICY_H_
