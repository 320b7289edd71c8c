// The router as one object: makes everything from a configuration, in the order in which it depends
// on each other, and takes it down in the reverse order.
#ifndef WARMPATH_SERVER_APP_H_
#define WARMPATH_SERVER_APP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/fleet/fleet.h"
#include "server/config/schema.h"

namespace grpc {
class Channel;
class Service;
}  // namespace grpc

namespace warmpath {

class Picker;

class App {
 public:
  struct Options {
    RouterConfig config;
    const Clock* clock = &SystemClock();  // must outlive the app
    std::uint64_t random_seed = 0;
    // Served beside the router's own, e.g. a benchmark's floor.
    std::vector<std::shared_ptr<grpc::Service>> extra_services;
  };

  // Listens when it returns. Errors name the setting.
  static absl::StatusOr<std::unique_ptr<App>> Start(Options options);

  // Drains without delay if Drain was not called.
  ~App();

  App(const App&) = delete;
  App& operator=(const App&) = delete;

  int grpc_port() const;
  int http_port() const;
  int pick_port() const;
  // Inside the process, for tests and benchmarks.
  std::shared_ptr<grpc::Channel> InProcessChannel();
  Fleet& fleet();
  Picker& picker();

  // Unready, wait for load balancers to notice (drain_delay), end streams, let calls finish
  // (drain_deadline), stop. Once; not from a gRPC thread.
  void Drain(absl::Duration delay, absl::Duration deadline);

 private:
  struct Impl;
  explicit App(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_APP_H_
