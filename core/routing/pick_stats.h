// How PickState::picks is numbered.
#ifndef WARMPATH_CORE_ROUTING_PICK_STATS_H_
#define WARMPATH_CORE_ROUTING_PICK_STATS_H_

#include <cstddef>

#include "core/fleet/pool.h"
#include "core/routing/policy.h"

namespace warmpath {

// `policy` is a position in AllPolicies().
void CountPick(std::size_t policy, PickReason reason, Freshness freshness, PickState& state);

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_PICK_STATS_H_
