#include "core/base/log.h"

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

struct Logger {
  absl::Mutex mu;
  LogSink sink ABSL_GUARDED_BY(mu);
  std::atomic<LogLevel> min_level{LogLevel::kInfo};
};

// Never destroyed: gRPC threads may log after main returned.
Logger& GlobalLogger() {
  static Logger* const logger = new Logger;
  return *logger;
}

constexpr std::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "DEBUG";
    case LogLevel::kInfo:
      return "INFO";
    case LogLevel::kWarn:
      return "WARN";
    case LogLevel::kError:
      return "ERROR";
  }
  return "?";
}

// Values come from outside as well: a name of megabytes must not become a line of megabytes.
constexpr std::size_t kMaxValueBytes = 1024;

bool NeedsQuotes(std::string_view value) {
  if (value.empty()) return true;
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte >= 0x7f || c == '"' || c == '=' || c == '\\') return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warn") return LogLevel::kWarn;
  if (name == "error") return LogLevel::kError;
  return absl::InvalidArgumentError(
      absl::StrCat("log level \"", ToAbsl(name), "\" is unknown: use debug, info, warn or error"));
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  Logger& logger = GlobalLogger();
  if (level < logger.min_level.load(std::memory_order_relaxed)) return;
  std::string line =
      absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
                   ToAbsl(LevelName(level)), " ", absl::Utf8SafeCEscape(ToAbsl(message)));
  for (const LogField& field : fields) {
    const std::string_view value = std::string_view(field.value).substr(0, kMaxValueBytes);
    const std::size_t cut = field.value.size() - value.size();
    if (NeedsQuotes(value)) {
      absl::StrAppend(&line, " ", ToAbsl(field.key), "=\"", absl::Utf8SafeCEscape(ToAbsl(value)),
                      "\"");
    } else {
      absl::StrAppend(&line, " ", ToAbsl(field.key), "=", ToAbsl(value));
    }
    if (cut > 0) absl::StrAppend(&line, "[and ", cut, " bytes more]");
  }
  absl::MutexLock lock(&logger.mu);
  if (logger.sink) {
    logger.sink(level, line);
    return;
  }
  line.push_back('\n');
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void SetMinLogLevel(LogLevel level) {
  GlobalLogger().min_level.store(level, std::memory_order_relaxed);
}

void SetLogSink(LogSink sink) {
  Logger& logger = GlobalLogger();
  absl::MutexLock lock(&logger.mu);
  logger.sink = std::move(sink);
}

bool LogEvery::Due(std::uint64_t* suppressed) {
  const std::int64_t now = absl::ToUnixNanos(SystemClock().Now());
  std::int64_t next = next_nanos_.load(std::memory_order_relaxed);
  if (now < next || !next_nanos_.compare_exchange_strong(next, now + interval_nanos_,
                                                         std::memory_order_relaxed)) {
    suppressed_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const std::uint64_t count = suppressed_.exchange(0, std::memory_order_relaxed);
  if (suppressed != nullptr) *suppressed = count;
  return true;
}

}  // namespace warmpath
