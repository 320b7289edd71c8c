#include "core/fleet/engine_report.h"

#include <algorithm>
#include <limits>

namespace warmpath {

void OpenHistory::Add(absl::Time now, std::int32_t change) {
  if (steps_ == nullptr) steps_ = std::make_unique<std::array<Step, kKept>>();
  (*steps_)[count_ % kKept] = Step{.at = now, .change = change};
  ++count_;
}

std::optional<std::uint32_t> OpenHistory::At(absl::Time time, std::uint32_t now_open) const {
  std::int64_t open = now_open;
  const std::uint64_t kept = std::min(count_, kKept);
  for (std::uint64_t back = 1; back <= kept; ++back) {
    const Step& step = (*steps_)[(count_ - back) % kKept];
    if (step.at <= time) return static_cast<std::uint32_t>(std::max<std::int64_t>(0, open));
    open -= step.change;
  }
  if (count_ > kKept) return std::nullopt;
  return static_cast<std::uint32_t>(std::max<std::int64_t>(0, open));
}

void EngineReports::OnReport(const EngineLoad& load, std::uint32_t own_open,
                             const OpenHistory& history) {
  if (load.as_of <= last_at_) return;
  const std::uint64_t reported = std::uint64_t{load.running} + load.waiting;
  const bool empty = reported == 0;
  empty_before_last_ = empty && last_empty_ ? last_at_ : absl::InfinitePast();
  last_at_ = load.as_of;
  last_empty_ = empty;
  const std::optional<std::uint32_t> own = history.At(load.as_of, own_open);
  if (empty) {
    external_ = 0;
  } else if (own.has_value()) {
    // Bounded, since it is what somebody else wrote; far above what an engine can hold.
    constexpr std::uint64_t kMost = 1u << 20;
    external_ = static_cast<std::uint32_t>(
        std::min(kMost, reported - std::min<std::uint64_t>(reported, *own)));
  }
}

std::optional<absl::Time> EngineReports::EmptySince() const {
  if (empty_before_last_ == absl::InfinitePast()) return std::nullopt;
  return empty_before_last_ - kOnItsWay;
}

}  // namespace warmpath
