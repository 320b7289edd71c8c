// Router.PickStream: pipelined picks and outcomes of one proxy. What the stream reserved lives with
// the stream: when it ends, for whatever reason, its reservations are released (or, if the client
// introduced itself, kept 5 s for its next stream to adopt).
#ifndef WARMPATH_SERVER_PICK_STREAM_H_
#define WARMPATH_SERVER_PICK_STREAM_H_

#include <cstddef>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "server/bidi_reactor.h"
#include "server/pick_backend.h"
#include "server/work_pool.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {

class PickStream final : public BidiReactor<v1::PickStreamRequest, v1::PickStreamResponse> {
 public:
  // Responses that may wait for a client that does not read; at the limit no more is read from it.
  static constexpr std::size_t kWindow = 256;

  // `backend` and `pool` must outlive the stream; `holder` is unique in the process and not 0.
  PickStream(PickBackend* backend, WorkPool* pool, HolderId holder)
      : backend_(backend), pool_(pool), holder_(holder) {}

 private:
  absl::Status OnMessage(v1::PickStreamRequest& request) override;
  bool NextResponse(v1::PickStreamResponse* response) noexcept override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  bool MoreResponses() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) {
    return !pending_.empty();
  }
  bool PauseReads() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) {
    return pending_.size() + in_pool_ >= kWindow;
  }
  void OnEnd() override { backend_->ReleaseHolder(holder_, client_instance_); }

  void Hello(const v1::PickStreamHello& hello, v1::PickStreamResponse* response);
  void PickNow(const v1::PickRequest& request, v1::PickStreamResponse* response);
  void PickInPool(v1::PickStreamRequest& request);
  void Push(v1::PickStreamResponse response) ABSL_LOCKS_EXCLUDED(mu());

  PickBackend* const backend_;
  WorkPool* const pool_;
  const HolderId holder_;

  // Used by OnMessage and OnEnd only, which never overlap.
  std::string client_instance_;
  bool first_ = true;

  std::deque<v1::PickStreamResponse> pending_ ABSL_GUARDED_BY(mu());
  std::size_t in_pool_ ABSL_GUARDED_BY(mu()) = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_PICK_STREAM_H_
