// One target's load as a pick reads it.
//
// A pick asks for the load of every target, under the pool's mutex, while other cores write the
// books of some. What it needs of a target is therefore kept in one cache line, side by side with
// those of the other targets, apart from the lists and histories that only changes need; and what
// is the same for all targets is worked out once.
#ifndef WARMPATH_CORE_FLEET_TARGET_LOAD_H_
#define WARMPATH_CORE_FLEET_TARGET_LOAD_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/fleet/worker.h"

namespace warmpath {

// What the score needs to know of one target's load, now. Symbols are those of docs/policy.md.
struct TargetLoad {
  double wait_s = 0;               // W: what is left of pend_w, external load included
  std::uint32_t inflight = 0;      // D: open reservations + external
  std::uint32_t own_inflight = 0;  // open reservations only
  std::uint32_t external = 0;
  std::uint64_t kv_tokens = 0;  // X
};

// The numbers that loads are made of. Integers, so that sums over reservations that come and go
// stay exact.
struct alignas(64) LoadLine {
  std::int64_t pending_ns = 0;  // prefill of all reservations in pend_w
  std::int64_t head_ns = 0;     // of the one at its head; 0 when it is empty
  std::int64_t anchor_ns = 0;   // Unix time since when the head drains
  std::uint64_t open_blocks = 0;
  std::uint64_t loose_tokens = 0;     // of open prompts, in no full routing block
  std::uint64_t expected_output = 0;  // tokens, of those that announced it
  std::uint32_t open = 0;             // reservations
  std::uint32_t announced = 0;        // of them in expected_output
  std::uint32_t external = 0;
  bool in_use = false;
};
static_assert(sizeof(LoadLine) == 64);

// The loads of all targets at one instant. Valid until the ledger changes.
class LoadsNow {
 public:
  // What all targets share.
  struct Terms {
    std::int64_t now_ns = 0;
    // The clock stands in for first tokens that nobody tells: the next one in pend_w begins when
    // the head's time is over, seen or not.
    bool silent = false;
    bool cold = false;             // the pool does not know its own outputs yet
    double output_tokens = 0;      // o
    double external_s = 0;         // W of one external request
    std::uint64_t block_size = 0;  // tokens
  };
  LoadsNow(std::span<const LoadLine> lines, const Terms& terms) : lines_(lines), terms_(terms) {}

  std::size_t size() const { return lines_.size(); }

  // REQUIRES: target < size() and in use.
  TargetLoad Of(TargetId target) const {
    const LoadLine& line = lines_[target];
    TargetLoad load;
    load.own_inflight = line.open;
    load.external = line.external;
    load.inflight = line.open + line.external;
    // An empty pend_w has no head, and nothing that could drain.
    const std::int64_t drains = terms_.silent ? line.pending_ns : line.head_ns;
    const std::int64_t drained =
        std::clamp<std::int64_t>(terms_.now_ns - line.anchor_ns, 0, drains);
    load.wait_s =
        static_cast<double>(line.pending_ns - drained) * 1e-9 + line.external * terms_.external_s;
    // Before the pool knows its own outputs, those that callers announced count as they are.
    const double outputs =
        terms_.cold
            ? static_cast<double>(static_cast<std::int64_t>(line.expected_output)) +
                  terms_.output_tokens * (load.inflight - static_cast<double>(line.announced))
            : terms_.output_tokens * load.inflight;
    // Both conversions through signed numbers, which is one instruction: the bounds on reservations
    // and their tokens keep all of it far below 2^63. Rounded by hand, for lround is a call.
    load.kv_tokens =
        line.open_blocks * terms_.block_size + line.loose_tokens +
        // NOLINTNEXTLINE(bugprone-incorrect-roundings)
        static_cast<std::uint64_t>(static_cast<std::int64_t>(std::max(0.0, outputs) + 0.5));
    return load;
  }

 private:
  std::span<const LoadLine> lines_;
  Terms terms_;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_TARGET_LOAD_H_
