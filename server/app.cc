#include "server/app.h"

#include <grpcpp/channel.h>
#include <grpcpp/impl/service_type.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/routing/picker.h"
#include "server/admin_service.h"
#include "server/config/document.h"
#include "server/ext_proc/service.h"
#include "server/grpc_server.h"
#include "server/http/admin_pages.h"
#include "server/http/http_server.h"
#include "server/http/pick_api.h"
#include "server/metrics.h"
#include "server/pick_handler.h"
#include "server/reactor_registry.h"
#include "server/router_service.h"
#include "server/status_page.h"
#include "server/ticker.h"
#include "server/work_pool.h"
#include "server/worker_events_service.h"

namespace warmpath {
namespace {

constexpr absl::Duration kFleetTick = absl::Milliseconds(20);
// One wake-up serves all that is due at a time, so that what an idle router does falls together.
constexpr absl::Duration kQuietTick = absl::Milliseconds(100);
constexpr absl::Duration kBusyMaintenance = absl::Milliseconds(10);
constexpr absl::Duration kIdleMaintenance = absl::Milliseconds(100);
constexpr std::size_t kMaintenanceBlocks = 20'000;
// See GrpcServer::CallItself.
constexpr absl::Duration kSelfCall = absl::Milliseconds(150);
// Where heartbeats keep them awake, all but for the odd second in which one thread gets them all.
constexpr absl::Duration kSteadySelfCall = absl::Milliseconds(500);
constexpr std::size_t kAdminQueue = 64;
constexpr std::size_t kPageQueue = 64;
constexpr absl::Duration kOverdueConnections = absl::Seconds(1);
constexpr absl::Duration kHttpGrace = absl::Milliseconds(800);
constexpr std::size_t kBytesPerToken = 4;  // of what counts as a long prompt
constexpr absl::Duration kExtProcTick = absl::Seconds(1);

GrpcServer::Options GrpcOptions(const ServerSection& s) {
  return {.address = s.grpc_address,
          .tls_cert = s.tls_cert,
          .tls_key = s.tls_key,
          .tls_client_ca = s.tls_client_ca,
          .max_message_bytes = s.max_message_bytes,
          .max_streams_per_connection = s.max_streams_per_connection,
          .memory_bytes = s.grpc_memory_bytes,
          .keepalive_time = s.keepalive_time,
          .keepalive_timeout = s.keepalive_timeout,
          .min_ping_interval = s.min_ping_interval};
}

}  // namespace

// Members in the order of construction: each may refer to those above it. Destroyed from below.
struct App::Impl {
  Impl(Options& options, std::unique_ptr<Fleet> fleet_in)
      : config(options.config),
        fleet(std::move(fleet_in)),
        picker(options.clock),
        backend(fleet.get(), &picker, options.clock,
                {.max_prompt_tokens = config.server.max_prompt_tokens,
                 .heavy_prompt_tokens = config.server.heavy_prompt_tokens},
                options.random_seed),
        heartbeats(config.fleet.heartbeat, options.clock),
        worker_streams("worker", config.server.max_worker_streams),
        pick_streams("pick", config.server.max_pick_streams),
        ext_proc_streams("ext_proc", config.ext_proc.max_streams, "ext_proc.max_streams"),
        ext_proc_options(MakeExtProcOptions(config.ext_proc, [this] { return PoolNames(); })),
        heavy_pool(config.server.heavy_threads, config.server.heavy_queue),
        admin_pool(1, kAdminQueue),
        page_pool(1, kPageQueue),
        metrics({.fleet = fleet.get(),
                 .pick_seconds = [this] { return backend.PickSeconds(); },
                 .lock_hold_seconds = [this] { return picker.LockHold(); },
                 .worker_streams = [this] { return worker_streams.size(); },
                 .pick_streams = [this] { return pick_streams.size(); },
                 .ext_proc_streams = [this] { return ext_proc_streams.size(); },
                 .ext_proc = &ext_proc_stats,
                 .heavy_queue = [this] { return heavy_pool.queued(); },
                 .max_workers = config.metrics.max_workers}) {}

  std::vector<std::string> PoolNames() const;
  bool Ready() const { return !draining.load() && fleet->Ready(); }
  std::vector<std::shared_ptr<grpc::Service>> Services(Options& options);
  absl::Status StartHttp(const Clock* clock);
  std::vector<Ticker::Task> Tasks(const Clock* clock);
  void UpdateReadiness();

  const RouterConfig config;
  const std::unique_ptr<Fleet> fleet;
  Picker picker;
  PickHandler backend;
  HeartbeatSlots heartbeats;
  ReactorRegistry worker_streams;
  ReactorRegistry pick_streams;
  ReactorRegistry ext_proc_streams;
  const ExtProcOptions ext_proc_options;
  ExtProcStats ext_proc_stats;
  WorkPool heavy_pool;
  WorkPool admin_pool;
  WorkPool page_pool;
  RouterMetrics metrics;
  std::atomic<bool> draining{false};
  std::unique_ptr<GrpcServer> grpc_server;  // its services refer to everything above
  std::unique_ptr<HttpServer> http_server;
  std::unique_ptr<HttpServer> pick_server;
  std::unique_ptr<Ticker> ticker;  // calls the fleet and the gRPC server

  absl::Mutex ready_mu;
  bool shown_ready ABSL_GUARDED_BY(ready_mu) = false;
};

std::vector<std::shared_ptr<grpc::Service>> App::Impl::Services(Options& options) {
  std::vector<std::shared_ptr<grpc::Service>> services = std::move(options.extra_services);
  services.push_back(MakeRouterService(&backend, &heavy_pool, &pick_streams));
  services.push_back(MakeWorkerEventsService(fleet.get(), &heartbeats, &worker_streams));
  if (config.ext_proc.enabled) {
    services.push_back(MakeExtProcService(&ext_proc_options, config.ext_proc.request_timeout,
                                          &backend, &ext_proc_stats, &heavy_pool, &ext_proc_streams,
                                          options.clock));
  }
  services.push_back(
      MakeAdminService(fleet.get(), &backend, &admin_pool, options.clock, EffectiveYaml(config)));
  return services;
}

std::vector<std::string> App::Impl::PoolNames() const {
  std::vector<std::string> names;
  for (const std::shared_ptr<Pool>& pool : fleet->Pools()) names.push_back(pool->name());
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status App::Impl::StartHttp(const Clock* clock) {
  const ServerSection& server = config.server;
  const auto ready = [this] { return Ready(); };
  std::vector<HttpRoute> picks = HealthRoutes(ready);
  for (HttpRoute& route :
       PickRoutes({.backend = &backend,
       .pool = &heavy_pool,
       .pool_from_bytes = std::size_t{server.heavy_prompt_tokens} * kBytesPerToken})) {
    picks.push_back(std::move(route));
  }
  std::vector<HttpRoute> all = picks;
  const AdminContent pages{
      .metrics = [this] { return prometheus::TextSerializer().Serialize(metrics.Collect()); },
      .status_page =
          [this] {
            return StatusPage(fleet->ListPools(""), fleet->ListWorkers(""), Ready(),
                              config.metrics.max_workers);
          }};
  for (HttpRoute& route : PageRoutes(pages, &page_pool)) all.push_back(std::move(route));

  HttpServer::Options options{.address = server.http_address,
                              .max_connections = server.http_connections,
                              .max_body_bytes = server.max_message_bytes,
                              .max_memory = server.http_memory_bytes,
                              .idle_timeout = server.http_idle_timeout,
                              .request_timeout = server.http_request_timeout,
                              .clock = clock};
  WARMPATH_ASSIGN_OR_RETURN(http_server, HttpServer::Start(options, std::move(all)));
  options.address = PickAddress(server);
  options.setting = "server.pick_address";
  options.threads = server.http_threads;
  WARMPATH_ASSIGN_OR_RETURN(pick_server, HttpServer::Start(options, std::move(picks)));
  return absl::OkStatus();
}

void App::Impl::UpdateReadiness() {
  // Under the lock, so that a late tick can not undo what Drain said.
  absl::MutexLock lock(&ready_mu);
  const bool ready = Ready();
  if (ready == shown_ready) return;
  shown_ready = ready;
  grpc_server->SetReady(ready);
  Log(LogLevel::kInfo, ready ? "ready" : "not ready");
}

std::vector<Ticker::Task> App::Impl::Tasks(const Clock* clock) {
  std::vector<Ticker::Task> tasks;
  tasks.push_back({.run = [this] {
    fleet->Tick();
    UpdateReadiness();
    return fleet->Quiet() ? kQuietTick : kFleetTick;
  }});
  tasks.push_back({.run = [this] {
    return fleet->MaintainIndexes(kMaintenanceBlocks) ? kBusyMaintenance : kIdleMaintenance;
  }});
  tasks.push_back({.run = [this] {
    grpc_server->CallItself();
    return heartbeats.Steady() ? kSteadySelfCall : kSelfCall;
  }});
  tasks.push_back({.run = [this] {
    http_server->CloseOverdue();
    pick_server->CloseOverdue();
    return kOverdueConnections;
  }});
  tasks.push_back({.run = [this, clock] {
    ext_proc_streams.TickAll(clock->Now());
    return kExtProcTick;
  }});
  return tasks;
}

absl::StatusOr<std::unique_ptr<App>> App::Start(Options options) {
  WARMPATH_ASSIGN_OR_RETURN(
      std::unique_ptr<Fleet> fleet,
      Fleet::Create(options.config.fleet, options.clock, options.random_seed));
  auto impl = std::make_unique<Impl>(options, std::move(fleet));
  const ServerSection& server = impl->config.server;
  WARMPATH_ASSIGN_OR_RETURN(impl->grpc_server,
                            GrpcServer::Start(GrpcOptions(server), impl->Services(options)));
  WARMPATH_RETURN_IF_ERROR(impl->StartHttp(options.clock));
  impl->ticker = std::make_unique<Ticker>(options.clock, impl->Tasks(options.clock));
  impl->ticker->Start();
  return std::unique_ptr<App>(new App(std::move(impl)));
}

App::App(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

App::~App() { Drain(absl::ZeroDuration(), absl::Seconds(5)); }

int App::grpc_port() const { return impl_->grpc_server->port(); }
int App::http_port() const { return impl_->http_server->port(); }
int App::pick_port() const { return impl_->pick_server->port(); }
std::shared_ptr<grpc::Channel> App::InProcessChannel() {
  return impl_->grpc_server->InProcessChannel();
}
Fleet& App::fleet() { return *impl_->fleet; }
Picker& App::picker() { return impl_->picker; }

void App::Drain(absl::Duration delay, absl::Duration deadline) {
  if (impl_->draining.exchange(true)) return;
  impl_->UpdateReadiness();
  if (delay > absl::ZeroDuration()) {
    Log(LogLevel::kInfo, "draining: waiting for load balancers to notice", {{"delay", delay}});
    absl::SleepFor(delay);
  }
  const absl::Status status =
      absl::UnavailableError("the router shuts down: connect to another one, or again in a moment");
  Log(LogLevel::kInfo, "draining: ending streams",
      {{"worker_streams", impl_->worker_streams.size()},
       {"pick_streams", impl_->pick_streams.size()},
       {"ext_proc_streams", impl_->ext_proc_streams.size()},
       {"deadline", deadline}});
  impl_->pick_streams.DrainAll(status);
  impl_->ext_proc_streams.DrainAll(status);
  impl_->worker_streams.DrainAll(status);
  // From here on nothing may call into the gRPC server but its own callbacks.
  impl_->ticker->Stop();
  impl_->pick_server->Shutdown(std::min(deadline, kHttpGrace));
  impl_->grpc_server->Shutdown(deadline);
  Log(LogLevel::kInfo, "stopped");
}

}  // namespace warmpath
