// Whose requests a workload's are, and a batch tenant on top: large fresh prompts at a high rate.
#ifndef WARMPATH_CORE_REPLAY_TENANTS_H_
#define WARMPATH_CORE_REPLAY_TENANTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "core/replay/workload.h"

namespace warmpath {

struct TenantOptions {
  std::uint64_t seed = 1;
  // Whole conversations are drawn into tenants 0, 1, ... of sizes 1, 1/2^zipf, 1/3^zipf, ...
  std::uint32_t tenants = 1;
  double zipf = 0;

  // The last tenant, `tenants`: its prefills, of which no two share anything, take this share of
  // the time of `engines` engines as fast as the profile. 0: there is none.
  double batch_share = 0;
  std::uint32_t batch_prompt = 16'384;  // tokens
  std::uint32_t batch_output = 64;
  std::uint32_t batch_burst = 1;  // so many arrive at one moment
  EngineProfile profile = kProfile32b;
  double engines = 8;
};

// INVALID_ARGUMENT naming the option. Deterministic for a seed. Arrivals of the batch tenant are
// Poisson over the workload's duration; all others stay as they are.
absl::Status AssignTenants(const TenantOptions& options, Workload* workload);

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_TENANTS_H_
