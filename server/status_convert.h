// The only place where absl::Status, grpc::Status and HTTP status codes meet.
#ifndef WARMPATH_SERVER_STATUS_CONVERT_H_
#define WARMPATH_SERVER_STATUS_CONVERT_H_

#include <grpcpp/support/status.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace warmpath {

// Messages may quote what a client sent; metadata may hold 8 KiB in all. Longer ones are cut.
inline constexpr std::size_t kMaxStatusMessage = 1024;

// With retry_after > 0 the details carry google.rpc.RetryInfo (trailer grpc-status-details-bin).
grpc::Status ToGrpcStatus(const absl::Status& status,
                          absl::Duration retry_after = absl::ZeroDuration());

absl::Status ToAbslStatus(const grpc::Status& status);

// What RetryInfo in the details says; zero when there is none.
absl::Duration RetryAfterOf(const grpc::Status& status);

// RESOURCE_EXHAUSTED is 429 when a retry can help and 413 when the request itself is too large.
int HttpStatusOf(absl::StatusCode code, absl::Duration retry_after = absl::ZeroDuration());

// "NOT_FOUND".
std::string StatusCodeName(absl::StatusCode code);

// At most kMaxStatusMessage bytes, cut at a character's boundary.
std::string CutMessage(std::string_view message);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_STATUS_CONVERT_H_
