// Many concurrent streaming POSTs on one thread: a thin layer over libcurl's multi interface.
#ifndef WARMPATH_CLIENT_REPLAY_HTTP_STREAMS_H_
#define WARMPATH_CLIENT_REPLAY_HTTP_STREAMS_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace warmpath::replay {

struct HttpPost {
  std::string url;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  absl::Duration timeout = absl::Minutes(5);
  // Called on the polling thread as bytes arrive; an error ends the stream with it.
  std::function<absl::Status(std::string_view bytes)> on_bytes;
  // Called once: OK with HTTP 200 and a whole answer; else what went wrong. `connected` is false
  // when the server was never reached, so that another one may be tried safely.
  std::function<void(absl::Status status, bool connected)> on_done;
};

// Start and Poll belong to one thread; Wake may be called from any.
class HttpStreams {
 public:
  static absl::StatusOr<std::unique_ptr<HttpStreams>> Create();
  ~HttpStreams();

  void Start(HttpPost post);
  // Moves bytes and runs callbacks; returns after `timeout`, on activity, or on Wake().
  void Poll(absl::Duration timeout);
  void Wake();
  std::size_t open() const;

 private:
  struct Impl;
  explicit HttpStreams(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warmpath::replay

#endif  // WARMPATH_CLIENT_REPLAY_HTTP_STREAMS_H_
