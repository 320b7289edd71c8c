#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/agent/publish/router_channel.h"
#include "core/base/status.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace warmpath {
namespace {

absl::StatusOr<std::string> ReadPem(const char* what, const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file || text.str().empty()) {
    return absl::NotFoundError(
        absl::StrCat(what, ": can not read \"", path, "\"; it must be a PEM file"));
  }
  return text.str();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeRouterChannel(const RouterOptions& options) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  // Only a time limit for connecting (the name misleads): a TLS handshake may take a while.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 0);
  // Channels honour http_proxy even for loopback unless told otherwise.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (options.ca_file.empty()) {
    if (!options.cert_file.empty()) {
      return absl::InvalidArgumentError(
          "router-cert: needs router-ca too; without it the connection is plaintext");
    }
    return grpc::CreateCustomChannel(options.address, grpc::InsecureChannelCredentials(), args);
  }
  grpc::SslCredentialsOptions ssl;
  WARMPATH_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadPem("router-ca", options.ca_file));
  if (!options.cert_file.empty()) {
    WARMPATH_ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadPem("router-cert", options.cert_file));
    WARMPATH_ASSIGN_OR_RETURN(ssl.pem_private_key, ReadPem("router-key", options.key_file));
  }
  if (!options.server_name.empty()) args.SetSslTargetNameOverride(options.server_name);
  return grpc::CreateCustomChannel(options.address, grpc::SslCredentials(ssl), args);
}

}  // namespace warmpath
