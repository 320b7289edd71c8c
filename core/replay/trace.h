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
  // The trace so many times over, each copy with contents of its own and starting `copy_shift_s` of
  // the trace's time after the one before: more of the same traffic, for larger fleets.
  std::uint32_t copies = 1;
  double copy_shift_s = 30;
  // Answers that the next turn repeats are the same blocks there (NextTurns).
  bool next_turns = true;
};

// For each row the one whose next turn it is, or kNoRequest. Row k's next turn is a later row whose
// first block that no earlier row has stands where k's full prompt blocks end, that agrees with k
// up to there, and whose length is at least input + output of k; of several k the latest, each k
// once. Traces name prompts alone: what a turn's answer was shows only in the turn after it.
std::vector<std::int32_t> NextTurns(const std::vector<TraceRow>& rows);

// A block's content is its id, so that equal ids give equal tokens.
absl::StatusOr<Workload> WorkloadFromTrace(const std::vector<TraceRow>& rows,
                                           const TraceWorkloadOptions& options);

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_TRACE_H_
