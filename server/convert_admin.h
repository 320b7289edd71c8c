// What the fleet knows -> admin.proto.
#ifndef WARMPATH_SERVER_CONVERT_ADMIN_H_
#define WARMPATH_SERVER_CONVERT_ADMIN_H_

#include "absl/time/time.h"
#include "core/fleet/fleet.h"
#include "core/fleet/worker.h"
#include "warmpath/v1/admin.pb.h"

namespace warmpath {

v1::Freshness FreshnessToProto(Freshness freshness);
// The first cause; UNSPECIFIED for an empty set.
v1::FreshnessCause CauseToProto(CauseSet causes);

// `now` is the steady time that ages are counted to.
void WorkerToProto(const WorkerView& worker, absl::Time now, v1::WorkerInfo* message);
void PoolStatsToProto(const PoolView& pool, v1::PoolIndexStats* message);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_CONVERT_ADMIN_H_
