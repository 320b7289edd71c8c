#include "client/replay/completion_stream.h"

#include <charconv>

#include "absl/strings/str_cat.h"
#include "core/base/json_quote.h"
#include "core/base/strings.h"
#include "simdjson.h"

namespace warmpath::replay {
namespace {

using simdjson::SUCCESS;

std::optional<std::uint64_t> Number(const simdjson::dom::element& object, const char* field) {
  std::uint64_t value = 0;
  if (object[field].get(value) != SUCCESS) return std::nullopt;
  return value;
}

}  // namespace

struct CompletionReader::Json {
  simdjson::dom::parser parser;
};

CompletionReader::CompletionReader() : json_(std::make_unique<Json>()) {}
CompletionReader::~CompletionReader() = default;

std::string CompletionBody(std::string_view model, std::span<const TokenId> prompt,
                           std::uint32_t output_tokens) {
  std::string body =
      absl::StrCat("{\"model\":", JsonQuoted(model), ",\"max_tokens\":", output_tokens,
                   ",\"stream\":true,\"stream_options\":{\"include_usage\":true},"
                   "\"return_token_ids\":true,\"ignore_eos\":true,\"prompt\":[");
  body.reserve(body.size() + prompt.size() * 6 + 2);
  char buffer[16];
  for (std::size_t i = 0; i < prompt.size(); ++i) {
    if (i > 0) body.push_back(',');
    const auto result = std::to_chars(buffer, buffer + sizeof(buffer), prompt[i]);
    body.append(buffer, result.ptr);
  }
  body += "]}";
  return body;
}

absl::Status CompletionReader::Feed(std::string_view bytes) {
  absl::Status status;
  const absl::Status framing = sse_.Feed(bytes, [&](std::string_view data) {
    if (!status.ok()) return;
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    status = OnEvent(data);
  });
  return status.ok() ? framing : status;
}

absl::Status CompletionReader::OnEvent(std::string_view json) {
  simdjson::dom::element event;
  if (json_->parser.parse(json.data(), json.size()).get(event) != SUCCESS) {
    return absl::InternalError("an event of the engine's answer is no JSON");
  }
  std::string_view message;
  if (event["error"]["message"].get(message) == SUCCESS) {
    return absl::InternalError(absl::StrCat("the engine reports: ", ToAbsl(message)));
  }
  simdjson::dom::element usage;
  if (event["usage"].get(usage) == SUCCESS && usage.is_object()) {
    if (auto tokens = Number(usage, "prompt_tokens")) prompt_tokens_ = tokens;
    simdjson::dom::element details;
    if (usage["prompt_tokens_details"].get(details) == SUCCESS && details.is_object()) {
      if (auto tokens = Number(details, "cached_tokens")) cached_tokens_ = tokens;
    }
  }
  simdjson::dom::array choices;
  if (event["choices"].get(choices) != SUCCESS) return absl::OkStatus();
  for (const simdjson::dom::element choice : choices) {
    simdjson::dom::array ids;
    if (choice["token_ids"].get(ids) == SUCCESS) {
      for (const simdjson::dom::element id : ids) {
        std::uint64_t value = 0;
        if (id.get(value) == SUCCESS) output_.push_back(static_cast<TokenId>(value));
        ++output_tokens_;
      }
      continue;
    }
    // An engine that gives no ids sends about one token an event.
    std::string_view text;
    if (choice["text"].get(text) == SUCCESS && !text.empty()) ++output_tokens_;
  }
  return absl::OkStatus();
}

}  // namespace warmpath::replay
