// What the agent reads from an engine over HTTP, parsed: the Prometheus text of /metrics and the
// JSON of /v1/models. Untrusted input: what can not be read is left out, nothing fails.
//
// Names are vLLM's (vllm/v1/metrics/loggers.py, 2025-04 to 2026-09).
#ifndef WARMPATH_CLIENT_AGENT_ENGINE_ENGINE_METRICS_H_
#define WARMPATH_CLIENT_AGENT_ENGINE_ENGINE_METRICS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"

namespace warmpath {

struct RankMetrics {
  std::optional<std::uint32_t> running;     // vllm:num_requests_running
  std::optional<std::uint32_t> waiting;     // vllm:num_requests_waiting
  std::optional<double> kv_usage;           // vllm:kv_cache_usage_perc, 0..1
  std::optional<std::uint32_t> block_size;  // vllm:cache_config_info{block_size}, tokens
  std::optional<std::uint64_t> num_blocks;  // vllm:cache_config_info{num_gpu_blocks}

  friend bool operator==(const RankMetrics&, const RankMetrics&) = default;
};

struct EngineMetrics {
  // By the label `engine`, which vLLM sets to the data-parallel rank. A series without it is
  // rank 0's.
  std::map<Rank, RankMetrics> ranks;
  std::optional<double> process_start;  // process_start_time_seconds, Unix seconds

  // One rank's numbers. With a single rank the label does not matter: behind an outside load
  // balancer each engine serves its own port but carries its global rank in the label.
  RankMetrics ForRank(Rank rank, std::uint32_t rank_count) const;
};

EngineMetrics ParseEngineMetrics(std::string_view text);

struct ServedModels {
  std::vector<std::string> base;   // entries without a parent, in order
  std::vector<std::string> loras;  // entries with one

  friend bool operator==(const ServedModels&, const ServedModels&) = default;
};

// INVALID_ARGUMENT when it is no model list or names no base model.
absl::StatusOr<ServedModels> ParseServedModels(std::string_view json);

// The string of /version's {"version": ".."}; empty when there is none.
std::string ParseVersion(std::string_view json);

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_ENGINE_ENGINE_METRICS_H_
