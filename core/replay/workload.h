// What a replay asks for: requests with arrival times and prompts made of named content, from a
// public trace or from a generator. The same workload drives the simulator and live engines.
//
// Content. A prompt is a list of segments; a segment is a run of the tokens of one content, and the
// token at a position of a content is a pure function of both. Prompts that share a prefix of
// segments therefore share exactly those tokens, and nothing needs to be stored.
#ifndef WARMPATH_CORE_REPLAY_WORKLOAD_H_
#define WARMPATH_CORE_REPLAY_WORKLOAD_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/replay/engine_model.h"

namespace warmpath {

inline constexpr std::int32_t kNoRequest = -1;

struct PromptSegment {
  std::uint64_t content = 0;
  std::uint32_t tokens = 0;
  // The answer of this earlier request: a live run puts the engine's real answer here.
  std::int32_t answer_of = kNoRequest;
};

struct ReplayRequest {
  double arrival_s = 0;             // planned, from the start of the run
  std::int32_t after = kNoRequest;  // not before this request has finished
  std::vector<PromptSegment> prompt;
  std::uint64_t output_content = 0;
  std::uint32_t output_tokens = 0;
  std::uint32_t tenant = 0;  // core/replay/tenants.h

  // The earlier request whose next turn this is, where a trace shows it. Unlike `after` nothing
  // waits for it: the arrival stands.
  std::int32_t previous_turn = kNoRequest;
  // Contents of the blocks of `kShownBlockTokens` that begin where the prompt's last full block of
  // that size ends and lie inside prompt + output, as the next turn's prompt shows them. Empty when
  // no later request does: then the answer is of output_content.
  std::vector<std::uint64_t> shown_blocks;

  std::uint64_t PromptTokens() const;
};

// Size of ReplayRequest::shown_blocks, tokens.
inline constexpr std::uint32_t kShownBlockTokens = 512;

struct Workload {
  std::string description;              // one line for people
  std::vector<ReplayRequest> requests;  // by arrival; `after` and `answer_of` point backwards
  std::uint64_t prompt_tokens = 0;      // summed
  std::uint64_t output_tokens = 0;
  std::uint64_t distinct_blocks = 0;  // of prompts and answers, in blocks of `block_size`
  std::uint32_t block_size = 0;
  double duration_s = 0;  // of the planned arrivals
};

// In [1000, 31000): away from the ids that tokenizers use for control tokens.
TokenId ContentToken(std::uint64_t content, std::uint64_t position);

// The request's prompt. Answers come from `answers` where it has them (indexed by request), else
// from their content.
std::vector<TokenId> MaterialisePrompt(const ReplayRequest& request,
                                       std::span<const std::vector<TokenId>> answers);

// Names of the full blocks of prompt + answer, in order: equal names mean equal prefixes. Blocks of
// the prompt alone are the first PromptTokens() / block_size of them.
std::vector<BlockKey> BlockKeys(const ReplayRequest& request, std::uint32_t block_size);

// Seconds of prefill that a fleet with no cache would spend on the workload, on one engine.
double ColdPrefillSeconds(const Workload& workload, const EngineProfile& profile);

// Fills prompt_tokens, output_tokens and distinct_blocks from the requests.
void Summarise(std::uint32_t block_size, Workload* workload);

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_WORKLOAD_H_
