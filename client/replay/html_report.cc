#include "client/replay/html_report.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "client/replay/svg_chart.h"
#include "core/replay/tenant_report.h"

namespace warmpath::replay {
namespace {

constexpr std::string_view kDefaultPolicy = "marginal_cost";

constexpr char kStyle[] =
    "body{font:14px/1.4 system-ui,sans-serif;margin:24px auto;max-width:1180px;padding:0 16px;"
    "color:#1a1a1a}h1{font-size:22px}h2{font-size:17px;margin-top:36px;border-top:1px solid #ddd;"
    "padding-top:14px}table{border-collapse:collapse;margin:10px 0}td,th{padding:3px 10px;"
    "text-align:right;border-bottom:1px solid #eee}td:first-child,th:first-child{text-align:left}"
    "td.best{font-weight:700}td small{color:#777}svg{margin:6px 10px 6px 0}"
    ".title{font:600 13px system-ui,sans-serif}.tick{font:11px system-ui,sans-serif;fill:#555}"
    ".end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#e6e6e6}"
    ".whisker{stroke:#333;stroke-width:1.5}.key{display:inline-block;margin:0 14px 4px 0}"
    ".key i{display:inline-block;width:14px;height:10px;margin-right:5px}";

// Distinct enough beside each other; the default policy has the first for itself.
std::string ColorOf(std::string_view policy, std::size_t position) {
  static constexpr const char* kOthers[] = {"#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#e377c2",
                                            "#7f7f7f", "#bcbd22", "#17becf", "#aec7e8", "#98df8a",
                                            "#c5b0d5", "#c49c94", "#f7b6d2", "#c7c7c7", "#dbdb8d"};
  if (policy == kDefaultPolicy) return "#d62728";
  return kOthers[position % std::size(kOthers)];
}

struct Column {
  const char* head;
  double SimSummary::*field;
  double scale;
  const char* format;
  bool less_is_better;
};
constexpr Column kColumns[] = {
    {"TTFT mean, s", &SimSummary::ttft_mean_s, 1, "%.3f", true},
    {"p50, s", &SimSummary::ttft_p50_s, 1, "%.3f", true},
    {"p90, s", &SimSummary::ttft_p90_s, 1, "%.3f", true},
    {"p99, s", &SimSummary::ttft_p99_s, 1, "%.3f", true},
    {"TPOT, ms", &SimSummary::tpot_mean_ms, 1, "%.1f", true},
    {"goodput, %", &SimSummary::goodput, 100, "%.1f", false},
    {"hit rate, %", &SimSummary::token_hit_rate, 100, "%.1f", false},
    {"busiest worker, %", &SimSummary::busiest_share, 100, "%.1f", true},
};

using Block = absl::Span<const SimCell>;

std::string Format(const char* format, double value) {
  return absl::StrFormat(*absl::ParsedFormat<'f'>::New(format), value);
}

std::string Table(Block block) {
  std::string html = "<table><tr><th>policy</th>";
  for (const Column& column : kColumns) absl::StrAppend(&html, "<th>", column.head, "</th>");
  html += "</tr>";
  std::vector<double> best;
  for (const Column& column : kColumns) {
    const auto value = [&](const SimCell& cell) { return OverSeeds(cell, column.field).mean; };
    double extreme = value(block.front());
    for (const SimCell& cell : block) {
      extreme =
          column.less_is_better ? std::min(extreme, value(cell)) : std::max(extreme, value(cell));
    }
    best.push_back(extreme);
  }
  for (const SimCell& cell : block) {
    absl::StrAppend(&html, "<tr><td>", HtmlEscape(cell.policy), "</td>");
    for (std::size_t i = 0; i < std::size(kColumns); ++i) {
      const Column& column = kColumns[i];
      const MeanError value = OverSeeds(cell, column.field);
      absl::StrAppend(&html, "<td", value.mean == best[i] ? " class=\"best\">" : ">",
                      Format(column.format, value.mean * column.scale));
      if (cell.seeds.size() > 1) {
        absl::StrAppend(&html, " <small>&plusmn;",
                        Format(column.format, value.error * column.scale), "</small>");
      }
      html += "</td>";
    }
    html += "</tr>";
  }
  return html + "</table>";
}

std::string Bars(Block block, const char* title, double SimSummary::*field, double scale,
                 const char* unit) {
  BarChart chart{.title = title, .unit = unit, .bars = {}};
  for (std::size_t i = 0; i < block.size(); ++i) {
    const MeanError value = OverSeeds(block[i], field);
    chart.bars.push_back({.name = block[i].policy,
                          .color = ColorOf(block[i].policy, i),
                          .value = value.mean * scale,
                          .error = value.error * scale});
  }
  return ToSvg(chart);
}

ChartLine LineOf(const SimCell& cell, std::size_t position) {
  return {.name = cell.policy,
          .color = ColorOf(cell.policy, position),
          .strong = cell.policy == kDefaultPolicy,
          .points = {}};
}

std::string TtftCurve(Block block) {
  LineChart chart{.title = "Requests with a first token within …",
                  .x_label = "time to first token, s",
                  .y_label = "% of requests",
                  .log_x = true,
                  .lines = {}};
  for (std::size_t i = 0; i < block.size(); ++i) {
    ChartLine& line = chart.lines.emplace_back(LineOf(block[i], i));
    const std::vector<double>& ttft = block[i].plots.ttft_s;
    for (std::size_t q = 0; q < ttft.size(); ++q) {
      line.points.emplace_back(ttft[q],
                               100.0 * static_cast<double>(q) /
                                   static_cast<double>(std::max<std::size_t>(1, ttft.size() - 1)));
    }
  }
  return ToSvg(chart);
}

std::string LoadCurve(Block block, const char* title, std::uint32_t SimSample::*field) {
  LineChart chart{.title = title, .x_label = "s", .y_label = "requests", .lines = {}};
  for (std::size_t i = 0; i < block.size(); ++i) {
    ChartLine& line = chart.lines.emplace_back(LineOf(block[i], i));
    for (const SimSample& sample : block[i].plots.load) {
      line.points.emplace_back(sample.time_s, sample.*field);
    }
  }
  return ToSvg(chart);
}

// Workers in order of their share: how even a policy is, whichever worker it favours.
std::string Shares(Block block) {
  LineChart chart{.title = "Prompt tokens by worker, largest share first",
                  .x_label = "worker",
                  .y_label = "% of tokens",
                  .lines = {}};
  for (std::size_t i = 0; i < block.size(); ++i) {
    ChartLine& line = chart.lines.emplace_back(LineOf(block[i], i));
    std::vector<double> shares = block[i].plots.worker_shares;
    std::sort(shares.rbegin(), shares.rend());
    for (std::size_t w = 0; w < shares.size(); ++w) {
      line.points.emplace_back(static_cast<double>(w + 1), 100 * shares[w]);
    }
  }
  return ToSvg(chart);
}

std::string Key(Block block) {
  std::string html = "<p>";
  for (std::size_t i = 0; i < block.size(); ++i) {
    absl::StrAppend(&html,
                    "<span class=\"key\"><i style=\"background:", ColorOf(block[i].policy, i),
                    "\"></i>", HtmlEscape(block[i].policy), "</span>");
  }
  return html + "</p>";
}

std::string Section(Block block) {
  const SimCell& first = block.front();
  return absl::StrCat(
      absl::StrFormat("<h2>%d workers, load %.2f, %.3f requests/s, %d seed%s</h2>", first.workers,
                      first.load, first.rate_rps, first.seeds.size(),
                      first.seeds.size() == 1 ? "" : "s"),
      Table(block), TenantHtml(block.data(), block.size()), Key(block), TtftCurve(block),
      Shares(block), LoadCurve(block, "Requests in the engines", &SimSample::running),
      LoadCurve(block, "Requests on the worker that has most", &SimSample::busiest),
      Bars(block, "Goodput: first token below 2 s and 50 ms per token", &SimSummary::goodput, 100,
           " %"),
      Bars(block, "Prompt tokens served from cache", &SimSummary::token_hit_rate, 100, " %"));
}

}  // namespace

std::string HtmlReport(const std::vector<SimCell>& cells, const std::string& settings) {
  std::string html = absl::StrCat(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<title>Warmpath: policies compared</title><style>",
      kStyle, "</style></head><body><h1>Policies compared</h1><p>", HtmlEscape(settings),
      "</p><p>Means over seeds, &plusmn; their standard error; best of a column in bold. All "
      "policies of a section saw the same arrivals. Curves show the first seed.</p>");
  for (auto begin = cells.begin(); begin != cells.end();) {
    const auto end = std::find_if(begin, cells.end(),
                                  [&](const SimCell& cell) { return !SameBlock(cell, *begin); });
    html += Section(Block(&*begin, static_cast<std::size_t>(end - begin)));
    begin = end;
  }
  return html + "</body></html>\n";
}

}  // namespace warmpath::replay
