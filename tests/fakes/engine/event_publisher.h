// The ZeroMQ side of one rank, as vLLM's ZmqEventPublisher: a PUB socket with frames
// [topic][sequence, 8 bytes big-endian][payload] and, if asked for, a ROUTER socket that replays
// the last `buffer_steps` messages. It can lose messages on purpose: those are counted, take a
// sequence number and stay in the replay buffer, but never leave the PUB socket.
//
// Publish() has one caller at a time; everything else is thread-safe. Replay requests are served
// by a thread of its own, so they are answered while the engine computes or sleeps.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_EVENT_PUBLISHER_H_
#define WARMPATH_TESTS_FAKES_ENGINE_EVENT_PUBLISHER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/random.h"
#include "zmq.hpp"

namespace warmpath::engine {

// Replies of the replay socket, after the empty delimiter: [seq][payload] before vLLM 0.26
// (kOld), [topic][seq][payload] since (#45177, kNew).
enum class ReplayShape : std::uint8_t { kOld, kNew };

// "old" or "new".
absl::StatusOr<ReplayShape> ParseReplayShape(std::string_view name);

struct PublisherOptions {
  std::string endpoint;         // "tcp://127.0.0.1:5557"; port 0 takes a free one.
  std::string replay_endpoint;  // Empty: no replay.
  std::string topic;
  std::size_t buffer_steps = 10'000;
  ReplayShape replay_shape = ReplayShape::kNew;
  int replay_hwm = 1'000;  // Messages queued per reader before more are lost; 0 = no bound.
  double drop_rate = 0;
  std::uint64_t drop_seed = 0;
  std::vector<std::uint64_t> drop_seqs;
};

class EventPublisher {
 public:
  // UNAVAILABLE names the endpoint that could not be bound. The context must outlive the publisher.
  static absl::StatusOr<std::unique_ptr<EventPublisher>> Create(zmq::context_t* context,
                                                                const PublisherOptions& options);
  ~EventPublisher();

  EventPublisher(const EventPublisher&) = delete;
  EventPublisher& operator=(const EventPublisher&) = delete;

  // Sends one message; returns its sequence number (0, 1, 2, ...).
  std::uint64_t Publish(std::string payload);

  // The next `count` messages are lost, whatever the drop rate.
  void DropNext(std::uint64_t count);
  void SetDropRate(double rate);

  std::vector<std::uint64_t> dropped() const;  // At most the last 1,000 sequence numbers.
  // Where the sockets really listen.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  EventPublisher(zmq::context_t* context, const PublisherOptions& options);

  absl::Status Bind();
  bool DrawDrop(std::uint64_t seq) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ServeReplay();
  void Replay(const zmq::message_t& identity, std::uint64_t from);

  struct Message {
    std::uint64_t seq = 0;
    std::shared_ptr<const std::string> payload;
  };

  const PublisherOptions options_;
  const absl::flat_hash_set<std::uint64_t> drop_seqs_;
  zmq::socket_t pub_;
  zmq::socket_t router_;
  std::string endpoint_;
  std::string replay_endpoint_;
  int stop_fd_ = -1;  // An eventfd: wakes the replay thread for the last time.
  std::thread replay_thread_;

  mutable absl::Mutex mu_;
  std::deque<Message> buffer_ ABSL_GUARDED_BY(mu_);
  std::uint64_t next_seq_ ABSL_GUARDED_BY(mu_) = 0;
  std::uint64_t drop_next_ ABSL_GUARDED_BY(mu_) = 0;
  double drop_rate_ ABSL_GUARDED_BY(mu_);
  Random random_ ABSL_GUARDED_BY(mu_);
  std::deque<std::uint64_t> dropped_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_EVENT_PUBLISHER_H_
