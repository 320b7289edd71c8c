#include "tests/fakes/engine/responses.h"

#include "absl/strings/str_cat.h"
#include "core/base/json_quote.h"
#include "core/base/strings.h"
#include "tests/fakes/engine/json_text.h"
#include "tests/fakes/engine/tokenizer.h"

namespace warmpath::engine {
namespace {

constexpr std::string_view kEventStart = "data: ";
constexpr std::string_view kEventEnd = "\n\n";

}  // namespace

ResponseWriter::ResponseWriter(const Job& job, std::uint64_t id, std::int64_t created)
    : job_(job),
      id_(id),
      created_(created),
      chunk_head_(Head(job.request().kind == RequestKind::kChat ? "chat.completion.chunk"
                                                                : "text_completion")) {}

std::string ResponseWriter::Head(std::string_view object) const {
  std::string out =
      absl::StrCat("{\"id\":\"", chat() ? "chatcmpl-" : "cmpl-", absl::Hex(id_, absl::kZeroPad16),
                   "\",\"object\":\"", ToAbsl(object), "\",\"created\":", created_, ",\"model\":");
  AppendJsonQuoted(job_.request().model, &out);
  out.append(",\"choices\":[");
  return out;
}

void ResponseWriter::AppendUsage(std::uint32_t cached_tokens, std::string* out) const {
  const std::size_t prompt = job_.prompt().size();
  const std::size_t output = job_.output().size();
  absl::StrAppend(out, "\"usage\":{\"prompt_tokens\":", prompt,
                  ",\"total_tokens\":", prompt + output, ",\"completion_tokens\":", output,
                  ",\"prompt_tokens_details\":{\"cached_tokens\":", cached_tokens, "}}");
}

void ResponseWriter::AppendPromptTokenIds(std::string* out) const {
  if (!job_.request().return_token_ids) return;
  out->append(",\"prompt_token_ids\":");
  AppendJsonArray(job_.prompt(), out);
}

std::string ResponseWriter::Whole(std::uint32_t cached_tokens) const {
  std::string text;
  AppendGeneratedText(job_.output(), 0, job_.output().size(), &text);
  std::string out = Head(chat() ? "chat.completion" : "text_completion");
  out.append(chat() ? "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":"
                    : "{\"index\":0,\"text\":");
  AppendJsonQuoted(text, &out);
  if (chat()) out.push_back('}');
  out.append(",\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null");
  if (job_.request().return_token_ids) {
    out.append(",\"token_ids\":");
    AppendJsonArray(job_.output(), &out);
  }
  // vLLM gives a completion's prompt ids in the choice, a chat's beside the choices.
  if (!chat()) AppendPromptTokenIds(&out);
  out.append("}]");
  if (chat()) AppendPromptTokenIds(&out);
  out.push_back(',');
  AppendUsage(cached_tokens, &out);
  out.push_back('}');
  return out;
}

std::string ResponseWriter::StreamStart() const {
  if (!chat()) return "";
  std::string out(kEventStart);
  out.append(chunk_head_);
  out.append(
      "{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
      "\"finish_reason\":null}]");
  AppendPromptTokenIds(&out);
  out.push_back('}');
  out.append(kEventEnd);
  return out;
}

std::string ResponseWriter::StreamChunk(std::uint32_t from, std::uint32_t to) const {
  std::string text;
  AppendGeneratedText(job_.output(), from, to, &text);
  std::string out(kEventStart);
  out.append(chunk_head_);
  out.append(chat() ? "{\"index\":0,\"delta\":{\"content\":" : "{\"index\":0,\"text\":");
  AppendJsonQuoted(text, &out);
  if (chat()) out.push_back('}');
  out.append(to == job_.output().size() ? ",\"logprobs\":null,\"finish_reason\":\"length\""
                                        : ",\"logprobs\":null,\"finish_reason\":null");
  if (job_.request().return_token_ids) {
    out.append(",\"token_ids\":");
    AppendJsonArray(job_.output().subspan(from, to - from), &out);
  }
  if (!chat() && from == 0) AppendPromptTokenIds(&out);
  out.append("}]}");
  out.append(kEventEnd);
  return out;
}

std::string ResponseWriter::StreamEnd(std::uint32_t cached_tokens) const {
  std::string out;
  if (job_.request().include_usage) {
    out.append(kEventStart);
    out.append(chunk_head_);
    out.append("],");
    AppendUsage(cached_tokens, &out);
    out.push_back('}');
    out.append(kEventEnd);
  }
  out.append("data: [DONE]\n\n");
  return out;
}

std::string ErrorBody(const absl::Status& status, int http_status) {
  std::string out = "{\"error\":{\"message\":";
  AppendJsonQuoted(ToStd(status.message()), &out);
  absl::StrAppend(&out, ",\"type\":\"", http_status < 500 ? "BadRequestError" : "InternalError",
                  "\",\"param\":null,\"code\":", http_status, "}}");
  return out;
}

int HttpStatusOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kOutOfRange:
      return 410;
    case absl::StatusCode::kUnavailable:
      return 503;
    default:
      return 500;
  }
}

}  // namespace warmpath::engine
