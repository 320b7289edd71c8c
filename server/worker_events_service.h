// warmpath.v1.WorkerEvents over gRPC's callback API.
#ifndef WARMPATH_SERVER_WORKER_EVENTS_SERVICE_H_
#define WARMPATH_SERVER_WORKER_EVENTS_SERVICE_H_

#include <memory>

#include "core/fleet/fleet.h"
#include "server/heartbeat_slots.h"
#include "server/reactor_registry.h"

namespace grpc {
class Service;
}

namespace warmpath {

// All three must outlive the service; `heartbeats` is what agents are told to keep.
std::unique_ptr<grpc::Service> MakeWorkerEventsService(Fleet* fleet, HeartbeatSlots* heartbeats,
                                                       ReactorRegistry* streams);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_WORKER_EVENTS_SERVICE_H_
