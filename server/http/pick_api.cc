#include "server/http/pick_api.h"

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "server/pick_json.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {
namespace {

constexpr std::size_t kMaxOutcomeBytes = 64 << 10;  // they are a few hundred
constexpr std::string_view kPathHeader = "x-warmpath-path";
constexpr std::string_view kSubsetHeader = "x-gateway-destination-endpoint-subset";
constexpr std::string_view kPrefixAwareHeader = "x-amzn-sagemaker-prefix-aware-id";
constexpr std::string_view kExcludeHeader = "x-warmpath-exclude";

// The first of the headers that is there and not empty.
std::string_view FirstOf(const HttpRequest& http, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const std::string_view value = http.Header(name).value_or("");
    if (!value.empty()) return value;
  }
  return {};
}

// Unless the body said it: `value` is not 0 then.
absl::Status TakeNumber(const HttpRequest& http, std::initializer_list<std::string_view> names,
                        std::uint32_t* value) {
  if (*value != 0) return absl::OkStatus();
  for (const std::string_view name : names) {
    const std::string_view text = http.Header(name).value_or("");
    if (text.empty()) continue;
    if (absl::SimpleAtoi(ToAbsl(text), value)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(name), ": send a whole number of 0 to 4294967295"));
  }
  return absl::OkStatus();
}

template <typename Add>
void SplitList(std::string_view list, const Add& add) {
  for (absl::string_view item : absl::StrSplit(ToAbsl(list), ',')) {
    item = absl::StripAsciiWhitespace(item);
    if (!item.empty()) add(std::string(item));
  }
}

absl::Status TakeNumbers(const HttpRequest& http, v1::PickRequest* pick) {
  std::uint32_t value = pick->slo_ttft_ms();
  WARMPATH_RETURN_IF_ERROR(TakeNumber(http, {"x-llm-d-slo-ttft-ms", "x-slo-ttft-ms"}, &value));
  pick->set_slo_ttft_ms(value);
  value = pick->slo_tpot_ms();
  WARMPATH_RETURN_IF_ERROR(TakeNumber(http, {"x-llm-d-slo-tpot-ms", "x-slo-tpot-ms"}, &value));
  pick->set_slo_tpot_ms(value);
  value = pick->max_wait_ms();
  WARMPATH_RETURN_IF_ERROR(TakeNumber(http, {"x-warmpath-max-wait-ms"}, &value));
  pick->set_max_wait_ms(value);
  value = pick->reservation_lease_ms();
  WARMPATH_RETURN_IF_ERROR(TakeNumber(http, {"x-warmpath-lease-ms"}, &value));
  pick->set_reservation_lease_ms(value);
  return absl::OkStatus();
}

absl::Status TakeControlHeaders(const HttpRequest& http, v1::PickRequest* pick) {
  if (pick->model().empty()) {
    pick->set_model(
        std::string(FirstOf(http, {"x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"})));
  }
  if (pick->request_id().empty())
    pick->set_request_id(std::string(FirstOf(http, {"x-request-id"})));
  if (pick->session_key().empty()) {
    pick->set_session_key(
        std::string(FirstOf(http, {"x-session-id", "x-session-token", "x-session-affinity",
                                   "x-claude-code-session-id"})));
  }
  if (const auto id = http.Header(kPrefixAwareHeader);
      id.has_value() && pick->prefix_aware_id().empty()) {
    if (id->empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(ToAbsl(kPrefixAwareHeader),
                       ": is empty: send 1 to 64 printable characters, or leave it out"));
    }
    pick->set_prefix_aware_id(std::string(*id));
  }
  // Present and empty means: none may serve.
  if (const auto subset = http.Header(kSubsetHeader);
      subset.has_value() && !pick->subset_present()) {
    pick->set_subset_present(true);
    SplitList(*subset, [pick](std::string item) { pick->add_subset(std::move(item)); });
  }
  if (pick->exclude_size() == 0) {
    SplitList(http.Header(kExcludeHeader).value_or(""),
              [pick](std::string item) { pick->add_exclude(std::move(item)); });
  }
  return TakeNumbers(http, pick);
}

// What a Lua or njs script needs, so that it has no JSON to parse.
void AddAnswerHeaders(const v1::PickResponse& answer, HttpResponse* response) {
  const v1::Endpoint& endpoint = answer.endpoint();
  response->headers.emplace_back("x-gateway-destination-endpoint", endpoint.address());
  std::string fallbacks;
  for (const v1::Endpoint& fallback : answer.fallbacks()) {
    // An address says nothing of the rank behind it.
    if (!fallback.headers().empty()) continue;
    absl::StrAppend(&fallbacks, fallbacks.empty() ? "" : ",", fallback.address());
  }
  if (!fallbacks.empty()) response->headers.emplace_back("x-warmpath-fallbacks", fallbacks);
  for (const auto& [name, value] : endpoint.headers()) response->headers.emplace_back(name, value);
  response->headers.emplace_back("x-warmpath-reservation-id",
                                 absl::StrCat(answer.reservation_id()));
  response->headers.emplace_back("x-warmpath-cached-tokens",
                                 absl::StrCat(answer.predicted_cached_tokens()));
  response->headers.emplace_back("x-warmpath-reason", answer.reason());
  response->headers.emplace_back("x-request-id", answer.request_id());
}

void Release(PickBackend* backend, std::uint64_t reservation) {
  v1::OutcomeRequest outcome;
  outcome.set_reservation_id(reservation);
  outcome.set_kind(v1::OUTCOME_KIND_FAILED);
  // Not open any more is as good.
  static_cast<void>(backend->Report(outcome));
}

HttpResponse Pick(PickBackend* backend, HttpRequest& http) {
  v1::PickRequest pick;
  if (absl::Status status = PickFromHttp(http, &pick); !status.ok()) return ErrorResponse(status);
  v1::PickResponse answer;
  const PickResult result = backend->Pick(pick, 0, /*reserve=*/true, &answer);
  if (!result.status.ok()) return ErrorResponse(result.status, result.retry_after);
  const std::uint64_t reservation = answer.reservation_id();
  if (answer.predicted_cached_tokens() == 0 &&
      absl::EqualsIgnoreCase(ToAbsl(http.Header("prefer").value_or("")), "if-available")) {
    Release(backend, reservation);
    return ErrorResponse(412, absl::FailedPreconditionError(
                                  "prefer: if-available, but the best worker holds no part of the "
                                  "prompt: send it without the header"));
  }
  HttpResponse response;
  response.body = PickResponseToJson(answer);
  AddAnswerHeaders(answer, &response);
  // Nobody will ever report on a pick that nobody heard of.
  response.undelivered = [backend, reservation] { Release(backend, reservation); };
  return response;
}

HttpResponse Report(PickBackend* backend, const HttpRequest& http) {
  v1::OutcomeRequest outcome;
  absl::Status status = OutcomeRequestFromJson(http.body, &outcome);
  if (status.ok()) status = backend->Report(outcome);
  if (!status.ok()) return ErrorResponse(status);
  HttpResponse response;
  response.body = "{}";
  return response;
}

HttpResponse QueueFull() {
  const PickResult refused = RefusedByQueue();
  return ErrorResponse(refused.status, refused.retry_after);
}

}  // namespace

absl::Status PickFromHttp(HttpRequest& http, v1::PickRequest* pick) {
  if (const auto path = http.Header(kPathHeader); path.has_value()) {
    pick->mutable_openai()->set_path(std::string(*path));
    pick->mutable_openai()->set_json(std::move(http.body));
    // A client's GET /v1/models: by load.
    if (pick->openai().json().empty()) pick->clear_prompt();
  } else {
    WARMPATH_RETURN_IF_ERROR(PickRequestFromJson(http.body, pick));
  }
  return TakeControlHeaders(http, pick);
}

std::vector<HttpRoute> PickRoutes(const PickApiOptions& options) {
  std::vector<HttpRoute> routes;
  routes.push_back(
      {.method = "POST",
       .path = "/v1/pick",
       .handler = [backend = options.backend](HttpRequest& http) { return Pick(backend, http); },
       .pool = options.pool,
       .pool_from_bytes = options.pool_from_bytes,
       .pool_full = QueueFull});
  routes.push_back(
      {.method = "POST",
       .path = "/v1/outcome",
       .handler = [backend = options.backend](HttpRequest& http) { return Report(backend, http); },
       .max_body_bytes = kMaxOutcomeBytes});
  return routes;
}

}  // namespace warmpath
