#include "client/replay/svg_chart.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace warmpath::replay {
namespace {

constexpr double kWidth = 560;
constexpr double kHeight = 300;
constexpr double kLeft = 56;
constexpr double kRight = 12;
constexpr double kTop = 28;
constexpr double kBottom = 40;
constexpr int kTicks = 5;

// One axis: values to pixels.
class Axis {
 public:
  Axis(double low, double high, double from, double to, bool log)
      : log_(log), low_(Place(low)), high_(Place(high)), from_(from), to_(to) {
    if (!(high_ > low_)) high_ = low_ + 1;
  }

  double At(double value) const {
    return from_ + (Place(value) - low_) / (high_ - low_) * (to_ - from_);
  }

  // Round values inside the axis, at most a dozen.
  std::vector<double> Ticks() const {
    std::vector<double> ticks;
    if (log_) {
      for (double exponent = std::floor(low_); exponent <= std::ceil(high_); ++exponent) {
        for (const double digit : {1.0, 2.0, 5.0}) {
          const double value = digit * std::pow(10, exponent);
          if (Place(value) >= low_ && Place(value) <= high_) ticks.push_back(value);
        }
      }
      return ticks;
    }
    const double raw = (high_ - low_) / kTicks;
    const double magnitude = std::pow(10, std::floor(std::log10(raw)));
    double step = magnitude;
    for (const double digit : {1.0, 2.0, 5.0, 10.0}) {
      step = digit * magnitude;
      if (step >= raw) break;
    }
    for (double value = std::ceil(low_ / step) * step; value <= high_ + step * 1e-6;
         value += step) {
      ticks.push_back(std::abs(value) < step * 1e-6 ? 0 : value);
    }
    return ticks;
  }

 private:
  double Place(double value) const { return log_ ? std::log10(std::max(value, 1e-9)) : value; }

  bool log_;
  double low_;
  double high_;
  double from_;
  double to_;
};

std::string Open(const std::string& title, double height) {
  return absl::StrFormat(
      "<svg viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" role=\"img\" aria-label=\"%s\">"
      "<text x=\"%g\" y=\"16\" class=\"title\">%s</text>",
      kWidth, height, kWidth, height, HtmlEscape(title), kLeft, HtmlEscape(title));
}

}  // namespace

std::string HtmlEscape(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string ToSvg(const LineChart& chart) {
  double low_x = INFINITY;
  double high_x = -INFINITY;
  double high_y = 0;
  for (const ChartLine& line : chart.lines) {
    for (const auto& [x, y] : line.points) {
      if (chart.log_x && x <= 0) continue;
      low_x = std::min(low_x, x);
      high_x = std::max(high_x, x);
      high_y = std::max(high_y, y);
    }
  }
  if (!(high_x >= low_x)) return "";
  const Axis x(low_x, high_x, kLeft, kWidth - kRight, chart.log_x);
  const Axis y(0, high_y, kHeight - kBottom, kTop, false);
  std::string svg = Open(chart.title, kHeight);
  for (const double tick : y.Ticks()) {
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%g\" x2=\"%g\" y1=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>"
                          "<text x=\"%g\" y=\"%.1f\" class=\"tick end\">%g</text>",
                          kLeft, kWidth - kRight, y.At(tick), y.At(tick), kLeft - 6, y.At(tick) + 4,
                          tick);
  }
  for (const double tick : x.Ticks()) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%g\" class=\"tick middle\">%g</text>",
                          x.At(tick), kHeight - kBottom + 16, tick);
  }
  absl::StrAppendFormat(&svg,
                        "<text x=\"%g\" y=\"%g\" class=\"tick middle\">%s</text>"
                        "<text x=\"%g\" y=\"16\" class=\"tick end\">%s</text>",
                        (kLeft + kWidth - kRight) / 2, kHeight - 6, HtmlEscape(chart.x_label),
                        kWidth - kRight, HtmlEscape(chart.y_label));
  for (const bool strong : {false, true}) {
    for (const ChartLine& line : chart.lines) {
      if (line.strong != strong) continue;
      std::string points;
      for (const auto& [at_x, at_y] : line.points) {
        if (chart.log_x && at_x <= 0) continue;
        absl::StrAppendFormat(&points, "%.1f,%.1f ", x.At(at_x), y.At(at_y));
      }
      absl::StrAppendFormat(&svg,
                            "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%g\" "
                            "points=\"%s\"><title>%s</title></polyline>",
                            line.color, strong ? 3.0 : 1.2, points, HtmlEscape(line.name));
    }
  }
  return svg + "</svg>";
}

std::string ToSvg(const BarChart& chart) {
  constexpr double kBar = 17;
  constexpr double kNames = 150;
  constexpr double kValues = 110;
  double high = 0;
  for (const ChartBar& bar : chart.bars) high = std::max(high, bar.value + bar.error);
  const Axis x(0, high, kNames, kWidth - kValues, false);
  std::string svg = Open(chart.title, kTop + kBar * static_cast<double>(chart.bars.size()) + 8);
  double top = kTop;
  for (const ChartBar& bar : chart.bars) {
    const double middle = top + kBar / 2;
    absl::StrAppendFormat(
        &svg,
        "<text x=\"%g\" y=\"%.1f\" class=\"tick end\">%s</text>"
        "<rect x=\"%g\" y=\"%.1f\" width=\"%.1f\" height=\"%g\" fill=\"%s\"/>"
        "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" class=\"whisker\"/>"
        "<text x=\"%.1f\" y=\"%.1f\" class=\"tick\">%.4g%s</text>",
        kNames - 6, middle + 4, HtmlEscape(bar.name), kNames, top + 2,
        std::max(0.0, x.At(bar.value) - kNames), kBar - 4, bar.color, x.At(bar.value - bar.error),
        x.At(bar.value + bar.error), middle, middle, x.At(bar.value + bar.error) + 6, middle + 4,
        bar.value, HtmlEscape(chart.unit));
    top += kBar;
  }
  return svg + "</svg>";
}

}  // namespace warmpath::replay
