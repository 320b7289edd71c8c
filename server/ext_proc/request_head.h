// What an endpoint picker reads from a request's headers.
#ifndef WARMPATH_SERVER_EXT_PROC_REQUEST_HEAD_H_
#define WARMPATH_SERVER_EXT_PROC_REQUEST_HEAD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/ext_proc/names.h"

namespace warmpath {

// Headers that repeat count once, the first of them. Of a header with two spellings the newer one
// rules.
struct RequestHead {
  std::string path;    // without the query
  std::string method;  // "POST"
  bool multipart = false;
  std::uint64_t content_length = 0;  // 0: unknown

  bool has_request_id = false;
  std::string request_id;  // empty when absent, or too long to name a reservation
  std::string session_key;
  std::string prefix_aware_id;
  std::string model_rewrite;
  std::string fairness_id;
  std::string objective;
  std::uint32_t slo_ttft_ms = 0;  // 0: none
  std::uint32_t slo_tpot_ms = 0;
  std::uint32_t max_wait_ms = 0;
  bool only_if_cached = false;  // "prefer: if-available"

  // Control headers that are present and not meant for the worker.
  std::vector<std::string> remove;
};

// INVALID_ARGUMENT names the header.
absl::Status ReadRequestHead(const envoy::config::core::v3::HeaderMap& headers, RequestHead* head);

// ":status" of a response; 0 when it is missing or no number. `event_stream`: its content type.
int ReadResponseHead(const envoy::config::core::v3::HeaderMap& headers, bool* event_stream);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_EXT_PROC_REQUEST_HEAD_H_
