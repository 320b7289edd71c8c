// When agents are to send their heartbeats, so that an idle router wakes up for many at once.
//
// What a heartbeat costs is the wake-up, several times what is done in it (docs/performance.md,
// "Idle"). Agents therefore beat in step: the interval is cut into slots, each shared by up to
// kPerSlot of them. A small fleet uses few slots; a large one opens more, so that no burst delays a
// pick by more than the time of kPerSlot messages, until slots are kShortestGap apart.
//
// Thread-safe.
#ifndef WARMPATH_SERVER_HEARTBEAT_SLOTS_H_
#define WARMPATH_SERVER_HEARTBEAT_SLOTS_H_

#include <cstddef>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"

namespace warmpath {

class HeartbeatSlots {
 public:
  static constexpr std::size_t kPerSlot = 32;
  // gRPC's threads doze after a second without a message, and later ones then wait for them.
  static constexpr absl::Duration kLongestGap = absl::Milliseconds(500);
  static constexpr absl::Duration kShortestGap = absl::Milliseconds(10);

  // `heartbeat` is above 0; `clock` must outlive the slots.
  HeartbeatSlots(absl::Duration heartbeat, const Clock* clock);

  absl::Duration heartbeat() const { return heartbeat_; }

  // A place in one of the least used slots, to be given back when the agent goes.
  std::size_t Take() ABSL_LOCKS_EXCLUDED(mu_);
  void GiveBack(std::size_t slot) ABSL_LOCKS_EXCLUDED(mu_);

  // Until the slot comes next; at least 0, less than the heartbeat.
  absl::Duration UntilNext(std::size_t slot) const;

  // So many places are taken that there are some in each slot: a message comes at least every
  // kLongestGap, and enough of them to pass through each of gRPC's threads.
  bool Steady() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const absl::Duration heartbeat_;
  const Clock* const clock_;
  std::size_t first_slots_ = 1;  // open from the start; a power of two

  mutable absl::Mutex mu_;
  std::size_t taken_total_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::size_t> taken_ ABSL_GUARDED_BY(mu_);  // by slot; as many as may be opened
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_HEARTBEAT_SLOTS_H_
