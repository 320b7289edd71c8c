#include "server/metrics.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/strings.h"
#include "core/routing/picker.h"
#include "server/version.h"

namespace warmpath {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr MetricType kCounter = MetricType::Counter;
constexpr MetricType kGauge = MetricType::Gauge;
constexpr MetricType kHistogram = MetricType::Histogram;

// Label values that agents choose (event kinds, skip causes): beyond these, "other".
constexpr std::size_t kMaxAgentLabels = 64;

// Index into kTable.
enum Metric : std::size_t {
  kBuildInfo,
  kPicks,
  kPickSeconds,
  kLockHoldSeconds,
  kPicksShed,
  kPromptTokens,
  kMatchedTokens,
  kPredictedCachedTokens,
  kActualCachedTokens,
  kReservationsOpen,
  kReservationsOpened,
  kReservationsClosed,
  kCostsNotFinite,
  kPoolSaturation,
  kWorkers,
  kWorkersWithoutSeries,
  kWorkerFreshness,
  kWorkerEventLag,
  kWorkerBlocks,
  kWorkerInflight,
  kWorkerWait,
  kIndexBytes,
  kIndexBoundBytes,
  kIndexSets,
  kIndexBlocks,
  kIndexSlotsWithHoles,
  kIndexRefusedStores,
  kIndexAuditFailures,
  kEvents,
  kEventsSkipped,
  kUpdatesWrongSession,
  kUpdatesDuplicate,
  kResyncs,
  kSnapshots,
  kStreams,
  kHeavyQueue,
  kExtProcMessages,
  kExtProcRefusals,
  kExtProcServedElsewhere,
  kExtProcUsage,
  kExtProcHeldBytes,
  kMetricCount,
};

constexpr std::array<MetricSpec, kMetricCount> kTable = {{
    {"warmpath_build_info", kGauge, "version", "Always 1; the label names the version."},
    {"warmpath_picks_total", kCounter, "pool,policy,reason,freshness",
     "Picks that were answered with an endpoint, by why it was chosen and how far its cache is "
     "known."},
    {"warmpath_pick_seconds", kHistogram, "",
     "Time from the parsed request to the decision, of answered picks."},
    {"warmpath_pick_lock_hold_seconds", kHistogram, "", "Time that picks held their pool's mutex."},
    {"warmpath_picks_shed_total", kCounter, "pool",
     "Picks refused because the predicted wait exceeded max_wait_ms."},
    {"warmpath_prompt_tokens_total", kCounter, "pool", "Prompt tokens of answered picks."},
    {"warmpath_matched_tokens_total", kCounter, "pool",
     "Longest known prefix over all candidates, summed over picks: what the fleet held."},
    {"warmpath_predicted_cached_tokens_total", kCounter, "pool",
     "Known prefix of the chosen target, summed over picks: what was promised."},
    {"warmpath_actual_cached_tokens_total", kCounter, "pool",
     "Cached tokens that engines reported in outcomes: what came true. Compare with "
     "warmpath_predicted_cached_tokens_total."},
    {"warmpath_reservations_open", kGauge, "pool", "Picks whose requests have not ended."},
    {"warmpath_reservations_opened_total", kCounter, "pool", "Reservations opened."},
    {"warmpath_reservations_closed_total", kCounter, "pool,cause",
     "Reservations closed, by cause; open = opened - closed."},
    {"warmpath_costs_not_finite_total", kCounter, "pool",
     "Candidates left out because their cost was no number: a bug; always 0."},
    {"warmpath_pool_saturation", kGauge, "pool",
     "Share of targets with prefills waiting, 0 to 1, averaged over 30 seconds (rho)."},
    {"warmpath_workers", kGauge, "pool,lifecycle", "Targets by lifecycle."},
    {"warmpath_workers_without_series", kGauge, "",
     "Workers beyond metrics.max_workers, which have no series of their own."},
    {"warmpath_worker_freshness", kGauge, "pool,worker,rank,cause",
     "How far the target's cache is known: 2 exact, 1 degraded (one series for each cause), 0 none "
     "(cause no_events: the worker sends no cache events; no_snapshot: not whole yet)."},
    {"warmpath_worker_event_lag_seconds", kGauge, "pool,worker,rank",
     "Age of the last cache event when the agent applied it."},
    {"warmpath_worker_blocks", kGauge, "pool,worker,rank,tier",
     "Routing blocks that the target holds, as its events say."},
    {"warmpath_worker_inflight", kGauge, "pool,worker,rank",
     "Requests in flight on the target, those that came around the router included."},
    {"warmpath_worker_wait_seconds", kGauge, "pool,worker,rank",
     "Predicted wait of a new request before its prefill starts."},
    {"warmpath_index_bytes", kGauge, "pool", "Memory of the pool's prefix index."},
    {"warmpath_index_bound_bytes", kGauge, "pool", "Its configured bound."},
    {"warmpath_index_sets", kGauge, "pool", "Distinct sets of workers in the index."},
    {"warmpath_index_blocks", kGauge, "pool", "Distinct blocks in the index."},
    {"warmpath_index_slots_with_holes", kGauge, "pool",
     "States of targets, snapshots under way included, whose chains may have holes, so that picks "
     "look at each block."},
    {"warmpath_index_refused_stores_total", kCounter, "pool",
     "Blocks not stored because the index was at its bound."},
    {"warmpath_index_audit_failures_total", kCounter, "pool",
     "Heartbeats whose digest differed from the index; each led to a new snapshot."},
    {"warmpath_events_total", kCounter, "kind", "Engine events applied by agents, by kind."},
    {"warmpath_events_skipped_total", kCounter, "cause",
     "Engine events skipped by agents, by cause."},
    {"warmpath_updates_wrong_session_total", kCounter, "",
     "Updates dropped because they belonged to an earlier session."},
    {"warmpath_updates_duplicate_total", kCounter, "",
     "Updates dropped because they had been applied before."},
    {"warmpath_resyncs_total", kCounter, "", "Snapshots asked for because state was in doubt."},
    {"warmpath_snapshots_total", kCounter, "result", "Snapshots ended, applied or failed."},
    {"warmpath_streams_open", kGauge, "kind", "Open gRPC streams: worker, pick, ext_proc."},
    {"warmpath_heavy_queue", kGauge, "", "Picks with text or long prompts that wait for a thread."},
    {"warmpath_ext_proc_messages_total", kCounter, "message",
     "Messages received from Envoy-based gateways, by kind. response_body costs the most: it is 0 "
     "unless the gateway is set to send response bodies."},
    {"warmpath_ext_proc_refusals_total", kCounter, "code,reason",
     "HTTP requests answered with an error instead of an endpoint, by HTTP status and reason."},
    {"warmpath_ext_proc_served_elsewhere_total", kCounter, "",
     "Responses of another endpoint than the one that was picked: a fallback served."},
    {"warmpath_ext_proc_usage_total", kCounter, "result",
     "Responses whose token counts were looked for (ext_proc.usage_accounting): found, missing."},
    {"warmpath_ext_proc_held_bytes", kGauge, "",
     "Request bodies held until their end, over all streams; the bound is "
     "ext_proc.max_buffered_bytes."},
}};

std::string_view TypeName(MetricType type) {
  switch (type) {
    case kCounter:
      return "counter";
    case kHistogram:
      return "histogram";
    default:
      return "gauge";
  }
}

// Families in the table's order, filled by name.
class Page {
 public:
  using Labels = std::initializer_list<std::pair<const char*, std::string>>;

  Page() {
    families_.resize(kMetricCount);
    for (std::size_t i = 0; i < kMetricCount; ++i) {
      families_[i].name = std::string(kTable[i].name);
      families_[i].help = std::string(kTable[i].help);
      families_[i].type = kTable[i].type;
    }
  }

  void Add(Metric metric, Labels labels, double value) {
    ClientMetric sample;
    for (const auto& [name, text] : labels) sample.label.push_back({name, text});
    if (kTable[metric].type == kCounter) {
      sample.counter.value = value;
    } else {
      sample.gauge.value = value;
    }
    families_[metric].metric.push_back(std::move(sample));
  }
  void Add(Metric metric, Labels labels, std::uint64_t value) {
    Add(metric, labels, static_cast<double>(value));
  }

  void Add(Metric metric, const HistogramSnapshot& snapshot) {
    ClientMetric sample;
    std::uint64_t cumulative = 0;
    for (std::size_t i = 0; i < snapshot.bounds.size(); ++i) {
      cumulative += snapshot.counts[i];
      sample.histogram.bucket.push_back({cumulative, snapshot.bounds[i]});
    }
    sample.histogram.sample_count = snapshot.Count();
    sample.histogram.sample_sum = snapshot.sum;
    families_[metric].metric.push_back(std::move(sample));
  }

  std::vector<MetricFamily> Take() {
    // Families without a sample would be read as "always absent".
    std::erase_if(families_, [](const MetricFamily& family) { return family.metric.empty(); });
    return std::move(families_);
  }

 private:
  std::vector<MetricFamily> families_;
};

void AddTarget(const WorkerView& worker, const TargetView& target, Page& page) {
  const std::string rank = absl::StrCat(target.rank);
  const auto freshness = [&](std::string cause, double value) {
    page.Add(kWorkerFreshness,
             {{"pool", worker.pool},
              {"worker", worker.worker_id},
              {"rank", rank},
              {"cause", std::move(cause)}},
             value);
  };
  switch (target.freshness) {
    case Freshness::kExact:
      freshness("", 2);
      break;
    case Freshness::kDegraded:
      for (const FreshnessCause cause : target.causes.ToVector()) {
        freshness(std::string(FreshnessCauseName(cause)), 1);
      }
      break;
    case Freshness::kNone:
      freshness(target.has_events ? "no_snapshot" : "no_events", 0);
      break;
  }
  const auto add = [&](Metric metric, auto value) {
    page.Add(metric, {{"pool", worker.pool}, {"worker", worker.worker_id}, {"rank", rank}}, value);
  };
  if (target.has_events) add(kWorkerEventLag, target.event_lag_s);
  for (const Tier tier : kAllTiers) {
    const std::uint64_t blocks = target.blocks[static_cast<std::size_t>(tier)];
    if (blocks == 0 && tier != Tier::kGpu) continue;
    page.Add(kWorkerBlocks,
             {{"pool", worker.pool},
              {"worker", worker.worker_id},
              {"rank", rank},
              {"tier", std::string(TierName(tier))}},
             blocks);
  }
  add(kWorkerInflight, std::uint64_t{target.inflight} + target.external_inflight);
  add(kWorkerWait, target.wait_s);
}

void AddWorkers(std::vector<WorkerView> workers, std::uint32_t max_workers, Page& page) {
  std::map<std::pair<std::string, std::string>, std::uint64_t> lifecycles;
  // By name, so that the same workers keep their series from scrape to scrape.
  std::sort(workers.begin(), workers.end(),
            [](const auto& a, const auto& b) { return a.worker_id < b.worker_id; });
  std::uint32_t shown = 0;
  std::uint64_t left_out = 0;
  for (const WorkerView& worker : workers) {
    bool alive = false;
    for (const TargetView& target : worker.targets) {
      ++lifecycles[{worker.pool, std::string(LifecycleName(target.lifecycle))}];
      alive = alive || target.lifecycle != Lifecycle::kLost;
    }
    if (!alive) continue;  // its lease is over: so are its series
    if (shown == max_workers) {
      ++left_out;
      continue;
    }
    ++shown;
    for (const TargetView& target : worker.targets) AddTarget(worker, target, page);
  }
  for (const auto& [key, count] : lifecycles) {
    page.Add(kWorkers, {{"pool", key.first}, {"lifecycle", key.second}}, count);
  }
  page.Add(kWorkersWithoutSeries, {}, left_out);
}

void AddTraffic(const Fleet& fleet, Page& page) {
  for (const PickCount& count : PickCountsOf(fleet)) {
    page.Add(kPicks,
             {{"pool", count.pool},
              {"policy", count.policy},
              {"reason", count.reason},
              {"freshness", std::string(FreshnessName(count.freshness))}},
             count.count);
  }
  for (const PoolTraffic& traffic : TrafficOf(fleet)) {
    const std::string& pool = traffic.pool;
    page.Add(kPicksShed, {{"pool", pool}}, traffic.shed);
    page.Add(kPromptTokens, {{"pool", pool}}, traffic.prompt_tokens);
    page.Add(kMatchedTokens, {{"pool", pool}}, traffic.matched_tokens);
    page.Add(kPredictedCachedTokens, {{"pool", pool}}, traffic.predicted_cached_tokens);
    page.Add(kActualCachedTokens, {{"pool", pool}}, traffic.actual_cached_tokens);
    page.Add(kReservationsOpen, {{"pool", pool}}, traffic.reservations_open);
    page.Add(kReservationsOpened, {{"pool", pool}}, traffic.reservations_opened);
    page.Add(kCostsNotFinite, {{"pool", pool}}, traffic.not_finite);
    for (const auto& [cause, closed] : traffic.closed_by_cause) {
      page.Add(kReservationsClosed, {{"pool", pool}, {"cause", cause}}, closed);
    }
  }
}

void AddPools(const Fleet& fleet, Page& page) {
  for (const PoolView& pool : fleet.ListPools("")) {
    page.Add(kPoolSaturation, {{"pool", pool.name}}, pool.saturation);
    page.Add(kIndexBytes, {{"pool", pool.name}}, pool.index.bytes);
    page.Add(kIndexBoundBytes, {{"pool", pool.name}}, pool.index.bound_bytes);
    page.Add(kIndexSets, {{"pool", pool.name}}, pool.index.sets);
    page.Add(kIndexBlocks, {{"pool", pool.name}}, pool.index.blocks);
    page.Add(kIndexSlotsWithHoles, {{"pool", pool.name}}, pool.index.slots_with_holes);
    page.Add(kIndexRefusedStores, {{"pool", pool.name}}, pool.index.refused_stores);
    page.Add(kIndexAuditFailures, {{"pool", pool.name}}, pool.audit_failures);
  }
}

void AddAgentCounts(Metric metric, const char* label,
                    const std::vector<std::pair<std::string, std::uint64_t>>& counts, Page& page) {
  std::uint64_t other = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (i < kMaxAgentLabels) {
      page.Add(metric, {{label, counts[i].first}}, counts[i].second);
    } else {
      other += counts[i].second;
    }
  }
  if (other > 0) page.Add(metric, {{label, "other"}}, other);
}

void AddFeeds(const FleetCounters& counters, Page& page) {
  AddAgentCounts(kEvents, "kind", counters.events_by_kind, page);
  AddAgentCounts(kEventsSkipped, "cause", counters.skipped_by_cause, page);
  page.Add(kUpdatesWrongSession, {}, counters.updates_wrong_session);
  page.Add(kUpdatesDuplicate, {}, counters.updates_duplicate);
  page.Add(kResyncs, {}, counters.resyncs);
  page.Add(kSnapshots, {{"result", "applied"}}, counters.snapshots_applied);
  page.Add(kSnapshots, {{"result", "failed"}}, counters.snapshots_failed);
}

void AddExtProc(const ExtProcStats& stats, Page& page) {
  for (std::size_t i = 0; i < ExtProcStats::kMessageCount; ++i) {
    page.Add(kExtProcMessages, {{"message", std::string(ExtProcStats::kMessageNames[i])}},
             stats.messages(static_cast<ExtProcStats::Message>(i)));
  }
  for (const auto& [key, count] : stats.refusals()) {
    page.Add(kExtProcRefusals, {{"code", absl::StrCat(key.first)}, {"reason", key.second}}, count);
  }
  page.Add(kExtProcServedElsewhere, {}, stats.served_elsewhere());
  page.Add(kExtProcUsage, {{"result", "found"}}, stats.usage(true));
  page.Add(kExtProcUsage, {{"result", "missing"}}, stats.usage(false));
  page.Add(kExtProcHeldBytes, {}, stats.held_bytes());
}

}  // namespace

std::span<const MetricSpec> MetricTable() { return kTable; }

std::string MetricsDocument() {
  std::string out =
      "# Metrics of warmpath-router\n\n"
      "Served as Prometheus text at `/metrics` of the HTTP address. This page is written by\n"
      "`warmpath-router --print-metrics-docs`; a test compares it with the program.\n\n"
      "A worker's series end when its lease does. At most `metrics.max_workers` workers have "
      "series of\ntheir own; pools, policies, reasons and causes are bounded by the configuration "
      "and the program.\n\n"
      "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  for (const MetricSpec& metric : kTable) {
    absl::StrAppend(&out, "| `", ToAbsl(metric.name), "` | ", ToAbsl(TypeName(metric.type)), " | ",
                    ToAbsl(metric.labels), " | ", ToAbsl(metric.help), " |\n");
  }
  return out;
}

std::vector<MetricFamily> RouterMetrics::Collect() const {
  Page page;
  page.Add(kBuildInfo, {{"version", std::string(kVersion)}}, 1.0);
  AddTraffic(*sources_.fleet, page);
  page.Add(kPickSeconds, sources_.pick_seconds());
  page.Add(kLockHoldSeconds, sources_.lock_hold_seconds());
  AddPools(*sources_.fleet, page);
  AddWorkers(sources_.fleet->ListWorkers(""), sources_.max_workers, page);
  AddFeeds(sources_.fleet->Counters(), page);
  page.Add(kStreams, {{"kind", "worker"}}, static_cast<std::uint64_t>(sources_.worker_streams()));
  page.Add(kStreams, {{"kind", "pick"}}, static_cast<std::uint64_t>(sources_.pick_streams()));
  page.Add(kStreams, {{"kind", "ext_proc"}},
           static_cast<std::uint64_t>(sources_.ext_proc_streams()));
  page.Add(kHeavyQueue, {}, static_cast<std::uint64_t>(sources_.heavy_queue()));
  AddExtProc(*sources_.ext_proc, page);
  return page.Take();
}

}  // namespace warmpath
