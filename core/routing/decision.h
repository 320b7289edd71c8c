// What a pick answers: plain values, independent of the wire.
#ifndef WARMPATH_CORE_ROUTING_DECISION_H_
#define WARMPATH_CORE_ROUTING_DECISION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/fleet/worker.h"

namespace warmpath {

struct EndpointRef {
  std::string worker_id;
  Rank rank = 0;
  std::string address;
  bool needs_rank_header = false;  // the proxy must send X-data-parallel-rank
};

// One candidate's terms in seconds (the wire shows milliseconds). docs/policy.md has the formulas.
struct CandidateTerms {
  EndpointRef endpoint;
  std::uint64_t cached_tokens = 0;    // h
  std::uint64_t uncached_tokens = 0;  // L - h
  std::uint64_t copied_tokens = 0;    // of h: in slower tiers than the GPU's
  double wait_s = 0;                  // W
  double copy_s = 0;                  // T
  double prefill_s = 0;               // P
  double pool_price_s = 0;            // a * P'
  double decode_stall_s = 0;          // beta * D * (1 + D / D0) * P * s^3.5
  double kv_pressure_s = 0;           // zeta * (X / C)^2 / s^2
  double kv_wait_s = 0;               // K
  double tenant_s = 0;                // F
  double cost_s = 0;                  // the policy's score; the sum for marginal_cost
  std::uint32_t inflight = 0;
  std::uint64_t kv_tokens = 0;
  std::uint64_t kv_capacity_tokens = 0;
  Freshness freshness = Freshness::kNone;
  CauseSet causes;
  std::string excluded;  // why it was no candidate; empty if it was
};

struct Decision {
  EndpointRef endpoint;
  std::vector<EndpointRef> fallbacks;  // next best first; none at its limit
  ReservationId reservation_id = 0;    // 0 when nothing was reserved
  std::uint64_t prompt_tokens = 0;
  std::uint64_t predicted_cached_tokens = 0;
  double predicted_ttft_s = 0;
  Freshness freshness = Freshness::kNone;
  CauseSet causes;
  std::uint32_t candidates_exact = 0;
  std::uint32_t candidates_degraded = 0;
  std::uint32_t candidates_none = 0;
  std::string policy;
  std::string reason;
  std::string pool;
  std::vector<CandidateTerms> explanation;  // best first; only if asked for
  std::vector<std::string> notes;
};

enum class OutcomeKind : std::uint8_t { kFirstToken, kProgress, kFinished, kFailed };

struct Outcome {
  ReservationId reservation_id = 0;
  OutcomeKind kind = OutcomeKind::kFinished;
  std::string_view served_by;  // empty: as picked
  std::optional<std::uint64_t> actual_cached_tokens;
  std::optional<std::uint64_t> actual_prompt_tokens;
  std::optional<std::uint64_t> output_tokens;
  std::optional<absl::Duration> ttft;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_DECISION_H_
