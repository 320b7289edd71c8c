#include "tests/fakes/engine/openai_request.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "simdjson.h"
#include "tests/fakes/engine/tokenizer.h"

namespace warmpath::engine {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

// vLLM's defaults when the client names no limit: 16 for completions; for chats it is what fits
// into the context, which no test would wait for.
constexpr std::uint32_t kDefaultCompletionTokens = 16;
constexpr std::uint32_t kDefaultChatTokens = 128;
constexpr std::uint64_t kMaxOutputTokens = 1'000'000;

absl::Status Invalid(std::string_view field, std::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": ", ToAbsl(problem)));
}

// The field's value, or nothing when it is absent or null.
std::optional<element> Get(const object& body, std::string_view field) {
  element value;
  if (body.at_key(field).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

absl::Status GetBool(const object& body, std::string_view field, bool* out) {
  const std::optional<element> value = Get(body, field);
  if (!value) return absl::OkStatus();
  if (value->get(*out) != simdjson::SUCCESS) return Invalid(field, "must be true or false");
  return absl::OkStatus();
}

absl::Status GetString(const object& body, std::string_view field,
                       std::optional<std::string>* out) {
  const std::optional<element> value = Get(body, field);
  if (!value) return absl::OkStatus();
  std::string_view text;
  if (value->get(text) != simdjson::SUCCESS) return Invalid(field, "must be a string");
  *out = std::string(text);
  return absl::OkStatus();
}

absl::Status GetCount(const object& body, std::string_view field, std::uint64_t max,
                      std::optional<std::uint64_t>* out) {
  const std::optional<element> value = Get(body, field);
  if (!value) return absl::OkStatus();
  std::uint64_t count = 0;
  if (value->get(count) != simdjson::SUCCESS || count == 0 || count > max) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(field), ": must be an integer from 1 to ", max));
  }
  *out = count;
  return absl::OkStatus();
}

absl::Status ReadTokenIds(const array& values, std::string_view field, std::vector<TokenId>* ids) {
  ids->reserve(values.size());
  for (const element value : values) {
    std::uint64_t id = 0;
    if (value.get(id) != simdjson::SUCCESS || id > std::numeric_limits<TokenId>::max()) {
      return Invalid(field, "token ids must be integers from 0 to 4294967295");
    }
    ids->push_back(static_cast<TokenId>(id));
  }
  return absl::OkStatus();
}

// string | [int] | [string] | [[int]], the last two with one prompt only.
absl::Status ReadPrompt(const object& body, std::vector<TokenId>* ids) {
  std::optional<element> prompt = Get(body, "prompt");
  if (!prompt) return Invalid("prompt", "is missing");
  array values;
  if (prompt->get(values) == simdjson::SUCCESS && values.size() > 0) {
    const element first = values.at(0).value_unsafe();
    if (first.is<std::string_view>() || first.is_array()) {
      if (values.size() > 1) return Invalid("prompt", "one prompt per request: send them apart");
      prompt = first;
    }
  }
  std::string_view text;
  if (prompt->get(text) == simdjson::SUCCESS) {
    Tokenize(text, ids);
    return absl::OkStatus();
  }
  if (prompt->get(values) != simdjson::SUCCESS) {
    return Invalid("prompt", "must be a string or an array of token ids");
  }
  return ReadTokenIds(values, "prompt", ids);
}

// A message's content: null, a string, or text parts joined by line breaks.
absl::Status AppendContent(const object& message, std::string* text) {
  const std::optional<element> content = Get(message, "content");
  if (!content) return absl::OkStatus();
  std::string_view plain;
  if (content->get(plain) == simdjson::SUCCESS) {
    text->append(plain);
    return absl::OkStatus();
  }
  array parts;
  if (content->get(parts) != simdjson::SUCCESS) {
    return Invalid("messages.content", "must be a string or an array of parts");
  }
  bool first = true;
  for (const element part : parts) {
    object fields;
    if (part.get(plain) != simdjson::SUCCESS &&
        (part.get(fields) != simdjson::SUCCESS ||
         fields.at_key("text").get(plain) != simdjson::SUCCESS)) {
      return Invalid("messages.content", "only text parts are supported");
    }
    if (!first) text->push_back('\n');
    first = false;
    text->append(plain);
  }
  return absl::OkStatus();
}

// The chat template: "<|im_start|>ROLE\nCONTENT<|im_end|>\n" per message, tools first, then the
// header of the answer. Everything that a turn renders stands unchanged in the next turn's prompt.
absl::Status RenderChat(const object& body, std::vector<TokenId>* ids) {
  const std::optional<element> messages = Get(body, "messages");
  array list;
  if (!messages || messages->get(list) != simdjson::SUCCESS || list.size() == 0) {
    return Invalid("messages", "must be an array of at least one message");
  }
  std::string text;
  if (const std::optional<element> tools = Get(body, "tools"); tools) {
    absl::StrAppend(&text, "<|im_start|>system\n# Tools\n", simdjson::minify(*tools),
                    "<|im_end|>\n");
  }
  for (const element item : list) {
    object message;
    if (item.get(message) != simdjson::SUCCESS) return Invalid("messages", "must hold objects");
    std::optional<std::string> role;
    WARMPATH_RETURN_IF_ERROR(GetString(message, "role", &role));
    if (!role) return Invalid("messages.role", "is missing");
    absl::StrAppend(&text, "<|im_start|>", *role, "\n");
    WARMPATH_RETURN_IF_ERROR(AppendContent(message, &text));
    if (const std::optional<element> calls = Get(message, "tool_calls"); calls) {
      absl::StrAppend(&text, "\n", simdjson::minify(*calls));
    }
    text.append("<|im_end|>\n");
  }
  bool add_generation_prompt = true;
  WARMPATH_RETURN_IF_ERROR(GetBool(body, "add_generation_prompt", &add_generation_prompt));
  if (add_generation_prompt) text.append("<|im_start|>assistant\n");
  Tokenize(text, ids);
  return absl::OkStatus();
}

absl::Status ReadModel(const object& body, const Models& models, GenerateRequest* request) {
  std::optional<std::string> model;
  WARMPATH_RETURN_IF_ERROR(GetString(body, "model", &model));
  request->model = model.value_or(models.base);
  if (request->model == models.base) return absl::OkStatus();
  const auto it = std::find(models.loras.begin(), models.loras.end(), request->model);
  if (it == models.loras.end()) {
    return absl::NotFoundError(absl::StrCat("The model `", request->model, "` does not exist."));
  }
  request->lora_name = *it;
  request->lora_id = static_cast<std::uint32_t>(it - models.loras.begin() + 1);
  return absl::OkStatus();
}

absl::Status ReadExtras(const object& body, GenerateRequest* request) {
  if (const std::optional<element> options = Get(body, "stream_options"); options) {
    object fields;
    if (options->get(fields) != simdjson::SUCCESS) {
      return Invalid("stream_options", "must be an object");
    }
    WARMPATH_RETURN_IF_ERROR(GetBool(fields, "include_usage", &request->include_usage));
  }
  if (const std::optional<element> xargs = Get(body, "vllm_xargs"); xargs) {
    object fields;
    array ids;
    if (xargs->get(fields) != simdjson::SUCCESS) return Invalid("vllm_xargs", "must be an object");
    if (const std::optional<element> output = Get(fields, "output_token_ids"); output) {
      if (output->get(ids) != simdjson::SUCCESS) {
        return Invalid("vllm_xargs.output_token_ids", "must be an array of token ids");
      }
      WARMPATH_RETURN_IF_ERROR(ReadTokenIds(ids, "vllm_xargs.output_token_ids", &request->output));
    }
  }
  std::optional<std::uint64_t> n;
  WARMPATH_RETURN_IF_ERROR(GetCount(body, "n", kMaxOutputTokens, &n));
  if (n.value_or(1) != 1) return Invalid("n", "only 1 is supported");
  return absl::OkStatus();
}

absl::Status ReadBody(simdjson::dom::parser& parser, std::string_view text, object* body) {
  element root;
  if (const auto error = parser.parse(text.data(), text.size()).get(root);
      error != simdjson::SUCCESS) {
    return Invalid("body", simdjson::error_message(error));
  }
  if (root.get(*body) != simdjson::SUCCESS) return Invalid("body", "must be a JSON object");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerateRequest> ParseGenerateRequest(std::string_view text, RequestKind kind,
                                                     const Models& models) {
  simdjson::dom::parser parser;
  object body;
  WARMPATH_RETURN_IF_ERROR(ReadBody(parser, text, &body));
  GenerateRequest request;
  request.kind = kind;
  WARMPATH_RETURN_IF_ERROR(ReadModel(body, models, &request));
  WARMPATH_RETURN_IF_ERROR(GetString(body, "cache_salt", &request.cache_salt));
  if (request.cache_salt && request.cache_salt->empty()) {
    return Invalid("cache_salt", "must not be empty: leave it out instead");
  }
  WARMPATH_RETURN_IF_ERROR(GetBool(body, "stream", &request.stream));
  WARMPATH_RETURN_IF_ERROR(GetBool(body, "return_token_ids", &request.return_token_ids));
  WARMPATH_RETURN_IF_ERROR(ReadExtras(body, &request));

  std::optional<std::uint64_t> limit;
  WARMPATH_RETURN_IF_ERROR(GetCount(body, "max_tokens", kMaxOutputTokens, &limit));
  if (kind == RequestKind::kChat) {
    WARMPATH_RETURN_IF_ERROR(GetCount(body, "max_completion_tokens", kMaxOutputTokens, &limit));
    WARMPATH_RETURN_IF_ERROR(RenderChat(body, &request.prompt));
  } else {
    WARMPATH_RETURN_IF_ERROR(ReadPrompt(body, &request.prompt));
  }
  request.max_tokens = static_cast<std::uint32_t>(
      limit.value_or(kind == RequestKind::kChat ? kDefaultChatTokens : kDefaultCompletionTokens));
  if (request.prompt.empty()) return Invalid("prompt", "must hold at least one token");
  return request;
}

absl::StatusOr<std::vector<TokenId>> ParseTokenizeRequest(std::string_view text,
                                                          const Models& models) {
  simdjson::dom::parser parser;
  object body;
  WARMPATH_RETURN_IF_ERROR(ReadBody(parser, text, &body));
  GenerateRequest request;
  WARMPATH_RETURN_IF_ERROR(ReadModel(body, models, &request));
  if (Get(body, "messages")) {
    WARMPATH_RETURN_IF_ERROR(RenderChat(body, &request.prompt));
  } else {
    WARMPATH_RETURN_IF_ERROR(ReadPrompt(body, &request.prompt));
  }
  return std::move(request.prompt);
}

}  // namespace warmpath::engine
