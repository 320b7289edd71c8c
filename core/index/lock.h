// A mutex for the index's own rare paths.
//
// It is std::mutex with thread annotations, not absl::Mutex: ThreadSanitizer sees through the
// former on every platform, while the latter may live in a library built without instrumentation,
// and a stress test of lock-free code is worth only what its sanitizer can see.
#ifndef WARMPATH_CORE_INDEX_LOCK_H_
#define WARMPATH_CORE_INDEX_LOCK_H_

#include <mutex>
#include <thread>

#include "absl/base/thread_annotations.h"

namespace warmpath::index_internal {

class ABSL_LOCKABLE PlainMutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mu_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mu_.try_lock(); }

 private:
  std::mutex mu_;
};

class ABSL_SCOPED_LOCKABLE PlainLock {
 public:
  explicit PlainLock(PlainMutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~PlainLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  PlainLock(const PlainLock&) = delete;
  PlainLock& operator=(const PlainLock&) = delete;

 private:
  PlainMutex* const mu_;
};

// Waits between attempts at a lock that is held for nanoseconds: first in place, then, in case
// the holder was descheduled, by giving up the processor.
class SpinWait {
 public:
  void Once() {
    if (++rounds_ < kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int kSpins = 64;
  int rounds_ = 0;
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_LOCK_H_
