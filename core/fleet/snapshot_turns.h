// Who may send a snapshot now: at most `max` ranks of one router at a time, others wait in the
// order in which they came.
#ifndef WARMPATH_CORE_FLEET_SNAPSHOT_TURNS_H_
#define WARMPATH_CORE_FLEET_SNAPSHOT_TURNS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/ids.h"

namespace warmpath {

class WorkerRecord;

struct RankRef {
  std::shared_ptr<WorkerRecord> record;
  Rank rank = 0;

  friend bool operator==(const RankRef&, const RankRef&) = default;
};

// Thread-safe; its mutex is a leaf. A rank is in the queue at most once (the record keeps a flag),
// and Forget takes it out, so the queue is bounded by the number of targets.
class SnapshotTurns {
 public:
  explicit SnapshotTurns(std::size_t max) : max_(max) {}

  // Takes a turn if one is free and nobody waits; else queues the rank and returns false. With
  // `queued` (the rank waits already) it is not queued again.
  bool TakeOrQueue(const RankRef& rank, bool queued);

  // Ends the rank's turn. The caller calls the fleet's pump afterwards, without locks.
  void Release(const RankRef& rank);

  // Puts the rank at the end of the queue, without a look at free turns.
  void Queue(const RankRef& rank);

  // Gives a free turn to the first in the queue; nullopt when there is none or nobody waits.
  std::optional<RankRef> TakeNext();

  // Takes all of a record's waiting ranks out of the queue.
  void Forget(const WorkerRecord* record);

  // Ranks whose turn it is: at most max.
  std::vector<RankRef> Holders() const;
  std::size_t waiting() const;

 private:
  const std::size_t max_;
  mutable absl::Mutex mu_;
  std::vector<RankRef> holders_ ABSL_GUARDED_BY(mu_);
  std::deque<RankRef> queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_SNAPSHOT_TURNS_H_
