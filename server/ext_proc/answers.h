// The parts of answers that an endpoint picker gives a proxy.
#ifndef WARMPATH_SERVER_EXT_PROC_ANSWERS_H_
#define WARMPATH_SERVER_EXT_PROC_ANSWERS_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/ext_proc/names.h"

namespace warmpath {

namespace v1 {
class PickResponse;
}  // namespace v1

enum class Direction { kRequest, kResponse };

// Sets the header, replacing what the request had.
void SetHeader(std::string_view name, std::string value,
               envoy::service::ext_proc::v3::HeaderMutation* mutation);

// "ip:port", then with `fallbacks` the next best ones, best first. A fallback that needs other
// headers than the chosen endpoint is left out: the proxy sends one set of headers to all of them.
std::string EndpointList(const v1::PickResponse& picked, bool fallbacks);

// The body that goes on, in chunks of at most kMaxChunkBytes; an empty body is one empty chunk.
void AppendChunks(Direction direction, std::string body, bool end_of_stream,
                  ProcessingResponses* out);

// An answer to the client instead of an endpoint.
struct Refusal {
  absl::Status status;
  int http_status = 500;
  std::string_view reason;  // a word, e.g. "no_ready_worker"
  absl::Duration retry_after;
};

// HTTP status and reason for what refused a pick.
Refusal RefusalOf(const absl::Status& status, absl::Duration retry_after);

void AppendRefusal(const Refusal& refusal, std::string_view request_id, ProcessingResponses* out);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_EXT_PROC_ANSWERS_H_
