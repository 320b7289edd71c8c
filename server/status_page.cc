#include "server/status_page.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "core/base/strings.h"
#include "server/config/schema.h"
#include "server/version.h"

namespace warmpath {
namespace {

constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>warmpath-router</title>
<style>
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5em; color: #222; background: #fff; }
h1 { font-size: 1.4em; } h2 { font-size: 1.1em; margin-top: 1.6em; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .25em .7em; border-bottom: 1px solid #ddd; vertical-align: top; }
td.n { text-align: right; font-variant-numeric: tabular-nums; }
.good { color: #0a6b2d; } .warn { color: #8a5a00; font-weight: 600; } .bad { color: #a40000; font-weight: 600; }
</style></head><body>
)";

std::string Escape(std::string_view text) {
  return absl::StrReplaceAll(
      ToAbsl(text),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

void Cell(std::string_view text, std::string* out) {
  absl::StrAppend(out, "<td>", Escape(text), "</td>");
}

template <typename T>
void Number(T value, std::string* out) {
  absl::StrAppend(out, "<td class=\"n\">", value, "</td>");
}

void Header(std::initializer_list<const char*> names, std::string* out) {
  absl::StrAppend(out, "<table><tr>");
  for (const char* name : names) absl::StrAppend(out, "<th>", name, "</th>");
  absl::StrAppend(out, "</tr>\n");
}

void FreshnessCell(const TargetView& target, std::string* out) {
  const char* style = target.freshness == Freshness::kExact      ? "good"
                      : target.freshness == Freshness::kDegraded ? "warn"
                                                                 : "bad";
  absl::StrAppend(out, "<td><span class=\"", style, "\">", ToAbsl(FreshnessName(target.freshness)),
                  "</span>");
  if (target.freshness == Freshness::kDegraded) {
    for (const FreshnessCause cause : target.causes.ToVector()) {
      absl::StrAppend(out, "<br>", ToAbsl(FreshnessCauseName(cause)), ": ",
                      Escape(FreshnessCauseRemedy(cause)));
    }
  } else if (target.freshness == Freshness::kNone) {
    absl::StrAppend(out, "<br>", Escape(NoKnowledgeRemedy(target)));
  }
  absl::StrAppend(out, "</td>");
}

void Pools(std::span<const PoolView> pools, std::string* out) {
  absl::StrAppend(out, "<h2>Pools</h2>\n");
  Header({"pool", "policy", "routing block", "open requests", "saturation", "blocks", "sets",
          "index memory", "bound", "in-flight blocks", "audit failures"},
         out);
  for (const PoolView& pool : pools) {
    absl::StrAppend(out, "<tr>");
    Cell(pool.name, out);
    Cell(pool.policy, out);
    Number(pool.routing_block_size, out);
    Number(pool.open_reservations, out);
    Number(absl::StrFormat("%.0f %%", pool.saturation * 100), out);
    Number(pool.index.blocks, out);
    Number(pool.index.sets, out);
    Number(absl::StrFormat("%.1f MiB", static_cast<double>(pool.index.bytes) / (1 << 20)), out);
    Number(FormatBytes(pool.index.bound_bytes), out);
    Number(pool.inflight_blocks, out);
    Number(pool.audit_failures, out);
    absl::StrAppend(out, "</tr>\n");
  }
  absl::StrAppend(out, "</table>\n");
}

void Row(const WorkerView& worker, const TargetView& target, std::string* out) {
  absl::StrAppend(out, "<tr>");
  Cell(worker.worker_id, out);
  Number(target.rank, out);
  Cell(worker.pool, out);
  Cell(target.address, out);
  Cell(worker.draining ? absl::StrCat(ToAbsl(LifecycleName(target.lifecycle)), ", draining")
                       : std::string(LifecycleName(target.lifecycle)),
       out);
  FreshnessCell(target, out);
  Number(target.blocks[0], out);
  Number(absl::StrFormat("%.2f s", target.event_lag_s), out);
  Number(target.external_inflight == 0
             ? absl::StrCat(target.inflight)
             : absl::StrCat(target.inflight, " (", target.external_inflight, " external)"),
         out);
  Number(absl::StrFormat("%.0f ms", target.wait_s * 1000), out);
  Number(target.kv_capacity_tokens == 0
             ? absl::StrCat(target.kv_tokens)
             : absl::StrCat(target.kv_tokens, " / ", target.kv_capacity_tokens),
         out);
  Cell(absl::StrCat(worker.engine, " ", worker.engine_version), out);
  Cell(worker.agent_address, out);
  absl::StrAppend(out, "</tr>\n");
}

}  // namespace

std::string_view NoKnowledgeRemedy(const TargetView& target) {
  if (target.has_events) return "its first snapshot is under way";
  return "sends no cache events, so its prefixes are only guessed from past picks: enable KV "
         "events "
         "in the engine and give the agent the event endpoint";
}

std::string StatusPage(std::span<const PoolView> pools, std::span<const WorkerView> workers,
                       bool ready, std::size_t max_workers) {
  std::string out(kHead);
  absl::StrAppend(&out, "<h1>warmpath-router ", ToAbsl(kVersion), " <span class=\"",
                  ready ? "good\">ready" : "warn\">not ready", "</span></h1>\n");
  Pools(pools, &out);
  absl::StrAppend(&out, "<h2>Workers (", workers.size(), ")</h2>\n");
  if (workers.empty()) {
    absl::StrAppend(&out,
                    "<p>No worker has registered. Start warmpath-agent beside each engine with "
                    "this router's gRPC address.</p>\n");
  } else {
    Header({"worker", "rank", "pool", "address", "state", "cache knowledge", "blocks", "event lag",
            "in flight", "wait", "KV tokens", "engine", "agent"},
           &out);
    std::size_t shown = 0;
    for (const WorkerView& worker : workers) {
      if (shown++ == max_workers) break;
      for (const TargetView& target : worker.targets) Row(worker, target, &out);
    }
    absl::StrAppend(&out, "</table>\n");
    if (workers.size() > max_workers) {
      absl::StrAppend(&out, "<p>", workers.size() - max_workers,
                      " more workers are not shown (metrics.max_workers).</p>\n");
    }
  }
  absl::StrAppend(&out, "<p><a href=\"/metrics\">metrics</a> <a href=\"/readyz\">readyz</a></p>\n",
                  "</body></html>\n");
  return out;
}

}  // namespace warmpath
