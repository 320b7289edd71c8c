// A clock that moves only when the test says so.
#ifndef WARMPATH_TESTS_TESTING_FAKE_CLOCK_H_
#define WARMPATH_TESTS_TESTING_FAKE_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"

namespace warmpath::testing {

// Thread-safe. Starts at steady time 1,000 s and wall time 2026-01-01.
class FakeClock final : public Clock {
 public:
  absl::Time Now() const override {
    absl::MutexLock lock(&mu_);
    return now_;
  }
  absl::Time WallNow() const override {
    absl::MutexLock lock(&mu_);
    return absl::FromUnixSeconds(1767225600) + (now_ - absl::FromUnixSeconds(1000));
  }
  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mu_);
    now_ += by;
  }

 private:
  mutable absl::Mutex mu_;
  absl::Time now_ ABSL_GUARDED_BY(mu_) = absl::FromUnixSeconds(1000);
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_TESTING_FAKE_CLOCK_H_
