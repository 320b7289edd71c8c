// Periodic work on one thread of its own: leases, sweeps, the server's calls to itself.
#ifndef WARMPATH_SERVER_TICKER_H_
#define WARMPATH_SERVER_TICKER_H_

#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"

namespace warmpath {

class Ticker {
 public:
  struct Task {
    // Does one round and says after how long the next one is due; what is meant is the next whole
    // multiple of that, so that tasks share wake-ups. Must not block for long.
    std::function<absl::Duration()> run;
    absl::Time due = absl::InfinitePast();
  };

  // `clock` must outlive the ticker.
  Ticker(const Clock* clock, std::vector<Task> tasks) : clock_(clock), tasks_(std::move(tasks)) {}
  ~Ticker() { Stop(); }

  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // Runs each task that is due at the clock's now, once; returns when the next one is due.
  // For tests, and what the thread does. REQUIRES: no thread was started.
  absl::Time RunDue();

  void Start();
  // No task runs after it returns. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const Clock* const clock_;
  std::vector<Task> tasks_;  // touched by the thread only, once it runs
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_TICKER_H_
