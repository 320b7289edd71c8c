#include "server/config/schema.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/strings.h"
#include "core/fleet/registration.h"
#include "core/routing/picker.h"

namespace warmpath {
namespace {

constexpr std::uint64_t kKiB = 1ull << 10;
constexpr std::uint64_t kMiB = 1ull << 20;
constexpr std::uint64_t kGiB = 1ull << 30;

absl::Status CheckName(std::string_view name) {
  if (name.empty() || name.size() > 256) {
    return absl::InvalidArgumentError("write a model name of 1 to 256 bytes");
  }
  return absl::OkStatus();
}

std::vector<std::string> Policies() {
  std::vector<std::string> names;
  for (const std::string_view name : PolicyNames()) names.emplace_back(name);
  return names;
}

absl::Status AnyText(std::string_view /*text*/) { return absl::OkStatus(); }

absl::Status CheckOptionalAddress(std::string_view address) {
  return address.empty() ? absl::OkStatus() : CheckAddress(address);
}

void VisitServer(ConfigVisitor& v, ServerSection& s) {
  v.Text({"grpc_address", "",
          "Where the gRPC services listen: Router, WorkerEvents, Admin, health, reflection. Port 0 "
          "takes a free one."},
         CheckAddress, &s.grpc_address);
  v.Text({"http_address", "",
          "Where HTTP listens for operators: /metrics, /healthz, /readyz, status page. Serves "
          "/v1/pick and /v1/outcome, too."},
         CheckAddress, &s.http_address);
  v.Text({"pick_address", "",
          "Where HTTP listens for load balancers: /v1/pick, /v1/outcome, /healthz, /readyz. Empty: "
          "the host of http_address and the port above its own."},
         CheckOptionalAddress, &s.pick_address);
  v.Text({"tls_cert", "",
          "PEM file with the certificate chain of the gRPC address: it then speaks TLS. Read again "
          "when it changes. Empty: plaintext."},
         AnyText, &s.tls_cert);
  v.Text({"tls_key", "", "PEM file with the private key of tls_cert."}, AnyText, &s.tls_key);
  v.Text({"tls_client_ca", "",
          "PEM file with the authorities that gRPC clients' certificates must come from. Empty: "
          "clients need no certificate."},
         AnyText, &s.tls_client_ca);
  v.Integer({"max_message_bytes", "bytes",
             "Largest gRPC message and HTTP body that is read; larger ones are refused."},
            {64 * kKiB, 256 * kMiB}, &s.max_message_bytes);
  v.Integer({"max_prompt_tokens", "tokens",
             "Longest prompt of a pick, as token ids or as chain hashes times their block size."},
            {1024, 100'000'000}, &s.max_prompt_tokens);
  v.Integer({"max_streams_per_connection", "", "Calls that one client connection may have open."},
            {1, 1'000'000}, &s.max_streams_per_connection);
  v.Integer({"max_worker_streams", "", "WorkerEvents.Publish streams open at once."},
            {1, 1'000'000}, &s.max_worker_streams);
  v.Integer({"max_pick_streams", "", "Router.PickStream streams open at once."}, {1, 1'000'000},
            &s.max_pick_streams);
  v.Integer({"grpc_memory_bytes", "bytes", "Bound of gRPC's own buffers over all connections."},
            {16 * kMiB, 1024 * kGiB}, &s.grpc_memory_bytes);
  v.Integer({"heavy_threads", "threads",
             "Threads for picks that would hold up others: prompts above heavy_prompt_tokens."},
            {1, 256}, &s.heavy_threads);
  v.Integer({"heavy_queue", "picks",
             "Heavy picks that may wait for a thread; beyond, they are refused with "
             "RESOURCE_EXHAUSTED."},
            {1, 1'000'000}, &s.heavy_queue);
  v.Integer(
      {"heavy_prompt_tokens", "tokens",
       "Prompts with more token ids than this, and text or bodies with more than four bytes for "
       "each, run on the heavy threads."},
      {1024, 100'000'000}, &s.heavy_prompt_tokens);
  v.Integer({"http_threads", "threads",
             "Threads of the listener for picks over HTTP; each serves many connections."},
            {1, 256}, &s.http_threads);
  v.Integer({"http_connections", "connections",
             "Connections of each HTTP listener; a further one takes the place of the one that has "
             "been idle for longest."},
            {16, 1'000'000}, &s.http_connections);
  v.Integer({"http_memory_bytes", "bytes",
             "Bound of all request bodies that one HTTP listener holds at a time."},
            {kMiB, 1024 * kGiB}, &s.http_memory_bytes);
  v.Time({"http_idle_timeout", "",
          "An HTTP connection without a request is closed after this time. Load balancers should "
          "close theirs sooner."},
         {absl::Seconds(1), absl::Hours(1)}, &s.http_idle_timeout);
  v.Time(
      {"http_request_timeout", "",
       "Time for an HTTP request's body to arrive, for its answer to be taken, and for the first "
       "request of a connection; slower clients are cut off."},
      {absl::Milliseconds(100), absl::Hours(1)}, &s.http_request_timeout);
  v.Time({"keepalive_time", "", "Idle time after which the server pings a gRPC client."},
         {absl::Seconds(1), absl::Hours(24)}, &s.keepalive_time);
  v.Time({"keepalive_timeout", "", "Wait for a ping's answer before the connection is dropped."},
         {absl::Seconds(1), absl::Hours(1)}, &s.keepalive_timeout);
  v.Time({"min_ping_interval", "",
          "Clients that ping more often without data are disconnected (too_many_pings)."},
         {absl::ZeroDuration(), absl::Hours(1)}, &s.min_ping_interval);
  v.Time({"drain_delay", "",
          "On SIGTERM: time between turning unready and closing streams, so that load balancers "
          "notice."},
         {absl::ZeroDuration(), absl::Minutes(10)}, &s.drain_delay);
  v.Time({"drain_deadline", "", "On SIGTERM: time that open calls have to finish after that."},
         {absl::ZeroDuration(), absl::Minutes(10)}, &s.drain_deadline);
}

absl::Status CheckModelOrNone(std::string_view name) {
  return name.empty() ? absl::OkStatus() : CheckName(name);
}

void VisitExtProc(ConfigVisitor& v, ExtProcSection& s) {
  v.Switch(
      {"enabled", "", "Serves envoy.service.ext_proc.v3.ExternalProcessor on the gRPC address."},
      &s.enabled);
  v.Switch({"fallbacks", "",
            "true: the endpoint header lists the next best endpoints after the chosen one, for "
            "override_host. false: one address, for proxies that take the value as it is "
            "(ORIGINAL_DST clusters, NGINX Gateway Fabric)."},
           &s.fallbacks);
  v.Choice({"request_body_mode", "",
            "How proxies send request bodies, where they do not say it themselves."},
           {"full_duplex_streamed", "streamed", "buffered", "buffered_partial", "none"},
           &s.request_body_mode);
  v.Choice({"response_body_mode", "",
            "How proxies send response bodies, if they send them without saying how."},
           {"full_duplex_streamed", "streamed", "buffered", "buffered_partial", "none"},
           &s.response_body_mode);
  v.Text({"default_model", "",
          "The model of requests that name none. Empty: such a request is refused, unless it has "
          "no body; then any pool may serve it."},
         CheckModelOrNone, &s.default_model);
  v.Switch({"usage_accounting", "",
            "Reads token counts from response bodies. The proxy must be set to send them, which "
            "costs both sides work for each chunk."},
           &s.usage_accounting);
  v.Switch({"decision_metadata", "",
            "Adds dynamic metadata named warmpath: worker, policy, reason, predictions and the "
            "client's fairness id and objective, for access logs."},
           &s.decision_metadata);
  v.Integer({"max_body_bytes", "bytes",
             "Largest request body; larger ones get 413. A body that the proxy sends in one "
             "message must fit into server.max_message_bytes, too."},
            {kKiB, 256 * kMiB}, &s.max_body_bytes);
  v.Integer({"max_buffered_bytes", "bytes",
             "Bytes of unfinished request bodies over all streams; beyond, requests get 429."},
            {kMiB, 1024 * kGiB}, &s.max_buffered_bytes);
  v.Integer({"max_streams", "", "Streams open at once, one for each HTTP request in the proxies."},
            {1, 1'000'000}, &s.max_streams);
  v.Time({"request_timeout", "",
          "A request that is not whole so long after its first message gets 408. 0s: off."},
         {absl::ZeroDuration(), absl::Hours(24)}, &s.request_timeout);
}

// Amazon SageMaker's names and bounds for what policy and prefix_aware say (docs/sagemaker.md).
void VisitSageMaker(ConfigVisitor& v, PoolConfig& p) {
  constexpr std::string_view kStrategy = "RoutingStrategy";
  constexpr std::string_view kConfig = "PrefixAwareRoutingConfig";
  std::string strategy;
  v.Choice({kStrategy, "",
            "SageMaker's name for policy: least_outstanding, prefix_aware or random. Not together "
            "with policy.",
            /*other_name=*/true},
           {"LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE", "RANDOM"}, &strategy);
  v.BeginSection({kConfig, "", "The knobs of PREFIX_AWARE, both required.", /*other_name=*/true});
  v.Integer({"PrefixLength", "", "SageMaker's name for prefix_aware.prefix_length.",
             /*other_name=*/true},
            {1024, 65'536}, &p.prefix_aware.prefix_length);
  v.Integer({"ConcurrencyThreshold", "requests",
             "SageMaker's name for prefix_aware.concurrency_threshold.", /*other_name=*/true},
            {1, 1024}, &p.prefix_aware.concurrency_threshold);
  const bool complete = v.Given("PrefixLength") && v.Given("ConcurrencyThreshold");
  v.EndSection();

  const bool prefix_aware = strategy == "PREFIX_AWARE";
  if (v.Given(kStrategy) && v.Given("policy")) {
    v.Refuse(kStrategy, "says what policy says: remove one of the two");
  }
  if (v.Given(kConfig) && v.Given("prefix_aware")) {
    v.Refuse(kConfig, "says what prefix_aware says: remove one of the two");
  }
  if (prefix_aware && !v.Given(kConfig)) {
    v.Refuse(kStrategy,
             "PREFIX_AWARE needs PrefixAwareRoutingConfig: add it with PrefixLength and "
             "ConcurrencyThreshold");
  } else if (v.Given(kConfig) && !prefix_aware) {
    v.Refuse(kConfig,
             "is for PREFIX_AWARE only: add \"RoutingStrategy: PREFIX_AWARE\" or remove it");
  } else if (v.Given(kConfig) && !complete) {
    v.Refuse(kConfig, "needs both PrefixLength and ConcurrencyThreshold: add what is missing");
  }
  if (strategy == "RANDOM") p.policy = "random";
  if (strategy == "LEAST_OUTSTANDING_REQUESTS") p.policy = "least_outstanding";
  if (prefix_aware) p.policy = "prefix_aware";
}

void VisitPoolSettings(ConfigVisitor& v, PoolConfig& p) {
  v.Integer({"routing_block_size", "tokens",
             "Tokens of one routing block. Each engine's block size must divide it. 0: the "
             "smallest multiple of the first registered engine's block size that is at least 64."},
            {0, 65'536}, &p.routing_block_size);
  v.Choice({"policy", "", "How a target is chosen; docs/policy.md describes each."}, Policies(),
           &p.policy);
  v.Integer({"index_bound_bytes", "bytes",
             "Hard memory bound of the pool's prefix index. At the bound new stores are refused "
             "and the workers concerned are DEGRADED(index_full)."},
            {kMiB, 16 * 1024 * kGiB}, &p.index_bound_bytes);
  v.Integer({"predicted_bound_blocks", "blocks",
             "Blocks remembered at most per target without events; fewer when its capacity is "
             "known to be smaller."},
            {1, 1ull << 32}, &p.predicted_bound_blocks);
  v.Milliseconds({"max_wait_ms", "milliseconds",
                  "Picks are refused with RESOURCE_EXHAUSTED when the best candidate's predicted "
                  "wait exceeds this. 0: off."},
                 {absl::ZeroDuration(), absl::Hours(1)}, &p.max_wait);
  v.Switch({"tenant_fairness", "",
            "Tenants that use more than an equal share of the pool's prefill time are kept away "
            "from the requests of others; docs/policy.md. Requests name their tenant."},
           &p.tenant_fairness);
  v.BeginSection({"prefix_aware", "", "Knobs of the policy prefix_aware (docs/sagemaker.md)."});
  v.Integer({"prefix_length", "",
             "Length of the prefix that chooses the target: bytes of text, characters of chat "
             "messages, token ids times 4."},
            {1024, 65'536}, &p.prefix_aware.prefix_length);
  v.Integer({"concurrency_threshold", "requests",
             "Requests in flight on the chosen target at which the least loaded one is taken "
             "instead."},
            {1, 1024}, &p.prefix_aware.concurrency_threshold);
  v.EndSection();
  VisitSageMaker(v, p);
}

void VisitFleet(ConfigVisitor& v, FleetConfig& f) {
  v.Switch({"create_pools", "",
            "true: a worker of a model without a pool makes one with pool_defaults. false: it is "
            "refused."},
           &f.create_pools);
  v.Integer({"max_workers", "workers", "Workers registered at once; further ones are refused."},
            {1, 1'000'000}, &f.max_workers);
  v.Integer({"max_pools", "pools", "Pools at once; a registration that needs one more is refused."},
            {1, kMaxPools}, &f.max_pools);
  v.Time({"worker_lease", "",
          "How long a worker whose agent's stream is lost stays a candidate before it is LOST."},
         {absl::Milliseconds(100), absl::Hours(1)}, &f.worker_lease);
  v.Time({"warm_up", "",
          "For so long after the router's start a model without a pool is answered UNAVAILABLE "
          "(503) instead of NOT_FOUND (404): its agents may be on their way back."},
         {absl::ZeroDuration(), absl::Hours(1)}, &f.warm_up);
  v.Time({"heartbeat", "", "Interval of heartbeats that agents are told to keep."},
         {absl::Milliseconds(100), absl::Minutes(1)}, &f.heartbeat);
  v.Integer({"max_concurrent_snapshots", "snapshots",
             "Snapshots that may run at a time; other workers wait for their turn."},
            {1, 1024}, &f.max_concurrent_snapshots);
  v.Integer({"max_reservations_per_pool", "reservations",
             "Open reservations of one pool; further picks are refused."},
            {16, kMaxReservationsPerPool}, &f.max_reservations_per_pool);
}

}  // namespace

void VisitConfig(ConfigVisitor& v, RouterConfig& config) {
  v.BeginSection({"server", "", "Addresses, limits and shutdown."});
  VisitServer(v, config.server);
  v.EndSection();

  v.BeginSection(
      {"ext_proc", "", "The endpoint picker for Envoy-based gateways (docs/ext-proc.md)."});
  VisitExtProc(v, config.ext_proc);
  v.EndSection();

  v.BeginSection({"log", "", "Structured logs on stderr."});
  v.Choice({"level", "", "Lines below this level are dropped."}, {"debug", "info", "warn", "error"},
           &config.log.level);
  v.EndSection();

  v.BeginSection({"metrics", "", "What /metrics shows."});
  v.Integer({"max_workers", "workers",
             "Workers with series of their own; those beyond are only counted in sums."},
            {0, 100'000}, &config.metrics.max_workers);
  v.EndSection();

  v.BeginSection({"fleet", "", "Workers and their leases."});
  VisitFleet(v, config.fleet);
  v.EndSection();

  v.BeginSection({"pool_defaults", "",
                  "Settings of pools that are made by a registration, and of the fields that an "
                  "entry of pools leaves out."});
  VisitPoolSettings(v, config.fleet.defaults);
  v.EndSection();

  const std::size_t pools =
      v.BeginItems({"pools", "", "Pools with settings of their own, one for each base model."},
                   config.fleet.pools.size());
  while (config.fleet.pools.size() < pools) config.fleet.pools.push_back(config.fleet.defaults);
  for (std::size_t i = 0; i < pools; ++i) {
    PoolConfig& pool = config.fleet.pools[i];
    v.BeginItem(i);
    v.Text({"name", "", "The base model's name, as workers register it. Required."}, CheckName,
           &pool.name);
    v.TextList({"aliases", "", "Other model names that mean this pool."}, CheckName, &pool.aliases);
    VisitPoolSettings(v, pool);
    v.EndItem();
  }
  v.EndItems();
}

absl::Status CheckAddress(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  std::uint32_t port = 0;
  if (colon == std::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(ToAbsl(address.substr(colon + 1)), &port) || port > 65'535) {
    return absl::InvalidArgumentError("write host:port, for example 0.0.0.0:9002 or [::]:9002");
  }
  const std::string_view host = address.substr(0, colon);
  if (host.find(':') != std::string_view::npos && (host.front() != '[' || host.back() != ']')) {
    return absl::InvalidArgumentError("put the IPv6 address in brackets, for example [::]:9002");
  }
  return absl::OkStatus();
}

std::string PickAddress(const ServerSection& server) {
  if (!server.pick_address.empty()) return server.pick_address;
  const std::size_t colon = server.http_address.rfind(':');
  std::uint32_t port = 0;
  if (!absl::SimpleAtoi(server.http_address.substr(colon + 1), &port)) port = 0;
  // No port lies above the last one.
  const std::uint32_t above = port == 0 || port == 65'535 ? 0 : port + 1;
  return absl::StrCat(server.http_address.substr(0, colon), ":", above);
}

std::string FormatBytes(std::uint64_t bytes) {
  if (bytes != 0 && bytes % kGiB == 0) return absl::StrCat(bytes / kGiB, "GiB");
  if (bytes != 0 && bytes % kMiB == 0) return absl::StrCat(bytes / kMiB, "MiB");
  if (bytes != 0 && bytes % kKiB == 0) return absl::StrCat(bytes / kKiB, "KiB");
  return absl::StrCat(bytes);
}

}  // namespace warmpath
