// Unary handlers that can not leave a call unfinished: gRPC swallows an exception of a handler and
// would answer UNIMPLEMENTED with an empty message, or hang at shutdown.
#ifndef WARMPATH_SERVER_UNARY_H_
#define WARMPATH_SERVER_UNARY_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/status_convert.h"

namespace warmpath {

// Calls `handler`, which returns a grpc::Status, and turns an exception into INTERNAL.
template <typename Handler>
grpc::Status Guarded(Handler&& handler) {
  try {
    return std::forward<Handler>(handler)();
  } catch (const std::exception& error) {
    return ToGrpcStatus(absl::InternalError(absl::StrCat("unexpected: ", error.what())));
  } catch (...) {
    return ToGrpcStatus(absl::InternalError("unexpected exception"));
  }
}

template <typename Handler>
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, Handler&& handler) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(Guarded(std::forward<Handler>(handler)));
  return reactor;
}

}  // namespace warmpath

#endif  // WARMPATH_SERVER_UNARY_H_
