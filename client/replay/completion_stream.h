// One /v1/completions request to an engine and the reading of its streamed answer.
#ifndef WARMPATH_CLIENT_REPLAY_COMPLETION_STREAM_H_
#define WARMPATH_CLIENT_REPLAY_COMPLETION_STREAM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/replay/sse_parser.h"
#include "core/base/ids.h"

namespace warmpath::replay {

// JSON body: token ids in, exactly `output_tokens` out, streamed, with usage in the last event.
std::string CompletionBody(std::string_view model, std::span<const TokenId> prompt,
                           std::uint32_t output_tokens);

// Reads the streamed answer. Not thread-safe.
class CompletionReader {
 public:
  CompletionReader();
  ~CompletionReader();

  // An error when an event can not be understood or reports a failure.
  absl::Status Feed(std::string_view bytes);

  // The engine said [DONE].
  bool done() const { return done_; }
  // Tokens seen so far; their ids where the engine gives them.
  std::uint64_t output_tokens() const { return output_tokens_; }
  const std::vector<TokenId>& output() const { return output_; }
  // From the usage event.
  std::optional<std::uint64_t> prompt_tokens() const { return prompt_tokens_; }
  std::optional<std::uint64_t> cached_tokens() const { return cached_tokens_; }

 private:
  absl::Status OnEvent(std::string_view json);

  struct Json;
  std::unique_ptr<Json> json_;
  SseParser sse_;
  bool done_ = false;
  std::uint64_t output_tokens_ = 0;
  std::vector<TokenId> output_;
  std::optional<std::uint64_t> prompt_tokens_;
  std::optional<std::uint64_t> cached_tokens_;
};

}  // namespace warmpath::replay

#endif  // WARMPATH_CLIENT_REPLAY_COMPLETION_STREAM_H_
