// The sockets of one rank: a SUB for live events, a monitor on it that tells when the engine's end
// goes away, and a DEALER for the replay under way. Only moves bytes; what they mean is
// feed_sequencer.h's business.
//
// Wire (vLLM vllm/distributed/kv_events.py, ZmqEventPublisher):
//   live    [topic][sequence, 8 bytes big-endian][payload]
//   replay  request [""][sequence from]; replies [""][sequence][payload], since 2026-06
//           [""][topic][sequence][payload]; the end marker has sequence 2^64-1 and no payload.
#ifndef WARMPATH_CLIENT_AGENT_ENGINE_ZMQ_SOURCE_H_
#define WARMPATH_CLIENT_AGENT_ENGINE_ZMQ_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace warmpath {

// One per process; sockets must be gone before it. Thread-safe.
class ZmqContext {
 public:
  ZmqContext();
  ~ZmqContext();
  ZmqContext(const ZmqContext&) = delete;
  ZmqContext& operator=(const ZmqContext&) = delete;
  void* get() const { return context_; }

 private:
  void* const context_;
};

struct ZmqSourceOptions {
  std::string events;  // endpoint of the engine's PUB socket
  std::string replay;  // endpoint of its ROUTER socket; empty: none
  std::string topic;   // prefix; empty: everything
  // Messages that may wait in the SUB socket. Beyond it messages are lost, which shows as a gap.
  int high_water_mark = 100000;
  // A peer that sends more in one message is disconnected.
  std::int64_t max_message_bytes = std::int64_t{64} << 20;
};

struct ZmqSourceCounts {
  std::uint64_t messages = 0;
  std::uint64_t replayed = 0;
  std::uint64_t malformed = 0;  // wrong number of frames, or a sequence that is not 8 bytes
};

class ZmqSourceSink {
 public:
  virtual ~ZmqSourceSink() = default;
  virtual void OnMessage(std::uint64_t seq, std::string payload) = 0;
  virtual void OnReplayMessage(std::uint64_t attempt, std::uint64_t seq,
                               std::string_view payload) = 0;
  virtual void OnReplayEnd(std::uint64_t attempt) = 0;
  virtual void OnConnected() = 0;
  // Everything the old connection brought has been delivered before; nothing of a new one has.
  virtual void OnDisconnected() = 0;
};

// Not thread-safe: belongs to one thread, like its sockets.
class ZmqSource {
 public:
  // Starts connecting (the engine need not be there yet). INVALID_ARGUMENT names the endpoint.
  static absl::StatusOr<std::unique_ptr<ZmqSource>> Open(const ZmqContext& context,
                                                         const ZmqSourceOptions& options);
  ~ZmqSource();
  ZmqSource(const ZmqSource&) = delete;
  ZmqSource& operator=(const ZmqSource&) = delete;

  // Appends the sockets to wait for with zmq_poll; valid until the next call on this object.
  void AppendSockets(std::vector<void*>* sockets) const;

  // Hands everything that has arrived to the sink, at most about max_messages. Never blocks. The
  // sink may call RequestReplay and CloseReplay. True: more may be waiting.
  bool Poll(ZmqSourceSink* sink, std::size_t max_messages = 1024);

  // Asks for everything from `from` on, through a new socket, so that late replies to an earlier
  // request can not be mistaken. Without a replay endpoint nothing happens.
  void RequestReplay(std::uint64_t from, std::uint64_t attempt);
  // Closes that attempt's socket if it is the current one.
  void CloseReplay(std::uint64_t attempt);

  const ZmqSourceCounts& counts() const { return counts_; }

 private:
  struct SocketCloser {
    void operator()(void* socket) const;
  };
  using Socket = std::unique_ptr<void, SocketCloser>;
  struct Live {
    std::uint64_t seq;
    std::string payload;
  };
  // What the monitor told since it was last asked.
  struct Link {
    bool disconnected = false;
    bool connected_after = false;  // up again after the disconnect, or up at last
  };

  ZmqSource(const ZmqContext& context, const ZmqSourceOptions& options);
  absl::Status Connect();
  // Reads live messages into *batch until it has `max` or none is left (true).
  bool ReadLive(std::size_t max, std::vector<Live>* batch);
  Link ReadMonitor();
  void Deliver(std::vector<Live>* batch, std::size_t begin, std::size_t end, ZmqSourceSink* sink);
  bool PollReplay(ZmqSourceSink* sink, std::size_t max_messages);
  Socket OpenReplaySocket() const;

  void* const context_;
  const ZmqSourceOptions options_;
  // Order: the monitor must go after the socket that it watches.
  Socket monitor_;
  Socket sub_;
  Socket replay_;
  std::uint64_t replay_attempt_ = 0;
  bool linked_ = false;
  std::optional<std::uint64_t> last_seq_;  // last live one delivered
  ZmqSourceCounts counts_;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_ENGINE_ZMQ_SOURCE_H_
