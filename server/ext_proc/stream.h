// ExternalProcessor.Process: one HTTP request of a proxy. Moves messages between gRPC and the
// machine that decides what to say; picks that take long run on the work pool, and the stream is
// not read from meanwhile.
#ifndef WARMPATH_SERVER_EXT_PROC_STREAM_H_
#define WARMPATH_SERVER_EXT_PROC_STREAM_H_

#include <cstddef>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "server/bidi_reactor.h"
#include "server/ext_proc/machine.h"
#include "server/work_pool.h"

namespace warmpath {

class ExtProcStream final : public BidiReactor<ProcessingRequest, ProcessingResponse> {
 public:
  // Answers that may wait for a proxy that does not read; at the limit no more is read from it.
  static constexpr std::size_t kWindow = 256;

  // All must outlive the stream; `holder` is unique in the process and not 0. At `answer_by` the
  // client is told that its request took too long to arrive.
  ExtProcStream(const ExtProcOptions* options, PickBackend* backend, ExtProcStats* stats,
                WorkPool* pool, HolderId holder, absl::Time answer_by)
      : pool_(pool),
        stats_(stats),
        answer_by_(answer_by),
        machine_(options, backend, stats, holder) {}

  // Router shutdown: a request that has its endpoint goes on without us; others get one first.
  void Drain(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu());
  void Tick(absl::Time now) override ABSL_LOCKS_EXCLUDED(mu());

 private:
  using Base = BidiReactor<ProcessingRequest, ProcessingResponse>;

  absl::Status OnMessage(ProcessingRequest& request) override;
  bool NextResponse(ProcessingResponse* response) noexcept override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());
  bool MoreResponses() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) {
    return !pending_.empty();
  }
  bool PauseReads() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) {
    return picking_ || pending_.size() >= kWindow;
  }
  void OnEnd() override { machine_.OnEnd(); }

  void PickInPool();
  // Hands the machine's answers over. Ends the stream when nothing more is to be said on it.
  void Push(ProcessingResponses answers) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu());

  WorkPool* const pool_;
  ExtProcStats* const stats_;
  const absl::Time answer_by_;

  // Used by OnMessage, by the job on the pool while picking_, and by OnEnd: never two at once.
  ExtProcMachine machine_;

  std::deque<ProcessingResponse> pending_ ABSL_GUARDED_BY(mu());
  bool picking_ ABSL_GUARDED_BY(mu()) = false;
  bool request_answered_ ABSL_GUARDED_BY(mu()) = false;
  bool draining_ ABSL_GUARDED_BY(mu()) = false;
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_EXT_PROC_STREAM_H_
