// Pick: match, filter, score, verify and reserve as one authoritative step per pool.
//
// The match on the index runs without locks. Overlay look-up, scoring, verification of the winner
// and the reservation hold the pool's mutex for microseconds, so that concurrent picks never herd.
#ifndef WARMPATH_CORE_ROUTING_PICKER_H_
#define WARMPATH_CORE_ROUTING_PICKER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/histogram.h"
#include "core/fleet/fleet.h"
#include "core/fleet/pool.h"
#include "core/routing/decision.h"
#include "core/routing/query.h"

namespace warmpath {

// Canonical names, in the order of documentation. HyperPod's and SageMaker's names are aliases
// (prefixaware, kvaware, roundrobin, RANDOM, LEAST_OUTSTANDING_REQUESTS, PREFIX_AWARE).
std::vector<std::string_view> PolicyNames();
// INVALID_ARGUMENT listing the names.
absl::StatusOr<std::string_view> CanonicalPolicyName(std::string_view name);

// Pick statistics of one (pool, policy, reason, freshness), cumulative.
struct PickCount {
  std::string pool;
  std::string policy;
  std::string reason;
  Freshness freshness = Freshness::kNone;
  std::uint64_t count = 0;
};

// Token sums and closings of one pool, cumulative.
struct PoolTraffic {
  std::string pool;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t matched_tokens = 0;           // longest match over all candidates
  std::uint64_t predicted_cached_tokens = 0;  // h of the chosen target
  std::uint64_t actual_cached_tokens = 0;     // as outcomes said
  std::uint64_t shed = 0;
  std::uint64_t not_finite = 0;  // candidates left out for a cost that is no number; always 0
  std::uint64_t reservations_opened = 0;
  std::uint64_t reservations_open = 0;
  std::vector<std::pair<std::string, std::uint64_t>> closed_by_cause;
};

// Read at scrape; each takes the pools' mutexes one after another.
std::vector<PickCount> PickCountsOf(const Fleet& fleet);
std::vector<PoolTraffic> TrafficOf(const Fleet& fleet);

// Thread-safe. One per router; all state that picks share lives in the pools.
class Picker {
 public:
  // `clock` must outlive the picker.
  explicit Picker(const Clock* clock);
  ~Picker();

  // UNAVAILABLE "pool M has no ready worker; N joining"; RESOURCE_EXHAUSTED (too large for every KV
  // cache: names L and the largest C; or wait over max_wait: *retry_after is set, else zero);
  // INVALID_ARGUMENT (policy, prefix_aware input); FAILED_PRECONDITION (empty subset).
  absl::StatusOr<Decision> Pick(Pool& pool, const Query& query,
                                absl::Duration* retry_after = nullptr);

  // NOT_FOUND when the reservation is not open. An unknown served_by leaves it where it is.
  absl::Status ReportOutcome(Fleet& fleet, const Outcome& outcome);

  // A stream ended: what it holds may be re-adopted under `client_instance` for 5 s, then it is
  // released. An empty instance releases at once.
  void ReleaseHolder(Fleet& fleet, HolderId holder, std::string_view client_instance);
  // A new stream of the same client takes over; returns how many reservations it adopted.
  std::uint32_t AdoptHolder(Fleet& fleet, std::string_view client_instance, HolderId new_holder);

  // Seconds that picks held their pool's mutex.
  HistogramSnapshot LockHold() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_PICKER_H_
