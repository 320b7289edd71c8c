// The channel to one router: what an agent's operator can say about it, and how it behaves.
#ifndef WARMPATH_CLIENT_AGENT_PUBLISH_ROUTER_CHANNEL_H_
#define WARMPATH_CLIENT_AGENT_PUBLISH_ROUTER_CHANNEL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class Channel;
}  // namespace grpc

namespace warmpath {

// How to reach one router.
struct RouterOptions {
  std::string address;    // host:port
  std::string ca_file;    // PEM; empty: plaintext
  std::string cert_file;  // PEM, with key_file: the agent's own certificate
  std::string key_file;
  std::string server_name;  // name in the router's certificate, if it is not the address
};

// A channel with keepalive, reconnects within 2 s (gRPC's default backs off to two minutes) and
// no HTTP proxy from the environment. NOT_FOUND names the file that can not be read.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeRouterChannel(const RouterOptions& options);

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_PUBLISH_ROUTER_CHANNEL_H_
