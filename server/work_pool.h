// The threads for picks that would hold up gRPC's few callback threads. Bounded: who finds the
// queue full is refused at the door instead of waiting in it.
#ifndef WARMPATH_SERVER_WORK_POOL_H_
#define WARMPATH_SERVER_WORK_POOL_H_

#include <cstddef>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace warmpath {

// Thread-safe.
class WorkPool {
 public:
  using Job = absl::AnyInvocable<void()>;

  WorkPool(std::size_t threads, std::size_t queue_limit);
  // Runs what is queued, then joins.
  ~WorkPool();

  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False when the queue is full or the pool stops: the job is dropped. Jobs must not throw.
  [[nodiscard]] bool TrySubmit(Job job) ABSL_LOCKS_EXCLUDED(mu_);

  // Accepts nothing more, runs what is queued, joins. Idempotent; from one thread.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

  std::size_t queued() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasWorkOrStops() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !jobs_.empty();
  }

  const std::size_t queue_limit_;
  mutable absl::Mutex mu_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // written by the constructor and Stop only
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_WORK_POOL_H_
