// The targets of one pick: who may be chosen, why others may not, and each one's cost terms.
#ifndef WARMPATH_CORE_ROUTING_CANDIDATES_H_
#define WARMPATH_CORE_ROUTING_CANDIDATES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/fleet/pool.h"
#include "core/fleet/prefill_rate.h"
#include "core/index/index.h"
#include "core/routing/candidate_table.h"
#include "core/routing/cost.h"
#include "core/routing/decision.h"
#include "core/routing/endpoint_filter.h"
#include "core/routing/query.h"
#include "core/routing/tenant_charge.h"

namespace warmpath {

// What the index knows of the query's chain, by slot; filled without a lock.
class EventDepths {
 public:
  // With `slow_tiers` also what lies in other tiers than the GPU's.
  void Match(const Index& index, std::span<const ChainHash> chain, bool slow_tiers);
  // Blocks in the GPU.
  std::uint32_t Of(Slot slot) const { return slot < depth_.size() ? depth_[slot] : 0; }
  // How many of a slot's blocks are known for certain, as of the match.
  std::uint32_t SeenOf(Slot slot) const {
    return static_cast<std::uint32_t>(std::min<std::size_t>(Of(slot), match_.exact_to));
  }
  // Some of the chain was found in a slower tier, of whichever slot.
  bool has_slow_tiers() const { return has_slow_tiers_; }
  // All tiers; null when the slot holds nothing. REQUIRES: has_slow_tiers().
  const SlotMatch* TiersOf(Slot slot) const {
    if (slot >= place_.size() || place_[slot] >= tiers_.slots.size()) return nullptr;
    const SlotMatch& match = tiers_.slots[place_[slot]];
    return match.slot == slot ? &match : nullptr;
  }

 private:
  void MatchTiers(const Index& index, std::span<const ChainHash> chain);

  MatchSegments match_;
  std::vector<std::uint32_t> depth_;
  bool has_slow_tiers_ = false;
  MatchResult tiers_;
  std::vector<std::uint32_t> place_;  // by slot, in tiers_.slots; older matches' entries remain
};

// A target that is no candidate, for the explanation.
struct LeftOut {
  TargetId target = kNoTarget;
  std::string_view why;  // static text
};

// Buffers of one pick, kept from pick to pick by each thread so that none is allocated while the
// pool's mutex is held. Holds nothing of meaning between picks.
struct PickScratch {
  EventDepths events;
  std::vector<std::uint32_t> written;  // by TargetId
  CandidateTable candidates;
  std::vector<LeftOut> left_out;       // only for an explanation
  std::vector<std::uint32_t> order;    // places in candidates
  std::vector<EndpointRef> endpoints;  // the chosen one and its fallbacks
};

// What all candidates of a pick share.
struct PickInputs {
  std::uint32_t block_size = 0;
  std::uint64_t prompt_tokens = 0;
  double output_tokens = 0;  // o
  absl::Duration max_wait;   // zero: off
  PoolAverages averages;
  double pool_rate = 0;  // Pool::mean_rate()
  bool unequal = false;  // Pool::unequal()
  TenantCharge tenant = {};

  CostShared costs() const {
    return CostShared{.prompt_tokens = prompt_tokens,
                      .output_tokens = output_tokens,
                      .residence_s = averages.residence_s,
                      .rho = averages.rho,
                      .pool_rate = pool_rate,
                      .unequal = unequal,
                      .ctx_half = kDefaultCtxHalf};
  }
};

// h in tokens: full blocks, but at least one token is always computed.
inline std::uint64_t CachedTokens(std::uint32_t blocks, const PickInputs& inputs) {
  if (inputs.prompt_tokens == 0) return 0;
  return std::min(std::uint64_t{blocks} * inputs.block_size, inputs.prompt_tokens - 1);
}

// Fills scratch->candidates, ordered by target, none at its limit; and, for an explanation, who is
// left out. An error says why there is none; *retry_after is set when waiting helps.
absl::Status FindCandidates(Pool& pool, const Query& query, const EndpointFilter& filter,
                            const PickInputs& inputs, absl::Time now, PickScratch* scratch,
                            absl::Duration* retry_after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool.mu());

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_CANDIDATES_H_
