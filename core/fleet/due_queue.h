// Workers that want to be looked at when a moment has come: the end of a lease, an Ack that has
// waited long enough. So that a tick costs nothing for the workers that want nothing.
#ifndef WARMPATH_CORE_FLEET_DUE_QUEUE_H_
#define WARMPATH_CORE_FLEET_DUE_QUEUE_H_

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace warmpath {

class WorkerRecord;

// Thread-safe; its mutex is a leaf. The owner of a record keeps at most one entry of it in each
// queue (a flag in the record), which bounds the queue by the number of workers.
class DueQueue {
 public:
  void Add(absl::Time due, std::weak_ptr<WorkerRecord> record) {
    absl::MutexLock lock(&mu_);
    queue_.emplace(due, std::move(record));
  }

  // Takes out what is due. Records that are gone are left out.
  std::vector<std::shared_ptr<WorkerRecord>> TakeDue(absl::Time now) {
    std::vector<std::shared_ptr<WorkerRecord>> due;
    absl::MutexLock lock(&mu_);
    while (!queue_.empty() && queue_.begin()->first <= now) {
      if (auto record = queue_.begin()->second.lock()) due.push_back(std::move(record));
      queue_.erase(queue_.begin());
    }
    return due;
  }

  bool empty() const {
    absl::MutexLock lock(&mu_);
    return queue_.empty();
  }

 private:
  mutable absl::Mutex mu_;
  std::multimap<absl::Time, std::weak_ptr<WorkerRecord>> queue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_DUE_QUEUE_H_
