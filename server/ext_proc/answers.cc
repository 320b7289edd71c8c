#include "server/ext_proc/answers.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/strings.h"
#include "server/pick_json.h"
#include "server/status_convert.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {
namespace {

using ::envoy::config::core::v3::HeaderValueOption;
using ::envoy::service::ext_proc::v3::BodyResponse;
using ::envoy::service::ext_proc::v3::HeaderMutation;
using ::envoy::service::ext_proc::v3::ImmediateResponse;
using ::envoy::service::ext_proc::v3::StreamedBodyResponse;

bool SameHeaders(const v1::Endpoint& a, const v1::Endpoint& b) {
  if (a.headers_size() != b.headers_size()) return false;
  return std::all_of(a.headers().begin(), a.headers().end(), [&b](const auto& header) {
    const auto it = b.headers().find(header.first);
    return it != b.headers().end() && it->second == header.second;
  });
}

void AppendChunk(Direction direction, std::string chunk, bool end_of_stream,
                 ProcessingResponses* out) {
  ProcessingResponse& answer = out->emplace_back();
  BodyResponse* body = direction == Direction::kRequest ? answer.mutable_request_body()
                                                        : answer.mutable_response_body();
  StreamedBodyResponse* streamed =
      body->mutable_response()->mutable_body_mutation()->mutable_streamed_response();
  streamed->set_body(std::move(chunk));
  streamed->set_end_of_stream(end_of_stream);
}

std::string_view ReasonOf(absl::StatusCode code, int http_status) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return "bad_request";
    case absl::StatusCode::kNotFound:
      return "unknown_model";
    case absl::StatusCode::kFailedPrecondition:
      return "no_worker_in_subset";
    case absl::StatusCode::kUnavailable:
      return "no_ready_worker";
    case absl::StatusCode::kResourceExhausted:
      return http_status == 429 ? "overloaded" : "prompt_too_large";
    default:
      return "internal";
  }
}

}  // namespace

void SetHeader(std::string_view name, std::string value, HeaderMutation* mutation) {
  HeaderValueOption* option = mutation->add_set_headers();
  option->mutable_header()->set_key(name.data(), name.size());
  option->mutable_header()->set_raw_value(std::move(value));
  option->set_append_action(HeaderValueOption::OVERWRITE_IF_EXISTS_OR_ADD);
}

std::string EndpointList(const v1::PickResponse& picked, bool fallbacks) {
  const v1::Endpoint& best = picked.endpoint();
  if (!fallbacks) return best.address();
  std::vector<std::string_view> addresses = {best.address()};
  for (const v1::Endpoint& endpoint : picked.fallbacks()) {
    // Ranks may share an address.
    const bool known =
        std::find(addresses.begin(), addresses.end(), endpoint.address()) != addresses.end();
    if (!known && SameHeaders(best, endpoint)) addresses.push_back(endpoint.address());
  }
  return absl::StrJoin(addresses, ",", [](std::string* out, std::string_view address) {
    absl::StrAppend(out, ToAbsl(address));
  });
}

void AppendChunks(Direction direction, std::string body, bool end_of_stream,
                  ProcessingResponses* out) {
  if (body.size() <= kMaxChunkBytes) {
    AppendChunk(direction, std::move(body), end_of_stream, out);
    return;
  }
  out->reserve(out->size() + body.size() / kMaxChunkBytes + 1);
  for (std::size_t at = 0; at < body.size(); at += kMaxChunkBytes) {
    const bool last = body.size() - at <= kMaxChunkBytes;
    AppendChunk(direction, body.substr(at, kMaxChunkBytes), last && end_of_stream, out);
  }
}

Refusal RefusalOf(const absl::Status& status, absl::Duration retry_after) {
  const int http_status = HttpStatusOf(status.code(), retry_after);
  return {.status = status,
          .http_status = http_status,
          .reason = ReasonOf(status.code(), http_status),
          .retry_after = retry_after};
}

void AppendRefusal(const Refusal& refusal, std::string_view request_id, ProcessingResponses* out) {
  ImmediateResponse* answer = out->emplace_back().mutable_immediate_response();
  answer->mutable_status()->set_code(static_cast<envoy::type::v3::StatusCode>(refusal.http_status));
  HeaderMutation* headers = answer->mutable_headers();
  SetHeader("content-type", "application/json", headers);
  SetHeader(kReasonHeader, std::string(refusal.reason), headers);
  if (!request_id.empty()) SetHeader(kRequestIdHeader, std::string(request_id), headers);
  if (refusal.retry_after > absl::ZeroDuration()) {
    const std::int64_t seconds = std::max<std::int64_t>(
        1, absl::ToInt64Seconds(absl::Ceil(refusal.retry_after, absl::Seconds(1))));
    SetHeader("retry-after", absl::StrCat(seconds), headers);
  }
  answer->set_body(ErrorToJson(refusal.status, refusal.retry_after));
  answer->set_details(absl::StrCat("warmpath_", ToAbsl(refusal.reason)));
}

}  // namespace warmpath
