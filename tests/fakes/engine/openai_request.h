// OpenAI request bodies -> what the engine has to compute. Bodies come from outside: they are
// parsed with bounds, and every refusal names the field.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_OPENAI_REQUEST_H_
#define WARMPATH_TESTS_FAKES_ENGINE_OPENAI_REQUEST_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"

namespace warmpath::engine {

struct Models {
  std::string base;
  std::vector<std::string> loras;  // Served as models of their own; id n = position + 1.
};

enum class RequestKind : std::uint8_t { kCompletion, kChat };

struct GenerateRequest {
  RequestKind kind = RequestKind::kCompletion;
  std::string model;  // As the client named it.
  std::optional<std::uint32_t> lora_id;
  std::optional<std::string> lora_name;
  std::optional<std::string> cache_salt;
  std::vector<TokenId> prompt;
  std::uint32_t max_tokens = 0;
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;
  // vllm_xargs.output_token_ids: what to generate instead of the pseudo-random default.
  std::vector<TokenId> output;
};

// INVALID_ARGUMENT: a body that can not be served. NOT_FOUND: an unknown model.
absl::StatusOr<GenerateRequest> ParseGenerateRequest(std::string_view body, RequestKind kind,
                                                     const Models& models);

// The body of /tokenize: {prompt} or {messages, add_generation_prompt}.
absl::StatusOr<std::vector<TokenId>> ParseTokenizeRequest(std::string_view body,
                                                          const Models& models);

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_OPENAI_REQUEST_H_
