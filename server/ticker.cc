#include "server/ticker.h"

#include <algorithm>

namespace warmpath {

namespace {

// What is due so soon is run along: one wake-up for several tasks instead of one for each.
constexpr absl::Duration kAlong = absl::Milliseconds(3);

// The next whole multiple of `interval` on the clock, so that tasks of equal or multiple intervals
// fall due together and stay so. At least half an interval away: what is run early is not run
// again.
absl::Time NextDue(absl::Time now, absl::Duration interval) {
  if (interval <= absl::ZeroDuration()) return now;
  const absl::Duration since_epoch = now + interval / 2 - absl::UnixEpoch();
  return absl::UnixEpoch() + absl::Ceil(since_epoch, interval);
}

}  // namespace

absl::Time Ticker::RunDue() {
  absl::Time next = absl::InfiniteFuture();
  for (Task& task : tasks_) {
    const absl::Time now = clock_->Now();
    if (now + kAlong >= task.due) task.due = NextDue(now, task.run());
    next = std::min(next, task.due);
  }
  return next;
}

void Ticker::Start() {
  thread_ = std::thread([this] {
    for (;;) {
      const absl::Duration wait = RunDue() - clock_->Now();
      absl::MutexLock lock(&mu_);
      if (mu_.AwaitWithTimeout(absl::Condition(&stopping_),
                               std::clamp(wait, absl::ZeroDuration(), absl::Seconds(1)))) {
        return;
      }
    }
  });
}

void Ticker::Stop() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace warmpath
