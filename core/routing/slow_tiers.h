// What a prompt's blocks in slower tiers than the GPU's are worth at one target.
//
// An engine uses the leading run that its GPU holds, then copies into the GPU what goes on in host
// memory, and computes the rest. So a block there saves its computation and costs its copy:
//
//   T = (tokens of the run in host memory + 4 * those on disk or elsewhere) / copy rate
//
// The run counts as held where T is less than the prefill that it saves, and else not at all. What
// lies behind the first block that is not in the GPU is copied, wherever else it is.
#ifndef WARMPATH_CORE_ROUTING_SLOW_TIERS_H_
#define WARMPATH_CORE_ROUTING_SLOW_TIERS_H_

#include <cstdint>

#include "absl/time/time.h"
#include "core/fleet/pool.h"
#include "core/index/index.h"
#include "core/routing/candidate_table.h"
#include "core/routing/candidates.h"

namespace warmpath {

// How many times longer than from host memory a copy from disk or from other machines takes: they
// are reached through slower links. Errs slow.
inline constexpr double kFarTiers = 4;

struct HeldPrefix {
  std::uint32_t blocks = 0;
  std::uint64_t cached_tokens = 0;  // h
  std::uint64_t copied_tokens = 0;  // of these
  std::uint64_t far_tokens = 0;     // of these: from disk or elsewhere
  double copy_s = 0;                // T
};

// `match` is what the target's events say, `written_blocks` what picks wrote: those are in the GPU
// or on their way into it. Rates in tokens/s.
HeldPrefix HeldWithSlowTiers(const SlotMatch& match, std::uint32_t written_blocks,
                             double prefill_rate, double copy_rate, const PickInputs& inputs);

// The same of all candidates, for a chain that the index has in other tiers, too.
void AddSlowTiers(Pool& pool, const PickInputs& inputs, absl::Time now, PickScratch* scratch)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool.mu());

// The same of one candidate, each block looked at. True when what it holds has changed.
bool CorrectSlowTiers(Pool& pool, const Query& query, const PickInputs& inputs,
                      std::size_t candidate, absl::Time now, PickScratch* scratch)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool.mu());

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_SLOW_TIERS_H_
