// An event-driven HTTP/1.1 server (libmicrohttpd): a few threads serve all connections, so idle
// ones cost memory only. Everything that a client can make large is bounded: connections, header
// and body size, the bodies of all requests together, and the time that each step may take.
#ifndef WARMPATH_SERVER_HTTP_HTTP_SERVER_H_
#define WARMPATH_SERVER_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "server/http/http_message.h"

namespace warmpath {

class HttpServer {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";
    std::string setting = "server.http_address";  // what an error tells to change
    std::uint32_t threads = 1;
    // Beyond, a new connection takes the place of the one that has been idle for longest. While all
    // are busy some more are served, a quarter and 64 for each thread; the rest waits in the
    // kernel's backlog.
    std::uint32_t max_connections = 4096;
    std::size_t max_body_bytes = 8u << 20;  // larger: 413
    std::size_t max_memory = 256u << 20;    // bodies of all requests; beyond: 429
    absl::Duration idle_timeout = absl::Seconds(75);
    // For a new connection's first headers, for a body, and for taking an answer.
    absl::Duration request_timeout = absl::Seconds(10);
    const Clock* clock = &SystemClock();  // must outlive the server
  };

  // Listens when it returns. UNAVAILABLE naming the address when it can not be bound. What the
  // routes refer to must outlive the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options,
                                                           std::vector<HttpRoute> routes);

  // Shutdown without grace.
  ~HttpServer();

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  std::size_t connections() const;

  // Cuts off connections whose time is over. To be called about every second.
  void CloseOverdue();

  // Accepts nothing more, lets requests that have arrived be answered for up to `grace`, closes all
  // connections and joins. Idempotent; from one thread.
  void Shutdown(absl::Duration grace);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_HTTP_HTTP_SERVER_H_
