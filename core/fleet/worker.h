// Plain values that describe workers and targets. Target = (worker, rank): the unit that is
// picked; epoch, sequence, freshness, capacity, load and index slot are per target.
#ifndef WARMPATH_CORE_FLEET_WORKER_H_
#define WARMPATH_CORE_FLEET_WORKER_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/ids.h"

namespace warmpath {

// Dense number of a target inside its pool; reused after the target was removed.
using TargetId = std::uint32_t;
inline constexpr TargetId kNoTarget = ~TargetId{0};

enum class Lifecycle : std::uint8_t { kJoining, kReady, kNotReady, kDraining, kLost };
enum class Freshness : std::uint8_t { kNone, kDegraded, kExact };

// Why a target is DEGRADED. Values are those of proto FreshnessCause minus one.
enum class FreshnessCause : std::uint8_t {
  kAgentGone,
  kResync,
  kGap,
  kMissedStart,
  kLateJoin,
  kHiddenDomain,
  kIndexFull,
  kSilent,
  kDrift,
};
inline constexpr std::size_t kFreshnessCauseCount = 9;

std::string_view LifecycleName(Lifecycle lifecycle);          // "joining", ...
std::string_view FreshnessName(Freshness freshness);          // "EXACT", "DEGRADED", "NONE"
std::string_view FreshnessCauseName(FreshnessCause cause);    // "agent_gone", ...
std::string_view FreshnessCauseRemedy(FreshnessCause cause);  // one sentence for an operator

// A small set of causes. EXACT means: has had a whole snapshot and the set is empty.
class CauseSet {
 public:
  constexpr CauseSet() = default;
  constexpr void Set(FreshnessCause c, bool on = true) {
    const auto bit = static_cast<std::uint16_t>(1u << static_cast<unsigned>(c));
    bits_ = static_cast<std::uint16_t>(on ? (bits_ | bit) : (bits_ & ~bit));
  }
  constexpr bool Has(FreshnessCause c) const {
    return ((bits_ >> static_cast<unsigned>(c)) & 1u) != 0;
  }
  constexpr bool empty() const { return bits_ == 0; }
  // The first in the enum's order; REQUIRES: !empty().
  FreshnessCause First() const;
  std::vector<FreshnessCause> ToVector() const;
  friend constexpr bool operator==(CauseSet, CauseSet) = default;

 private:
  std::uint16_t bits_ = 0;
};

// What an agent says of one rank when it registers.
struct RankSpec {
  Rank rank = 0;
  std::string address;  // "ip:port"
  Epoch epoch = 0;
  std::uint32_t engine_block_size = 0;   // tokens
  std::uint64_t kv_capacity_tokens = 0;  // C; 0 unknown
  bool has_events = false;
  double prefill_tokens_per_s = 0;    // hint; 0 unknown
  bool shares_address = false;        // ranks share a port: X-data-parallel-rank is needed
  double host_copy_tokens_per_s = 0;  // KV from host memory, hint; 0 unknown
};

struct Registration {
  std::uint32_t protocol_min = 1;
  std::uint32_t protocol_max = 1;
  std::uint64_t features = 0;
  std::string agent_instance;  // 16 bytes
  std::string worker_id;
  std::string model;
  std::vector<std::string> aliases;
  std::vector<std::string> loras;
  std::string engine;
  std::string engine_version;
  std::string agent_version;
  std::vector<RankSpec> ranks;
  std::vector<std::pair<std::string, std::string>> labels;
};

// What the engine said of its load, last report.
struct EngineLoad {
  std::uint32_t running = 0;
  std::uint32_t waiting = 0;
  double kv_usage = 0;                      // 0..1
  absl::Time as_of = absl::InfinitePast();  // steady time the engine was asked
};

// One target as operators see it: a copy, consistent at one instant.
struct TargetView {
  Rank rank = 0;
  std::string address;
  Lifecycle lifecycle = Lifecycle::kJoining;
  Freshness freshness = Freshness::kNone;
  CauseSet causes;
  Epoch epoch = 0;
  std::optional<std::uint64_t> engine_seq;
  double event_lag_s = 0;
  std::array<std::uint64_t, kTierCount> blocks{};
  std::uint32_t inflight = 0;
  std::uint32_t external_inflight = 0;
  double wait_s = 0;
  std::uint64_t kv_tokens = 0;
  std::uint64_t kv_capacity_tokens = 0;
  double prefill_tokens_per_s = 0;
  std::optional<EngineLoad> load;
  std::uint32_t engine_block_size = 0;
  bool has_events = false;
  std::uint64_t predicted_blocks = 0;
  bool may_have_holes = false;  // Index::SetMayHaveHoles; false where there is no slot
};

struct WorkerView {
  std::string worker_id;
  std::string pool;
  std::string engine;
  std::string engine_version;
  std::string agent_address;
  std::string agent_version;
  bool draining = false;
  std::vector<std::string> loras;
  std::vector<std::pair<std::string, std::string>> labels;
  std::vector<TargetView> targets;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_WORKER_H_
