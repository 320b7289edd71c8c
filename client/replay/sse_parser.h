// Server-sent events, as OpenAI-style streaming answers use them: "data: JSON\n\n".
#ifndef WARMPATH_CLIENT_REPLAY_SSE_PARSER_H_
#define WARMPATH_CLIENT_REPLAY_SSE_PARSER_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace warmpath::replay {

// Not thread-safe. Feed bytes as they come; a line may be split anywhere.
class SseParser {
 public:
  // Calls `on_data` for each complete "data:" line's payload. RESOURCE_EXHAUSTED when a line is
  // longer than the bound: the rest of the stream can not be understood then.
  absl::Status Feed(std::string_view bytes, absl::FunctionRef<void(std::string_view)> on_data);

 private:
  static constexpr std::size_t kMaxLine = 1 << 20;
  std::string partial_;
};

}  // namespace warmpath::replay

#endif  // WARMPATH_CLIENT_REPLAY_SSE_PARSER_H_
