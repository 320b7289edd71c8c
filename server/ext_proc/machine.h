// One HTTP request as an endpoint picker sees it: messages in, answers out, and picks and outcomes
// in between. A state machine without a transport, a thread or a clock.
//
//   ready for a message -- OnMessage --> ready, or wants_pick() -- RunPick or RefusePick --> ready
//
// The answers keep the order in which the messages came, in each direction: headers, body,
// trailers. What is said in which mode of the request's body:
//  - FULL_DUPLEX_STREAMED: nothing until the body's end (or the trailers); then the headers with
//  the
//    endpoint, then the body in chunks;
//  - STREAMED with send_body_without_waiting_for_header_response: the same, but one plain answer to
//    each chunk;
//  - STREAMED: the proxy sends the body after the headers are answered, so that it can not count:
//    picked by load and by what the headers say;
//  - BUFFERED, BUFFERED_PARTIAL: the headers at once and empty; the endpoint with the body's
//  answer.
//    Of a part of a body only the model is used;
//  - NONE, and requests without a body: with the headers, by load.
//
// The reservation lives with the request: FIRST_TOKEN at the response's first byte, FINISHED at its
// end, FAILED when it ends before or the worker's status is no success.
#ifndef WARMPATH_SERVER_EXT_PROC_MACHINE_H_
#define WARMPATH_SERVER_EXT_PROC_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/routing/query.h"
#include "server/ext_proc/answers.h"
#include "server/ext_proc/names.h"
#include "server/ext_proc/request_head.h"
#include "server/ext_proc/stats.h"
#include "server/ext_proc/usage_reader.h"
#include "server/pick_backend.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {

struct ExtProcOptions {
  // Of proxies that do not say how they are set up.
  BodyMode request_body_mode = ProcessingMode::FULL_DUPLEX_STREAMED;
  BodyMode response_body_mode = ProcessingMode::FULL_DUPLEX_STREAMED;
  bool fallbacks = true;
  bool usage_accounting = false;
  bool decision_metadata = false;
  std::uint64_t max_body_bytes = 6 << 20;
  std::uint64_t max_buffered_bytes = 512 << 20;  // over all requests
  // The model of requests that name none.
  std::string default_model;
  // All pools by name, for requests that have no body and so no model.
  std::function<std::vector<std::string>()> pools;
};

// Not thread-safe: one call at a time.
class ExtProcMachine {
 public:
  // All must outlive the machine. `holder` is unique in the process and not 0.
  ExtProcMachine(const ExtProcOptions* options, PickBackend* backend, ExtProcStats* stats,
                 HolderId holder)
      : options_(options), backend_(backend), stats_(stats), holder_(holder) {}
  ~ExtProcMachine() { OnEnd(); }

  ExtProcMachine(const ExtProcMachine&) = delete;
  ExtProcMachine& operator=(const ExtProcMachine&) = delete;

  // Takes what it needs out of the message and appends the answers. REQUIRES: !wants_pick().
  void OnMessage(ProcessingRequest& request, ProcessingResponses* out);

  // The request is whole: RunPick is next. It may take long when the pick is heavy.
  bool wants_pick() const { return wants_pick_; }
  bool PickIsHeavy() const { return backend_->IsHeavy(pick_); }
  void RunPick(ProcessingResponses* out);
  // Instead of RunPick: the client gets this as an HTTP error.
  void RefusePick(const PickResult& result, ProcessingResponses* out);

  // The request's part is over, so that the proxy can do without us. A proxy that only watches
  // always can.
  bool request_answered() const { return state_ >= State::kAnswered || observed_only_; }
  // The client got an answer instead of an endpoint: there is nothing more to say.
  bool refused() const { return state_ == State::kRefused; }

  // The stream is over, for whatever reason: what is still reserved is closed. Idempotent.
  void OnEnd();

 private:
  enum class State { kStart, kBody, kAnswered, kRefused };
  // How the pick is told.
  enum class Reply { kHeaders, kHeadersAndChunks, kHeadersAndBodies, kBody };

  void OnRequestHeaders(ProcessingRequest& request, ProcessingResponses* out);
  void OnRequestBody(envoy::service::ext_proc::v3::HttpBody& body, ProcessingResponses* out);
  void OnRequestTrailers(ProcessingResponses* out);
  void OnResponseHeaders(const ProcessingRequest& request, ProcessingResponses* out);
  void OnResponseBody(envoy::service::ext_proc::v3::HttpBody& body, ProcessingResponses* out);
  void OnResponseTrailers(ProcessingResponses* out);

  bool TakeBody(std::string& chunk, ProcessingResponses* out);
  void DropBody();
  // The body is whole, or there is none: makes the pick's request.
  void Want(Reply reply, ProcessingResponses* out);
  bool TakeModel(ProcessingResponses* out);
  PickResult Pick(v1::PickResponse* picked);
  PickResult PickReserving(v1::PickResponse* picked);
  void Answer(const v1::PickResponse& picked, ProcessingResponses* out);
  void FillCommon(const v1::PickResponse& picked,
                  envoy::service::ext_proc::v3::CommonResponse* common) const;
  void FillMetadata(const v1::PickResponse& picked, const std::string& endpoints,
                    ProcessingResponse* answer) const;
  void Refuse(const Refusal& refusal, ProcessingResponses* out);

  void TakeServed(const envoy::config::core::v3::Metadata& metadata);
  void FirstByte(bool of_body);
  void ResponseEnded();
  void Report(v1::OutcomeKind kind, const Usage& usage = {});

  const ExtProcOptions* const options_;
  PickBackend* const backend_;
  ExtProcStats* const stats_;
  const HolderId holder_;

  // --- The request.
  State state_ = State::kStart;
  bool observed_only_ = false;  // the proxy wants no answers
  bool body_before_headers_answer_ = false;
  std::optional<BodyMode> request_mode_;  // as the proxy says
  std::optional<BodyMode> response_mode_;
  RequestHead head_;
  std::string body_;
  std::uint64_t held_bytes_ = 0;  // counted in stats_
  std::vector<bool>
      body_answers_;  // STREAMED: end_of_stream of each chunk that waits for an answer
  bool body_is_part_ = false;
  bool rewritten_ = false;
  bool ended_by_trailers_ = false;

  // --- The pick.
  v1::PickRequest pick_;
  bool wants_pick_ = false;
  bool no_body_ = false;  // pick_ has no model and needs one of the pools'
  Reply reply_ = Reply::kHeaders;
  std::uint64_t reservation_ = 0;  // 0: none is open
  std::string picked_address_;

  // --- The response.
  std::string served_by_;  // empty: the endpoint that was picked
  bool first_byte_seen_ = false;
  bool event_stream_ = false;  // the response, by its content-type
  bool response_seen_ = false;
  bool response_body_seen_ = false;
  std::optional<UsageReader> usage_;
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_EXT_PROC_MACHINE_H_
