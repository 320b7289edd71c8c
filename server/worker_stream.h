// WorkerEvents.Publish: one worker's updates, converted and handed to the fleet one at a time. What
// the fleet sends back waits here, collapsed to the newest of each kind, so a slow agent costs no
// memory.
#ifndef WARMPATH_SERVER_WORKER_STREAM_H_
#define WARMPATH_SERVER_WORKER_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "core/fleet/feed.h"
#include "core/fleet/fleet.h"
#include "server/bidi_reactor.h"
#include "server/heartbeat_slots.h"
#include "warmpath/v1/worker_events.pb.h"

namespace warmpath {

class WorkerStream final : public BidiReactor<v1::WorkerUpdate, v1::RouterUpdate> {
 public:
  // `fleet` and `heartbeats` must outlive the stream. `peer` is the agent's address for messages
  // and operators.
  WorkerStream(Fleet* fleet, HeartbeatSlots* heartbeats, std::string peer);

 private:
  class Sink;

  absl::Status OnMessage(v1::WorkerUpdate& update) override;
  bool NextResponse(v1::RouterUpdate* response) noexcept override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  void OnEnd() override;

  absl::Status Apply(const v1::WorkerUpdate& update);
  absl::Status Register(const v1::Register& message);
  void Queue(FeedReply reply) ABSL_LOCKS_EXCLUDED(mu());

  Fleet* const fleet_;
  HeartbeatSlots* const heartbeats_;
  const std::string peer_;
  const std::shared_ptr<Sink> sink_;

  // Used by OnMessage and OnEnd only, which never overlap.
  std::unique_ptr<WorkerFeed> feed_;
  std::string worker_id_;

  std::optional<std::size_t> heartbeat_slot_ ABSL_GUARDED_BY(mu());  // taken once it is told
  std::optional<RegisteredReply> registered_ ABSL_GUARDED_BY(mu());
  std::map<Rank, ResyncReply> resyncs_ ABSL_GUARDED_BY(mu());  // ranks of this worker at most
  std::optional<DrainReply> drain_reply_ ABSL_GUARDED_BY(mu());
  std::optional<std::uint64_t> ack_ ABSL_GUARDED_BY(mu());  // cumulative: only the last counts
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_WORKER_STREAM_H_
