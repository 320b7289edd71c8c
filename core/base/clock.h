// Time as an injected dependency. Nothing in core/ reads the system clock itself,
// so every rule about leases, lags and back-off can be tested on a fake clock.
#ifndef WARMPATH_CORE_BASE_CLOCK_H_
#define WARMPATH_CORE_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace warmpath {

// Thread-safe: all implementations may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;

  // Steady time: never goes back, arbitrary origin. For intervals, deadlines, ages.
  virtual absl::Time Now() const = 0;

  // Calendar time. Only for epochs (Unix nanoseconds), log lines and human output.
  virtual absl::Time WallNow() const = 0;
};

// The machine's clocks. Never destroyed: gRPC threads may outlive main.
const Clock& SystemClock();

}  // namespace warmpath

#endif  // WARMPATH_CORE_BASE_CLOCK_H_
