// Reads the "usage" of a response as it passes by: from the last event of a stream that has one, or
// from a JSON body. Memory is bounded, whatever the response is; complete lines of a stream are
// looked at where they lie and copied only when they hold a usage.
#ifndef WARMPATH_SERVER_EXT_PROC_USAGE_READER_H_
#define WARMPATH_SERVER_EXT_PROC_USAGE_READER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace warmpath {

// Tokens, as the engine counted them; absent when it does not say.
struct Usage {
  std::optional<std::uint32_t> prompt_tokens;
  std::optional<std::uint32_t> cached_tokens;
  std::optional<std::uint32_t> output_tokens;
};

// Understands the names of chat completions and completions (prompt_tokens, completion_tokens,
// prompt_tokens_details.cached_tokens) and of responses and messages (input_tokens, output_tokens,
// input_tokens_details.cached_tokens, cache_read_input_tokens), at the top or inside "response" or
// "message".
class UsageReader {
 public:
  // Of a JSON body, its last bytes are kept; of a stream, one line of at most so many.
  static constexpr std::size_t kMaxKept = 64 << 10;

  explicit UsageReader(bool event_stream) : event_stream_(event_stream) {}

  void Read(std::string_view chunk);
  // After the last chunk. Nothing when no usage was seen.
  std::optional<Usage> Finish();

  std::size_t kept_bytes() const { return kept_.size() + found_.size(); }

 private:
  void ReadStream(std::string_view chunk);
  void TakeLine(std::string_view line);

  const bool event_stream_;
  // Stream: the beginning of a line whose end is still to come. JSON: the body's last bytes.
  std::string kept_;
  std::string found_;      // the last line with a usage
  bool skipping_ = false;  // a line that is too long: until its end
  bool cut_ = false;       // the body's beginning is not in kept_
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_EXT_PROC_USAGE_READER_H_
