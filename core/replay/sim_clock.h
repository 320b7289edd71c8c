// The simulator's time: stands still until the next event.
#ifndef WARMPATH_CORE_REPLAY_SIM_CLOCK_H_
#define WARMPATH_CORE_REPLAY_SIM_CLOCK_H_

#include <cstdint>

#include "absl/time/time.h"
#include "core/base/clock.h"

namespace warmpath {

// Not thread-safe, unlike other clocks: a simulation is one thread.
class SimClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  absl::Time WallNow() const override { return now_; }

  void SetNanoseconds(std::int64_t since_start) { now_ = kStart + absl::Nanoseconds(since_start); }
  double Seconds() const { return absl::ToDoubleSeconds(now_ - kStart); }

 private:
  // Any moment at which an epoch of 1 lies in the past.
  inline static const absl::Time kStart = absl::FromUnixSeconds(1'000'000'000);
  absl::Time now_ = kStart;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_SIM_CLOCK_H_
