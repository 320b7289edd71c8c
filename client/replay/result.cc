#include "client/replay/result.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>

namespace warmpath::replay {
namespace {

// Nearest rank; 0 for no values. `sorted` is ascending.
double Percentile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<std::size_t>(std::ceil(q * static_cast<double>(sorted.size())));
  return sorted[std::min(sorted.size() - 1, rank == 0 ? 0 : rank - 1)];
}

double Mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string Escape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Summary Summarise(const std::vector<RequestResult>& results, double wall_s) {
  Summary summary{.wall_s = wall_s};
  std::vector<double> ttft;
  std::vector<double> tpot;
  std::vector<double> late;
  std::map<std::string, std::uint64_t> share;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t error_tokens = 0;
  for (const RequestResult& r : results) {
    if (!r.finished) {
      ++summary.errors;
      if (summary.first_error.empty()) summary.first_error = r.error;
      continue;
    }
    ++summary.requests;
    summary.fallbacks += r.fell_back ? 1 : 0;
    ttft.push_back(r.ttft_s * 1e3);
    late.push_back(r.late_s * 1e3);
    if (r.output_tokens > 1) {
      tpot.push_back((r.total_s - r.ttft_s) * 1e3 / static_cast<double>(r.output_tokens - 1));
    }
    share[r.worker] += r.prompt_tokens;
    prompt_tokens += r.prompt_tokens;
    summary.predicted_cached_tokens += r.predicted_cached_tokens;
    summary.actual_cached_tokens += r.actual_cached_tokens;
    error_tokens += r.predicted_cached_tokens > r.actual_cached_tokens
                        ? r.predicted_cached_tokens - r.actual_cached_tokens
                        : r.actual_cached_tokens - r.predicted_cached_tokens;
  }
  std::sort(ttft.begin(), ttft.end());
  std::sort(late.begin(), late.end());
  summary.ttft_mean_ms = Mean(ttft);
  summary.ttft_p50_ms = Percentile(ttft, 0.5);
  summary.ttft_p90_ms = Percentile(ttft, 0.9);
  summary.ttft_p99_ms = Percentile(ttft, 0.99);
  summary.tpot_mean_ms = Mean(tpot);
  summary.driver_late_p99_ms = Percentile(late, 0.99);
  if (prompt_tokens > 0) {
    summary.token_hit_rate =
        static_cast<double>(summary.actual_cached_tokens) / static_cast<double>(prompt_tokens);
    std::uint64_t busiest = 0;
    for (const auto& [worker, tokens] : share) busiest = std::max(busiest, tokens);
    summary.busiest_worker_share =
        static_cast<double>(busiest) / static_cast<double>(prompt_tokens);
  }
  if (summary.requests > 0) {
    summary.prediction_mae_tokens =
        static_cast<double>(error_tokens) / static_cast<double>(summary.requests);
  }
  return summary;
}

std::string SummaryTable(const std::vector<std::pair<std::string, Summary>>& rows) {
  std::string out;
  char line[256];
  std::snprintf(line, sizeof(line), "%-18s %8s %6s %7s %9s %9s %9s %8s %8s %11s %11s %9s\n",
                "policy", "requests", "errors", "hit", "TTFT mean", "p50 ms", "p99 ms", "TPOT ms",
                "busiest", "predicted", "actual", "MAE tok");
  out += line;
  for (const auto& [name, s] : rows) {
    std::snprintf(line, sizeof(line),
                  "%-18s %8llu %6llu %6.1f%% %9.1f %9.1f %9.1f %8.2f %7.1f%% %11llu %11llu %9.2f\n",
                  name.c_str(), static_cast<unsigned long long>(s.requests),
                  static_cast<unsigned long long>(s.errors), s.token_hit_rate * 100, s.ttft_mean_ms,
                  s.ttft_p50_ms, s.ttft_p99_ms, s.tpot_mean_ms, s.busiest_worker_share * 100,
                  static_cast<unsigned long long>(s.predicted_cached_tokens),
                  static_cast<unsigned long long>(s.actual_cached_tokens), s.prediction_mae_tokens);
    out += line;
  }
  return out;
}

std::string SummaryJson(const Summary& s) {
  char buffer[1024];
  std::snprintf(
      buffer, sizeof(buffer),
      "{\"requests\": %llu, \"errors\": %llu, \"token_hit_rate\": %.6f, \"ttft_mean_ms\": %.3f, "
      "\"ttft_p50_ms\": %.3f, \"ttft_p90_ms\": %.3f, \"ttft_p99_ms\": %.3f, \"tpot_mean_ms\": "
      "%.3f, "
      "\"busiest_worker_share\": %.6f, \"predicted_cached_tokens\": %llu, "
      "\"actual_cached_tokens\": %llu, \"prediction_mae_tokens\": %.4f, \"fallbacks\": %llu, "
      "\"driver_late_p99_ms\": %.3f, \"wall_s\": %.3f, \"first_error\": ",
      static_cast<unsigned long long>(s.requests), static_cast<unsigned long long>(s.errors),
      s.token_hit_rate, s.ttft_mean_ms, s.ttft_p50_ms, s.ttft_p90_ms, s.ttft_p99_ms, s.tpot_mean_ms,
      s.busiest_worker_share, static_cast<unsigned long long>(s.predicted_cached_tokens),
      static_cast<unsigned long long>(s.actual_cached_tokens), s.prediction_mae_tokens,
      static_cast<unsigned long long>(s.fallbacks), s.driver_late_p99_ms, s.wall_s);
  return std::string(buffer) + "\"" + Escape(s.first_error) + "\"}";
}

}  // namespace warmpath::replay
