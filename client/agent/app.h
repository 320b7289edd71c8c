// The agent put together: configuration in, engines followed until it is destroyed.
#ifndef WARMPATH_CLIENT_AGENT_APP_H_
#define WARMPATH_CLIENT_AGENT_APP_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/agent/agent_config.h"
#include "client/agent/engine/zmq_source.h"
#include "client/agent/engine_worker.h"
#include "core/base/clock.h"

namespace warmpath {

class AgentApp {
 public:
  // Binds the HTTP port, opens the engines' sockets, starts everything, then writes the ports
  // file. Errors name the key. `config` has been through CompleteConfig.
  static absl::StatusOr<std::unique_ptr<AgentApp>> Start(const AgentConfig& config,
                                                         const Clock& clock);
  // Stops in the reverse order.
  ~AgentApp();
  AgentApp(const AgentApp&) = delete;
  AgentApp& operator=(const AgentApp&) = delete;

  int metrics_port() const { return metrics_port_; }
  // The page of /metrics.
  std::string Metrics() const;
  // Every engine is registered at one router at least; /readyz says so.
  bool Ready() const;

 private:
  class HttpServer;

  AgentApp() = default;
  absl::Status StartEngines(const AgentConfig& config, const Clock& clock);

  // Destroyed last to first: HTTP reads the workers, workers have sockets of the context.
  ZmqContext zmq_;
  std::vector<std::unique_ptr<EngineWorker>> workers_;
  std::unique_ptr<HttpServer> http_;
  int metrics_port_ = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_APP_H_
