// Plain text tables for people, and the small value formats they share.
#ifndef WARMPATH_CLIENT_CTL_FORMAT_H_
#define WARMPATH_CLIENT_CTL_FORMAT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace warmpath::ctl {

// Columns are as wide as their widest cell; numbers (cells that begin with a digit, '-' or '+') are
// right-aligned. Widths count code points, so that UTF-8 names line up.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  // REQUIRES: as many cells as the header has.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string Render() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string Fixed(double value, int digits);
std::string HumanBytes(std::uint64_t bytes);  // "1.50 GiB"
std::string Hex64(std::uint64_t value);       // 16 digits

}  // namespace warmpath::ctl

#endif  // WARMPATH_CLIENT_CTL_FORMAT_H_
