// One blocking HTTP GET after another to one engine, over one kept connection.
#ifndef WARMPATH_CLIENT_AGENT_ENGINE_HTTP_GET_H_
#define WARMPATH_CLIENT_AGENT_ENGINE_HTTP_GET_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace warmpath {

struct HttpReply {
  int status = 0;
  std::string body;
};

// What the load scraper needs of HTTP; tests script it.
class HttpGetter {
 public:
  virtual ~HttpGetter() = default;
  // The reply, whatever its status code. UNAVAILABLE: nobody listens there ("refused").
  // DEADLINE_EXCEEDED: no whole reply in time. RESOURCE_EXHAUSTED: the body is above the bound.
  // INTERNAL: anything else; the message has the URL.
  virtual absl::StatusOr<HttpReply> Get(const std::string& url) = 0;
};

struct HttpOptions {
  absl::Duration connect_timeout = absl::Milliseconds(500);
  absl::Duration timeout = absl::Seconds(2);
  std::size_t max_body_bytes = std::size_t{16} << 20;
  std::string bearer_token;  // sent as Authorization with each request; empty: none
};

// libcurl. Follows no redirects and uses no proxy: the engine is a neighbour, and a proxy from
// the environment would otherwise be asked for 127.0.0.1 too. Not thread-safe: one owner thread.
std::unique_ptr<HttpGetter> MakeCurlGetter(const HttpOptions& options = {});

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_ENGINE_HTTP_GET_H_
