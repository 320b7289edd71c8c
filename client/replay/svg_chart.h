// Charts as SVG text, for pages that open without a network. Small on purpose: lines over two axes,
// and groups of bars.
#ifndef WARMPATH_CLIENT_REPLAY_SVG_CHART_H_
#define WARMPATH_CLIENT_REPLAY_SVG_CHART_H_

#include <string>
#include <utility>
#include <vector>

namespace warmpath::replay {

struct ChartLine {
  std::string name;
  std::string color;                              // "#rrggbb"
  bool strong = false;                            // drawn thicker, and last
  std::vector<std::pair<double, double>> points;  // in order of x
};

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_x = false;  // then points with x <= 0 are left out
  std::vector<ChartLine> lines;
};

// Empty when no line has a point.
std::string ToSvg(const LineChart& chart);

struct ChartBar {
  std::string name;
  std::string color;
  double value = 0;
  double error = 0;  // half the length of the whisker
};

struct BarChart {
  std::string title;
  std::string unit;  // behind the values
  std::vector<ChartBar> bars;
};

std::string ToSvg(const BarChart& chart);

// Text that may stand in HTML and in attributes.
std::string HtmlEscape(const std::string& text);

}  // namespace warmpath::replay

#endif  // WARMPATH_CLIENT_REPLAY_SVG_CHART_H_
