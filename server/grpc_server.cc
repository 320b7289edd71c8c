#include "server/grpc_server.h"

#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace warmpath {
namespace {

constexpr std::array<const char*, 4> kReadinessNames = {
    "", "readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"};
constexpr const char* kLivenessName = "liveness";
constexpr int kStreamWindowBytes = 1 << 20;
constexpr int kMaxMetadataBytes = 32 << 10;
constexpr unsigned kTlsRefreshSeconds = 5;

int Millis(absl::Duration duration) {
  return static_cast<int>(
      std::min<std::int64_t>(absl::ToInt64Milliseconds(duration), std::numeric_limits<int>::max()));
}

// Both are global to the process and must not race with another server's start.
void EnablePlugins() {
  static std::once_flag once;
  std::call_once(once, [] {
    // Never given back: the end of gRPC's last user would end its threads, and one of them may sit
    // in a poll of 10 s for a large write that is long done. The process ends without that.
    grpc_init();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

void Configure(const GrpcServer::Options& options, grpc::ServerBuilder& builder) {
  // Otherwise a second router on the port starts without an error and takes half the connections.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(options.keepalive_time));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.keepalive_timeout));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Millis(options.min_ping_interval));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS,
                             static_cast<int>(options.max_streams_per_connection));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  // gRPC would ping the peer after every read to size its windows: several wake-ups and timers for
  // each heartbeat of an agent. A fixed window does as well in one datacenter.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  builder.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  // Reflection is gRPC's only synchronous service here: one thread waits for it, two at most.
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::SyncServerOption::MAX_POLLERS, 2);
  grpc::ResourceQuota quota("warmpath");
  quota.Resize(options.memory_bytes);
  builder.SetResourceQuota(quota);
}

// gRPC itself only logs what is wrong with a file, and then refuses every connection.
absl::Status CheckPem(std::string_view setting, const std::string& path, std::string_view kind) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    return absl::InvalidArgumentError(absl::StrCat("server.", ToAbsl(setting), ": can not read ",
                                                   path,
                                                   ": name a PEM file that the router may read"));
  }
  if (text.find(absl::StrCat(ToAbsl(kind), "-----")) == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("server.", ToAbsl(setting), ": ", path, " holds no PEM block ", ToAbsl(kind)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> Credentials(
    const GrpcServer::Options& options) {
  if (options.tls_cert.empty()) {
    if (!options.tls_key.empty() || !options.tls_client_ca.empty()) {
      return absl::InvalidArgumentError(
          "server.tls_cert: is needed when tls_key or tls_client_ca is set; without it the address "
          "speaks plaintext");
    }
    return grpc::InsecureServerCredentials();
  }
  WARMPATH_RETURN_IF_ERROR(CheckPem("tls_cert", options.tls_cert, "CERTIFICATE"));
  WARMPATH_RETURN_IF_ERROR(CheckPem("tls_key", options.tls_key, "PRIVATE KEY"));
  const bool verify = !options.tls_client_ca.empty();
  if (verify) {
    WARMPATH_RETURN_IF_ERROR(CheckPem("tls_client_ca", options.tls_client_ca, "CERTIFICATE"));
  }
  // Certificates that are renewed while the router runs are taken over.
  auto files = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      options.tls_key, options.tls_cert, options.tls_client_ca, kTlsRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions tls(files);
  tls.watch_identity_key_cert_pairs();
  if (verify) tls.watch_root_certs();
  tls.set_cert_request_type(verify ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                   : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  return grpc::experimental::TlsServerCredentials(tls);
}

}  // namespace

struct GrpcServer::Impl {
  // Services must outlive the server, which refers to them.
  std::vector<std::shared_ptr<grpc::Service>> services;
  std::unique_ptr<grpc::Server> server;
  int port = 0;

  std::shared_ptr<grpc::Channel> self;
  std::unique_ptr<grpc::health::v1::Health::Stub> self_stub;
  // The last call is still under way: then there is no need for another one.
  std::shared_ptr<std::atomic<bool>> calling = std::make_shared<std::atomic<bool>>(false);

  void SetHealth(bool ready) {
    grpc::HealthCheckServiceInterface* health = server->GetHealthCheckService();
    if (health == nullptr) return;
    for (const char* name : kReadinessNames) health->SetServingStatus(name, ready);
  }
};

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(
    const Options& options, std::vector<std::shared_ptr<grpc::Service>> services) {
  EnablePlugins();
  auto impl = std::make_unique<Impl>();
  impl->services = std::move(services);

  WARMPATH_ASSIGN_OR_RETURN(auto credentials, Credentials(options));
  grpc::ServerBuilder builder;
  Configure(options, builder);
  builder.AddListeningPort(options.address, credentials, &impl->port);
  for (const auto& service : impl->services) builder.RegisterService(service.get());
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || impl->port == 0) {
    return absl::UnavailableError(
        absl::StrCat("can not listen for gRPC on ", options.address,
                     ": another program (a second router?) uses the port, or the address is not "
                     "this machine's; change server.grpc_address"));
  }
  // gRPC says SERVING for "" as soon as it listens.
  impl->SetHealth(false);
  impl->server->GetHealthCheckService()->SetServingStatus(kLivenessName, true);
  impl->self = impl->server->InProcessChannel(grpc::ChannelArguments());
  impl->self_stub = grpc::health::v1::Health::NewStub(impl->self);
  return std::unique_ptr<GrpcServer>(new GrpcServer(std::move(impl)));
}

GrpcServer::GrpcServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

GrpcServer::~GrpcServer() { Shutdown(absl::ZeroDuration()); }

int GrpcServer::port() const { return impl_->port; }

void GrpcServer::SetReady(bool ready) { impl_->SetHealth(ready); }

void GrpcServer::CallItself() {
  if (impl_->calling->exchange(true)) return;
  struct Call {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    grpc::health::v1::HealthCheckResponse response;
  };
  auto call = std::make_shared<Call>();
  call->request.set_service(kLivenessName);
  // A server that is being shut down may never answer.
  call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  impl_->self_stub->async()->Check(
      &call->context, &call->request, &call->response,
      [call, calling = impl_->calling](const grpc::Status&) { calling->store(false); });
}

std::shared_ptr<grpc::Channel> GrpcServer::InProcessChannel() {
  return impl_->server->InProcessChannel(grpc::ChannelArguments());
}

void GrpcServer::Shutdown(absl::Duration grace) {
  if (impl_->server == nullptr) return;
  impl_->SetHealth(false);
  impl_->self_stub.reset();
  impl_->self.reset();
  // With a deadline always: without one, any open stream (a health watch, too) blocks it for ever.
  impl_->server->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
  impl_->server->Wait();
  impl_->server.reset();
  impl_->services.clear();
}

void InstallGrpcLog() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    const LogLevel level =
        args->severity == GPR_LOG_SEVERITY_ERROR ? LogLevel::kWarn : LogLevel::kDebug;
    Log(level, "grpc", {{"message", args->message}});
  });
}

}  // namespace warmpath
