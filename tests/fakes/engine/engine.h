// The stand-in engine without its HTTP port: ranks, their event sockets, and who gets a request.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_ENGINE_H_
#define WARMPATH_TESTS_FAKES_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/fakes/engine/engine_rank.h"
#include "tests/fakes/engine/event_publisher.h"
#include "tests/fakes/engine/openai_request.h"
#include "zmq.hpp"

namespace warmpath::engine {

struct EngineOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: a free one.
  std::uint32_t ranks = 1;
  Models models = {.base = "warmpath-test-model", .loras = {}};
  // `rank` is filled in per rank; `hash_seed` is mixed with it.
  RankOptions rank = {};
  // Endpoints of rank 0; rank r listens at port + r. An empty endpoint: no events at all.
  PublisherOptions events = {};
  std::uint32_t stream_interval = 1;  // Tokens per streamed chunk, after the first.
  std::size_t http_threads = 512;     // Each serves one connection at a time.
  std::size_t max_body_bytes = 16 << 20;
};

// OK, or INVALID_ARGUMENT naming the option.
absl::Status ValidateEngineOptions(const EngineOptions& options);

class Engine {
 public:
  // INVALID_ARGUMENT, or UNAVAILABLE naming a port that can not be bound.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // `header` is the value of X-data-parallel-rank, or empty: then the rank with the fewest
  // requests. INVALID_ARGUMENT when it names no rank.
  absl::StatusOr<EngineRank*> ChooseRank(std::string_view header) const;

  const EngineOptions& options() const { return options_; }
  std::size_t rank_count() const { return ranks_.size(); }
  EngineRank& rank(std::size_t r) const { return *ranks_[r]; }
  // Null when events are off.
  EventPublisher* publisher(std::size_t r) const {
    return publishers_.empty() ? nullptr : publishers_[r].get();
  }
  absl::Time start_time() const { return start_time_; }

 private:
  explicit Engine(const EngineOptions& options);
  absl::Status BindPublishers();
  absl::Status BindPublishersOnce();

  const EngineOptions options_;
  const absl::Time start_time_;
  // Destroyed from the last to the first: ranks use publishers, publishers use the context.
  zmq::context_t context_;
  std::vector<std::unique_ptr<EventPublisher>> publishers_;
  std::vector<std::unique_ptr<EngineRank>> ranks_;
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_ENGINE_H_
