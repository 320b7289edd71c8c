#include "client/replay/sse_parser.h"

#include "absl/strings/str_cat.h"

namespace warmpath::replay {
namespace {

void Deliver(std::string_view line, absl::FunctionRef<void(std::string_view)> on_data) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  constexpr std::string_view kPrefix = "data:";
  if (line.substr(0, kPrefix.size()) != kPrefix) return;
  line.remove_prefix(kPrefix.size());
  if (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  on_data(line);
}

}  // namespace

absl::Status SseParser::Feed(std::string_view bytes,
                             absl::FunctionRef<void(std::string_view)> on_data) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      partial_.append(bytes);
      break;
    }
    if (partial_.empty()) {
      Deliver(bytes.substr(0, end), on_data);
    } else {
      partial_.append(bytes.substr(0, end));
      Deliver(partial_, on_data);
      partial_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
  if (partial_.size() > kMaxLine) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an event of the answer is longer than ", kMaxLine, " bytes"));
  }
  return absl::OkStatus();
}

}  // namespace warmpath::replay
