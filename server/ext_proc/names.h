// Names of the endpoint picker protocol (Gateway API Inference Extension, proposal 004) and of
// Envoy's messages, as the code of this folder uses them.
#ifndef WARMPATH_SERVER_EXT_PROC_NAMES_H_
#define WARMPATH_SERVER_EXT_PROC_NAMES_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "envoy/service/ext_proc/v3/external_processor.pb.h"

namespace warmpath {

using ProcessingRequest = ::envoy::service::ext_proc::v3::ProcessingRequest;
using ProcessingResponse = ::envoy::service::ext_proc::v3::ProcessingResponse;
using ProcessingResponses = std::vector<ProcessingResponse>;
// NONE, STREAMED, BUFFERED, BUFFERED_PARTIAL, FULL_DUPLEX_STREAMED, GRPC.
using ProcessingMode = ::envoy::extensions::filters::http::ext_proc::v3::ProcessingMode;
using BodyMode = ProcessingMode::BodySendMode;

// Picker to proxy: as a request header, and in dynamic metadata below kEndpointNamespace.
inline constexpr std::string_view kEndpointHeader = "x-gateway-destination-endpoint";
inline constexpr std::string_view kEndpointNamespace = "envoy.lb";
// Proxy to picker: the only endpoints that may be chosen.
inline constexpr std::string_view kSubsetNamespace = "envoy.lb.subset_hint";
inline constexpr std::string_view kSubsetKey = "x-gateway-destination-endpoint-subset";
// Proxy to picker, with the response: who served, below kEndpointNamespace.
inline constexpr std::string_view kServedKey = "x-gateway-destination-endpoint-served";
// Picker to proxy, when switched on: what was decided and why, for access logs.
inline constexpr std::string_view kDecisionNamespace = "warmpath";

inline constexpr std::string_view kRequestIdHeader = "x-request-id";
inline constexpr std::string_view kReasonHeader = "x-warmpath-reason";

// Largest chunk of a body that is sent back: below the 64 KiB at which proxies split messages.
inline constexpr std::size_t kMaxChunkBytes = 62'000;

}  // namespace warmpath

#endif  // WARMPATH_SERVER_EXT_PROC_NAMES_H_
