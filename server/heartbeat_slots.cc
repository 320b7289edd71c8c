#include "server/heartbeat_slots.h"

#include <algorithm>

namespace warmpath {
namespace {

// Where slot i lies, as a share of the interval: 0, 1/2, 1/4, 3/4, 1/8, ... (the bits of i
// mirrored at the point), so that the first 2^k slots are equally far apart for every k.
double Position(std::size_t slot) {
  double position = 0;
  for (double half = 0.5; slot != 0; slot /= 2, half /= 2) {
    if (slot % 2 == 1) position += half;
  }
  return position;
}

}  // namespace

HeartbeatSlots::HeartbeatSlots(absl::Duration heartbeat, const Clock* clock)
    : heartbeat_(heartbeat), clock_(clock) {
  while (heartbeat / static_cast<double>(first_slots_) > kLongestGap) first_slots_ *= 2;
  std::size_t most = first_slots_;
  while (heartbeat / static_cast<double>(2 * most) >= kShortestGap) most *= 2;
  taken_.resize(most);
}

std::size_t HeartbeatSlots::Take() {
  absl::MutexLock lock(&mu_);
  std::size_t open = first_slots_;
  while (open < taken_.size() && taken_total_ >= open * kPerSlot) open *= 2;
  const auto least =
      std::min_element(taken_.begin(), taken_.begin() + static_cast<std::ptrdiff_t>(open));
  ++*least;
  ++taken_total_;
  return static_cast<std::size_t>(least - taken_.begin());
}

void HeartbeatSlots::GiveBack(std::size_t slot) {
  absl::MutexLock lock(&mu_);
  --taken_[slot];
  --taken_total_;
}

absl::Duration HeartbeatSlots::UntilNext(std::size_t slot) const {
  const absl::Duration since = clock_->Now() - absl::UnixEpoch();
  const absl::Duration left = (heartbeat_ * Position(slot) - since) % heartbeat_;
  return left < absl::ZeroDuration() ? left + heartbeat_ : left;
}

bool HeartbeatSlots::Steady() const {
  constexpr std::size_t kEnough = 8;  // messages in a slot
  absl::MutexLock lock(&mu_);
  return taken_total_ >= first_slots_ * kEnough;
}

}  // namespace warmpath
