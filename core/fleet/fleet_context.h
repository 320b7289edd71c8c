// What all workers of one fleet share. Owned by the fleet; outlives every record and feed.
#ifndef WARMPATH_CORE_FLEET_FLEET_CONTEXT_H_
#define WARMPATH_CORE_FLEET_FLEET_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/fleet/due_queue.h"
#include "core/fleet/fleet.h"
#include "core/fleet/fleet_stats.h"
#include "core/fleet/pool.h"
#include "core/fleet/snapshot_turns.h"

namespace warmpath {

struct FleetContext {
  FleetContext(FleetConfig fleet_config, const Clock* fleet_clock)
      : clock(fleet_clock),
        config(std::move(fleet_config)),
        turns(config.max_concurrent_snapshots) {}

  const Clock* const clock;
  const FleetConfig config;
  FleetStats stats;
  SnapshotTurns turns;
  DueQueue acks;     // messages that wait for an Ack
  DueQueue leases;   // streams lost
  DueQueue silent;   // open streams that may have fallen silent
  DueQueue retired;  // LOST workers that operators still see
};

// Ranks that lost stores at the index's bound, in the order of their recovery. Thread-safe, leaf.
class IndexFullQueue {
 public:
  struct Entry {
    std::weak_ptr<WorkerRecord> record;
    Rank rank = 0;
  };

  void Add(Entry entry) {
    absl::MutexLock lock(&mu_);
    queue_.push_back(std::move(entry));
  }
  std::optional<Entry> Front() const {
    absl::MutexLock lock(&mu_);
    if (queue_.empty()) return std::nullopt;
    return queue_.front();
  }
  void PopFront() {
    absl::MutexLock lock(&mu_);
    queue_.pop_front();
  }
  void Rotate() {
    absl::MutexLock lock(&mu_);
    queue_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }

 private:
  mutable absl::Mutex mu_;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mu_);
};

// A pool and what only the fleet keeps about it.
struct PoolEntry {
  explicit PoolEntry(std::shared_ptr<Pool> p, bool from_configuration = true)
      : pool(std::move(p)), configured(from_configuration) {}

  const std::shared_ptr<Pool> pool;
  const bool configured;  // else made by a registration: ends with its last worker
  std::atomic<std::uint64_t> audit_failures{0};
  IndexFullQueue index_full;
  // Under the registry's mutex: workers that are not LOST, and targets of all workers.
  std::size_t live_workers = 0;
  std::size_t targets = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_FLEET_CONTEXT_H_
