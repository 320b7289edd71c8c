// Why a rank's view of its engine's cache is not (or may not be) exact. The publisher maps these
// to the protocol's causes; docs/semantics.md "Freshness" gives their remedies.
#ifndef WARMPATH_CLIENT_AGENT_CANONICAL_FEED_CAUSE_H_
#define WARMPATH_CLIENT_AGENT_CANONICAL_FEED_CAUSE_H_

#include <cstdint>
#include <string_view>

namespace warmpath {

enum class FeedCause : std::uint8_t {
  kResync = 0,    // a replay that catches up or verifies the process is under way
  kGap,           // messages were lost
  kMissedStart,   // the first messages of this engine process were not seen
  kLateJoin,      // restored from the state file, not yet proven current
  kHiddenDomain,  // the engine keeps apart what its events do not tell apart
  kSilent,        // connected to a source that has not sent anything yet
  kDrift,         // the engine differs from what it registered (block size, capacity)
  kCount
};

// "resync", "gap", "missed_start", "late_join", "hidden_domain", "silent", "drift".
std::string_view FeedCauseName(FeedCause cause);

// A small set of causes. Empty means EXACT.
class FeedCauses {
 public:
  constexpr FeedCauses() = default;
  constexpr void Set(FeedCause cause, bool on = true) {
    const std::uint32_t bit = 1U << static_cast<unsigned>(cause);
    bits_ = on ? (bits_ | bit) : (bits_ & ~bit);
  }
  constexpr bool Has(FeedCause cause) const {
    return (bits_ >> static_cast<unsigned>(cause) & 1U) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr FeedCauses operator|(FeedCauses other) const {
    FeedCauses both;
    both.bits_ = bits_ | other.bits_;
    return both;
  }
  friend constexpr bool operator==(FeedCauses, FeedCauses) = default;

 private:
  std::uint32_t bits_ = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_CANONICAL_FEED_CAUSE_H_
