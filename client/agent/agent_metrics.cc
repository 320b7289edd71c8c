#include "client/agent/agent_metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/agent/engine_facts.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

// One constant per row of the table below, in its order.
enum Metric : std::size_t {
  kInfo,
  kEngineUp,
  kScrapeFailures,
  kExact,
  kCause,
  kEngineSeq,
  kLag,
  kRoutingBlocks,
  kEngineBlocks,
  kOrphans,
  kHoles,
  kBytes,
  kMessages,
  kReplayed,
  kMalformed,
  kEvents,
  kSkipped,
  kGaps,
  kLosses,
  kRestarts,
  kReplays,
  kReplayTimeouts,
  kDuplicates,
  kBadBatches,
  kJournalErrors,
  kRegistered,
  kStreams,
  kRefused,
  kSnapshots,
  kResyncs,
  kResumed,
  kDeltas,
  kHashes,
  kUnacked,
  kPending,
  kOverflows,
  kMetricCount
};

constexpr MetricInfo kMetrics[kMetricCount] = {
    {"warmpath_agent_info", false, "1, with the agent's version."},
    {"warmpath_agent_engine_up", false, "Whether the engine can be reached."},
    {"warmpath_agent_scrape_failures_total", true, "Looks at the engine over HTTP that failed."},
    {"warmpath_agent_exact", false,
     "1 when nothing is known to be missing of the rank's cache events."},
    {"warmpath_agent_freshness_cause", false, "1 for each reason why the rank is not exact."},
    {"warmpath_agent_engine_seq", false, "Sequence of the last engine message applied."},
    {"warmpath_agent_event_lag_seconds", false, "Age of the last event when it was applied."},
    {"warmpath_agent_routing_blocks", false, "Routing blocks held, by tier."},
    {"warmpath_agent_engine_blocks", false, "Engine blocks remembered."},
    {"warmpath_agent_orphan_blocks", false, "Engine blocks whose parent was never reported."},
    {"warmpath_agent_holes", false,
     "Routing blocks that the GPU holds without the one before them in their chain."},
    {"warmpath_agent_cache_bytes", false, "Memory of the rank's block tables."},
    {"warmpath_agent_messages_total", true, "Live event messages received."},
    {"warmpath_agent_replayed_messages_total", true, "Messages received through replays."},
    {"warmpath_agent_malformed_messages_total", true,
     "Messages with wrong frames, which were thrown away."},
    {"warmpath_agent_events_total", true, "Cache events applied, by kind."},
    {"warmpath_agent_events_skipped_total", true,
     "Cache events or blocks that were left out, by cause."},
    {"warmpath_agent_gaps_total", true, "Holes noticed in the engine's sequence."},
    {"warmpath_agent_losses_total", true, "Holes that no replay could fill."},
    {"warmpath_agent_engine_restarts_total", true, "New engine processes met."},
    {"warmpath_agent_replays_total", true,
     "Replays asked for, probes of a silent source included."},
    {"warmpath_agent_replay_timeouts_total", true, "Replays that ended without their end marker."},
    {"warmpath_agent_duplicate_messages_total", true, "Messages that had been applied before."},
    {"warmpath_agent_bad_batches_total", true, "Payloads that were no batch of events at all."},
    {"warmpath_agent_state_errors_total", true, "Writes to the state file that failed."},
    {"warmpath_agent_registered", false, "Whether the worker is registered at the router."},
    {"warmpath_agent_streams_total", true, "Streams opened to the router."},
    {"warmpath_agent_refused_total", true, "Streams that the router refused."},
    {"warmpath_agent_snapshots_total", true, "Snapshots begun."},
    {"warmpath_agent_resyncs_total", true, "Snapshots that the router asked for."},
    {"warmpath_agent_resumed_total", true, "Ranks that went on with deltas in a new stream."},
    {"warmpath_agent_deltas_total", true, "Cache deltas sent."},
    {"warmpath_agent_hashes_total", true, "Block hashes sent, in deltas and snapshots."},
    {"warmpath_agent_unacked_messages", false, "Messages the router has not acknowledged."},
    {"warmpath_agent_pending_hashes", false, "Changes that wait to be sent."},
    {"warmpath_agent_overflows_total", true,
     "Times that waiting changes outgrew their bound and a snapshot replaced them."},
};

using Labels = std::initializer_list<std::pair<const char*, std::string>>;

class Page {
 public:
  Page() : families_(kMetricCount) {
    for (std::size_t i = 0; i < kMetricCount; ++i) {
      families_[i].name = std::string(kMetrics[i].name);
      families_[i].help = std::string(kMetrics[i].help);
      families_[i].type =
          kMetrics[i].counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    }
  }

  template <typename Number>
  void Add(Metric metric, Labels labels, Number value) {
    prometheus::ClientMetric& series = families_[metric].metric.emplace_back();
    for (const auto& [name, text] : labels) series.label.push_back({name, text});
    const auto number = static_cast<double>(value);
    if (kMetrics[metric].counter) {
      series.counter.value = number;
    } else {
      series.gauge.value = number;
    }
  }

  std::string Text() {
    std::erase_if(families_, [](const auto& family) { return family.metric.empty(); });
    return prometheus::TextSerializer().Serialize(families_);
  }

 private:
  std::vector<prometheus::MetricFamily> families_;
};

void AddRank(const std::string& worker, const RankView& view, Page* page) {
  const std::string rank = absl::StrCat(view.rank);
  const Labels labels = {{"worker", worker}, {"rank", rank}};
  page->Add(kExact, labels, view.causes.empty());
  for (std::uint8_t i = 0; i < static_cast<std::uint8_t>(FeedCause::kCount); ++i) {
    const auto cause = static_cast<FeedCause>(i);
    page->Add(kCause,
              {{"worker", worker}, {"rank", rank}, {"cause", std::string(FeedCauseName(cause))}},
              view.causes.Has(cause));
  }
  if (view.engine_seq) page->Add(kEngineSeq, labels, *view.engine_seq);
  page->Add(kLag, labels, view.event_lag_s);
  for (const Tier tier : kAllTiers) {
    page->Add(kRoutingBlocks,
              {{"worker", worker}, {"rank", rank}, {"tier", std::string(TierName(tier))}},
              view.held[static_cast<std::size_t>(tier)].count);
  }
  page->Add(kEngineBlocks, labels, view.engine_blocks);
  page->Add(kOrphans, labels, view.orphans);
  page->Add(kHoles, labels, view.holes);
  page->Add(kBytes, labels, view.bytes);
  page->Add(kMessages, labels, view.source.messages);
  page->Add(kReplayed, labels, view.source.replayed);
  page->Add(kMalformed, labels, view.source.malformed);
  for (const auto& [kind, count] :
       {std::pair{"stored", view.events.stored}, std::pair{"removed", view.events.removed},
        std::pair{"cleared", view.events.cleared}}) {
    page->Add(kEvents, {{"worker", worker}, {"rank", rank}, {"kind", kind}}, count);
  }
  for (std::size_t i = 0; i < kSkipCauseCount; ++i) {
    const auto cause = static_cast<SkipCause>(i);
    page->Add(kSkipped,
              {{"worker", worker}, {"rank", rank}, {"cause", std::string(SkipCauseName(cause))}},
              view.skipped.Of(cause));
  }
  page->Add(kGaps, labels, view.feed.gaps);
  page->Add(kLosses, labels, view.feed.losses);
  page->Add(kRestarts, labels, view.feed.restarts);
  page->Add(kReplays, labels, view.feed.replays);
  page->Add(kReplayTimeouts, labels, view.feed.replay_timeouts);
  page->Add(kDuplicates, labels, view.feed.duplicates);
  page->Add(kBadBatches, labels, view.events.bad_batches);
  page->Add(kJournalErrors, labels, view.events.journal_errors);
}

void AddRouter(const std::string& worker, const PublisherView& view, Page* page) {
  const Labels labels = {{"worker", worker}, {"router", view.router}};
  page->Add(kRegistered, labels, view.registered);
  page->Add(kStreams, labels, view.streams);
  page->Add(kRefused, labels, view.refused);
  page->Add(kSnapshots, labels, view.counts.snapshots);
  page->Add(kResyncs, labels, view.counts.resyncs);
  page->Add(kResumed, labels, view.counts.resumed);
  page->Add(kDeltas, labels, view.counts.deltas);
  page->Add(kHashes, labels, view.counts.hashes);
  page->Add(kUnacked, labels, view.unacked);
  page->Add(kPending, labels, view.pending);
  page->Add(kOverflows, labels, view.counts.overflows);
}

}  // namespace

std::span<const MetricInfo> AgentMetrics() { return kMetrics; }

std::string MetricsPage(const std::vector<WorkerView>& workers) {
  Page page;
  page.Add(kInfo, {{"version", std::string(AgentVersion())}}, 1);
  for (const WorkerView& worker : workers) {
    page.Add(kEngineUp, {{"worker", worker.worker}}, worker.engine_up);
    page.Add(kScrapeFailures, {{"worker", worker.worker}}, worker.scrape_failures);
    for (const RankView& rank : worker.ranks) {
      if (rank.running) AddRank(worker.worker, rank, &page);
    }
    for (const PublisherView& router : worker.routers) AddRouter(worker.worker, router, &page);
  }
  return page.Text();
}

std::string AgentMetricsAsMarkdown() {
  std::string text = "| metric | type | meaning |\n|---|---|---|\n";
  for (const MetricInfo& metric : kMetrics) {
    absl::StrAppend(&text, "| `", ToAbsl(metric.name), "` | ", metric.counter ? "counter" : "gauge",
                    " | ", ToAbsl(metric.help), " |\n");
  }
  return text;
}

}  // namespace warmpath
