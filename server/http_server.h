// HTTP for operators and simple clients: /metrics, /healthz, /readyz, the status page, and picks as
// JSON. A few threads serve one connection each at a time; at a full queue the listener waits, so
// memory stays bounded.
#ifndef WARMPATH_SERVER_HTTP_SERVER_H_
#define WARMPATH_SERVER_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/pick_backend.h"

namespace warmpath {

class HttpServer {
 public:
  struct Options {
    std::string address = "127.0.0.1:0";
    std::uint32_t threads = 8;
    std::size_t max_body_bytes = 8u << 20;
  };

  // What it serves. Called from several threads at once; must outlive the server.
  struct Content {
    PickBackend* backend = nullptr;
    std::function<std::string()> metrics;      // Prometheus text
    std::function<std::string()> status_page;  // HTML
    std::function<bool()> ready;
  };

  // UNAVAILABLE naming the address when it can not be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Content content);

  // Ends open connections and joins.
  ~HttpServer();

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_HTTP_SERVER_H_
