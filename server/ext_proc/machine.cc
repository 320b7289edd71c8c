#include "server/ext_proc/machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/strings.h"
#include "server/ext_proc/metadata.h"
#include "server/ext_proc/model_rewrite.h"

namespace warmpath {
namespace {

using ::envoy::service::ext_proc::v3::CommonResponse;
using ::envoy::service::ext_proc::v3::HttpBody;

// Room made at once for a body whose length the headers say; more only as it comes.
constexpr std::uint64_t kMaxReserve = 256 << 10;
// Workers come back within seconds of a router's start, and of their own.
constexpr absl::Duration kRetryAfterNobody = absl::Seconds(1);

Refusal BadRequest(std::string_view message) {
  return RefusalOf(absl::InvalidArgumentError(ToAbsl(message)), absl::ZeroDuration());
}

Refusal NotCached() {
  return {.status = absl::FailedPreconditionError(
              "prefer: if-available was asked, and the endpoint that would be chosen holds no "
              "cached prefix of this prompt"),
          .http_status = 412,
          .reason = "no_cached_prefix",
          .retry_after = {}};
}

}  // namespace

void ExtProcMachine::OnMessage(ProcessingRequest& request, ProcessingResponses* out) {
  if (request.observability_mode()) observed_only_ = true;
  if (request.has_protocol_config()) {
    request_mode_ = request.protocol_config().request_body_mode();
    response_mode_ = request.protocol_config().response_body_mode();
    body_before_headers_answer_ =
        request.protocol_config().send_body_without_waiting_for_header_response();
  }
  if (!request_answered()) ReadSubset(request.metadata_context(), &pick_);
  switch (request.request_case()) {
    case ProcessingRequest::kRequestHeaders:
      stats_->CountMessage(ExtProcStats::kRequestHeaders);
      if (!observed_only_ && !refused()) OnRequestHeaders(request, out);
      break;
    case ProcessingRequest::kRequestBody:
      stats_->CountMessage(ExtProcStats::kRequestBody);
      if (!observed_only_ && !refused()) OnRequestBody(*request.mutable_request_body(), out);
      break;
    case ProcessingRequest::kRequestTrailers:
      stats_->CountMessage(ExtProcStats::kRequestTrailers);
      if (!observed_only_ && !refused()) OnRequestTrailers(out);
      break;
    case ProcessingRequest::kResponseHeaders:
      stats_->CountMessage(ExtProcStats::kResponseHeaders);
      if (!observed_only_ && !refused()) OnResponseHeaders(request, out);
      break;
    case ProcessingRequest::kResponseBody:
      stats_->CountMessage(ExtProcStats::kResponseBody);
      if (!observed_only_ && !refused()) OnResponseBody(*request.mutable_response_body(), out);
      break;
    case ProcessingRequest::kResponseTrailers:
      stats_->CountMessage(ExtProcStats::kResponseTrailers);
      if (!observed_only_ && !refused()) OnResponseTrailers(out);
      break;
    case ProcessingRequest::REQUEST_NOT_SET:
      break;  // a kind of message that is newer than this program: nothing to answer it with
  }
}

// --- The request

void ExtProcMachine::OnRequestHeaders(ProcessingRequest& request, ProcessingResponses* out) {
  if (state_ != State::kStart) {
    Refuse(BadRequest("request_headers: came twice on one stream"), out);
    return;
  }
  const auto& headers = request.request_headers();
  if (absl::Status status = ReadRequestHead(headers.headers(), &head_); !status.ok()) {
    Refuse(RefusalOf(status, {}), out);
    return;
  }
  state_ = State::kBody;
  const BodyMode mode = request_mode_.value_or(options_->request_body_mode);
  const bool body_comes_late = mode == ProcessingMode::STREAMED && !body_before_headers_answer_;
  if (headers.end_of_stream() || mode == ProcessingMode::NONE || body_comes_late) {
    no_body_ = true;
    Want(Reply::kHeaders, out);
  } else if (mode == ProcessingMode::BUFFERED || mode == ProcessingMode::BUFFERED_PARTIAL) {
    out->emplace_back().mutable_request_headers();
  }
}

void ExtProcMachine::OnRequestBody(HttpBody& body, ProcessingResponses* out) {
  const BodyMode mode = request_mode_.value_or(options_->request_body_mode);
  if (state_ == State::kStart) {
    Refuse(BadRequest("request_body: came before request_headers"), out);
    return;
  }
  if (state_ == State::kAnswered) {
    // The pick did not wait for the body: it passes.
    if (mode == ProcessingMode::FULL_DUPLEX_STREAMED) {
      AppendChunks(Direction::kRequest, std::move(*body.mutable_body()), body.end_of_stream(), out);
    } else {
      out->emplace_back().mutable_request_body();
    }
    return;
  }
  if (!TakeBody(*body.mutable_body(), out)) return;
  switch (mode) {
    case ProcessingMode::BUFFERED:
      Want(Reply::kBody, out);
      break;
    case ProcessingMode::BUFFERED_PARTIAL:
      body_is_part_ = !body.end_of_stream() && !ScanModel(body_).complete;
      Want(Reply::kBody, out);
      break;
    case ProcessingMode::STREAMED:
      body_answers_.push_back(body.end_of_stream());
      if (body.end_of_stream()) Want(Reply::kHeadersAndBodies, out);
      break;
    default:
      if (body.end_of_stream()) Want(Reply::kHeadersAndChunks, out);
      break;
  }
}

void ExtProcMachine::OnRequestTrailers(ProcessingResponses* out) {
  const BodyMode mode = request_mode_.value_or(options_->request_body_mode);
  if (state_ == State::kAnswered) {
    out->emplace_back().mutable_request_trailers();
    return;
  }
  if (state_ == State::kStart || mode == ProcessingMode::BUFFERED ||
      mode == ProcessingMode::BUFFERED_PARTIAL) {
    Refuse(BadRequest("request_trailers: came before the request's headers or body"), out);
    return;
  }
  ended_by_trailers_ = true;
  Want(mode == ProcessingMode::STREAMED ? Reply::kHeadersAndBodies : Reply::kHeadersAndChunks, out);
}

bool ExtProcMachine::TakeBody(std::string& chunk, ProcessingResponses* out) {
  if (chunk.size() > options_->max_body_bytes - body_.size()) {
    Refuse({.status = absl::ResourceExhaustedError(
                absl::StrCat("body: is larger than ", options_->max_body_bytes,
                             " bytes: send less or raise ext_proc.max_body_bytes")),
            .http_status = 413,
            .reason = "body_too_large",
            .retry_after = {}},
           out);
    return false;
  }
  if (!stats_->HoldBytes(chunk.size(), options_->max_buffered_bytes)) {
    Refuse({.status = absl::ResourceExhaustedError(
                "the router holds as many bytes of unfinished requests as it may: retry later, or "
                "raise ext_proc.max_buffered_bytes"),
            .http_status = 429,
            .reason = "buffers_full",
            .retry_after = absl::Seconds(1)},
           out);
    return false;
  }
  held_bytes_ += chunk.size();
  if (body_.empty()) {
    body_.swap(chunk);
    if (head_.content_length > body_.size()) {
      body_.reserve(std::min({head_.content_length, options_->max_body_bytes, kMaxReserve}));
    }
  } else {
    body_ += chunk;
  }
  return true;
}

void ExtProcMachine::DropBody() {
  std::string().swap(body_);
  stats_->ReleaseBytes(std::exchange(held_bytes_, 0));
}

void ExtProcMachine::Want(Reply reply, ProcessingResponses* out) {
  reply_ = reply;
  if (body_.empty() && !no_body_ && (head_.method == "GET" || head_.method == "HEAD")) {
    no_body_ = true;  // HTTP/2 may end a request without a body by an empty frame
  }
  pick_.set_request_id(head_.request_id);
  pick_.set_session_key(head_.session_key);
  pick_.set_tenant(head_.fairness_id);
  pick_.set_prefix_aware_id(head_.prefix_aware_id);
  pick_.set_slo_ttft_ms(head_.slo_ttft_ms);
  pick_.set_slo_tpot_ms(head_.slo_tpot_ms);
  pick_.set_max_wait_ms(head_.max_wait_ms);
  pick_.set_model(head_.model_rewrite);
  if (head_.multipart) no_body_ = true;  // an uploaded file: no prompt to read
  if (!no_body_ && !TakeModel(out)) return;
  wants_pick_ = true;
}

// Puts the body into the pick, with the model that the worker is to see.
bool ExtProcMachine::TakeModel(ProcessingResponses* out) {
  if (!head_.model_rewrite.empty() && !body_is_part_) {
    const ModelScan scan = ScanModel(body_);
    if (!scan.complete) {
      Refuse(BadRequest("body: is no JSON object, so that its model can not be rewritten"), out);
      return false;
    }
    ReplaceModel(scan, head_.model_rewrite, &body_);
    rewritten_ = true;
  }
  if (body_is_part_) {
    // The prompt's end is missing, and a wrong chain is worse than none.
    if (pick_.model().empty()) pick_.set_model(ModelOf(body_, ScanModel(body_)));
    if (pick_.model().empty()) pick_.set_model(options_->default_model);
    return true;
  }
  if (pick_.model().empty() && !options_->default_model.empty() &&
      ScanModel(body_).models.empty()) {
    pick_.set_model(options_->default_model);
  }
  pick_.mutable_openai()->set_path(head_.path);
  pick_.mutable_openai()->mutable_json()->swap(body_);
  return true;
}

// --- The pick

PickResult ExtProcMachine::Pick(v1::PickResponse* picked) {
  if (!no_body_ || !pick_.model().empty()) return PickReserving(picked);
  if (!options_->default_model.empty()) {
    pick_.set_model(options_->default_model);
    return PickReserving(picked);
  }
  // Any worker can answer it, so any pool will do; the subset, if there is one, decides.
  PickResult result = {absl::UnavailableError("no pool has a ready worker"), kRetryAfterNobody};
  for (const std::string& pool : options_->pools()) {
    picked->Clear();
    pick_.set_model(pool);
    result = PickReserving(picked);
    if (result.status.ok()) return result;
  }
  return result;
}

PickResult ExtProcMachine::PickReserving(v1::PickResponse* picked) {
  PickResult result = backend_->Pick(pick_, holder_, /*reserve=*/true, picked);
  // While no worker has come yet, no model can be known.
  if (absl::IsNotFound(result.status) && options_->pools().empty()) {
    result = {absl::UnavailableError("no worker has registered yet"), kRetryAfterNobody};
  }
  return result;
}

void ExtProcMachine::RunPick(ProcessingResponses* out) {
  wants_pick_ = false;
  v1::PickResponse picked;
  if (head_.only_if_cached) {
    // Without a reservation first: one that is closed again stays visible to other picks for a
    // moment, which would then believe that its prompt is cached.
    const PickResult dry = backend_->Pick(pick_, holder_, /*reserve=*/false, &picked);
    if (dry.status.ok() && picked.predicted_cached_tokens() == 0) {
      Refuse(NotCached(), out);
      return;
    }
    picked.Clear();
  }
  const PickResult result = Pick(&picked);
  if (!result.status.ok()) {
    RefusePick(result, out);
    return;
  }
  reservation_ = picked.reservation_id();
  picked_address_ = picked.endpoint().address();
  if (head_.only_if_cached && picked.predicted_cached_tokens() == 0) {
    Refuse(NotCached(), out);  // another one was chosen meanwhile
    return;
  }
  Answer(picked, out);
}

void ExtProcMachine::RefusePick(const PickResult& result, ProcessingResponses* out) {
  wants_pick_ = false;
  Refuse(RefusalOf(result.status, result.retry_after), out);
}

void ExtProcMachine::Refuse(const Refusal& refusal, ProcessingResponses* out) {
  wants_pick_ = false;
  state_ = State::kRefused;
  Report(v1::OUTCOME_KIND_FAILED);
  pick_.clear_openai();
  DropBody();
  stats_->CountRefusal(refusal.http_status, refusal.reason);
  AppendRefusal(refusal, head_.request_id, out);
}

void ExtProcMachine::Answer(const v1::PickResponse& picked, ProcessingResponses* out) {
  state_ = State::kAnswered;
  if (pick_.has_openai()) body_.swap(*pick_.mutable_openai()->mutable_json());
  pick_.clear_openai();

  const std::string endpoints = EndpointList(picked, options_->fallbacks);
  ProcessingResponse& answer = out->emplace_back();
  CommonResponse* common = reply_ == Reply::kBody
                               ? answer.mutable_request_body()->mutable_response()
                               : answer.mutable_request_headers()->mutable_response();
  FillCommon(picked, common);
  SetHeader(kEndpointHeader, endpoints, common->mutable_header_mutation());
  FillMetadata(picked, endpoints, &answer);
  switch (reply_) {
    case Reply::kHeaders:
      break;
    case Reply::kBody:
      if (rewritten_) common->mutable_body_mutation()->set_body(std::move(body_));
      break;
    case Reply::kHeadersAndChunks:
      // A body that trailers end has no last chunk; without a byte it has none at all.
      if (!ended_by_trailers_ || !body_.empty()) {
        AppendChunks(Direction::kRequest, std::move(body_), !ended_by_trailers_, out);
      }
      break;
    case Reply::kHeadersAndBodies:
      for (std::size_t i = 0; i < body_answers_.size(); ++i) {
        auto* body = out->emplace_back().mutable_request_body();
        if (!rewritten_) continue;
        auto* mutation = body->mutable_response()->mutable_body_mutation();
        if (i == 0) {
          mutation->set_body(std::move(body_));
        } else {
          mutation->set_clear_body(true);
        }
      }
      break;
  }
  if (ended_by_trailers_) out->emplace_back().mutable_request_trailers();
  DropBody();
}

// Only what changes: the proxy keeps all other headers.
void ExtProcMachine::FillCommon(const v1::PickResponse& picked, CommonResponse* common) const {
  common->set_clear_route_cache(true);
  auto* mutation = common->mutable_header_mutation();
  for (const auto& [name, value] : picked.endpoint().headers()) SetHeader(name, value, mutation);
  if (!head_.has_request_id) {
    SetHeader(kRequestIdHeader, picked.request_id(), mutation);
  }
  if (rewritten_) SetHeader("content-length", absl::StrCat(body_.size()), mutation);
  for (const std::string& name : head_.remove) mutation->add_remove_headers(name);
}

void ExtProcMachine::FillMetadata(const v1::PickResponse& picked, const std::string& endpoints,
                                  ProcessingResponse* answer) const {
  auto* metadata = answer->mutable_dynamic_metadata();
  SetMetadata(kEndpointNamespace, kEndpointHeader, endpoints, metadata);
  if (!options_->decision_metadata) return;
  const auto text = [metadata](std::string_view key, std::string value) {
    if (!value.empty()) SetMetadata(kDecisionNamespace, key, std::move(value), metadata);
  };
  text("request_id", picked.request_id());
  text("pool", picked.pool());
  text("worker", picked.endpoint().target().worker_id());
  text("policy", picked.policy());
  text("reason", picked.reason());
  text("fairness_id", head_.fairness_id);
  text("objective", head_.objective);
  SetMetadata(kDecisionNamespace, "predicted_cached_tokens",
              static_cast<double>(picked.predicted_cached_tokens()), metadata);
  SetMetadata(kDecisionNamespace, "predicted_ttft_ms", picked.predicted_ttft_ms(), metadata);
}

// --- The response

void ExtProcMachine::OnResponseHeaders(const ProcessingRequest& request, ProcessingResponses* out) {
  out->emplace_back().mutable_response_headers();
  // The proxy may answer a client by itself before it has sent us the whole request.
  state_ = State::kAnswered;
  DropBody();
  TakeServed(request.metadata_context());
  response_seen_ = true;
  const int status = ReadResponseHead(request.response_headers().headers(), &event_stream_);
  if (status < 200 || status > 299) {
    Report(v1::OUTCOME_KIND_FAILED);
    return;
  }
  if (request.response_headers().end_of_stream()) {
    ResponseEnded();
    return;
  }
  if (options_->usage_accounting && reservation_ != 0) usage_.emplace(event_stream_);
  const BodyMode body_mode = response_mode_.value_or(ProcessingMode::NONE);
  if (body_mode == ProcessingMode::NONE) FirstByte(/*of_body=*/false);
}

void ExtProcMachine::OnResponseBody(HttpBody& body, ProcessingResponses* out) {
  response_body_seen_ = true;
  if (!body.body().empty()) FirstByte(/*of_body=*/true);
  if (usage_.has_value()) usage_->Read(body.body());
  if (response_mode_.value_or(options_->response_body_mode) ==
      ProcessingMode::FULL_DUPLEX_STREAMED) {
    AppendChunks(Direction::kResponse, std::move(*body.mutable_body()), body.end_of_stream(), out);
  } else {
    out->emplace_back().mutable_response_body();
  }
  if (body.end_of_stream()) ResponseEnded();
}

void ExtProcMachine::OnResponseTrailers(ProcessingResponses* out) {
  out->emplace_back().mutable_response_trailers();
  ResponseEnded();
}

void ExtProcMachine::TakeServed(const envoy::config::core::v3::Metadata& metadata) {
  const std::string_view served = ReadServed(metadata);
  if (served.empty() || served == picked_address_) return;
  served_by_ = served;
  stats_->CountServedElsewhere();
}

void ExtProcMachine::FirstByte(bool of_body) {
  if (std::exchange(first_byte_seen_, true)) return;
  // Engines send the headers of a stream before they have a token, and an answer in one piece when
  // they have the last one: taken for first tokens, either would teach a wrong speed.
  Report(of_body && event_stream_ ? v1::OUTCOME_KIND_FIRST_TOKEN : v1::OUTCOME_KIND_PROGRESS);
}

void ExtProcMachine::ResponseEnded() {
  Usage usage;
  if (usage_.has_value()) {
    const std::optional<Usage> found = usage_->Finish();
    stats_->CountUsage(found.has_value());
    usage = found.value_or(Usage());
    usage_.reset();
  }
  Report(v1::OUTCOME_KIND_FINISHED, usage);
}

void ExtProcMachine::Report(v1::OutcomeKind kind, const Usage& usage) {
  if (reservation_ == 0) return;
  v1::OutcomeRequest outcome;
  outcome.set_reservation_id(reservation_);
  outcome.set_kind(kind);
  outcome.set_served_by(served_by_);
  if (usage.cached_tokens) outcome.set_actual_cached_tokens(*usage.cached_tokens);
  if (usage.prompt_tokens) outcome.set_actual_prompt_tokens(*usage.prompt_tokens);
  if (usage.output_tokens) outcome.set_output_tokens(*usage.output_tokens);
  const bool closes = kind == v1::OUTCOME_KIND_FINISHED || kind == v1::OUTCOME_KIND_FAILED;
  // Not OK: it is closed already, e.g. because its worker is lost.
  if (!backend_->Report(outcome).ok() || closes) reservation_ = 0;
}

void ExtProcMachine::OnEnd() {
  wants_pick_ = false;
  DropBody();
  // A proxy that sends no response body ends the stream with the response, or as soon as it needs
  // us no more: both are a success. One that sends it has stopped in the middle.
  const bool body_expected =
      response_body_seen_ || response_mode_.value_or(ProcessingMode::NONE) != ProcessingMode::NONE;
  Report(response_seen_ && !body_expected ? v1::OUTCOME_KIND_FINISHED : v1::OUTCOME_KIND_FAILED);
}

}  // namespace warmpath
