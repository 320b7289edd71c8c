// Asks one engine over HTTP whether it lives, what it serves and how busy it is.
#ifndef WARMPATH_CLIENT_AGENT_ENGINE_LOAD_SCRAPER_H_
#define WARMPATH_CLIENT_AGENT_ENGINE_LOAD_SCRAPER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/agent/engine/engine_metrics.h"
#include "client/agent/engine/http_get.h"
#include "core/base/clock.h"

namespace warmpath {

// The outcome of one round of questions.
struct EngineReport {
  absl::Time asked;            // steady time when /metrics was asked
  absl::Status status;         // why this round failed; OK when it did not
  bool refused = false;        // nobody listens
  bool reachable = false;      // the verdict, this round included
  std::uint64_t failures = 0;  // rounds failed, since the start
  EngineMetrics metrics;       // of this round; empty when it failed
  // The latest known; absent until they were read once.
  std::optional<ServedModels> models;
  std::string engine_version;
};

struct ScraperOptions {
  std::string base_url;  // "http://127.0.0.1:8000"
  // Rounds that must fail in a row before the engine counts as unreachable.
  int unreachable_after = 3;
  // How often the model list is read again (LoRA adapters come and go).
  absl::Duration models_every = absl::Seconds(30);
};

// Not thread-safe: one owner thread, which decides when a round is due.
class LoadScraper {
 public:
  // `http` and `clock` must outlive this.
  LoadScraper(ScraperOptions options, HttpGetter* http, const Clock& clock);

  // GET /health, /metrics and, when due, /v1/models and /version. Blocks for as long as the
  // getter does. An engine without /health (404) is judged by /metrics alone; a model list that
  // can not be had fails no round.
  EngineReport Round();

 private:
  absl::Status Ask(EngineReport* report);
  void AskModels();

  const ScraperOptions options_;
  HttpGetter* const http_;
  const Clock& clock_;
  int failures_in_a_row_ = 0;
  bool reached_once_ = false;
  std::uint64_t failures_ = 0;
  absl::Time models_due_ = absl::InfinitePast();
  std::optional<double> process_start_;
  std::optional<ServedModels> models_;
  std::string version_;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_ENGINE_LOAD_SCRAPER_H_
