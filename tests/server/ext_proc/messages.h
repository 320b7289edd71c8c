// Messages of a proxy, and what an answer says, for tests of the ext_proc service.
#ifndef WARMPATH_TESTS_SERVER_EXT_PROC_MESSAGES_H_
#define WARMPATH_TESTS_SERVER_EXT_PROC_MESSAGES_H_

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/ext_proc/names.h"

namespace warmpath::testing {

using HeaderList = std::vector<std::pair<std::string, std::string>>;

inline constexpr std::string_view kChat =
    R"({"model":"m","messages":[{"role":"user","content":"hi"}]})";

inline ProcessingRequest RequestHeaders(const HeaderList& headers, bool end_of_stream = false) {
  ProcessingRequest request;
  request.mutable_request_headers()->set_end_of_stream(end_of_stream);
  for (const auto& [name, value] : headers) {
    auto* header = request.mutable_request_headers()->mutable_headers()->add_headers();
    header->set_key(name);
    header->set_raw_value(value);
  }
  return request;
}

// POST /v1/chat/completions with these headers besides.
inline ProcessingRequest ChatHeaders(HeaderList more = {}) {
  HeaderList headers = {{":method", "POST"},
                        {":path", "/v1/chat/completions"},
                        {"content-type", "application/json"},
                        {"x-request-id", "id-1"}};
  headers.insert(headers.end(), more.begin(), more.end());
  return RequestHeaders(headers);
}

inline ProcessingRequest GetHeaders(HeaderList more = {}, bool end_of_stream = true) {
  HeaderList headers = {{":method", "GET"}, {":path", "/v1/models"}, {"x-request-id", "id-1"}};
  headers.insert(headers.end(), more.begin(), more.end());
  return RequestHeaders(headers, end_of_stream);
}

inline ProcessingRequest RequestBody(std::string_view body, bool end_of_stream) {
  ProcessingRequest request;
  request.mutable_request_body()->set_body(std::string(body));
  request.mutable_request_body()->set_end_of_stream(end_of_stream);
  return request;
}

inline ProcessingRequest RequestTrailers() {
  ProcessingRequest request;
  request.mutable_request_trailers();
  return request;
}

inline ProcessingRequest ResponseHeaders(const std::string& status, bool end_of_stream = false,
                                         const std::string& content_type = "application/json") {
  ProcessingRequest request;
  auto* headers = request.mutable_response_headers();
  headers->set_end_of_stream(end_of_stream);
  for (const auto& [name, value] :
       HeaderList{{":status", status}, {"content-type", content_type}}) {
    auto* header = headers->mutable_headers()->add_headers();
    header->set_key(name);
    header->set_raw_value(value);
  }
  return request;
}

inline ProcessingRequest ResponseBody(std::string_view body, bool end_of_stream) {
  ProcessingRequest request;
  request.mutable_response_body()->set_body(std::string(body));
  request.mutable_response_body()->set_end_of_stream(end_of_stream);
  return request;
}

inline ProcessingRequest ResponseTrailers() {
  ProcessingRequest request;
  request.mutable_response_trailers();
  return request;
}

inline google::protobuf::Value& MetadataValue(ProcessingRequest& request, std::string_view space,
                                              std::string_view key) {
  auto& filter =
      (*request.mutable_metadata_context()->mutable_filter_metadata())[std::string(space)];
  return (*filter.mutable_fields())[std::string(key)];
}

inline ProcessingRequest WithSubset(ProcessingRequest request,
                                    std::initializer_list<const char*> endpoints) {
  auto* list = MetadataValue(request, kSubsetNamespace, kSubsetKey).mutable_list_value();
  for (const char* endpoint : endpoints) list->add_values()->set_string_value(endpoint);
  return request;
}

inline ProcessingRequest WithSubsetText(ProcessingRequest request, const std::string& text) {
  MetadataValue(request, kSubsetNamespace, kSubsetKey).set_string_value(text);
  return request;
}

inline ProcessingRequest WithServed(ProcessingRequest request, const std::string& endpoint) {
  MetadataValue(request, kEndpointNamespace, kServedKey).set_string_value(endpoint);
  return request;
}

inline ProcessingRequest WithModes(ProcessingRequest request, BodyMode request_body,
                                   BodyMode response_body = ProcessingMode::NONE,
                                   bool without_waiting = false) {
  auto* config = request.mutable_protocol_config();
  config->set_request_body_mode(request_body);
  config->set_response_body_mode(response_body);
  config->set_send_body_without_waiting_for_header_response(without_waiting);
  return request;
}

// --- What an answer says.

// What it does to headers, wherever it stands; an empty mutation when there is none.
inline envoy::service::ext_proc::v3::HeaderMutation MutationOf(const ProcessingResponse& answer) {
  switch (answer.response_case()) {
    case ProcessingResponse::kRequestHeaders:
      return answer.request_headers().response().header_mutation();
    case ProcessingResponse::kRequestBody:
      return answer.request_body().response().header_mutation();
    case ProcessingResponse::kImmediateResponse:
      return answer.immediate_response().headers();
    default:
      return {};
  }
}

inline std::optional<std::string> HeaderOf(const ProcessingResponse& answer,
                                           std::string_view name) {
  const auto mutation = MutationOf(answer);
  for (const auto& option : mutation.set_headers()) {
    if (option.header().key() == name) return option.header().raw_value();
  }
  return std::nullopt;
}

inline std::vector<std::string> RemovedBy(const ProcessingResponse& answer) {
  const auto mutation = MutationOf(answer);
  return {mutation.remove_headers().begin(), mutation.remove_headers().end()};
}

inline std::string EndpointHeaderOf(const ProcessingResponse& answer) {
  return HeaderOf(answer, kEndpointHeader).value_or("");
}

inline std::string EndpointMetadataOf(const ProcessingResponse& answer) {
  const auto& fields = answer.dynamic_metadata().fields();
  const auto filter = fields.find(std::string(kEndpointNamespace));
  if (filter == fields.end()) return "";
  const auto& inner = filter->second.struct_value().fields();
  const auto value = inner.find(std::string(kEndpointHeader));
  return value == inner.end() ? "" : value->second.string_value();
}

// The HTTP status of a refusal; 0 when the answer is none.
inline int StatusOf(const ProcessingResponse& answer) {
  return answer.has_immediate_response()
             ? static_cast<int>(answer.immediate_response().status().code())
             : 0;
}

inline std::string ReasonOf(const ProcessingResponse& answer) {
  return HeaderOf(answer, kReasonHeader).value_or("");
}

// Kinds of answers in order, e.g. "request_headers request_body".
inline std::string KindsOf(const ProcessingResponses& answers) {
  std::string kinds;
  for (const ProcessingResponse& answer : answers) {
    const auto* oneof = ProcessingResponse::descriptor()->FindOneofByName("response");
    const auto* field = ProcessingResponse::GetReflection()->GetOneofFieldDescriptor(answer, oneof);
    if (!kinds.empty()) kinds += ' ';
    kinds += field == nullptr ? "nothing" : field->name();
  }
  return kinds;
}

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_SERVER_EXT_PROC_MESSAGES_H_
