// One HTTP request and its answer, as handlers see them: no sockets, no server library.
#ifndef WARMPATH_SERVER_HTTP_HTTP_MESSAGE_H_
#define WARMPATH_SERVER_HTTP_HTTP_MESSAGE_H_

#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace warmpath {

class WorkPool;

// Lives while its handler runs.
class HttpRequest {
 public:
  virtual ~HttpRequest() = default;

  // The value of the first header of that name, whatever the case; nothing when there is none. The
  // view lives as long as the request.
  virtual std::optional<std::string_view> Header(std::string_view name) const = 0;

  // A handler may take the body away.
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string_view content_type = "application/json";  // a literal
  std::string body;
  // Header values with control characters are left out: they may come from outside.
  std::vector<std::pair<std::string, std::string>> headers;
  // Called when the answer could not be delivered, on a server's thread.
  std::function<void()> undelivered;
};

// Called from several threads at once.
using HttpHandler = std::function<HttpResponse(HttpRequest&)>;

struct HttpRoute {
  std::string_view method;  // "GET" serves HEAD as well
  std::string_view path;
  HttpHandler handler;
  // Requests with a body of at least so many bytes run on this pool, if any: they would hold up the
  // other connections of a server's thread. The pool must outlive the server.
  WorkPool* pool = nullptr;
  std::size_t pool_from_bytes = 0;
  // What a full pool answers.
  std::function<HttpResponse()> pool_full;
  // Where messages are small, less than the server's limit.
  std::size_t max_body_bytes = std::numeric_limits<std::size_t>::max();
};

// The one JSON form of errors, with Retry-After (whole seconds, rounded up) when retry_after > 0.
// The HTTP status follows from the code, see status_convert.h.
HttpResponse ErrorResponse(const absl::Status& status,
                           absl::Duration retry_after = absl::ZeroDuration());
HttpResponse ErrorResponse(int http_status, const absl::Status& status);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_HTTP_HTTP_MESSAGE_H_
