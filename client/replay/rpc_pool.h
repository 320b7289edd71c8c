// A few threads that make the blocking calls to the router, so that the thread which moves the
// engines' answers never waits for one.
#ifndef WARMPATH_CLIENT_REPLAY_RPC_POOL_H_
#define WARMPATH_CLIENT_REPLAY_RPC_POOL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace warmpath::replay {

// Thread-safe. Tasks start in order. The queue is as long as its caller's requests in flight.
class RpcPool {
 public:
  explicit RpcPool(std::size_t threads);
  // Runs what is queued, then joins.
  ~RpcPool();

  void Run(std::function<void()> task) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Work() ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;  // constant after construction
};

}  // namespace warmpath::replay

#endif  // WARMPATH_CLIENT_REPLAY_RPC_POOL_H_
