// warmpath.v1.WorkerEvents over gRPC's callback API.
#ifndef WARMPATH_SERVER_WORKER_EVENTS_SERVICE_H_
#define WARMPATH_SERVER_WORKER_EVENTS_SERVICE_H_

#include <memory>

#include "absl/time/time.h"
#include "core/fleet/fleet.h"
#include "server/reactor_registry.h"

namespace grpc {
class Service;
}

namespace warmpath {

// `fleet` and `streams` must outlive the service; `heartbeat` is what agents are told to keep.
std::unique_ptr<grpc::Service> MakeWorkerEventsService(Fleet* fleet, absl::Duration heartbeat,
                                                       ReactorRegistry* streams);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_WORKER_EVENTS_SERVICE_H_
