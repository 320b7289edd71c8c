// Structured logs: one line per event on stderr, "time level message key=value ...".
// (Debian's abseil has no absl/log.) Only server/ and client/ log; core/ returns
// statuses and counts. Thread-safe.
//
//   Log(LogLevel::kInfo, "worker registered", {{"worker", id}, {"targets", 2}});
#ifndef WARMPATH_CORE_BASE_LOG_H_
#define WARMPATH_CORE_BASE_LOG_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace warmpath {

enum class LogLevel : std::uint8_t { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3 };

// "debug", "info", "warn", "error".
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name);

// One key=value pair. Values that hold spaces, quotes or control bytes are quoted and
// escaped, so that a line from the network can not forge another line.
struct LogField {
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false") {}
  LogField(std::string_view k, const absl::Status& v) : key(k), value(v.ToString()) {}
  LogField(std::string_view k, absl::Duration v) : key(k), value(absl::FormatDuration(v)) {}
  template <typename T>
    requires std::is_arithmetic_v<T>
  LogField(std::string_view k, T v) : key(k), value(absl::StrCat(v)) {}

  std::string_view key;
  std::string value;
};

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

// Lines below this level are dropped. Default kInfo.
void SetMinLogLevel(LogLevel level);

// Where finished lines (without the newline) go; nullptr restores stderr.
// The sink is called under the logger's mutex and must not log itself.
using LogSink = std::function<void(LogLevel, std::string_view line)>;
void SetLogSink(LogSink sink);

// Says whether an event that may repeat quickly should be logged now: at most once
// per interval. One object per call site, e.g. a member. Thread-safe.
class LogEvery {
 public:
  explicit LogEvery(absl::Duration interval)
      : interval_nanos_(absl::ToInt64Nanoseconds(interval)) {}
  // If true, *suppressed is the number of calls that were answered false since.
  bool Due(std::uint64_t* suppressed = nullptr);

 private:
  const std::int64_t interval_nanos_;
  std::atomic<std::int64_t> next_nanos_{0};
  std::atomic<std::uint64_t> suppressed_{0};
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_BASE_LOG_H_
