// warmpath.v1.Admin over gRPC's callback API: what operators see and do.
#ifndef WARMPATH_SERVER_ADMIN_SERVICE_H_
#define WARMPATH_SERVER_ADMIN_SERVICE_H_

#include <memory>
#include <string>

#include "core/base/clock.h"
#include "core/fleet/fleet.h"
#include "server/pick_backend.h"
#include "server/work_pool.h"

namespace grpc {
class Service;
}

namespace warmpath {

// All must outlive the service. `config_yaml` is the effective configuration. Dumps and lists,
// which walk whole pools, run on `pool`, not on gRPC's threads.
std::unique_ptr<grpc::Service> MakeAdminService(Fleet* fleet, PickBackend* backend, WorkPool* pool,
                                                const Clock* clock, std::string config_yaml);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_ADMIN_SERVICE_H_
