#include "server/work_pool.h"

#include <utility>

namespace warmpath {

WorkPool::WorkPool(std::size_t threads, std::size_t queue_limit) : queue_limit_(queue_limit) {
  threads_.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
}

WorkPool::~WorkPool() { Stop(); }

bool WorkPool::TrySubmit(Job job) {
  absl::MutexLock lock(&mu_);
  if (stopping_ || jobs_.size() >= queue_limit_) return false;
  jobs_.push_back(std::move(job));
  return true;
}

void WorkPool::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

std::size_t WorkPool::queued() const {
  absl::MutexLock lock(&mu_);
  return jobs_.size();
}

void WorkPool::Run() {
  for (;;) {
    Job job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &WorkPool::HasWorkOrStops));
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace warmpath
