// warmpath.v1.Router over gRPC's callback API: an adapter around PickBackend.
#ifndef WARMPATH_SERVER_ROUTER_SERVICE_H_
#define WARMPATH_SERVER_ROUTER_SERVICE_H_

#include <memory>

#include "server/pick_backend.h"
#include "server/reactor_registry.h"
#include "server/work_pool.h"

namespace grpc {
class Service;
}

namespace warmpath {

// All must outlive the service. Picks on token ids and hashes run on the calling thread; heavy ones
// on `pool`.
std::unique_ptr<grpc::Service> MakeRouterService(PickBackend* backend, WorkPool* pool,
                                                 ReactorRegistry* streams);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_ROUTER_SERVICE_H_
