// A fleet of simulated engines behind the router's own code, as a discrete-event simulation: what
// the router would have decided and what the requests would have seen. docs/policy.md.
//
// Deterministic: the same workload and options give the same result, bit for bit.
#ifndef WARMPATH_CORE_REPLAY_SIMULATOR_H_
#define WARMPATH_CORE_REPLAY_SIMULATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/replay/engine_model.h"
#include "core/replay/workload.h"

namespace warmpath {

// Routing policy of a run without a router to beat: all engines share one infinite cache.
inline constexpr char kBoundPolicy[] = "bound";

struct SimOptions {
  std::string policy = "marginal_cost";  // SimPolicyNames(), AblationNames() or kBoundPolicy
  std::uint32_t workers = 8;
  EngineProfile profile = kProfile32b;
  // How many times as fast as the profile each worker is, in turn.
  std::vector<double> speeds = {1};
  std::uint32_t block_size = 512;  // of engines and router, tokens
  // The prefill rate that each worker registers, as a multiple of its true one; 0: registers none.
  double hint_factor = 1;
  // KV cache of each engine in host memory, tokens; 0: none. Copies come back from there at so many
  // tokens/s, of a worker of speed 1, and that rate times copy_hint_factor is registered; 0: none.
  std::uint64_t host_kv_tokens = 0;
  double host_copy_tokens_per_s = 80'000;
  double copy_hint_factor = 0;
  // Competitors take a prefix in host memory for cached, as most of their rules would; else they
  // see the GPUs' alone.
  bool competitors_see_host = true;

  double event_lag_s = 0.050;        // from the end of a step to its cache events in the index
  double event_loss = 0;             // share of steps whose cache events never arrive
  double report_interval_s = 0.100;  // between an engine's load reports
  double report_lag_s = 0;           // from an engine's state to its report in the ledger
  double signal_lag_s = 0.005;       // from a first token or finish to the router's knowledge
  bool overlay = true;               // prompts in flight are known before their events come
  bool tenant_fairness = false;      // the router's setting of this name
  std::uint64_t seed = 1;            // of the router's choices and of losses

  // Called now and then with the number of requests that are done.
  std::function<void(std::size_t)> on_progress;
};

struct SimRequestResult {
  bool refused = false;  // no worker could take it
  std::uint32_t worker = 0;
  std::uint32_t tenant = 0;
  double due_s = 0;   // arrival, or the end of the request it had to wait for
  double ttft_s = 0;  // from due_s to the end of the step that made the first token
  double tpot_s = 0;  // per output token after the first; 0 for a single one
  std::uint64_t prompt_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::uint64_t cached_tokens = 0;     // by the engine's account
  std::uint64_t copied_tokens = 0;     // of these: from host memory
  std::uint64_t predicted_tokens = 0;  // by the pick's
};

// Load of one moment, for plots.
struct SimSample {
  double time_s = 0;
  std::uint32_t running = 0;  // summed over workers
  std::uint32_t waiting = 0;
  std::uint32_t busiest = 0;  // requests on the worker that has most
};

struct SimResult {
  std::vector<SimRequestResult> requests;  // in the workload's order
  std::vector<SimSample> samples;          // about 500, evenly spread over the arrivals
  std::vector<double> prefill_rates;       // by worker, as learned at the end, tokens/s
  std::uint64_t picks = 0;
  std::uint64_t steps = 0;
};

// INVALID_ARGUMENT naming the option.
absl::StatusOr<SimResult> Simulate(const Workload& workload, const SimOptions& options);

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_SIMULATOR_H_
