// The gRPC server with every setting that the router needs: limits, keepalive, health names,
// reflection, one owner per port, the call to itself that keeps it awake, and an ordered shutdown.
#ifndef WARMPATH_SERVER_GRPC_SERVER_H_
#define WARMPATH_SERVER_GRPC_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace grpc {
class Channel;
class Service;
}  // namespace grpc

namespace warmpath {

class GrpcServer {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";
    // PEM files, watched for changes. With a certificate, TLS is spoken on the address; with an
    // authority, only to clients that show a certificate of it.
    std::string tls_cert;
    std::string tls_key;
    std::string tls_client_ca;
    std::uint32_t max_message_bytes = 8u << 20;
    std::uint32_t max_streams_per_connection = 4096;
    std::uint64_t memory_bytes = 512ull << 20;
    absl::Duration keepalive_time = absl::Seconds(30);
    absl::Duration keepalive_timeout = absl::Seconds(10);
    absl::Duration min_ping_interval = absl::Seconds(10);
  };

  // Listens at once; readiness is NOT_SERVING until SetReady(true), liveness SERVING.
  // UNAVAILABLE naming the address when it can not be bound; INVALID_ARGUMENT naming the setting
  // when a TLS file is missing or no PEM.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(
      const Options& options, std::vector<std::shared_ptr<grpc::Service>> services);

  // Shuts down at once if Shutdown was not called.
  ~GrpcServer();

  GrpcServer(const GrpcServer&) = delete;
  GrpcServer& operator=(const GrpcServer&) = delete;

  int port() const;

  // Health names "", readiness, inference-extension, envoy.service.ext_proc.v3.ExternalProcessor.
  // Thread-safe.
  void SetReady(bool ready);

  // One asynchronous call to itself; never blocks. An idle server of this gRPC version sleeps
  // through its first call for up to 100 ms unless something happens every 150 ms or so.
  // From one thread.
  void CallItself();

  // A channel inside the process, for tests.
  std::shared_ptr<grpc::Channel> InProcessChannel();

  // Stops accepting calls, lets open ones run until the grace is over, then cancels them. Must not
  // be called from a gRPC thread. Idempotent; from one thread.
  void Shutdown(absl::Duration grace);

 private:
  struct Impl;
  explicit GrpcServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// Sends gRPC's own log lines through ours. Before the first channel or server.
void InstallGrpcLog();

}  // namespace warmpath

#endif  // WARMPATH_SERVER_GRPC_SERVER_H_
