#include "client/replay/rpc_pool.h"

#include <utility>

namespace warmpath::replay {

RpcPool::RpcPool(std::size_t threads) {
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
}

RpcPool::~RpcPool() {
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void RpcPool::Run(std::function<void()> task) {
  absl::MutexLock lock(&mu_);
  tasks_.push_back(std::move(task));
}

void RpcPool::Work() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(
          +[](RpcPool* pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool->mu_) {
            return pool->closing_ || !pool->tasks_.empty();
          },
          this));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace warmpath::replay
