// What routing needs of an OpenAI-style request body: the model, the prompt as token ids or as
// text, the cache salt. Everything else in the body is left alone.
//
// Bodies come from clients: the size is the caller's to bound, nesting is bounded here, and every
// error names the field.
#ifndef WARMPATH_CORE_PROMPT_OPENAI_REQUEST_H_
#define WARMPATH_CORE_PROMPT_OPENAI_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"

namespace warmpath {

struct OpenAiRequest {
  std::string model;  // empty when absent
  std::optional<std::string> cache_salt;
  std::string session;  // "session_id", else "user"; empty when absent

  // The prompt: one of the three, by what the body holds.
  bool has_tokens = false;
  std::vector<TokenId> tokens;  // /v1/completions with ids: exactly what the engine will see
  std::string raw_text;         // /v1/completions with text
  // Chat: the text of all messages in order (string contents, and the text parts of lists); of a
  // very long chat the beginning, which is 256 KiB at least.
  std::string chat_text;
  // Of the last two: the canonical text (core/prompt/canonical_text.h).
  std::string canonical_text;

  std::size_t prompts = 1;  // batch of /v1/completions: the first prompt is the one above
  std::optional<std::uint64_t> max_output_tokens;
};

struct OpenAiLimits {
  std::size_t max_depth = 64;          // nesting of arrays and objects
  std::size_t max_tokens = 1'000'000;  // token ids of a prompt
};

// `path` is the request's, e.g. "/v1/chat/completions"; when it says neither completions nor chat,
// the body's own fields decide. INVALID_ARGUMENT names the field.
absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(std::string_view path, std::string_view json,
                                                 const OpenAiLimits& limits);

}  // namespace warmpath

#endif  // WARMPATH_CORE_PROMPT_OPENAI_REQUEST_H_
