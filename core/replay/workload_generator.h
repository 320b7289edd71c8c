// A synthetic workload with the sharing that real traffic shows: system prompts of unequal
// popularity, chats whose turns repeat their history, and agent loops whose siblings start as a
// burst on one fresh context and then each go on with tool results of their own.
#ifndef WARMPATH_CORE_REPLAY_WORKLOAD_GENERATOR_H_
#define WARMPATH_CORE_REPLAY_WORKLOAD_GENERATOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "core/replay/workload.h"

namespace warmpath {

struct TokenRange {
  std::uint32_t low = 0;
  std::uint32_t high = 0;  // inclusive
};

struct GeneratorOptions {
  std::uint64_t seed = 1;

  std::uint32_t system_prompts = 16;
  std::uint32_t system_tokens = 1024;
  double zipf_exponent = 1.0;  // popularity of system prompts over chats

  std::uint32_t chats = 240;
  std::uint32_t turns = 6;
  TokenRange user = {128, 512};
  TokenRange answer = {64, 256};

  std::uint32_t agent_loops = 20;
  std::uint32_t siblings = 8;
  std::uint32_t agent_steps = 8;          // requests of each sibling
  TokenRange agent_context = {128, 384};  // fresh, shared by the loop's siblings
  TokenRange tool_result = {1536, 2048};  // new tokens of each step
  TokenRange agent_answer = {64, 256};
  double sibling_spread_s = 0.040;

  std::uint32_t block_size = 16;  // for Workload::distinct_blocks

  // Arrivals span the time in which `engines` engines, `speed_factor` times as fast as the profile,
  // would be busy with prefill for this share of the time if nothing were ever cached.
  EngineProfile profile = kProfile32b;
  std::uint32_t engines = 4;
  double speed_factor = 1;
  double cold_utilisation = 0.6;
};

// INVALID_ARGUMENT naming the option. Deterministic for a seed.
absl::StatusOr<Workload> GenerateWorkload(const GeneratorOptions& options);

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_WORKLOAD_GENERATOR_H_
