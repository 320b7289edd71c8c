#include "core/replay/tenant_report.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace warmpath {
namespace {

double JainOverSeeds(const SimCell& cell) {
  return OverSeeds(cell, &SimSummary::jain_goodput).mean;
}

}  // namespace

double JainIndex(const std::vector<double>& values) {
  double sum = 0;
  double squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  // Nobody has anything: nobody has more than others.
  return squares > 0 ? sum * sum / (static_cast<double>(values.size()) * squares) : 1;
}

void SummariseTenants(const SimResult& result, const SimObjective& objective, SimSummary* summary) {
  std::uint32_t count = 0;
  for (const SimRequestResult& r : result.requests) count = std::max(count, r.tenant + 1);
  if (count < 2) return;
  std::vector<std::vector<double>> ttft(count);
  std::vector<double> goodput;
  double computed = 0;
  summary->tenants.resize(count);
  for (const SimRequestResult& r : result.requests) {
    TenantSummary& tenant = summary->tenants[r.tenant];
    tenant.requests += 1;
    if (r.refused) {
      tenant.refused += 1;
      continue;
    }
    ttft[r.tenant].push_back(r.ttft_s);
    const auto tokens = static_cast<double>(r.prompt_tokens - r.cached_tokens);
    tenant.share += tokens;
    computed += tokens;
    tenant.ttft_mean_s += r.ttft_s;
    if (r.ttft_s < objective.ttft_s && r.tpot_s < objective.tpot_s) tenant.goodput += 1;
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    TenantSummary& tenant = summary->tenants[i];
    std::vector<double>& times = ttft[i];
    std::sort(times.begin(), times.end());
    if (!times.empty()) {
      tenant.ttft_mean_s /= static_cast<double>(times.size());
      tenant.ttft_p99_s = times[(times.size() * 99 + 99) / 100 - 1];
    }
    if (computed > 0) tenant.share /= computed;
    if (tenant.requests > 0) tenant.goodput /= tenant.requests;
    goodput.push_back(tenant.goodput);
  }
  summary->jain_goodput = JainIndex(goodput);
}

double LeaveOutFirst(std::uint64_t count, const Workload& workload, SimResult* result) {
  if (count >= workload.requests.size()) {
    result->requests.clear();
    return std::numeric_limits<double>::infinity();
  }
  result->requests.erase(result->requests.begin(),
                         result->requests.begin() + static_cast<std::ptrdiff_t>(count));
  return workload.requests[count].arrival_s;
}

void LeaveOutBefore(double arrival_s, const Workload& workload, SimResult* result) {
  std::vector<SimRequestResult> kept;
  for (std::size_t i = 0; i < result->requests.size(); ++i) {
    if (workload.requests[i].arrival_s >= arrival_s) kept.push_back(result->requests[i]);
  }
  result->requests = std::move(kept);
}

void CompareWithAlone(const SimSummary& alone, SimSummary* summary) {
  // A single tenant's figures are the run's own.
  std::vector<TenantSummary> others = alone.tenants;
  if (others.empty()) others.push_back({.ttft_mean_s = alone.ttft_mean_s});
  for (std::size_t i = 0; i < others.size() && i < summary->tenants.size(); ++i) {
    if (others[i].ttft_mean_s <= 0) continue;
    summary->tenants[i].slowdown = summary->tenants[i].ttft_mean_s / others[i].ttft_mean_s;
  }
}

std::vector<TenantSummary> TenantsOverSeeds(const SimCell& cell) {
  std::vector<TenantSummary> means;
  if (cell.seeds.empty()) return means;
  const auto weight = 1.0 / static_cast<double>(cell.seeds.size());
  for (const SimSummary& seed : cell.seeds) {
    means.resize(std::max(means.size(), seed.tenants.size()));
    for (std::size_t i = 0; i < seed.tenants.size(); ++i) {
      for (double TenantSummary::*field :
           {&TenantSummary::requests, &TenantSummary::refused, &TenantSummary::share,
            &TenantSummary::ttft_mean_s, &TenantSummary::ttft_p99_s, &TenantSummary::goodput,
            &TenantSummary::slowdown}) {
        means[i].*field += weight * seed.tenants[i].*field;
      }
    }
  }
  return means;
}

std::string SimTenantTable(const std::vector<SimCell>& cells) {
  std::string table;
  const SimCell* block = nullptr;
  for (const SimCell& cell : cells) {
    const std::vector<TenantSummary> tenants = TenantsOverSeeds(cell);
    if (tenants.empty()) continue;
    if (block == nullptr || !SameBlock(*block, cell)) {
      absl::StrAppendFormat(&table, "%s%d workers, load %.2f, by tenant\n",
                            block == nullptr ? "" : "\n", cell.workers, cell.load);
      absl::StrAppendFormat(&table, "  %-18s %6s %8s %8s %9s %9s %9s %9s %9s %6s\n", "policy",
                            "tenant", "requests", "refused", "prefill %", "TTFT mean", "p99",
                            "goodput %", "slowdown", "Jain");
      block = &cell;
    }
    for (std::size_t i = 0; i < tenants.size(); ++i) {
      const TenantSummary& t = tenants[i];
      absl::StrAppendFormat(&table, "  %-18s %6d %8.0f %8.0f %9.1f %9.3f %9.3f %9.1f %9.3f",
                            cell.policy, i, t.requests, t.refused, 100 * t.share, t.ttft_mean_s,
                            t.ttft_p99_s, 100 * t.goodput, t.slowdown);
      if (i == 0) absl::StrAppendFormat(&table, " %6.3f", JainOverSeeds(cell));
      table += "\n";
    }
  }
  return table;
}

std::string TenantHtml(const SimCell* first, std::size_t count) {
  std::string rows;
  for (const SimCell* cell = first; cell != first + count; ++cell) {
    const std::vector<TenantSummary> tenants = TenantsOverSeeds(*cell);
    for (std::size_t i = 0; i < tenants.size(); ++i) {
      const TenantSummary& t = tenants[i];
      // Names of policies are the program's own: nothing to escape.
      absl::StrAppendFormat(
          &rows,
          "<tr><td>%s</td><td>%d</td><td>%.0f</td><td>%.0f</td><td>%.1f</td>"
          "<td>%.3f</td><td>%.3f</td><td>%.1f</td><td>%.3f</td><td>%.3f</td></tr>",
          cell->policy, i, t.requests, t.refused, 100 * t.share, t.ttft_mean_s, t.ttft_p99_s,
          100 * t.goodput, t.slowdown, JainOverSeeds(*cell));
    }
  }
  if (rows.empty()) return rows;
  return absl::StrCat(
      "<table><tr><th>policy</th><th>tenant</th><th>requests</th><th>refused</th>"
      "<th>prefill, %</th><th>TTFT mean, s</th><th>p99, s</th><th>goodput, %</th>"
      "<th>slowdown</th><th>Jain</th></tr>",
      rows, "</table>");
}

std::string TenantJson(const SimCell& cell) {
  const std::vector<TenantSummary> tenants = TenantsOverSeeds(cell);
  if (tenants.empty()) return "";
  std::string json =
      absl::StrFormat(", \"jain_goodput\": %.9g, \"tenants\": [", JainOverSeeds(cell));
  for (std::size_t i = 0; i < tenants.size(); ++i) {
    const TenantSummary& t = tenants[i];
    absl::StrAppendFormat(&json,
                          "%s{\"tenant\": %d, \"requests\": %.6g, \"refused\": %.6g, "
                          "\"prefill_share\": %.6g, \"ttft_mean_s\": %.9g, \"ttft_p99_s\": %.9g, "
                          "\"goodput\": %.9g, \"slowdown\": %.9g}",
                          i == 0 ? "" : ", ", i, t.requests, t.refused, t.share, t.ttft_mean_s,
                          t.ttft_p99_s, t.goodput, t.slowdown);
  }
  return json + "]";
}

}  // namespace warmpath
