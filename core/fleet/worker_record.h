// One worker as the router knows it, across streams: identity, session, and for each rank the state
// of its feed. The transitions that streams, registrations and ticks share are here; what one
// update does is worker_feed.h.
//
// Locks, in this order: the registry's mutex (fleet_impl.h), WorkerRecord::mu, Pool::mu(), then the
// leaves: SnapshotTurns, DueQueue, IndexFullQueue, ModelNames, ReportedSums, the sink's own. A
// thread holds one record's mu at a time.
//
// WorkerRecord::mu is held while a message is applied to the index (up to 4,096 hashes) and while
// the worker is dumped, so that all of a worker's state changes in one order. Pool::mu(), which
// picks need, is taken inside only to publish a few words: see Publish.
#ifndef WARMPATH_CORE_FLEET_WORKER_RECORD_H_
#define WARMPATH_CORE_FLEET_WORKER_RECORD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/base/random.h"
#include "core/base/strings.h"
#include "core/fleet/feed.h"
#include "core/fleet/fleet_context.h"
#include "core/fleet/worker.h"

namespace warmpath {

// Where a rank stands with the snapshot that it owes.
enum class SnapshotPhase : std::uint8_t {
  kNone,      // owes none
  kWaiting,   // its turn has not come; what it sends as a snapshot is not looked at
  kAsked,     // asked for one
  kBuilding,  // between SnapshotBegin and SnapshotEnd
};

// The feed of one rank. The first part is what Publish copies into the pool's TargetState.
struct TargetFeed {
  RankSpec spec;
  TargetId target = kNoTarget;
  Slot slot = kNoSlot;
  bool had_snapshot = false;
  bool engine_reachable = true;
  CauseSet agent_causes;   // as RankState said last
  CauseSet router_causes;  // agent_gone, resync, index_full
  std::optional<std::uint64_t> engine_seq;
  double event_lag_s = 0;

  // What the index was told of the slot (Index::SetMayHaveHoles).
  bool may_have_holes = true;
  // The slot may differ from what the agent holds, or a change has come in part: what the agent
  // says of holes says nothing about it, until another slot takes its place.
  bool holes_doubted = false;

  // The slot holds part of what came after engine_seq: a batch that took several messages is under
  // way. Such a state belongs to no engine sequence.
  bool mid_batch = false;
  // A new epoch was announced and neither a snapshot nor an audit has confirmed it yet.
  bool unproven = false;

  SnapshotPhase phase = SnapshotPhase::kNone;
  bool holds_turn = false;
  bool queued = false;                           // is in SnapshotTurns' queue
  std::string_view reason;                       // a literal: why the snapshot was asked for
  absl::Time deadline = absl::InfiniteFuture();  // of the next sign of life of the snapshot
  std::optional<absl::Time> building_since;      // the first SnapshotBegin of this turn
  std::uint32_t failures = 0;                    // in a row: mismatches, audits, holes

  Slot building = kNoSlot;
  std::uint64_t received_count = 0;  // hashes of the chunks so far
  std::uint64_t received_xor = 0;
  bool refused = false;  // the index refused one of them

  bool full_listed = false;  // is in the pool's IndexFullQueue
  std::uint32_t full_attempts = 0;
  absl::Time full_not_before = absl::InfinitePast();
  // Until then the pool's other ranks wait for this one's snapshot.
  absl::Time full_busy_until = absl::InfinitePast();

  StringMap<std::uint64_t> last_events;  // of the agent's cumulative reports
  StringMap<std::uint64_t> last_skipped;
};

class WorkerRecord : public std::enable_shared_from_this<WorkerRecord> {
 public:
  // How long a rank whose turn it is may take to begin, and between two chunks.
  inline static const absl::Duration kSnapshotPatience = absl::Seconds(10);
  // How long a snapshot may take in all while others wait: an agent that sends a little now and
  // then must not keep a turn for ever.
  inline static const absl::Duration kLongestTurn = absl::Minutes(1);
  inline static const absl::Duration kFirstBackoff = absl::Milliseconds(100);
  inline static const absl::Duration kMaxBackoff = absl::Seconds(30);
  // An open stream without a message for so many heartbeats is as good as lost: a node that lost
  // its power or its network closes no connection.
  static constexpr int kSilentHeartbeats = 3;
  // How long a LOST worker is shown, and its epoch and drain remembered.
  inline static const absl::Duration kRetireAfter = absl::Minutes(10);
  static constexpr std::uint32_t kAckEvery = 64;
  inline static const absl::Duration kAckAfter = absl::Milliseconds(100);

  // All arguments outlive the record.
  WorkerRecord(std::string worker_id, std::shared_ptr<PoolEntry> pool, FleetContext* context,
               std::uint64_t random_seed);

  const std::string& id() const { return id_; }
  PoolEntry& entry() const { return *entry_; }
  Pool& pool() const { return *entry_->pool; }

  mutable absl::Mutex mu;

  // --- Registration.
  // ALREADY_EXISTS when another agent's live stream holds the worker; FAILED_PRECONDITION for a
  // stale epoch.
  absl::Status CheckTakeover(const Registration& registration, std::string_view peer,
                             absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Same ranks with the same kind of feed: the record can go on; else it has to be replaced.
  bool SameShape(const Registration& registration) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Opens a session, supersedes an older stream and answers Registered. REQUIRES: CheckTakeover is
  // OK; the pool's block size is fixed.
  void Attach(const Registration& registration, std::string_view peer,
              std::shared_ptr<FeedSink> sink, SessionId session, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The stream of this session is gone: the lease starts. No effect on a later session.
  void Detach(SessionId session, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // A message of the current session came.
  void Heard(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // DEGRADED(agent_gone) after too long a silence of an open stream; after a lease more of it the
  // stream is ended. The record came out of the queue for it and goes back while connected.
  void CheckSilence(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Whether the lease, or the time that a LOST worker is still shown, is over. The record came out
  // of the queue for it and goes back if the time runs on.
  bool LeaseOver(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool RetirementOver(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Lose(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Takes the targets out of the pool for good; `why` ends a stream that is still open.
  void Remove(const absl::Status& why, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // --- Feeds.
  TargetFeed* Find(Rank rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Copies the rank's state to where picks read it. The only place of the feed's hot path that
  // takes Pool::mu().
  void Publish(const TargetFeed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Publishes `slot` instead of the serving one, then closes that. `no_holes`: of what it holds.
  void ReplaceSlot(TargetFeed& feed, Slot slot, bool no_holes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The same without the publishing: returns the old one, to be closed once nobody finds it.
  Slot SwapSlot(TargetFeed& feed, Slot slot, bool no_holes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Raised before a change that may make holes, taken back after one that leaves none; stays raised
  // while the slot is doubted.
  void SetMayHaveHoles(TargetFeed& feed, bool may) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void DoubtHoles(TargetFeed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // A new engine process: all that was known of the old one is void, its reservations are closed.
  void BeginEpoch(TargetFeed& feed, Epoch epoch, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The rank owes a snapshot: DEGRADED(resync) until it is whole. `reason` is a literal. With a
  // backoff the agent is told at once and takes its turn when it begins; without one it is told
  // when its turn has come. No effect when a snapshot has been asked for already.
  void RequestSnapshot(TargetFeed& feed, std::string_view reason, absl::Duration backoff,
                       absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The next pause before a snapshot, growing with each failure in a row, jittered by 20 %.
  absl::Duration NextBackoff(TargetFeed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Gives up what was built; the rank keeps its turn.
  void DropBuilding(TargetFeed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void EndTurn(TargetFeed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void MarkIndexFull(TargetFeed& feed, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  RankRef Ref(const TargetFeed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return {shared_from_this(), feed.spec.rank};
  }

  // --- Ticks.
  // A turn came for the rank. False: it does not need it any more.
  bool GrantTurn(Rank rank, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Ends the turn of a rank that shows no sign of life, or that has had it for too long while
  // others wait; it queues again. True: it did so.
  bool CheckTurn(Rank rank, bool others_wait, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  enum class FullStep : std::uint8_t { kDone, kBusy, kLater };
  // One step of the recovery from a full index; asks for a snapshot when `room` and it is time.
  FullStep RecoverFull(Rank rank, bool room, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void CountForAck(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void SendDueAck() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // --- Operators.
  std::uint32_t SetDraining(bool on) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool SnapshotsWhole() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // `peers`: of the pool, for targets that have not learned their rate.
  WorkerView View(const PeerRates& peers, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  absl::StatusOr<DumpHeader> Dump(Rank rank, Tier tier, KnowledgeSource source,
                                  std::vector<ChainHash>* hashes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  std::size_t ranks() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return feeds_.size(); }
  bool connected() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return connected_; }
  bool lost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return lost_; }
  bool removed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return removed_; }
  bool draining() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return draining_; }
  void set_draining(bool on) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { draining_ = on; }
  // A turn was given back since the last call: pump the queue after unlocking.
  bool TakeTurnFreed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return std::exchange(turn_freed_, false);
  }

 private:
  friend class StreamFeed;

  Lifecycle LifecycleOf(const TargetFeed& feed) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void CopyTo(const TargetFeed& feed, TargetState& state) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void AddTarget(TargetFeed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Ends the open stream, if there is one, and everything that hangs on it.
  void DropStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Ends it and says of all ranks that the agent is gone.
  void LoseStream(absl::Time lease_end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void SetAgentGone(bool gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Ask(TargetFeed& feed, absl::Duration backoff, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const std::string id_;
  const std::shared_ptr<PoolEntry> entry_;
  FleetContext* const context_;

  std::vector<TargetFeed> feeds_ ABSL_GUARDED_BY(mu);  // index = rank
  Registration registration_ ABSL_GUARDED_BY(mu);      // of the current session
  std::string peer_ ABSL_GUARDED_BY(mu);
  std::shared_ptr<FeedSink> sink_ ABSL_GUARDED_BY(mu);  // null when not connected
  SessionId session_ ABSL_GUARDED_BY(mu) = 0;
  absl::Status ended_ ABSL_GUARDED_BY(mu);  // what streams of earlier sessions are told
  Random random_ ABSL_GUARDED_BY(mu);

  bool connected_ ABSL_GUARDED_BY(mu) = false;
  bool draining_ ABSL_GUARDED_BY(mu) = false;
  bool lost_ ABSL_GUARDED_BY(mu) = false;
  bool removed_ ABSL_GUARDED_BY(mu) = false;
  bool turn_freed_ ABSL_GUARDED_BY(mu) = false;

  std::uint64_t last_seq_ ABSL_GUARDED_BY(mu) = 0;
  std::uint32_t unacked_ ABSL_GUARDED_BY(mu) = 0;
  bool ack_queued_ ABSL_GUARDED_BY(mu) = false;

  absl::Time last_heard_ ABSL_GUARDED_BY(mu);
  std::optional<absl::Time> silent_since_ ABSL_GUARDED_BY(mu);  // when that was noticed
  bool silence_queued_ ABSL_GUARDED_BY(mu) = false;
  absl::Time deadline_ ABSL_GUARDED_BY(mu);  // of the lease, then of the retirement
  bool lease_queued_ ABSL_GUARDED_BY(mu) = false;
  bool retire_queued_ ABSL_GUARDED_BY(mu) = false;
};

// Gives free turns to those who wait. Call without locks.
void PumpTurns(FleetContext& context);

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_WORKER_RECORD_H_
