#include "core/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace warmpath {
namespace {

class RealClock final : public Clock {
 public:
  absl::Time Now() const override {
    return absl::UnixEpoch() +
           absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  absl::Time WallNow() const override { return absl::Now(); }
};

}  // namespace

const Clock& SystemClock() {
  static const RealClock* const clock = new RealClock;
  return *clock;
}

}  // namespace warmpath
