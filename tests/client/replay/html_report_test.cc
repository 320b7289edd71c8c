#include "client/replay/html_report.h"

#include <string>
#include <vector>

#include "client/replay/svg_chart.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath::replay {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::size_t Count(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

SimCell Cell(double load, const std::string& policy, double ttft) {
  SimCell cell{.workers = 8, .load = load, .rate_rps = 5 * load, .policy = policy};
  cell.seeds = {{.ttft_mean_s = ttft, .goodput = 0.5}, {.ttft_mean_s = ttft + 0.2, .goodput = 0.5}};
  cell.plots = {.ttft_s = {0.1, 1, 10},
                .load = {{.time_s = 0, .running = 1}, {.time_s = 1, .running = 4}},
                .worker_shares = {0.25, 0.75}};
  return cell;
}

TEST(HtmlReportTest, OneSectionPerFleetAndLoadWithTheBestInBold) {
  const std::string html = HtmlReport(
      {Cell(0.7, "marginal_cost", 1), Cell(0.7, "a<b", 2), Cell(0.9, "marginal_cost", 3)}, "s & t");
  EXPECT_EQ(Count(html, "<h2>"), 2u);
  EXPECT_EQ(Count(html, "<svg"), 12u);
  EXPECT_EQ(Count(html, "</svg>"), 12u);
  EXPECT_THAT(html, HasSubstr("8 workers, load 0.70, 3.500 requests/s, 2 seeds"));
  EXPECT_THAT(html, HasSubstr("<td class=\"best\">1.100 <small>&plusmn;0.100</small></td>"));
  EXPECT_THAT(html, HasSubstr("<td>2.100 <small>&plusmn;0.100</small></td>"));
  EXPECT_THAT(html, HasSubstr("a&lt;b"));
  EXPECT_THAT(html, Not(HasSubstr("a<b")));
  EXPECT_THAT(html, HasSubstr("s &amp; t"));
}

TEST(HtmlReportTest, OpensWithoutANetwork) {
  const std::string html = HtmlReport({Cell(0.7, "dynamo", 1)}, "");
  for (const char* remote : {"http:", "https:", "src=", "href=", "@import", "url("}) {
    EXPECT_THAT(html, Not(HasSubstr(remote)));
  }
}

TEST(SvgChartTest, PointsLandWhereTheAxesSay) {
  const std::string svg = ToSvg(LineChart{
      .title = "t",
      .x_label = "x",
      .y_label = "y",
      .log_x = true,
      .lines = {
          {.name = "n", .color = "#000000", .points = {{0, 9}, {1, 0}, {10, 5}, {100, 10}}}}});
  // x from 56 to 548 over two decades, y from 260 at 0 to 28 at 10; the point at 0 has no place.
  EXPECT_THAT(svg, HasSubstr("points=\"56.0,260.0 302.0,144.0 548.0,28.0 \""));
}

TEST(SvgChartTest, NothingToDrawGivesNoChart) {
  EXPECT_EQ(ToSvg(LineChart{.title = "t", .x_label = "x", .y_label = "y", .lines = {}}), "");
}

TEST(SvgChartTest, BarsAreAsLongAsTheirValues) {
  const std::string svg =
      ToSvg(BarChart{.title = "t",
                     .unit = " %",
                     .bars = {{.name = "half", .color = "#1", .value = 50},
                              {.name = "whole", .color = "#2", .value = 90, .error = 10}}});
  EXPECT_THAT(svg, HasSubstr("width=\"150.0\" height=\"13\" fill=\"#1\""));
  EXPECT_THAT(svg, HasSubstr("width=\"270.0\" height=\"13\" fill=\"#2\""));
  EXPECT_THAT(svg, HasSubstr(">90 %</text>"));
}

}  // namespace
}  // namespace warmpath::replay
