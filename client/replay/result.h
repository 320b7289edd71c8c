// What one run measured: per request, summarised, as a table and as JSON.
#ifndef WARMPATH_CLIENT_REPLAY_RESULT_H_
#define WARMPATH_CLIENT_REPLAY_RESULT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace warmpath::replay {

struct RequestResult {
  bool finished = false;
  std::string error;       // why it failed; empty if it finished
  std::string worker;      // "id/rank" that served
  bool fell_back = false;  // not the first choice
  std::uint64_t prompt_tokens = 0;
  std::uint64_t output_tokens = 0;
  std::uint64_t predicted_cached_tokens = 0;
  std::uint64_t actual_cached_tokens = 0;
  double ttft_s = 0;  // from the moment it was due, the pick included
  double total_s = 0;
  double late_s = 0;  // how late the driver itself started it
};

// Fractions are 0..1.
struct Summary {
  std::uint64_t requests = 0;  // without errors
  std::uint64_t errors = 0;
  double token_hit_rate = 0;  // cached prompt tokens / prompt tokens
  double ttft_mean_ms = 0;
  double ttft_p50_ms = 0;
  double ttft_p90_ms = 0;
  double ttft_p99_ms = 0;
  double tpot_mean_ms = 0;          // time per output token after the first
  double busiest_worker_share = 0;  // of prompt tokens
  std::uint64_t predicted_cached_tokens = 0;
  std::uint64_t actual_cached_tokens = 0;
  double prediction_mae_tokens = 0;  // mean over requests of |predicted - actual|
  std::uint64_t fallbacks = 0;
  double driver_late_p99_ms = 0;
  double wall_s = 0;
  std::string first_error;
};

Summary Summarise(const std::vector<RequestResult>& results, double wall_s);

// One row per (name, summary).
std::string SummaryTable(const std::vector<std::pair<std::string, Summary>>& rows);

// {"requests": ..., ...} with the field names above; see docs/warmpath-replay.md.
std::string SummaryJson(const Summary& summary);

}  // namespace warmpath::replay

#endif  // WARMPATH_CLIENT_REPLAY_RESULT_H_
