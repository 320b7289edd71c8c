// The router of a simulation: the product's own fleet, index, ledger and picker on a fake clock,
// with one registered worker per simulated engine.
#ifndef WARMPATH_CORE_REPLAY_SIM_ROUTER_H_
#define WARMPATH_CORE_REPLAY_SIM_ROUTER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/random.h"
#include "core/fleet/feed.h"
#include "core/fleet/fleet.h"
#include "core/replay/competitors/competitor.h"
#include "core/replay/sim_books.h"
#include "core/routing/picker.h"

namespace warmpath {

struct SimWorkerSpec {
  std::uint64_t kv_capacity_tokens = 0;
  double prefill_tokens_per_s = 0;    // the hint it registers; 0: none
  double host_copy_tokens_per_s = 0;  // likewise
};

struct SimRouterOptions {
  std::string policy;  // of the router, a competitor, an ablation
  std::uint32_t block_size = 0;
  std::vector<SimWorkerSpec> workers = {};
  bool overlay = true;
  bool tenant_fairness = false;
  bool competitors_see_host = true;  // as SimOptions
  // No cache has holes as the router is told of it. So it is where all events arrive: requests pin
  // their prefix and free it tail first, and equal blocks are shared (block_cache.h).
  bool no_holes = false;
  std::uint64_t seed = 1;
};

// What the router is told of a request.
struct SimPrompt {
  std::span<const ChainHash> chain;  // of its full blocks
  std::uint64_t prompt_tokens = 0;
  std::span<const TokenId> head;  // first 1,024 tokens; empty when the policy needs none
  std::uint64_t session = 0;
  bool follow_up = false;
  std::uint32_t tenant = 0;
};

// Not thread-safe.
class SimRouter {
 public:
  struct Placement {
    std::size_t worker = 0;
    ReservationId reservation = 0;
    std::uint64_t predicted_cached_tokens = 0;
    std::uint64_t uncached_tokens = 0;
    std::uint32_t tenant = 0;
  };

  // INVALID_ARGUMENT listing the policies for an unknown one. `clock` outlives the router.
  static absl::StatusOr<std::unique_ptr<SimRouter>> Create(const SimRouterOptions& options,
                                                           const Clock* clock);
  ~SimRouter();

  SimRouter(const SimRouter&) = delete;
  SimRouter& operator=(const SimRouter&) = delete;

  // Errors are the picker's.
  absl::StatusOr<Placement> Pick(const SimPrompt& prompt, double now_s);
  absl::Status FirstToken(const Placement& placement, double ttft_s);
  absl::Status Finished(const Placement& placement, const SimPrompt& prompt,
                        std::uint64_t cached_tokens, std::uint64_t output_tokens, double decode_s);

  // One engine step's cache changes, as an agent would send them.
  absl::Status CacheDelta(std::size_t worker, Tier tier, std::span<const ChainHash> removed,
                          std::span<const ChainHash> stored);
  absl::Status Load(std::size_t worker, std::uint32_t running, std::uint32_t waiting,
                    double kv_usage, absl::Duration age);
  void Tick() { fleet_->Tick(); }

  // tokens/s in use for the worker, as operators see it.
  double PrefillRate(std::size_t worker) const;

 private:
  class Sink;
  struct Report {
    std::uint32_t waiting = 0;
    double kv_usage = 0;
  };
  struct Worker {
    std::string id;
    std::string address;
    std::shared_ptr<Sink> sink;
    std::unique_ptr<WorkerFeed> feed;
    SessionId session = 0;
    std::uint64_t delta_seq = 0;
    std::uint64_t engine_seq = 0;
    Report report;
  };

  SimRouter(const SimRouterOptions& options, const Clock* clock);
  absl::Status Register(const SimWorkerSpec& spec);
  absl::Status Send(Worker& worker, const FeedUpdate& update);
  // The competitor's choice among the candidates that the picker sees.
  absl::StatusOr<std::size_t> Choose(const SimPrompt& prompt, const Query& query, double now_s);

  const SimRouterOptions options_;
  Random random_;
  SimBooks books_;
  std::unique_ptr<Competitor> competitor_;  // null: the router's own policy
  std::unique_ptr<Fleet> fleet_;
  Picker picker_;
  std::shared_ptr<Pool> pool_;
  std::vector<Worker> workers_;
  double mean_decode_s_ = 0;  // first token to finish, of finished requests
  std::uint64_t finished_ = 0;
  std::vector<WorkerSight> sights_;
  std::string session_key_;
  std::string tenant_id_;
};

// marginal_cost, taking only what lies in the GPUs for held. An ablation, but not of the cost.
inline constexpr char kWithoutHostTier[] = "without_host_tier";

// The router's own policies, then the competitors.
std::vector<std::string_view> SimPolicyNames();

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_SIM_ROUTER_H_
