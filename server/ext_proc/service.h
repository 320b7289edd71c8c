// envoy.service.ext_proc.v3.ExternalProcessor: the endpoint picker that Envoy-based gateways ask.
#ifndef WARMPATH_SERVER_EXT_PROC_SERVICE_H_
#define WARMPATH_SERVER_EXT_PROC_SERVICE_H_

#include <memory>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "server/config/schema.h"
#include "server/ext_proc/machine.h"
#include "server/pick_backend.h"
#include "server/reactor_registry.h"
#include "server/work_pool.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace warmpath {

// `pools`: the names of all pools. REQUIRES: the section has been checked by LoadConfig.
ExtProcOptions MakeExtProcOptions(const ExtProcSection& section,
                                  std::function<std::vector<std::string>()> pools);

// All must outlive the service. `timeout`: from a stream's start to the end of its request; zero:
// none. Call streams->TickAll about once a second.
std::unique_ptr<grpc::Service> MakeExtProcService(const ExtProcOptions* options,
                                                  absl::Duration timeout, PickBackend* backend,
                                                  ExtProcStats* stats, WorkPool* pool,
                                                  ReactorRegistry* streams, const Clock* clock);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_EXT_PROC_SERVICE_H_
