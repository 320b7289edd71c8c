// Replays a workload against a live router and live engines, as a thin data-plane proxy would:
// PickEndpoint, the HTTP request to the chosen engine, the outcome report.
#ifndef WARMPATH_CLIENT_REPLAY_LIVE_RUNNER_H_
#define WARMPATH_CLIENT_REPLAY_LIVE_RUNNER_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/replay/result.h"
#include "core/replay/workload.h"
#include "warmpath/client.h"

namespace warmpath::replay {

struct LiveOptions {
  std::string model;
  std::string policy;           // sent with each pick; empty: the pool's
  double min_think_s = 0.25;    // between an answer's end and the next request of its line
  std::size_t max_open = 4096;  // requests in flight; later ones wait (and count as late)
  absl::Duration request_timeout = absl::Minutes(5);
  // Called about four times a second with requests done so far.
  std::function<void(std::size_t done, std::size_t errors)> on_progress;
};

// Runs the whole workload; returns one result per request, in the workload's order. A failed
// request is a result with an error, not a failure of the run. The router must be reachable.
absl::StatusOr<std::vector<RequestResult>> RunLive(const Workload& workload, client::Client* router,
                                                   const LiveOptions& options);

}  // namespace warmpath::replay

#endif  // WARMPATH_CLIENT_REPLAY_LIVE_RUNNER_H_
