// cpp-httplib's task queue with threads made on demand: the library's own pool starts all of them
// at once, and its queue has no bound.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_CONNECTION_THREADS_H_
#define WARMPATH_TESTS_FAKES_ENGINE_CONNECTION_THREADS_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "httplib.h"

namespace warmpath::engine {

// A task is one connection, for as long as the client keeps it. Thread-safe.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(std::size_t max_threads) : max_threads_(max_threads) {}

  // Blocks the accepting thread while all threads are taken: further connections wait in the
  // kernel's queue, which has a bound.
  void enqueue(std::function<void()> task) override {
    absl::MutexLock lock(&mu_);
    if (idle_ <= tasks_.size() && threads_.size() < max_threads_) {
      threads_.emplace_back([this] { Work(); });
    } else {
      mu_.Await(absl::Condition(this, &ConnectionThreads::HasRoom));
    }
    tasks_.push_back(std::move(task));
  }

  void shutdown() override {
    std::vector<std::thread> threads;
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return idle_ > tasks_.size(); }
  bool HasTask() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !tasks_.empty(); }

  void Work() {
    absl::MutexLock lock(&mu_);
    while (true) {
      ++idle_;
      mu_.Await(absl::Condition(this, &ConnectionThreads::HasTask));
      --idle_;
      if (tasks_.empty()) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      mu_.Unlock();
      task();
      task = nullptr;
      mu_.Lock();
    }
  }

  const std::size_t max_threads_;
  absl::Mutex mu_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mu_);
  std::size_t idle_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_CONNECTION_THREADS_H_
