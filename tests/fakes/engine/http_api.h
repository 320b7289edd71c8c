// The engine's HTTP port: OpenAI completions and chats, vLLM's helper endpoints, /metrics, /debug.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_HTTP_API_H_
#define WARMPATH_TESTS_FAKES_ENGINE_HTTP_API_H_

#include <memory>

#include "absl/status/statusor.h"
#include "tests/fakes/engine/engine.h"

namespace warmpath::engine {

class HttpApi {
 public:
  // Listens when it returns. UNAVAILABLE when the port can not be bound. The engine must outlive
  // the server.
  static absl::StatusOr<std::unique_ptr<HttpApi>> Start(Engine* engine);
  // Ends open requests with an error and waits for their threads.
  ~HttpApi();

  HttpApi(const HttpApi&) = delete;
  HttpApi& operator=(const HttpApi&) = delete;

  int port() const;

 private:
  class Impl;
  explicit HttpApi(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_HTTP_API_H_
