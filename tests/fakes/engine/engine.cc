#include "tests/fakes/engine/engine.h"

#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/strings.h"

namespace warmpath::engine {
namespace {

constexpr std::uint32_t kMaxRanks = 64;
// How often a run of consecutive free ports is looked for.
constexpr int kPortAttempts = 50;

absl::StatusOr<int> PortOf(std::string_view endpoint) {
  const std::size_t colon = endpoint.rfind(':');
  int port = 0;
  if (!endpoint.starts_with("tcp://") || colon < 6 ||
      !absl::SimpleAtoi(ToAbsl(endpoint.substr(colon + 1)), &port) || port < 0 || port > 65'535) {
    return absl::InvalidArgumentError(
        absl::StrCat("endpoint \"", ToAbsl(endpoint), "\": must be tcp://HOST:PORT"));
  }
  return port;
}

// vLLM's rule for data parallel ranks. REQUIRES: PortOf(endpoint) is OK.
std::string EndpointOfRank(std::string_view endpoint, std::size_t rank) {
  if (endpoint.empty()) return "";
  const std::size_t port = static_cast<std::size_t>(*PortOf(endpoint)) + rank;
  return absl::StrCat(ToAbsl(endpoint.substr(0, endpoint.rfind(':') + 1)), port);
}

}  // namespace

absl::Status ValidateEngineOptions(const EngineOptions& options) {
  WARMPATH_RETURN_IF_ERROR(ValidateEngineModelOptions(options.rank.model));
  const auto require = [](bool condition, std::string_view message) {
    return condition ? absl::OkStatus() : absl::InvalidArgumentError(ToAbsl(message));
  };
  WARMPATH_RETURN_IF_ERROR(
      require(options.ranks >= 1 && options.ranks <= kMaxRanks, "ranks: must be from 1 to 64"));
  WARMPATH_RETURN_IF_ERROR(
      require(options.port >= 0 && options.port <= 65'535, "port: must be from 0 to 65535"));
  WARMPATH_RETURN_IF_ERROR(
      require(options.rank.speed_factor > 0 && options.rank.speed_factor <= 1e6,
              "speed_factor: must be above 0 and at most 1000000"));
  WARMPATH_RETURN_IF_ERROR(require(options.http_threads >= 1 && options.http_threads <= 4'096,
                                   "http_threads: must be from 1 to 4096"));
  WARMPATH_RETURN_IF_ERROR(require(options.events.drop_rate >= 0 && options.events.drop_rate <= 1,
                                   "drop_rate: must be from 0 to 1"));
  WARMPATH_RETURN_IF_ERROR(
      require(options.events.buffer_steps >= 1, "replay_buffer_steps: must be at least 1"));
  WARMPATH_RETURN_IF_ERROR(
      require(options.events.replay_hwm >= 0, "replay_hwm: must be at least 0"));
  WARMPATH_RETURN_IF_ERROR(require(!options.models.base.empty(), "model: must not be empty"));
  for (const std::string& endpoint : {options.events.endpoint, options.events.replay_endpoint}) {
    if (!endpoint.empty()) WARMPATH_RETURN_IF_ERROR(PortOf(endpoint).status());
  }
  return require(!options.events.endpoint.empty() || options.events.replay_endpoint.empty(),
                 "replay_endpoint: needs events_endpoint");
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  WARMPATH_RETURN_IF_ERROR(ValidateEngineOptions(options));
  std::unique_ptr<Engine> engine(new Engine(options));
  WARMPATH_RETURN_IF_ERROR(engine->BindPublishers());
  Random seeds(options.rank.hash_seed);
  for (std::uint32_t r = 0; r < options.ranks; ++r) {
    RankOptions rank = options.rank;
    rank.rank = r;
    rank.hash_seed = seeds();
    engine->ranks_.push_back(std::make_unique<EngineRank>(rank, engine->publisher(r)));
  }
  return engine;
}

Engine::Engine(const EngineOptions& options)
    : options_(options), start_time_(SystemClock().WallNow()) {}

absl::Status Engine::BindPublishers() {
  if (options_.events.endpoint.empty()) return absl::OkStatus();
  // With port 0 and several ranks the first port is any free one, and the next ones may be taken.
  absl::Status status;
  for (int attempt = 0; attempt < kPortAttempts; ++attempt) {
    status = BindPublishersOnce();
    if (status.ok()) return status;
    publishers_.clear();
    const bool any_port =
        options_.events.endpoint.ends_with(":0") || options_.events.replay_endpoint.ends_with(":0");
    if (!any_port) return status;
  }
  return status;
}

absl::Status Engine::BindPublishersOnce() {
  PublisherOptions base = options_.events;
  for (std::uint32_t r = 0; r < options_.ranks; ++r) {
    PublisherOptions events = base;
    events.endpoint = EndpointOfRank(base.endpoint, r);
    events.replay_endpoint = EndpointOfRank(base.replay_endpoint, r);
    events.drop_seed = base.drop_seed + r;
    auto publisher = EventPublisher::Create(&context_, events);
    if (!publisher.ok()) return publisher.status();
    if (r == 0) {
      // Later ranks count from the ports that rank 0 really got.
      base.endpoint = (*publisher)->endpoint();
      base.replay_endpoint = (*publisher)->replay_endpoint();
    }
    publishers_.push_back(*std::move(publisher));
  }
  return absl::OkStatus();
}

absl::StatusOr<EngineRank*> Engine::ChooseRank(std::string_view header) const {
  if (!header.empty()) {
    std::uint32_t r = 0;
    if (!absl::SimpleAtoi(ToAbsl(header), &r) || r >= ranks_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("X-data-parallel-rank: must be an integer from 0 to ", ranks_.size() - 1));
    }
    return ranks_[r].get();
  }
  if (ranks_.size() == 1) return ranks_[0].get();
  EngineRank* best = nullptr;
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (const auto& rank : ranks_) {
    const RankStats stats = rank->Stats();
    if (stats.running + stats.waiting < fewest) {
      fewest = stats.running + stats.waiting;
      best = rank.get();
    }
  }
  return best;
}

}  // namespace warmpath::engine
