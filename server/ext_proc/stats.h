// What the ext_proc service counts, for /metrics.
#ifndef WARMPATH_SERVER_EXT_PROC_STATS_H_
#define WARMPATH_SERVER_EXT_PROC_STATS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace warmpath {

// Thread-safe.
class ExtProcStats {
 public:
  // In the order of kMessageNames.
  enum Message : std::size_t {
    kRequestHeaders,
    kRequestBody,
    kRequestTrailers,
    kResponseHeaders,
    kResponseBody,
    kResponseTrailers,
    kMessageCount,
  };
  static constexpr std::array<std::string_view, kMessageCount> kMessageNames = {
      "request_headers",  "request_body",  "request_trailers",
      "response_headers", "response_body", "response_trailers"};

  void CountMessage(Message message) { Add(messages_[message]); }
  std::uint64_t messages(Message message) const { return messages_[message].load(kRelaxed); }

  // A request that was answered with an HTTP status instead of an endpoint. The reasons are words
  // of the program's, not of a client's.
  void CountRefusal(int http_status, std::string_view reason) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    ++refusals_[{http_status, std::string(reason)}];
  }
  using Refusals = std::map<std::pair<int, std::string>, std::uint64_t>;
  Refusals refusals() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return refusals_;
  }

  // A response that another endpoint gave than the one that was picked.
  void CountServedElsewhere() { Add(served_elsewhere_); }
  std::uint64_t served_elsewhere() const { return served_elsewhere_.load(kRelaxed); }

  // Responses whose token counts were looked for.
  void CountUsage(bool found) { Add(usage_[found ? 1 : 0]); }
  std::uint64_t usage(bool found) const { return usage_[found ? 1 : 0].load(kRelaxed); }

  // Bodies held until the last byte is there, over all streams. False, and nothing is added, when
  // the sum would exceed `limit`.
  [[nodiscard]] bool HoldBytes(std::uint64_t bytes, std::uint64_t limit) {
    if (held_bytes_.fetch_add(bytes, kRelaxed) + bytes <= limit) return true;
    ReleaseBytes(bytes);
    return false;
  }
  void ReleaseBytes(std::uint64_t bytes) { held_bytes_.fetch_sub(bytes, kRelaxed); }
  std::uint64_t held_bytes() const { return held_bytes_.load(kRelaxed); }

 private:
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;
  static void Add(std::atomic<std::uint64_t>& counter) { counter.fetch_add(1, kRelaxed); }

  std::array<std::atomic<std::uint64_t>, kMessageCount> messages_{};
  std::atomic<std::uint64_t> served_elsewhere_{0};
  std::array<std::atomic<std::uint64_t>, 2> usage_{};
  std::atomic<std::uint64_t> held_bytes_{0};
  mutable absl::Mutex mu_;
  Refusals refusals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_EXT_PROC_STATS_H_
