#include "core/replay/sim_router.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/fleet/pool.h"

namespace warmpath {
namespace {

constexpr char kModel[] = "sim";
// Held by a stream that never ends: a simulation has no leases.
constexpr HolderId kHolder = 1;
constexpr std::uint64_t kHeadTokens = 1'024;

bool IsRouterPolicy(std::string_view name) {
  const std::vector<std::string_view> names = PolicyNames();
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string Listed(const std::vector<std::string_view>& names) {
  std::string list;
  for (const std::string_view name : names) {
    absl::StrAppend(&list, list.empty() ? "" : ", ", ToAbsl(name));
  }
  return list;
}

}  // namespace

// Nothing that the router sends back matters but the session.
class SimRouter::Sink final : public FeedSink {
 public:
  void Send(FeedReply reply) override {
    if (const auto* registered = std::get_if<RegisteredReply>(&reply)) {
      session = registered->session;
    }
  }
  void Close(absl::Status status) override { closed = std::move(status); }

  SessionId session = 0;
  absl::Status closed;
};

std::vector<std::string_view> SimPolicyNames() {
  std::vector<std::string_view> names = PolicyNames();
  const std::vector<std::string_view> competitors = CompetitorNames();
  names.insert(names.end(), competitors.begin(), competitors.end());
  return names;
}

SimRouter::SimRouter(const SimRouterOptions& options, const Clock* clock)
    : options_(options),
      random_(options.seed ^ 0x5bd1e995u),
      books_(options.workers.size()),
      picker_(clock) {}

SimRouter::~SimRouter() {
  for (Worker& worker : workers_) {
    if (worker.feed != nullptr) worker.feed->OnClosed();
  }
}

absl::StatusOr<std::unique_ptr<SimRouter>> SimRouter::Create(const SimRouterOptions& options,
                                                             const Clock* clock) {
  auto router = std::unique_ptr<SimRouter>(new SimRouter(options, clock));
  const bool without_host = options.policy == kWithoutHostTier;
  if (!without_host && !IsRouterPolicy(options.policy)) {
    auto competitor = MakeCompetitor(options.policy);
    if (!competitor.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "policy: \"", options.policy, "\" is unknown; use one of ", Listed(SimPolicyNames()),
          ", bound, ", kWithoutHostTier, ", ", Listed(AblationNames())));
    }
    router->competitor_ = *std::move(competitor);
  }
  FleetConfig config;
  config.defaults.routing_block_size = options.block_size;
  config.defaults.overlay = options.overlay;
  config.defaults.tenant_fairness = options.tenant_fairness;
  const std::vector<std::string_view> competitors = CompetitorNames();
  const bool is_competitor =
      std::find(competitors.begin(), competitors.end(), options.policy) != competitors.end();
  if (is_competitor) config.defaults.slow_tiers = options.competitors_see_host;
  if (without_host) {
    config.defaults.slow_tiers = false;
  } else if (router->competitor_ == nullptr) {
    config.defaults.policy = options.policy;
  }
  WARMPATH_ASSIGN_OR_RETURN(router->fleet_, Fleet::Create(config, clock, options.seed));
  for (const SimWorkerSpec& spec : options.workers) {
    WARMPATH_RETURN_IF_ERROR(router->Register(spec));
  }
  WARMPATH_ASSIGN_OR_RETURN(const ModelRef model, router->fleet_->Resolve(kModel));
  router->pool_ = model.pool;
  return router;
}

absl::Status SimRouter::Register(const SimWorkerSpec& spec) {
  const std::size_t number = workers_.size();
  Worker& worker = workers_.emplace_back();
  worker.id = absl::StrCat(number);
  worker.address =
      absl::StrCat("10.", number >> 16, ".", (number >> 8) & 255, ".", number & 255, ":8000");
  worker.sink = std::make_shared<Sink>();
  Registration registration;
  registration.agent_instance = std::string(16, 's');
  registration.worker_id = worker.id;
  registration.model = kModel;
  registration.engine = "simulated";
  registration.ranks.push_back({.rank = 0,
                                .address = worker.address,
                                .epoch = 1,
                                .engine_block_size = options_.block_size,
                                .kv_capacity_tokens = spec.kv_capacity_tokens,
                                .has_events = true,
                                .prefill_tokens_per_s = spec.prefill_tokens_per_s,
                                .host_copy_tokens_per_s = spec.host_copy_tokens_per_s});
  WARMPATH_ASSIGN_OR_RETURN(worker.feed,
                            fleet_->Register(registration, "10.0.0.1:5000", worker.sink));
  worker.session = worker.sink->session;
  WARMPATH_RETURN_IF_ERROR(
      Send(worker, SnapshotBeginUpdate{
                       .delta_seq = ++worker.delta_seq, .rank = 0, .epoch = 1, .reason = "start"}));
  return Send(worker, SnapshotEndUpdate{.delta_seq = ++worker.delta_seq,
                                        .rank = 0,
                                        .engine_seq = worker.engine_seq,
                                        .count = 0,
                                        .xor_of_hashes = 0,
                                        .no_holes = true});
}

absl::Status SimRouter::Send(Worker& worker, const FeedUpdate& update) {
  WARMPATH_RETURN_IF_ERROR(worker.feed->OnUpdate(worker.session, update));
  return worker.sink->closed;
}

absl::StatusOr<std::size_t> SimRouter::Choose(const SimPrompt& prompt, const Query& query,
                                              double now_s) {
  Query look = query;
  look.explain = true;
  look.reserve = false;
  WARMPATH_ASSIGN_OR_RETURN(const Decision decision, picker_.Pick(*pool_, look));
  sights_.clear();
  for (const CandidateTerms& terms : decision.explanation) {
    if (!terms.excluded.empty()) continue;
    WorkerSight& sight = sights_.emplace_back();
    if (!absl::SimpleAtoi(terms.endpoint.worker_id, &sight.worker) ||
        sight.worker >= workers_.size()) {
      return absl::InternalError("the picker named a worker that nobody registered");
    }
    sight.cached_tokens = terms.cached_tokens;
    sight.wait_s = terms.wait_s;
    sight.copy_s = terms.copy_s;
    sight.prefill_s = terms.prefill_s;
    sight.pool_price_s = terms.pool_price_s;
    sight.decode_stall_s = terms.decode_stall_s;
    sight.kv_pressure_s = terms.kv_pressure_s;
    sight.kv_wait_s = terms.kv_wait_s;
    sight.inflight = terms.inflight;
    sight.kv_tokens = terms.kv_tokens;
    sight.kv_capacity_tokens = terms.kv_capacity_tokens;
    const SimBooks::Worker& book = books_.Of(sight.worker);
    sight.pending_uncached_tokens = book.pending_uncached_tokens;
    sight.prompt_tokens = book.prompt_tokens;
    sight.active_blocks = book.blocks.size();
    sight.new_blocks = books_.NewBlocks(sight.worker, prompt.chain);
    const SimBooks::OfTenant& of_tenant = books_.Of(sight.worker, prompt.tenant);
    sight.tenant_inflight = of_tenant.inflight;
    sight.tenant_pending = of_tenant.pending;
    sight.reported_waiting = workers_[sight.worker].report.waiting;
    sight.reported_kv_usage = workers_[sight.worker].report.kv_usage;
  }
  std::sort(sights_.begin(), sights_.end(),
            [](const WorkerSight& a, const WorkerSight& b) { return a.worker < b.worker; });
  RequestSight request{.now_s = now_s,
                       .prompt_tokens = prompt.prompt_tokens,
                       .block_size = options_.block_size,
                       .session = prompt.session,
                       .follow_up = prompt.follow_up,
                       .tenant = prompt.tenant};
  const std::size_t head = std::min<std::size_t>(
      prompt.chain.size(), std::max<std::uint64_t>(1, kHeadTokens / options_.block_size));
  request.head_key = head == 0 ? prompt.session : prompt.chain[head - 1];
  request.decode_s = mean_decode_s_;
  const std::size_t chosen = competitor_->Choose(request, sights_, random_);
  if (chosen == kShed) return absl::ResourceExhaustedError("shed");
  if (chosen >= sights_.size()) {
    return absl::InternalError(absl::StrCat(options_.policy, " chose nobody"));
  }
  return sights_[chosen].worker;
}

absl::StatusOr<SimRouter::Placement> SimRouter::Pick(const SimPrompt& prompt, double now_s) {
  session_key_ = absl::StrCat("session-", prompt.session);
  Query query;
  query.chain = prompt.chain;
  query.prompt_tokens = prompt.prompt_tokens;
  query.tokens = prompt.head;
  query.session_key = session_key_;
  tenant_id_ = absl::StrCat("tenant-", prompt.tenant);
  query.tenant = tenant_id_;
  query.holder = kHolder;
  query.max_fallbacks = 0;
  if (competitor_ != nullptr) {
    WARMPATH_ASSIGN_OR_RETURN(const std::size_t worker, Choose(prompt, query, now_s));
    query.subset_present = true;
    query.subset = {workers_[worker].address};
  }
  WARMPATH_ASSIGN_OR_RETURN(const Decision decision, picker_.Pick(*pool_, query));
  Placement placement;
  if (!absl::SimpleAtoi(decision.endpoint.worker_id, &placement.worker) ||
      placement.worker >= workers_.size()) {
    return absl::InternalError("the picker named a worker that nobody registered");
  }
  placement.reservation = decision.reservation_id;
  placement.predicted_cached_tokens = decision.predicted_cached_tokens;
  placement.uncached_tokens = prompt.prompt_tokens - decision.predicted_cached_tokens;
  placement.tenant = prompt.tenant;
  books_.Open(placement.worker, prompt.tenant, prompt.chain, prompt.prompt_tokens,
              placement.uncached_tokens);
  return placement;
}

absl::Status SimRouter::FirstToken(const Placement& placement, double ttft_s) {
  books_.FirstToken(placement.worker, placement.tenant, placement.uncached_tokens);
  return picker_.ReportOutcome(*fleet_, Outcome{.reservation_id = placement.reservation,
                                                .kind = OutcomeKind::kFirstToken,
                                                .served_by = {},
                                                .actual_cached_tokens = std::nullopt,
                                                .actual_prompt_tokens = std::nullopt,
                                                .output_tokens = std::nullopt,
                                                .ttft = absl::Seconds(ttft_s)});
}

absl::Status SimRouter::Finished(const Placement& placement, const SimPrompt& prompt,
                                 std::uint64_t cached_tokens, std::uint64_t output_tokens,
                                 double decode_s) {
  books_.Close(placement.worker, placement.tenant, prompt.chain, prompt.prompt_tokens);
  ++finished_;
  mean_decode_s_ += (decode_s - mean_decode_s_) / static_cast<double>(finished_);
  return picker_.ReportOutcome(*fleet_, Outcome{.reservation_id = placement.reservation,
                                                .kind = OutcomeKind::kFinished,
                                                .served_by = {},
                                                .actual_cached_tokens = cached_tokens,
                                                .actual_prompt_tokens = prompt.prompt_tokens,
                                                .output_tokens = output_tokens,
                                                .ttft = std::nullopt});
}

absl::Status SimRouter::CacheDelta(std::size_t worker, Tier tier,
                                   std::span<const ChainHash> removed,
                                   std::span<const ChainHash> stored) {
  Worker& w = workers_[worker];
  // Removals first, as one message has them; in as many messages as the bound asks for.
  while (!removed.empty() || !stored.empty()) {
    const auto gone = removed.first(std::min(removed.size(), kMaxHashesPerMessage));
    const auto fresh = stored.first(std::min(stored.size(), kMaxHashesPerMessage - gone.size()));
    removed = removed.subspan(gone.size());
    stored = stored.subspan(fresh.size());
    const bool last = removed.empty() && stored.empty();
    CacheDeltaUpdate update{.delta_seq = ++w.delta_seq,
                            .rank = 0,
                            .tier = tier,
                            .removed = gone,
                            .stored = fresh,
                            .engine_seq = std::nullopt,
                            .no_holes = options_.no_holes};
    if (last) update.engine_seq = ++w.engine_seq;
    WARMPATH_RETURN_IF_ERROR(Send(w, update));
  }
  return absl::OkStatus();
}

absl::Status SimRouter::Load(std::size_t worker, std::uint32_t running, std::uint32_t waiting,
                             double kv_usage, absl::Duration age) {
  workers_[worker].report = {.waiting = waiting, .kv_usage = kv_usage};
  return Send(
      workers_[worker],
      LoadUpdate{
          .rank = 0, .running = running, .waiting = waiting, .kv_usage = kv_usage, .age = age});
}

double SimRouter::PrefillRate(std::size_t worker) const {
  for (const WorkerView& view : fleet_->ListWorkers(kModel)) {
    if (view.worker_id == workers_[worker].id) return view.targets[0].prefill_tokens_per_s;
  }
  return 0;
}

}  // namespace warmpath
