// What one engine's load reports mean beside the router's own books: load that came around the
// router, and whether the engine is idle for sure.
#ifndef WARMPATH_CORE_FLEET_ENGINE_REPORT_H_
#define WARMPATH_CORE_FLEET_ENGINE_REPORT_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "core/fleet/worker.h"

namespace warmpath {

// How many own reservations were open at a moment of the recent past: a report tells of the time
// when the engine was asked, and some of ours opened or closed since. Not thread-safe.
class OpenHistory {
 public:
  void OnOpen(absl::Time now) { Add(now, 1); }
  void OnClose(absl::Time now) { Add(now, -1); }
  // The count at `time`, given the one now. Nothing when more has happened since than is kept.
  std::optional<std::uint32_t> At(absl::Time time, std::uint32_t now_open) const;

 private:
  // A target that opens and closes 250 times a second keeps half a second: five reports.
  static constexpr std::uint64_t kKept = 128;
  struct Step {
    absl::Time at;
    std::int32_t change = 0;
  };

  void Add(absl::Time now, std::int32_t change);

  std::unique_ptr<std::array<Step, kKept>> steps_;  // a ring; made at the first step
  std::uint64_t count_ = 0;
};

// Not thread-safe.
class EngineReports {
 public:
  // A report; `own_open` is the number of own reservations open now. One that is not newer than the
  // last is ignored.
  void OnReport(const EngineLoad& load, std::uint32_t own_open, const OpenHistory& history);

  // Requests in the engine that the router did not send there.
  std::uint32_t external() const { return external_; }
  // When two successive reports said that the engine is empty: reservations picked before this
  // moment are known to have ended. Nothing else closes what the engine no longer has.
  std::optional<absl::Time> EmptySince() const;

 private:
  // A request may be on its way to the engine for so long.
  static constexpr absl::Duration kOnItsWay = absl::Seconds(2);

  absl::Time last_at_ = absl::InfinitePast();
  bool last_empty_ = false;
  absl::Time empty_before_last_ = absl::InfinitePast();
  std::uint32_t external_ = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_ENGINE_REPORT_H_
