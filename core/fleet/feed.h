// One worker's stream of updates as a pure state machine: session, epoch, delta sequence,
// snapshots, audit. No I/O and no clock of its own; server/worker_stream converts wire messages
// to these values and back. The rules are in docs/semantics.md.
#ifndef WARMPATH_CORE_FLEET_FEED_H_
#define WARMPATH_CORE_FLEET_FEED_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/fleet/worker.h"

namespace warmpath {

// Hashes one message may hold, over removed and stored (about 0.2 ms to apply).
inline constexpr std::size_t kMaxHashesPerMessage = 4096;

// ---- From the agent. Spans and views are borrowed for the duration of the call.
struct SnapshotBeginUpdate {
  std::uint64_t delta_seq = 0;
  Rank rank = 0;
  Epoch epoch = 0;
  std::string_view reason;
};
struct SnapshotChunkUpdate {
  std::uint64_t delta_seq = 0;
  Rank rank = 0;
  Tier tier = Tier::kGpu;
  std::span<const ChainHash> hashes;
};
struct SnapshotEndUpdate {
  std::uint64_t delta_seq = 0;
  Rank rank = 0;
  std::optional<std::uint64_t> engine_seq;
  std::uint64_t count = 0;  // over all tiers
  std::uint64_t xor_of_hashes = 0;
  bool no_holes = false;  // as of CacheDeltaUpdate
};
struct CacheDeltaUpdate {
  std::uint64_t delta_seq = 0;
  Rank rank = 0;
  Tier tier = Tier::kGpu;
  std::span<const ChainHash> removed;  // applied first
  std::span<const ChainHash> stored;
  // Named once everything up to it has been handed out. In the parts of a batch that are not its
  // last it is absent or what was named before: such a state belongs to no engine sequence.
  std::optional<std::uint64_t> engine_seq;
  // What the rank holds after it has no hole (Index::SetMayHaveHoles); in a part of a batch that is
  // not its last, neither what it held before the batch nor what it will hold after it has one.
  bool no_holes = false;
};
struct ClearedUpdate {
  std::uint64_t delta_seq = 0;
  Rank rank = 0;
  Tier tier = Tier::kGpu;
  std::optional<std::uint64_t> engine_seq;
};
// The rank is empty now: an empty state that deltas may fill at once, DEGRADED(resync) until a
// snapshot or an audit has confirmed it.
struct NewEpochUpdate {
  std::uint64_t delta_seq = 0;
  Rank rank = 0;
  Epoch epoch = 0;
  std::uint64_t kv_capacity_tokens = 0;  // 0: unchanged
};
struct LoadUpdate {
  Rank rank = 0;
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  double kv_usage = 0;
  absl::Duration age;
};
struct HeartbeatUpdate {
  struct Digest {
    Rank rank = 0;
    Tier tier = Tier::kGpu;
    std::uint64_t count = 0;
    std::uint64_t xor_of_hashes = 0;
    std::optional<std::uint64_t> engine_seq;
  };
  std::uint64_t delta_seq = 0;  // last one sent
  std::vector<Digest> digests;
};
struct RankStateUpdate {
  Rank rank = 0;
  bool engine_reachable = true;
  CauseSet causes;
  double event_lag_s = 0;
  std::vector<std::pair<std::string, std::uint64_t>> skipped;  // by cause, cumulative
  std::vector<std::pair<std::string, std::uint64_t>> events;   // by kind, cumulative
};

using FeedUpdate =
    std::variant<SnapshotBeginUpdate, SnapshotChunkUpdate, SnapshotEndUpdate, CacheDeltaUpdate,
                 ClearedUpdate, NewEpochUpdate, LoadUpdate, HeartbeatUpdate, RankStateUpdate>;

// ---- To the agent.
struct RegisteredReply {
  SessionId session = 0;
  std::uint32_t routing_block_size = 0;
  std::uint64_t hash_seed = 0;
  std::uint32_t protocol = 1;
  std::vector<Rank> snapshot_ranks;
};
struct AckReply {
  std::uint64_t delta_seq = 0;
};
struct ResyncReply {
  Rank rank = 0;
  std::string reason;
  absl::Duration backoff;
};
struct DrainReply {
  bool on = true;
};
using FeedReply = std::variant<RegisteredReply, AckReply, ResyncReply, DrainReply>;

// The way back to one agent, implemented by the transport. Thread-safe; called with fleet locks
// held, so an implementation only queues (bounded: one pending Ack is enough, it is cumulative)
// and never calls into the fleet.
class FeedSink {
 public:
  virtual ~FeedSink() = default;
  virtual void Send(FeedReply reply) = 0;
  // Ends the stream with this status, e.g. ABORTED "superseded by ADDRESS". Idempotent.
  virtual void Close(absl::Status status) = 0;
};

// Open from an accepted Register to the stream's end. One thread at a time (the stream's reads).
class WorkerFeed {
 public:
  virtual ~WorkerFeed() = default;

  // Applies one update of this session. A wrong session is dropped and counted. An error ends the
  // stream (a hole in delta_seq is no error: it becomes a Resync through the sink).
  virtual absl::Status OnUpdate(SessionId session, const FeedUpdate& update) = 0;

  // The stream is gone, for whatever reason: the worker's lease starts. Called exactly once.
  virtual void OnClosed() = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_FEED_H_
