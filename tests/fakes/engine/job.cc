#include "tests/fakes/engine/job.h"

#include <algorithm>

#include "core/base/random.h"
#include "tests/fakes/engine/tokenizer.h"
#include "xxhash.h"

namespace warmpath::engine {
namespace {

// Prompt, then output: what the client asked for, continued by words drawn from a generator that
// is seeded with the prompt.
std::vector<TokenId> AllTokens(GenerateRequest& request) {
  std::vector<TokenId> tokens = std::move(request.prompt);
  Random random(XXH3_64bits(tokens.data(), tokens.size() * sizeof(TokenId)));
  tokens.reserve(tokens.size() + request.max_tokens);
  for (std::uint32_t i = 0; i < request.max_tokens; ++i) {
    tokens.push_back(
        i < request.output.size()
            ? request.output[i]
            : static_cast<TokenId>(kFirstWordId + random.Below(kEndOfWords - kFirstWordId)));
  }
  return tokens;
}

}  // namespace

Job::Job(GenerateRequest request, std::uint32_t stream_interval)
    : request_(std::move(request)),
      stream_interval_(request_.stream ? std::max<std::uint32_t>(stream_interval, 1)
                                       : request_.max_tokens),
      prompt_tokens_(static_cast<std::uint32_t>(request_.prompt.size())),
      domain_(std::make_shared<const HashDomain>(
          HashDomain{.lora = request_.lora_name, .salt = request_.cache_salt})),
      tokens_(AllTokens(request_)) {}

void Job::SetCachedTokens(std::uint32_t cached_tokens) {
  absl::MutexLock lock(&mu_);
  progress_.cached_tokens = cached_tokens;
}

void Job::ProduceToken(bool last) {
  absl::MutexLock lock(&mu_);
  ++progress_.produced;
  progress_.finished = last;
  if (last || progress_.produced >= waiting_for_) changed_.Signal();
}

void Job::Abort() {
  absl::MutexLock lock(&mu_);
  progress_.aborted = true;
  changed_.Signal();
}

bool Job::Due(std::uint32_t delivered) const {
  return progress_.finished || progress_.aborted ||
         (progress_.produced > delivered && progress_.produced >= waiting_for_);
}

Job::Progress Job::Wait(std::uint32_t delivered, absl::Duration timeout) {
  absl::MutexLock lock(&mu_);
  // The first token of a stream always goes out alone: it is what TTFT measures.
  waiting_for_ = delivered == 0 && request_.stream ? 1 : delivered + stream_interval_;
  while (!Due(delivered)) {
    if (changed_.WaitWithTimeout(&mu_, timeout)) break;
  }
  return progress_;
}

}  // namespace warmpath::engine
