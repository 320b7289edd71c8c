// Keeps one worker registered at one router: opens the Publish stream, carries what its
// RouterSession has to say, reconnects. The way into gRPC for the agent's engine threads.
//
// Threads: gRPC's callback threads only move messages between the stream and the session, under
// the mutex. Everything else is called by the one engine thread that owns the publisher, which
// also drives its time through Tick.
#ifndef WARMPATH_CLIENT_AGENT_PUBLISH_PUBLISHER_H_
#define WARMPATH_CLIENT_AGENT_PUBLISH_PUBLISHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/agent/publish/router_session.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/random.h"

namespace grpc {
class Channel;
class Status;
}  // namespace grpc

namespace warmpath {

struct PublisherOptions {
  std::string router;  // for the log and metrics
  std::string worker;
  SessionOptions session;
  absl::Duration register_timeout = absl::Seconds(10);
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(2);
  // After a refusal that only an operator or the other agent can end.
  absl::Duration refused_backoff = absl::Seconds(5);
};

// Something the engine thread must act on.
struct PublisherEvent {
  enum class Kind : std::uint8_t {
    kRegistered,  // routing_block is the router's
    kStaleEpoch,  // the router knows larger epochs: draw new ones
  };
  Kind kind = Kind::kRegistered;
  std::uint32_t routing_block = 0;
};

// For metrics and tests: a copy, consistent at one instant.
struct PublisherView {
  std::string router;
  bool registered = false;
  std::uint32_t routing_block = 0;
  std::uint64_t delta_seq = 0;
  std::uint64_t acked = 0;
  std::size_t unacked = 0;
  std::size_t pending = 0;
  std::uint64_t streams = 0;  // begun
  std::uint64_t refused = 0;  // ended by a refusal
  std::string last_error;     // why the last stream ended
  bool draining = false;
  SessionCounts counts;
};

class Publisher {
 public:
  // `wake` is called from gRPC's threads when TakeEvents or SnapshotWanted may have an answer; it
  // must not block or call back. `clock` must outlive this.
  Publisher(PublisherOptions options, std::shared_ptr<grpc::Channel> channel, const Clock& clock,
            std::uint64_t random_seed, std::function<void()> wake);
  // Cancels the stream and waits for its end.
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  // Until it is called, nothing is opened. A change of more than epochs begins a new stream.
  void SetRegister(const v1::Register& registration) ABSL_LOCKS_EXCLUDED(mu_);
  void Offer(Rank rank, std::span<const BlockChanges> changes,
             std::optional<std::uint64_t> engine_seq, bool no_holes) ABSL_LOCKS_EXCLUDED(mu_);
  void NewEpoch(Rank rank, Epoch epoch) ABSL_LOCKS_EXCLUDED(mu_);
  void SetLoad(Rank rank, const RankLoad& load) ABSL_LOCKS_EXCLUDED(mu_);
  void SetVerdict(Rank rank, const RankVerdict& verdict) ABSL_LOCKS_EXCLUDED(mu_);

  std::vector<PublisherEvent> TakeEvents() ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<Rank> SnapshotWanted() const ABSL_LOCKS_EXCLUDED(mu_);
  void GiveSnapshot(RankSnapshot snapshot) ABSL_LOCKS_EXCLUDED(mu_);

  // This agent can not work with what the router registered: end the stream, try again later.
  void Refuse(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Opens a stream when one is due, writes what time alone makes due. At least every 100 ms.
  void Tick() ABSL_LOCKS_EXCLUDED(mu_);
  // When Tick should be called even though nothing woke anybody: heartbeats are to keep their time.
  absl::Time TickDue() const ABSL_LOCKS_EXCLUDED(mu_);

  PublisherView View() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Stream;

  void StartStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseStream(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration Backoff(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Report(const absl::Status& status, bool was_registered) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // From the stream's reactions.
  void OnRead(const v1::RouterUpdate& update) ABSL_LOCKS_EXCLUDED(mu_);
  void OnReadsEnded() ABSL_LOCKS_EXCLUDED(mu_);
  void OnWritten(bool ok) ABSL_LOCKS_EXCLUDED(mu_);
  void OnDone(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  const PublisherOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const Clock& clock_;
  const std::function<void()> wake_;
  LogEvery log_every_;

  mutable absl::Mutex mu_;
  RouterSession session_ ABSL_GUARDED_BY(mu_);
  Random random_ ABSL_GUARDED_BY(mu_);
  bool has_register_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Deleted by itself in OnDone, which sets this to null first.
  Stream* stream_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time stream_since_ ABSL_GUARDED_BY(mu_);
  absl::Time retry_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Duration backoff_ ABSL_GUARDED_BY(mu_);
  // Why this side ended the stream; rules over the status that gRPC then reports.
  std::optional<absl::Status> closed_by_us_ ABSL_GUARDED_BY(mu_);
  std::vector<PublisherEvent> events_ ABSL_GUARDED_BY(mu_);
  std::uint64_t streams_ ABSL_GUARDED_BY(mu_) = 0;
  std::uint64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
  std::string last_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_PUBLISH_PUBLISHER_H_
