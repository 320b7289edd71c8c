// How every client-side program of ours connects to the router.
#ifndef WARMPATH_CLIENT_LIB_CHANNEL_H_
#define WARMPATH_CLIENT_LIB_CHANNEL_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace warmpath::client {

// A channel with keepalive, quick reconnects (100 ms to 2 s; gRPC's default backs off to two
// minutes), no HTTP proxy from the environment, and its own connection.
// An empty `root_ca_pem` means plaintext.
std::shared_ptr<grpc::Channel> MakeRouterChannel(const std::string& address,
                                                 const std::string& root_ca_pem);

void SetDeadline(grpc::ClientContext* context, absl::Duration timeout);

absl::Status FromGrpc(const grpc::Status& status);

}  // namespace warmpath::client

#endif  // WARMPATH_CLIENT_LIB_CHANNEL_H_
