// What the fleet counts, and the sums over what agents count.
#ifndef WARMPATH_CORE_FLEET_FLEET_STATS_H_
#define WARMPATH_CORE_FLEET_FLEET_STATS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/strings.h"

namespace warmpath {

// Each agent reports named counters, cumulative since it started; this keeps their sums, which
// never go down. Names come from outside: beyond kMaxNames distinct ones, and for names longer than
// kMaxNameBytes, counts go to "other". Thread-safe.
class ReportedSums {
 public:
  using Counts = std::vector<std::pair<std::string, std::uint64_t>>;

  static constexpr std::size_t kMaxNames = 64;
  static constexpr std::size_t kMaxNameBytes = 64;

  // Adds what `now` has beyond `*last`, the same agent's previous report, and keeps `now` there. A
  // counter that went down belongs to an agent that started again: all of it is new.
  void Update(const Counts& now, StringMap<std::uint64_t>* last) {
    absl::MutexLock lock(&mu_);
    StringMap<std::uint64_t> current;
    for (const auto& [name, count] : now) current[KnownName(name)] += count;
    for (const auto& [name, count] : current) {
      const auto it = last->find(name);
      const std::uint64_t before = it == last->end() || it->second > count ? 0 : it->second;
      sums_[name] += count - before;
    }
    *last = std::move(current);
  }

  Counts Sums() const {
    absl::MutexLock lock(&mu_);
    return Counts(sums_.begin(), sums_.end());
  }

 private:
  std::string KnownName(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (sums_.contains(name)) return name;
    if (name.size() > kMaxNameBytes || sums_.size() >= kMaxNames) return "other";
    sums_[name] = 0;
    return name;
  }

  mutable absl::Mutex mu_;
  StringMap<std::uint64_t> sums_ ABSL_GUARDED_BY(mu_);
};

// Since start, cumulative. Read with relaxed loads at scrape.
struct FleetStats {
  std::atomic<std::uint64_t> updates_wrong_session{0};
  std::atomic<std::uint64_t> updates_duplicate{0};
  std::atomic<std::uint64_t> deltas_applied{0};
  std::atomic<std::uint64_t> blocks_stored{0};
  std::atomic<std::uint64_t> blocks_removed{0};
  std::atomic<std::uint64_t> removed_missing{0};
  std::atomic<std::uint64_t> snapshots_applied{0};
  std::atomic<std::uint64_t> snapshots_failed{0};
  std::atomic<std::uint64_t> resyncs{0};
  std::atomic<std::uint64_t> audit_failures{0};
  ReportedSums events_by_kind;
  ReportedSums skipped_by_cause;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_FLEET_STATS_H_
