#include "client/ctl/format.h"

#include <algorithm>
#include <cctype>
#include <cstdio>

namespace warmpath::ctl {
namespace {

std::size_t CodePoints(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

bool LooksNumeric(std::string_view cell) {
  if (cell.empty()) return false;
  const char c = cell.front();
  if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
    // "127.0.0.1:80" is a name, not a number.
    return std::count(cell.begin(), cell.end(), '.') <= 1 &&
           cell.find(':') == std::string_view::npos;
  }
  return (c == '-' || c == '+') && cell.size() > 1;
}

}  // namespace

std::string Table::Render() const {
  std::vector<std::size_t> widths(rows_.front().size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], CodePoints(row[i]));
  }
  // A column is right-aligned when all its cells below the header are numbers or "-".
  std::vector<bool> right(widths.size(), rows_.size() > 1);
  for (std::size_t r = 1; r < rows_.size(); ++r) {
    for (std::size_t i = 0; i < rows_[r].size(); ++i) {
      right[i] = right[i] && (LooksNumeric(rows_[r][i]) || rows_[r][i] == "-");
    }
  }
  std::string out;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - CodePoints(row[i]), ' ');
      if (i > 0) out += "  ";
      if (right[i]) out += padding;
      out += row[i];
      if (!right[i] && i + 1 < row.size()) out += padding;
    }
    out += '\n';
  }
  return out;
}

std::string Fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%.*f", digits, value);
  return buffer;
}

std::string HumanBytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return Fixed(value, unit == 0 ? 0 : 2) + " " + kUnits[unit];
}

std::string Hex64(std::uint64_t value) {
  char buffer[17];
  std::snprintf(buffer, sizeof(buffer), "%016llx", static_cast<unsigned long long>(value));
  return buffer;
}

}  // namespace warmpath::ctl
