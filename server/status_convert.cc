#include "server/status_convert.h"

#include <string>

#include "core/base/strings.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace warmpath {

grpc::Status ToGrpcStatus(const absl::Status& status, absl::Duration retry_after) {
  if (status.ok()) return grpc::Status::OK;
  // Both enums are google.rpc.Code's numbers.
  const auto code = static_cast<grpc::StatusCode>(status.code());
  std::string message = CutMessage(ToStd(status.message()));
  if (retry_after <= absl::ZeroDuration()) return grpc::Status(code, std::move(message));

  google::rpc::RetryInfo retry;
  absl::Duration nanos;
  retry.mutable_retry_delay()->set_seconds(
      absl::IDivDuration(retry_after, absl::Seconds(1), &nanos));
  retry.mutable_retry_delay()->set_nanos(
      static_cast<std::int32_t>(absl::ToInt64Nanoseconds(nanos)));
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  details.add_details()->PackFrom(retry);
  return grpc::Status(code, std::move(message), details.SerializeAsString());
}

absl::Status ToAbslStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Duration RetryAfterOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return absl::ZeroDuration();
  for (const auto& any : details.details()) {
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&retry)) {
      return absl::Seconds(retry.retry_delay().seconds()) +
             absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  return absl::ZeroDuration();
}

int HttpStatusOf(absl::StatusCode code, absl::Duration retry_after) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kAlreadyExists:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return retry_after > absl::ZeroDuration() ? 429 : 413;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    // An empty subset: no endpoint may serve this request now.
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

std::string StatusCodeName(absl::StatusCode code) { return absl::StatusCodeToString(code); }

std::string CutMessage(std::string_view message) {
  if (message.size() <= kMaxStatusMessage) return std::string(message);
  std::size_t end = kMaxStatusMessage - 3;
  // Not inside a UTF-8 sequence: its continuation bytes are 10xxxxxx.
  while (end > 0 && (static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  return std::string(message.substr(0, end)) + "...";
}

}  // namespace warmpath
