#include "core/prompt/openai_request.h"

#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/prompt/canonical_text.h"
#include "core/prompt/chat_text.h"

namespace warmpath {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

// Enough for the longest prefix that prefix_aware cuts: 65,536 code points.
constexpr std::size_t kChatTextBytes = 65'536 * 4;
constexpr std::size_t kKeptParserBytes = 256u << 10;
constexpr std::size_t kLeastParserBytes = 64u << 10;

absl::Status Wrong(std::string_view field, std::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": must be ", ToAbsl(wanted)));
}

// The member, or nothing when it is absent or null.
std::optional<element> Member(const object& body, std::string_view name) {
  element value;
  if (body.at_key(name).get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return value;
}

absl::Status TakeText(const object& body, std::string_view name, std::string* out) {
  const std::optional<element> value = Member(body, name);
  if (!value.has_value()) return absl::OkStatus();
  std::string_view text;
  if (value->get_string().get(text) != simdjson::SUCCESS) return Wrong(name, "a string");
  *out = text;
  return absl::OkStatus();
}

absl::Status TakeTokens(const array& ids, std::string_view field, const OpenAiLimits& limits,
                        OpenAiRequest* request) {
  request->has_tokens = true;
  // simdjson stores the size of large arrays saturated: a hint only.
  request->tokens.reserve(std::min(ids.size(), limits.max_tokens));
  for (const element id : ids) {
    std::uint64_t value = 0;
    if (id.get_uint64().get(value) != simdjson::SUCCESS ||
        value > std::numeric_limits<TokenId>::max()) {
      return Wrong(absl::StrCat(ToAbsl(field), "[", request->tokens.size(), "]"),
                   "a token id of 0 to 4294967295");
    }
    if (request->tokens.size() == limits.max_tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          ToAbsl(field), ": has more than ", limits.max_tokens,
          " token ids, which is the limit: send fewer or raise server.max_prompt_tokens"));
    }
    request->tokens.push_back(static_cast<TokenId>(value));
  }
  return absl::OkStatus();
}

void TakeRawText(std::string_view text, OpenAiRequest* request) {
  request->raw_text = text;
  AppendCanonicalCompletion(text, &request->canonical_text);
}

// "prompt": text, token ids, or a batch of either, of which the first counts.
absl::Status TakePrompt(const element& prompt, const OpenAiLimits& limits, OpenAiRequest* request) {
  constexpr std::string_view kWanted = "a string, a list of token ids, or a list of either";
  std::string_view text;
  if (prompt.get_string().get(text) == simdjson::SUCCESS) {
    TakeRawText(text, request);
    return absl::OkStatus();
  }
  array items;
  if (prompt.get_array().get(items) != simdjson::SUCCESS) return Wrong("prompt", kWanted);
  const auto begin = items.begin();
  if (!(begin != items.end())) return Wrong("prompt", "not empty");
  const element first = *begin;
  if (first.is_number()) return TakeTokens(items, "prompt", limits, request);
  request->prompts = 0;
  for (const element item : items) {
    if (item.type() != first.type()) return Wrong("prompt", kWanted);
    ++request->prompts;
  }
  if (first.get_string().get(text) == simdjson::SUCCESS) {
    TakeRawText(text, request);
    return absl::OkStatus();
  }
  array ids;
  if (first.get_array().get(ids) != simdjson::SUCCESS) return Wrong("prompt", kWanted);
  return TakeTokens(ids, "prompt[0]", limits, request);
}

absl::Status TakeMessages(std::string_view field, const element& messages, const object& body,
                          std::size_t body_bytes, OpenAiRequest* request) {
  ChatTexts texts;
  texts.content_limit = kChatTextBytes;
  texts.canonical.reserve(body_bytes);
  AppendChatHead(body, &texts.canonical);
  WARMPATH_RETURN_IF_ERROR(AppendMessages(field, messages, &texts));
  request->chat_text = std::move(texts.content);
  request->canonical_text = std::move(texts.canonical);
  return absl::OkStatus();
}

// "input" of /v1/responses: a list of messages and other items, or the user's text.
absl::Status TakeInput(const object& body, std::size_t body_bytes, OpenAiRequest* request) {
  const std::optional<element> input = Member(body, "input");
  if (!input.has_value()) return Wrong("input", "given for this path");
  if (!input->is_string()) return TakeMessages("input", *input, body, body_bytes, request);
  AppendChatHead(body, &request->canonical_text);
  request->chat_text = input->get_string().value_unsafe();
  AppendCanonicalUserText(request->chat_text, &request->canonical_text);
  return absl::OkStatus();
}

absl::Status TakeOutputLimit(const object& body, OpenAiRequest* request) {
  for (const std::string_view name : {"max_completion_tokens", "max_tokens"}) {
    const std::optional<element> value = Member(body, name);
    if (!value.has_value()) continue;
    std::uint64_t tokens = 0;
    if (value->get_uint64().get(tokens) != simdjson::SUCCESS) {
      return Wrong(name, "a whole number, 0 or more");
    }
    request->max_output_tokens = tokens;
    return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status Take(std::string_view path, const object& body, std::size_t body_bytes,
                  const OpenAiLimits& limits, OpenAiRequest* request) {
  WARMPATH_RETURN_IF_ERROR(TakeText(body, "model", &request->model));
  if (Member(body, "cache_salt").has_value()) {
    WARMPATH_RETURN_IF_ERROR(TakeText(body, "cache_salt", &request->cache_salt.emplace()));
  }
  WARMPATH_RETURN_IF_ERROR(TakeText(body, "user", &request->session));
  WARMPATH_RETURN_IF_ERROR(TakeText(body, "session_id", &request->session));
  WARMPATH_RETURN_IF_ERROR(TakeOutputLimit(body, request));

  const std::optional<element> messages = Member(body, "messages");
  const std::optional<element> prompt = Member(body, "prompt");
  const bool chat_path = path.find("chat") != std::string_view::npos;
  const bool completions_path = !chat_path && path.find("completions") != std::string_view::npos;
  if (chat_path && !messages.has_value()) return Wrong("messages", "given for this path");
  if (completions_path && !prompt.has_value()) return Wrong("prompt", "given for this path");
  if (messages.has_value() && !completions_path) {
    return TakeMessages("messages", *messages, body, body_bytes, request);
  }
  if (prompt.has_value()) return TakePrompt(*prompt, limits, request);
  if (path.find("responses") != std::string_view::npos) {
    return TakeInput(body, body_bytes, request);
  }
  return absl::OkStatus();  // e.g. /v1/models: routed by load
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseOpenAiRequest(std::string_view path, std::string_view json,
                                                 const OpenAiLimits& limits) {
  // A parser's memory is ten times the body's: most of the time goes into getting it, so each
  // thread keeps one for bodies of the usual size.
  static thread_local simdjson::dom::parser kept;
  simdjson::dom::parser large;
  const bool usual = json.size() <= kKeptParserBytes;
  simdjson::dom::parser& parser = usual ? kept : large;
  if (parser.capacity() < json.size() || parser.max_depth() != limits.max_depth) {
    const std::size_t least = usual ? kLeastParserBytes : 1;
    if (parser.allocate(std::max(json.size(), least), limits.max_depth) != simdjson::SUCCESS) {
      return absl::ResourceExhaustedError("openai.json: no memory to parse it");
    }
  }
  element root;
  if (const simdjson::error_code error = parser.parse(json.data(), json.size()).get(root);
      error != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("openai.json: is no valid JSON: ", simdjson::error_message(error)));
  }
  object body;
  if (root.get_object().get(body) != simdjson::SUCCESS) return Wrong("openai.json", "an object");
  OpenAiRequest request;
  WARMPATH_RETURN_IF_ERROR(Take(path, body, json.size(), limits, &request));
  return request;
}

}  // namespace warmpath
