#include "core/fleet/snapshot_turns.h"

#include <algorithm>
#include <utility>

namespace warmpath {

bool SnapshotTurns::TakeOrQueue(const RankRef& rank, bool queued) {
  absl::MutexLock lock(&mu_);
  if (queue_.empty() && holders_.size() < max_) {
    holders_.push_back(rank);
    return true;
  }
  if (!queued) queue_.push_back(rank);
  return false;
}

void SnapshotTurns::Release(const RankRef& rank) {
  absl::MutexLock lock(&mu_);
  // One entry only: a rank may have been given a second turn that it does not need.
  const auto it = std::find(holders_.begin(), holders_.end(), rank);
  if (it != holders_.end()) holders_.erase(it);
}

void SnapshotTurns::Queue(const RankRef& rank) {
  absl::MutexLock lock(&mu_);
  queue_.push_back(rank);
}

std::optional<RankRef> SnapshotTurns::TakeNext() {
  absl::MutexLock lock(&mu_);
  if (queue_.empty() || holders_.size() >= max_) return std::nullopt;
  RankRef next = std::move(queue_.front());
  queue_.pop_front();
  holders_.push_back(next);
  return next;
}

void SnapshotTurns::Forget(const WorkerRecord* record) {
  absl::MutexLock lock(&mu_);
  std::erase_if(queue_, [record](const RankRef& rank) { return rank.record.get() == record; });
}

std::vector<RankRef> SnapshotTurns::Holders() const {
  absl::MutexLock lock(&mu_);
  return holders_;
}

std::size_t SnapshotTurns::waiting() const {
  absl::MutexLock lock(&mu_);
  return queue_.size();
}

}  // namespace warmpath
