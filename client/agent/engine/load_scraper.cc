#include "client/agent/engine/load_scraper.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"

namespace warmpath {

LoadScraper::LoadScraper(ScraperOptions options, HttpGetter* http, const Clock& clock)
    : options_(std::move(options)), http_(http), clock_(clock) {}

EngineReport LoadScraper::Round() {
  EngineReport report;
  report.status = Ask(&report);
  report.refused = absl::IsUnavailable(report.status);
  if (report.status.ok()) {
    failures_in_a_row_ = 0;
    reached_once_ = true;
  } else {
    ++failures_in_a_row_;
    ++failures_;
    // Whoever comes back may serve other models.
    models_due_ = absl::InfinitePast();
  }
  report.reachable = reached_once_ && failures_in_a_row_ < options_.unreachable_after;
  report.failures = failures_;
  report.models = models_;
  report.engine_version = version_;
  return report;
}

absl::Status LoadScraper::Ask(EngineReport* report) {
  report->asked = clock_.Now();
  WARMPATH_ASSIGN_OR_RETURN(const HttpReply health, http_->Get(options_.base_url + "/health"));
  if (health.status != 200 && health.status != 404) {
    return absl::InternalError(absl::StrCat(options_.base_url, "/health answered ", health.status));
  }
  report->asked = clock_.Now();
  WARMPATH_ASSIGN_OR_RETURN(const HttpReply metrics, http_->Get(options_.base_url + "/metrics"));
  if (metrics.status != 200) {
    return absl::InternalError(
        absl::StrCat(options_.base_url, "/metrics answered ", metrics.status));
  }
  report->metrics = ParseEngineMetrics(metrics.body);
  if (report->metrics.process_start && report->metrics.process_start != process_start_) {
    process_start_ = report->metrics.process_start;
    models_due_ = absl::InfinitePast();
  }
  if (report->asked >= models_due_) AskModels();
  return absl::OkStatus();
}

void LoadScraper::AskModels() {
  // Without an answer the older list stands; a missing one is asked for again next round.
  if (const auto reply = http_->Get(options_.base_url + "/v1/models");
      reply.ok() && reply->status == 200) {
    if (auto models = ParseServedModels(reply->body); models.ok()) {
      models_ = *std::move(models);
      models_due_ = clock_.Now() + options_.models_every;
    }
  }
  if (const auto reply = http_->Get(options_.base_url + "/version");
      reply.ok() && reply->status == 200) {
    version_ = ParseVersion(reply->body);
  }
}

}  // namespace warmpath
