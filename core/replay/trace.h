// Public request traces in the Mooncake format: one JSON object a line with `timestamp` (ms),
// `input_length`, `output_length` (tokens) and `hash_ids`, one id per 512-token block of the
// prompt; equal ids mean equal prefixes up to and including that block.
#ifndef WARMPATH_CORE_REPLAY_TRACE_H_
#define WARMPATH_CORE_REPLAY_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/replay/workload.h"

namespace warmpath {

inline constexpr std::uint32_t kTraceBlockTokens = 512;

struct TraceRow {
  double timestamp_ms = 0;
  std::uint32_t input_length = 0;
  std::uint32_t output_length = 0;
  std::vector<std::uint64_t> hash_ids;
};

// At most `limit` rows (0: all), in the file's order. Errors name the line and the field.
absl::StatusOr<std::vector<TraceRow>> ReadTrace(const std::string& path, std::size_t limit);

struct TraceWorkloadOptions {
  std::uint64_t seed = 1;  // for the spread of arrivals
  // Arrivals carry one time stamp for a whole bucket of this width: they are spread inside it.
  double bucket_s = 3.0;
  // Mean request rate; 0 keeps the trace's own times.
  double requests_per_s = 0;
  std::uint32_t block_size = 16;  // for Workload::distinct_blocks
};

// A block's content is its id, so that equal ids give equal tokens.
absl::StatusOr<Workload> WorkloadFromTrace(const std::vector<TraceRow>& rows,
                                           const TraceWorkloadOptions& options);

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_TRACE_H_
