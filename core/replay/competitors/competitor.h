// Published routing rules to compare the router's policies with, as decision functions over what
// the router itself knows at a pick. They live with the replayer: no router offers them.
//
// The simulator asks the router's picker for every candidate's terms, lets the competitor choose,
// and has the picker reserve on the chosen one, so that overlay, index, ledger and lags are the
// same for all policies and only the decision differs.
#ifndef WARMPATH_CORE_REPLAY_COMPETITORS_COMPETITOR_H_
#define WARMPATH_CORE_REPLAY_COMPETITORS_COMPETITOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/random.h"

namespace warmpath {

// One worker that could take the request, at the moment of the pick.
struct WorkerSight {
  std::size_t worker = 0;
  // The router's terms for this request; core/routing/cost.h. Seconds and tokens.
  std::uint64_t cached_tokens = 0;
  double wait_s = 0;
  double copy_s = 0;
  double prefill_s = 0;
  double pool_price_s = 0;
  double decode_stall_s = 0;
  double kv_pressure_s = 0;
  double kv_wait_s = 0;
  std::uint32_t inflight = 0;
  std::uint64_t kv_tokens = 0;
  std::uint64_t kv_capacity_tokens = 0;
  // Books that some rules keep, from the same picks and signals (core/replay/sim_books.h).
  std::uint64_t pending_uncached_tokens = 0;  // of requests without first token
  std::uint64_t prompt_tokens = 0;            // of requests in flight
  std::uint64_t active_blocks = 0;            // distinct prompt blocks in flight
  std::uint64_t new_blocks = 0;               // prompt blocks of this request not among them
  std::uint32_t tenant_inflight = 0;          // requests in flight of the request's tenant
  std::uint32_t tenant_pending = 0;           // of them without first token
  // The engine's last load report.
  std::uint32_t reported_waiting = 0;
  double reported_kv_usage = 0;
};

// The request that is to be placed.
struct RequestSight {
  double now_s = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint32_t block_size = 0;
  std::uint64_t session = 0;
  bool follow_up = false;      // not the session's first turn
  std::uint64_t head_key = 0;  // names the first 1,024 tokens
  std::uint32_t tenant = 0;
  double decode_s = 0;  // from first token to finish, mean of all finished requests
};

// What Choose returns for a request that is to be refused.
inline constexpr std::size_t kShed = ~std::size_t{0};

// Not thread-safe; one per simulation.
class Competitor {
 public:
  virtual ~Competitor() = default;
  // Position in `workers`. REQUIRES: workers not empty, ordered by worker.
  virtual std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                             Random& random) = 0;
};

// In the order of documentation.
std::vector<std::string_view> CompetitorNames();
// The default policy with one of its terms left out.
std::vector<std::string_view> AblationNames();

// The default policy with something for fairness among tenants.
std::vector<std::string_view> TenantRuleNames();

// Any kind by name; NOT_FOUND when there is none.
absl::StatusOr<std::unique_ptr<Competitor>> MakeCompetitor(std::string_view name);

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_COMPETITORS_COMPETITOR_H_
