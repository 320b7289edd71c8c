#include "client/agent/app.h"

#include <httplib.h>

#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/agent/agent_metrics.h"
#include "client/agent/publish/router_channel.h"
#include "core/base/log.h"
#include "core/base/random.h"
#include "core/base/status.h"

namespace warmpath {
namespace {

// Through a rename, so that a reader never sees half of it.
absl::Status WritePortsFile(const std::string& path, int metrics_port) {
  const std::string next = path + ".new";
  std::ofstream file(next, std::ios::trunc);
  file << "{\"metrics\": " << metrics_port << "}\n";
  file.close();
  if (!file || std::rename(next.c_str(), path.c_str()) != 0) {
    return absl::NotFoundError(absl::StrCat("ports_file: can not write \"", path, "\""));
  }
  return absl::OkStatus();
}

}  // namespace

// GET /metrics, /healthz and /readyz.
class AgentApp::HttpServer {
 public:
  explicit HttpServer(const AgentApp* app) {
    server_.set_read_timeout(5);
    server_.set_write_timeout(5);
    server_.set_payload_max_length(4096);
    // An open connection would hold up stop() for seconds.
    server_.set_keep_alive_max_count(1);
    // httplib's default, SO_REUSEPORT, lets two agents share a port without an error.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    // Scrapes are rare; the default pool would be a thread per core of the node.
    server_.new_task_queue = [] { return new httplib::ThreadPool(2); };
    server_.Get("/metrics", [app](const httplib::Request&, httplib::Response& response) {
      response.set_content(app->Metrics(), "text/plain; version=0.0.4");
    });
    server_.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", "text/plain");
    });
    server_.Get("/readyz", [app](const httplib::Request&, httplib::Response& response) {
      const bool ready = app->Ready();
      response.status = ready ? 200 : 503;
      response.set_content(ready ? "ok\n" : "an engine is not registered at any router\n",
                           "text/plain");
    });
  }
  ~HttpServer() {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }

  // The port bound.
  absl::StatusOr<int> Bind(const std::string& host, int port) {
    const int bound = port == 0 ? server_.bind_to_any_port(host.c_str())
                      : server_.bind_to_port(host.c_str(), port) ? port
                                                                 : -1;
    if (bound < 0) {
      return absl::UnavailableError(absl::StrCat("metrics_port: can not listen on ", host, ":",
                                                 port, "; is it in use? 0 takes a free one"));
    }
    return bound;
  }
  void Serve() {
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();  // Or stop() may come too early.
  }

 private:
  httplib::Server server_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<AgentApp>> AgentApp::Start(const AgentConfig& config,
                                                          const Clock& clock) {
  std::unique_ptr<AgentApp> app(new AgentApp);
  auto http = std::make_unique<HttpServer>(app.get());
  WARMPATH_ASSIGN_OR_RETURN(app->metrics_port_,
                            http->Bind(config.metrics_host, static_cast<int>(config.metrics_port)));
  WARMPATH_RETURN_IF_ERROR(app->StartEngines(config, clock));
  app->http_ = std::move(http);
  app->http_->Serve();
  if (!config.ports_file.empty()) {
    WARMPATH_RETURN_IF_ERROR(WritePortsFile(config.ports_file, app->metrics_port_));
  }
  Log(LogLevel::kInfo, "agent started",
      {{"version", AgentVersion()},
       {"engines", config.engines.size()},
       {"routers", config.routers.size()},
       {"metrics", absl::StrCat(config.metrics_host, ":", app->metrics_port_)}});
  return app;
}

absl::Status AgentApp::StartEngines(const AgentConfig& config, const Clock& clock) {
  std::vector<EngineWorker::Router> routers;
  for (const RouterOptions& options : config.routers) {
    WARMPATH_ASSIGN_OR_RETURN(auto channel, MakeRouterChannel(options));
    routers.push_back({.address = options.address, .channel = std::move(channel)});
  }
  for (const EngineConfig& engine : config.engines) {
    // Seeds differ between agents and engines: instances are drawn from them.
    const auto seed = static_cast<std::uint64_t>(absl::ToUnixNanos(clock.WallNow())) ^
                      (std::hash<std::string>()(engine.worker_id) * 0x9e3779b97f4a7c15ULL);
    auto worker = EngineWorker::Create(engine, routers, zmq_, clock, seed);
    if (!worker.ok()) return Annotate(worker.status(), engine.worker_id);
    workers_.push_back(*std::move(worker));
  }
  for (const auto& worker : workers_) worker->Start();
  return absl::OkStatus();
}

AgentApp::~AgentApp() {
  http_.reset();
  workers_.clear();
}

std::string AgentApp::Metrics() const {
  std::vector<WorkerView> views;
  for (const auto& worker : workers_) views.push_back(worker->View());
  return MetricsPage(views);
}

bool AgentApp::Ready() const {
  for (const auto& worker : workers_) {
    bool registered = false;
    for (const PublisherView& router : worker->View().routers) {
      registered = registered || router.registered;
    }
    if (!registered) return false;
  }
  return true;
}

}  // namespace warmpath
