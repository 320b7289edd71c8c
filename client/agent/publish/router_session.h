// What one agent says to one router about one worker, as a pure state machine: registration,
// snapshots, deltas, acks, heartbeats, load. No transport and no clock of its own; publisher.h
// carries the messages. Protocol: proto/warmpath/v1/worker_events.proto.
//
// A session is one stream from its Register on. What was not acknowledged when a stream broke is
// kept (bounded by the window), so that the next session can go on with deltas when the router
// does not ask for a snapshot.
//
// Memory is bounded whatever the router does: at most SessionOptions::window messages are under
// way, one snapshot is held at a time, and what else waits is netted by the Coalescer.
//
// Not thread-safe; guarded by its owner.
#ifndef WARMPATH_CLIENT_AGENT_PUBLISH_ROUTER_SESSION_H_
#define WARMPATH_CLIENT_AGENT_PUBLISH_ROUTER_SESSION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/agent/canonical/block_changes.h"
#include "client/agent/canonical/feed_cause.h"
#include "client/agent/publish/coalescer.h"
#include "core/base/ids.h"
#include "core/base/random.h"
#include "warmpath/v1/worker_events.pb.h"

namespace warmpath {

struct SessionOptions {
  // Unacknowledged messages with cache state, each of at most 4,096 hashes. The router
  // acknowledges every 64 or 100 ms.
  std::size_t window = 256;
  std::size_t max_pending = Coalescer::kDefaultMaxPending;  // changes per rank
  absl::Duration load_interval = absl::Milliseconds(100);   // least time between two reports
  // Least time between two messages that say only that the engine's sequence advanced.
  absl::Duration sequence_interval = absl::Milliseconds(100);
  absl::Duration stalled_after = absl::Minutes(1);
  // A rank of which the router did not ask for a snapshot, though it can not be resumed: a router
  // lets ranks wait for their turn and asks then, so it is given time before one comes unasked.
  absl::Duration unasked_snapshot_after = absl::Seconds(5);
};

// Everything one rank holds, copied at one instant.
struct RankSnapshot {
  Rank rank = 0;
  std::array<std::vector<ChainHash>, kTierCount> held;
  std::array<SetDigest, kTierCount> digests{};
  std::optional<std::uint64_t> engine_seq;
  bool no_holes = false;  // Canonical::holes is 0
};

struct RankLoad {
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  double kv_usage = 0;
  absl::Time asked;  // steady
};

// The agent's verdict on one rank's feed.
struct RankVerdict {
  bool engine_reachable = true;
  FeedCauses causes;
  double event_lag_s = 0;
  std::map<std::string, std::uint64_t> skipped;  // by cause
  std::map<std::string, std::uint64_t> events;   // by kind

  friend bool operator==(const RankVerdict&, const RankVerdict&) = default;
};

struct SessionCounts {
  std::uint64_t sessions = 0;   // accepted registrations
  std::uint64_t snapshots = 0;  // begun
  std::uint64_t resyncs = 0;    // asked for by the router
  std::uint64_t resumed = 0;    // ranks that went on with deltas in a new session
  std::uint64_t deltas = 0;
  std::uint64_t hashes = 0;  // in deltas and snapshots
  std::uint64_t heartbeats = 0;
  std::uint64_t loads = 0;
  std::uint64_t overflows = 0;  // pending changes thrown away for a snapshot
};

class RouterSession {
 public:
  RouterSession(const SessionOptions& options, std::uint64_t random_seed);

  // ---- From the engine's side, at any time.

  // Ranks of the registration, with their epochs. Ranks without events get load and verdicts only.
  // A new epoch of a known rank is announced in the session under way.
  // True: it differs in more than epochs from what the session under way was begun with, so that
  // only a new stream can tell the router.
  bool SetRegister(const v1::Register& registration);
  // `no_holes`: of the rank after the changes.
  void Offer(Rank rank, std::span<const BlockChanges> changes,
             std::optional<std::uint64_t> engine_seq, bool no_holes);
  // The rank is empty and lives in another epoch.
  void NewEpoch(Rank rank, Epoch epoch);
  void SetLoad(Rank rank, const RankLoad& load);
  void SetVerdict(Rank rank, const RankVerdict& verdict);
  // A rank whose whole state is wanted now, if there is one: copy it and call GiveSnapshot, with no
  // Offer in between that the copy does not hold.
  std::optional<Rank> SnapshotWanted(absl::Time now) const;
  void GiveSnapshot(RankSnapshot snapshot);

  // ---- From the stream's side.

  // A stream stands: Next gives Register first.
  void OnStreamStart(absl::Time now);
  // An error ends the stream with that reason.
  absl::Status OnMessage(const v1::RouterUpdate& update, absl::Time now);
  void OnStreamEnd();
  // The next message to write; false when there is none now.
  bool Next(absl::Time now, v1::WorkerUpdate* out);
  // The router has acknowledged nothing for so long that the stream is better begun anew. Next and
  // this are to be asked at least every 100 ms.
  bool Stalled(absl::Time now) const;

  bool registered() const { return session_ != 0; }
  std::uint32_t routing_block() const { return routing_block_; }  // of the latest session
  std::uint64_t delta_seq() const { return delta_seq_; }          // last one written
  std::uint64_t acked() const { return acked_; }
  std::size_t unacked() const { return unacked_.size(); }
  std::size_t pending() const;
  bool draining() const { return draining_; }
  // When the next heartbeat is due; never before the stream is registered.
  absl::Time heartbeat_at() const { return heartbeat_at_; }
  SessionCounts counts() const;

 private:
  // Whether the router holds a rank's state, less what is queued and pending here.
  enum class Held : std::uint8_t { kNo, kSnapshotSent, kYes };
  struct RankState {
    Epoch epoch = 0;
    Epoch epoch_sent = 0;
    std::uint64_t capacity_tokens = 0;
    bool has_events = false;

    Held held = Held::kNo;
    std::uint64_t snapshot_end = 0;  // delta_seq of the SnapshotEnd, for kSnapshotSent
    std::string snapshot_reason = "register";
    absl::Time snapshot_not_before = absl::InfinitePast();
    std::optional<std::uint64_t> seq_sent;  // engine sequence
    bool no_holes_sent = false;             // as the last message said
    absl::Time seq_sent_at = absl::InfinitePast();

    std::optional<RankLoad> load;
    std::optional<RankLoad> load_sent;
    absl::Time load_sent_at = absl::InfinitePast();

    std::optional<RankVerdict> verdict;
    RankVerdict verdict_sent;
    bool verdict_due = false;
  };
  struct Unacked {
    std::uint64_t delta_seq = 0;
    Rank rank = 0;
    std::optional<v1::CacheDelta> delta;  // absent: snapshot, epoch, or no longer of use
  };
  // The snapshot under way.
  struct Sending {
    RankSnapshot snapshot;
    bool begun = false;
    std::size_t tier = 0;
    std::size_t at = 0;
  };

  absl::Status OnRegistered(const v1::Registered& registered, absl::Time now);
  void OnAck(std::uint64_t delta_seq);
  void OnResync(const v1::Resync& resync, absl::Time now);
  // What the stream that broke may not have brought to the router becomes queued_.
  void QueueUnacked();
  void RequireSnapshot(Rank rank, RankState& state, std::string reason);
  // Nothing of the rank waits: the router is as far as the feed, once it has read all.
  bool IsDrained(Rank rank) const;
  bool IsQueued(Rank rank) const;
  bool WindowOpen() const { return unacked_.size() < options_.window; }

  std::uint64_t Number(Rank rank, absl::Time now);
  bool NextRegister(v1::WorkerUpdate* out);
  bool NextEpoch(absl::Time now, v1::WorkerUpdate* out);
  bool NextUrgentVerdict(v1::WorkerUpdate* out);
  bool NextImprovedVerdict(v1::WorkerUpdate* out);
  void WriteVerdict(Rank rank, RankState& state, v1::WorkerUpdate* out);
  bool NextHeartbeat(absl::Time now, v1::WorkerUpdate* out);
  absl::Time HeartbeatAfter(absl::Time now);
  static bool IsLoadChanged(const RankState& state);
  void WriteLoad(Rank rank, RankState& state, absl::Time now, v1::LoadReport* message);
  bool NextLoad(absl::Time now, v1::WorkerUpdate* out);
  bool NextCache(absl::Time now, v1::WorkerUpdate* out);
  bool NextQueued(absl::Time now, v1::WorkerUpdate* out);
  bool NextSnapshotPart(absl::Time now, v1::WorkerUpdate* out);
  bool NextDelta(absl::Time now, v1::WorkerUpdate* out);
  bool NextSequence(absl::Time now, v1::WorkerUpdate* out);
  void QueuePiece(DeltaPiece piece);

  const SessionOptions options_;
  Random random_;
  v1::Register register_;
  std::map<Rank, RankState> ranks_;
  Coalescer coalescer_;
  std::optional<Sending> sending_;
  // Deltas that left the coalescer and are not written in this session: parts of one piece, and
  // what the session before left unacknowledged. At most one piece and one window.
  std::deque<v1::CacheDelta> queued_;
  std::deque<Unacked> unacked_;
  absl::Time ack_progress_at_ = absl::InfinitePast();
  bool snapshot_turn_ = false;  // snapshot parts and deltas take turns

  bool register_due_ = false;
  SessionId session_ = 0;  // 0: not registered
  std::uint32_t routing_block_ = 0;
  std::size_t max_hashes_ = Coalescer::kMaxPieceHashes;
  absl::Duration heartbeat_ = absl::Seconds(2);
  absl::Time heartbeat_at_ = absl::InfiniteFuture();
  // Heartbeats are due at this time and whole multiples of heartbeat_ from it; none: at random.
  std::optional<absl::Time> heartbeat_slot_;
  std::uint64_t delta_seq_ = 0;
  std::uint64_t acked_ = 0;
  bool draining_ = false;
  SessionCounts counts_;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_PUBLISH_ROUTER_SESSION_H_
