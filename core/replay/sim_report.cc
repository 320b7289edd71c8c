#include "core/replay/sim_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/replay/tenant_report.h"

namespace warmpath {
namespace {

constexpr std::uint64_t kLongPrompt = 32'768;
constexpr char kReference[] = "marginal_cost";

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// REQUIRES: sorted.
double Percentile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[std::min(sorted.size(), static_cast<std::size_t>(std::max(1.0, rank))) - 1];
}

MeanError MeanAndError(const std::vector<double>& values) {
  MeanError result{.mean = Mean(values)};
  if (values.size() < 2) return result;
  double squares = 0;
  for (const double value : values) squares += (value - result.mean) * (value - result.mean);
  const auto n = static_cast<double>(values.size());
  result.error = std::sqrt(squares / (n - 1) / n);
  return result;
}

const SimCell* ReferenceOf(const std::vector<SimCell>& cells, const SimCell& cell,
                           std::string_view policy) {
  for (const SimCell& other : cells) {
    if (SameBlock(other, cell) && other.policy == policy &&
        other.seeds.size() == cell.seeds.size()) {
      return &other;
    }
  }
  return nullptr;
}

// Student's t: the mean of n values is within this many standard errors with probability 0.95.
double ConfidenceFactor(std::size_t n) {
  constexpr double kFactors[] = {12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  return n - 2 < std::size(kFactors) ? kFactors[n - 2] : 1.96;
}

constexpr std::pair<const char*, double SimSummary::*> kFields[] = {
    {"ttft_mean_s", &SimSummary::ttft_mean_s},
    {"ttft_p50_s", &SimSummary::ttft_p50_s},
    {"ttft_p90_s", &SimSummary::ttft_p90_s},
    {"ttft_p99_s", &SimSummary::ttft_p99_s},
    {"tpot_mean_ms", &SimSummary::tpot_mean_ms},
    {"long_tpot_mean_ms", &SimSummary::long_tpot_mean_ms},
    {"goodput", &SimSummary::goodput},
    {"token_hit_rate", &SimSummary::token_hit_rate},
    {"busiest_share", &SimSummary::busiest_share},
    {"prediction_error", &SimSummary::prediction_error},
};

}  // namespace

SimSummary Summarise(const SimResult& result, std::uint32_t workers,
                     const SimObjective& objective) {
  SimSummary summary;
  summary.requests = result.requests.size();
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> long_tpot;
  std::vector<double> errors;
  std::vector<std::uint64_t> tokens(workers);
  std::uint64_t prompt = 0;
  std::uint64_t cached = 0;
  std::uint64_t copied = 0;
  std::uint64_t good = 0;
  for (const SimRequestResult& r : result.requests) {
    if (r.refused) {
      ++summary.refused;
      continue;
    }
    ttft.push_back(r.ttft_s);
    if (r.output_tokens > 1) {
      tpot.push_back(r.tpot_s);
      if (r.prompt_tokens >= kLongPrompt) long_tpot.push_back(r.tpot_s);
    }
    if (r.ttft_s < objective.ttft_s && r.tpot_s < objective.tpot_s) ++good;
    prompt += r.prompt_tokens;
    cached += r.cached_tokens;
    copied += r.copied_tokens;
    tokens[r.worker] += r.prompt_tokens;
    const double difference =
        static_cast<double>(r.predicted_tokens) - static_cast<double>(r.cached_tokens);
    errors.push_back(std::abs(difference) / static_cast<double>(r.prompt_tokens));
  }
  summary.ttft_mean_s = Mean(ttft);
  std::sort(ttft.begin(), ttft.end());
  summary.ttft_p50_s = Percentile(ttft, 0.50);
  summary.ttft_p90_s = Percentile(ttft, 0.90);
  summary.ttft_p99_s = Percentile(ttft, 0.99);
  summary.tpot_mean_ms = Mean(tpot) * 1e3;
  summary.long_tpot_mean_ms = Mean(long_tpot) * 1e3;
  summary.prediction_error = Mean(errors);
  if (!result.requests.empty()) {
    summary.goodput = static_cast<double>(good) / static_cast<double>(result.requests.size());
  }
  if (prompt > 0) {
    summary.token_hit_rate = static_cast<double>(cached) / static_cast<double>(prompt);
    summary.host_hit_rate = static_cast<double>(copied) / static_cast<double>(prompt);
    summary.busiest_share = static_cast<double>(*std::max_element(tokens.begin(), tokens.end())) /
                            static_cast<double>(prompt);
  }
  SummariseTenants(result, objective, &summary);
  return summary;
}

SimPlots PlotsOf(const SimResult& result, std::uint32_t workers) {
  constexpr int kQuantiles = 200;
  SimPlots plots{.load = result.samples, .worker_shares = std::vector<double>(workers)};
  std::vector<double> ttft;
  double tokens = 0;
  for (const SimRequestResult& r : result.requests) {
    if (r.refused) continue;
    ttft.push_back(r.ttft_s);
    const auto prompt = static_cast<double>(r.prompt_tokens);
    plots.worker_shares[r.worker] += prompt;
    tokens += prompt;
  }
  std::sort(ttft.begin(), ttft.end());
  for (int q = 0; q <= kQuantiles && !ttft.empty(); ++q) {
    plots.ttft_s.push_back(Percentile(ttft, static_cast<double>(q) / kQuantiles));
  }
  for (double& share : plots.worker_shares) share = tokens > 0 ? share / tokens : 0;
  return plots;
}

bool SameBlock(const SimCell& a, const SimCell& b) {
  return a.workers == b.workers && a.load == b.load && a.rate_rps == b.rate_rps;
}

MeanError OverSeeds(const SimCell& cell, double SimSummary::*field) {
  std::vector<double> values;
  for (const SimSummary& summary : cell.seeds) values.push_back(summary.*field);
  return MeanAndError(values);
}

MeanError PairedDifference(const SimCell& a, const SimCell& b, double SimSummary::*field) {
  std::vector<double> values;
  for (std::size_t i = 0; i < a.seeds.size(); ++i) {
    values.push_back(a.seeds[i].*field - b.seeds[i].*field);
  }
  return MeanAndError(values);
}

std::string SimTable(const std::vector<SimCell>& cells) {
  std::string table;
  const SimCell* block = nullptr;
  for (const SimCell& cell : cells) {
    if (block == nullptr || !SameBlock(*block, cell)) {
      if (block != nullptr) table += "\n";
      block = &cell;
      absl::StrAppendFormat(&table, "%d workers, load %.2f, %.3f requests/s, %d seed%s\n",
                            cell.workers, cell.load, cell.rate_rps, cell.seeds.size(),
                            cell.seeds.size() == 1 ? "" : "s");
      absl::StrAppendFormat(&table, "  %-18s %9s %9s %9s %9s %9s %14s %7s %8s\n", "policy",
                            "TTFT mean", "p50", "p90", "p99", "TPOT ms", "goodput %", "hit %",
                            "busiest");
    }
    const auto mean = [&](double SimSummary::*field) { return OverSeeds(cell, field).mean; };
    const MeanError goodput = OverSeeds(cell, &SimSummary::goodput);
    absl::StrAppendFormat(
        &table, "  %-18s %9.3f %9.3f %9.3f %9.3f %9.1f %8.1f +-%4.1f %7.1f %7.1f%%\n", cell.policy,
        mean(&SimSummary::ttft_mean_s), mean(&SimSummary::ttft_p50_s),
        mean(&SimSummary::ttft_p90_s), mean(&SimSummary::ttft_p99_s),
        mean(&SimSummary::tpot_mean_ms), 100 * goodput.mean, 100 * goodput.error,
        100 * mean(&SimSummary::token_hit_rate), 100 * mean(&SimSummary::busiest_share));
  }
  return table;
}

std::string SimComparison(const std::vector<SimCell>& cells, std::string_view reference) {
  struct Column {
    const char* title;
    double SimSummary::*field;
    bool points;  // else percent of the reference's mean
  };
  constexpr Column kColumns[] = {{"TTFT mean %", &SimSummary::ttft_mean_s, false},
                                 {"p50 %", &SimSummary::ttft_p50_s, false},
                                 {"p90 %", &SimSummary::ttft_p90_s, false},
                                 {"p99 %", &SimSummary::ttft_p99_s, false},
                                 {"TPOT %", &SimSummary::tpot_mean_ms, false},
                                 {"goodput points", &SimSummary::goodput, true},
                                 {"hit points", &SimSummary::token_hit_rate, true}};
  std::string table;
  const SimCell* block = nullptr;
  for (const SimCell& cell : cells) {
    const SimCell* const base = ReferenceOf(cells, cell, reference);
    if (base == nullptr || base == &cell || cell.seeds.size() < 2) continue;
    if (block == nullptr || !SameBlock(*block, cell)) {
      if (block != nullptr) table += "\n";
      block = &cell;
      absl::StrAppendFormat(&table, "%d workers, load %.2f, against %s, %d seeds, 95 %%\n",
                            cell.workers, cell.load, base->policy, cell.seeds.size());
      absl::StrAppendFormat(&table, "  %-18s", "policy");
      for (const Column& column : kColumns) absl::StrAppendFormat(&table, " %17s", column.title);
      table += "\n";
    }
    absl::StrAppendFormat(&table, "  %-18s", cell.policy);
    for (const Column& column : kColumns) {
      const MeanError difference = PairedDifference(cell, *base, column.field);
      const double mean = OverSeeds(*base, column.field).mean;
      const double scale = column.points ? 100 : mean > 0 ? 100 / mean : 0;
      const double half = scale * difference.error * ConfidenceFactor(cell.seeds.size());
      const double value = scale * difference.mean;
      absl::StrAppendFormat(&table, " %+8.1f +-%5.1f%c", value, half,
                            std::abs(value) > half ? '*' : ' ');
    }
    table += "\n";
  }
  return table;
}

std::string SimCellsJson(const std::vector<SimCell>& cells) {
  std::string json = "[";
  for (const SimCell& cell : cells) {
    std::uint64_t requests = 0;
    std::uint64_t refused = 0;
    for (const SimSummary& summary : cell.seeds) {
      requests += summary.requests;
      refused += summary.refused;
    }
    absl::StrAppendFormat(&json,
                          "%s\n  {\"workers\": %d, \"load\": %.6g, \"rate_rps\": %.6g, "
                          "\"policy\": \"%s\", \"seeds\": %d, \"requests\": %d, \"refused\": %d",
                          json.size() == 1 ? "" : ",", cell.workers, cell.load, cell.rate_rps,
                          cell.policy, cell.seeds.size(), requests, refused);
    for (const auto& [name, field] : kFields) {
      absl::StrAppendFormat(&json, ", \"%s\": %.9g", name, OverSeeds(cell, field).mean);
    }
    // Only of engines that have such a tier.
    if (const MeanError host = OverSeeds(cell, &SimSummary::host_hit_rate); host.mean > 0) {
      absl::StrAppendFormat(&json, ", \"host_hit_rate\": %.9g", host.mean);
    }
    json += ", \"standard_error\": {";
    bool first = true;
    for (const auto& [name, field] : kFields) {
      absl::StrAppendFormat(&json, "%s\"%s\": %.6g", first ? "" : ", ", name,
                            OverSeeds(cell, field).error);
      first = false;
    }
    json += "}";
    json += TenantJson(cell);
    const SimCell* const reference = ReferenceOf(cells, cell, kReference);
    if (reference != nullptr && reference != &cell) {
      json += ", \"minus_marginal_cost\": {";
      first = true;
      for (const auto& [name, field] : kFields) {
        const MeanError difference = PairedDifference(cell, *reference, field);
        absl::StrAppendFormat(&json, "%s\"%s\": [%.6g, %.6g]", first ? "" : ", ", name,
                              difference.mean, difference.error);
        first = false;
      }
      json += "}";
    }
    json += "}";
  }
  json += "\n]";
  return json;
}

}  // namespace warmpath
