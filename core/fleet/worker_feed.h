// What one stream's updates do to its worker: the state machine behind WorkerFeed.
#ifndef WARMPATH_CORE_FLEET_WORKER_FEED_H_
#define WARMPATH_CORE_FLEET_WORKER_FEED_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/fleet/feed.h"
#include "core/fleet/worker_record.h"

namespace warmpath {

// One session of one worker. All state is the record's, under its mu; a feed whose session was
// superseded changes nothing any more.
class StreamFeed final : public WorkerFeed {
 public:
  StreamFeed(std::shared_ptr<WorkerRecord> record, SessionId session, FleetContext* context)
      : record_(std::move(record)), session_(session), context_(context) {}

  absl::Status OnUpdate(SessionId session, const FeedUpdate& update) override;
  void OnClosed() override;

 private:
  // One overload for each kind of update.
  absl::Status Apply(const SnapshotBeginUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  absl::Status Apply(const SnapshotChunkUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  absl::Status Apply(const SnapshotEndUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  absl::Status Apply(const CacheDeltaUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  absl::Status Apply(const ClearedUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  absl::Status Apply(const NewEpochUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  absl::Status Apply(const LoadUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  absl::Status Apply(const HeartbeatUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  absl::Status Apply(const RankStateUpdate& update) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);

  // INVALID_ARGUMENT naming message.rank when the rank is not registered, or has no events and
  // `with_events` is asked for.
  absl::StatusOr<TargetFeed*> FeedOf(std::string_view message, Rank rank, bool with_events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  // Takes note of a delta_seq. False: the message was applied before and is to be dropped. A hole
  // makes every rank owe a snapshot.
  bool Sequence(std::uint64_t delta_seq) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  void Hole() ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  // A change between SnapshotBegin and SnapshotEnd: the snapshot is worth nothing.
  void FailIfBuilding(TargetFeed& feed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  void FailSnapshot(TargetFeed& feed, std::string_view reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  // A message that brings the state to `engine_seq`; `changed`: it changed what is held.
  void Advance(TargetFeed& feed, std::optional<std::uint64_t> engine_seq, bool changed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  // False if some are still held.
  bool RemoveTier(TargetFeed& feed, Tier tier) ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  bool AuditMatches(const TargetFeed& feed, const HeartbeatUpdate& update)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);
  void Audit(TargetFeed& feed, const HeartbeatUpdate& update)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu);

  Pool& pool() const { return record_->pool(); }
  absl::Time now() const { return context_->clock->Now(); }

  const std::shared_ptr<WorkerRecord> record_;
  const SessionId session_;
  FleetContext* const context_;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_WORKER_FEED_H_
