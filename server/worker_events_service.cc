#include "server/worker_events_service.h"

#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "server/worker_stream.h"
#include "warmpath/v1/worker_events.grpc.pb.h"

namespace warmpath {
namespace {

// "ipv4:10.0.0.1:5000" and "ipv6:%5B::1%5D:5000" -> what people write.
std::string PeerAddress(const std::string& peer) {
  std::string address = peer;
  if (absl::StartsWith(address, "ipv4:") || absl::StartsWith(address, "ipv6:")) {
    address.erase(0, 5);
  }
  return absl::StrReplaceAll(address, {{"%5B", "["}, {"%5D", "]"}});
}

class WorkerEventsService final : public v1::WorkerEvents::CallbackService {
 public:
  WorkerEventsService(Fleet* fleet, HeartbeatSlots* heartbeats, ReactorRegistry* streams)
      : fleet_(fleet), heartbeats_(heartbeats), streams_(streams) {}

  grpc::ServerBidiReactor<v1::WorkerUpdate, v1::RouterUpdate>* Publish(
      grpc::CallbackServerContext* context) override {
    auto* stream = new WorkerStream(fleet_, heartbeats_, PeerAddress(context->peer()));
    stream->Begin(streams_);
    return stream;
  }

 private:
  Fleet* const fleet_;
  HeartbeatSlots* const heartbeats_;
  ReactorRegistry* const streams_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerEventsService(Fleet* fleet, HeartbeatSlots* heartbeats,
                                                       ReactorRegistry* streams) {
  return std::make_unique<WorkerEventsService>(fleet, heartbeats, streams);
}

}  // namespace warmpath
