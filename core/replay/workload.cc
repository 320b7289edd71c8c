#include "core/replay/workload.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"

namespace warmpath {
namespace {

// splitmix64's finaliser: every input bit reaches every output bit.
std::uint64_t Mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

std::uint64_t ReplayRequest::PromptTokens() const {
  std::uint64_t sum = 0;
  for (const PromptSegment& segment : prompt) sum += segment.tokens;
  return sum;
}

TokenId ContentToken(std::uint64_t content, std::uint64_t position) {
  const std::uint64_t h = Mix(Mix(content + 0x9e3779b97f4a7c15ULL) + position);
  return static_cast<TokenId>(1000 + h % 30'000);
}

std::vector<TokenId> MaterialisePrompt(const ReplayRequest& request,
                                       std::span<const std::vector<TokenId>> answers) {
  std::vector<TokenId> tokens;
  tokens.reserve(request.PromptTokens());
  for (const PromptSegment& segment : request.prompt) {
    const auto index = static_cast<std::size_t>(segment.answer_of);
    if (segment.answer_of != kNoRequest && index < answers.size() && !answers[index].empty()) {
      tokens.insert(tokens.end(), answers[index].begin(), answers[index].end());
      continue;
    }
    for (std::uint32_t i = 0; i < segment.tokens; ++i) {
      tokens.push_back(ContentToken(segment.content, i));
    }
  }
  return tokens;
}

double ColdPrefillSeconds(const Workload& workload, const EngineProfile& profile) {
  double seconds = 0;
  for (const ReplayRequest& request : workload.requests) {
    const auto length = static_cast<double>(request.PromptTokens());
    seconds += length / profile.prefill_tokens_per_s * (1 + length / 2 / profile.ctx_half_tokens);
  }
  return seconds;
}

std::vector<BlockKey> BlockKeys(const ReplayRequest& request, std::uint32_t block_size) {
  // A block is named by everything up to its end, so hash the pieces as they come. Runs that end
  // inside a block carry over: the piece boundaries are part of the name, as the content is.
  std::vector<BlockKey> keys;
  const std::uint64_t prompt_tokens = request.PromptTokens();
  const std::uint64_t total = prompt_tokens + request.output_tokens;
  keys.reserve(total / block_size);
  std::uint64_t chain = 0;
  std::uint64_t filled = 0;  // tokens of the block under way
  const auto add = [&](std::uint64_t content, std::uint64_t length) {
    std::uint64_t position = 0;
    while (position < length) {
      const std::uint64_t take = std::min<std::uint64_t>(length - position, block_size - filled);
      chain = Mix(chain ^ Mix(content * 31 + Mix(position + 1)) ^ Mix(take + 77));
      position += take;
      filled += take;
      if (filled == block_size) {
        keys.push_back(chain);
        filled = 0;
      }
    }
  };
  const bool shown = !request.shown_blocks.empty();
  std::uint64_t left =
      shown ? prompt_tokens / kShownBlockTokens * kShownBlockTokens : prompt_tokens;
  for (const PromptSegment& segment : request.prompt) {
    const std::uint64_t take = std::min<std::uint64_t>(left, segment.tokens);
    add(segment.content, take);
    left -= take;
  }
  std::uint64_t covered =
      shown ? prompt_tokens / kShownBlockTokens * kShownBlockTokens : prompt_tokens;
  for (const std::uint64_t content : request.shown_blocks) {
    add(content, kShownBlockTokens);
    covered += kShownBlockTokens;
  }
  if (covered < total) add(request.output_content, total - covered);
  return keys;
}

void Summarise(std::uint32_t block_size, Workload* workload) {
  workload->block_size = block_size;
  workload->prompt_tokens = 0;
  workload->output_tokens = 0;
  absl::flat_hash_set<BlockKey> blocks;
  for (const ReplayRequest& request : workload->requests) {
    workload->output_tokens += request.output_tokens;
    workload->prompt_tokens += request.PromptTokens();
    const std::vector<BlockKey> keys = BlockKeys(request, block_size);
    blocks.insert(keys.begin(), keys.end());
  }
  workload->distinct_blocks = blocks.size();
}

}  // namespace warmpath
