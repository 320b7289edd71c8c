#include "client/replay/live_runner.h"

#include <algorithm>
#include <memory>
#include <queue>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/replay/completion_stream.h"
#include "client/replay/http_streams.h"
#include "client/replay/rpc_pool.h"
#include "core/base/clock.h"

namespace warmpath::replay {
namespace {

constexpr std::size_t kRpcThreads = 8;

// One request on its way. Touched by the run's thread only, but for `tokens` and `pick`, which
// the RPC task fills before it hands the request back.
struct Flight {
  std::size_t index = 0;
  absl::Time due;
  std::vector<TokenId> tokens;
  absl::StatusOr<client::PickResult> pick = absl::UnknownError("not picked yet");
  std::size_t attempt = 0;  // 0: the primary; n: fallbacks[n - 1]
  std::unique_ptr<CompletionReader> reader;
  bool first_token = false;
};

class LiveRun {
 public:
  LiveRun(const Workload& workload, client::Client* router, const LiveOptions& options,
          std::unique_ptr<HttpStreams> http)
      : workload_(workload),
        router_(router),
        options_(options),
        http_(std::move(http)),
        results_(workload.requests.size()),
        answers_(workload.requests.size()),
        dependents_(workload.requests.size()) {}

  std::vector<RequestResult> Run() {
    start_ = SystemClock().Now();
    for (std::size_t i = 0; i < workload_.requests.size(); ++i) {
      const ReplayRequest& request = workload_.requests[i];
      if (request.after == kNoRequest) {
        due_.push({start_ + absl::Seconds(request.arrival_s), i});
      } else {
        dependents_[static_cast<std::size_t>(request.after)].push_back(i);
      }
    }
    RpcPool pool(kRpcThreads);
    pool_ = &pool;
    absl::Time next_progress = start_;
    while (done_ < results_.size()) {
      const absl::Time now = SystemClock().Now();
      LaunchDue(now);
      TakePicked();
      if (options_.on_progress && now >= next_progress) {
        options_.on_progress(done_, errors_);
        next_progress = now + absl::Milliseconds(250);
      }
      absl::Duration wait = absl::Milliseconds(100);
      if (!due_.empty() && open_ < options_.max_open) {
        wait = std::min(wait, due_.top().at - SystemClock().Now());
      }
      http_->Poll(std::max(wait, absl::ZeroDuration()));
    }
    if (options_.on_progress) options_.on_progress(done_, errors_);
    return std::move(results_);
  }

 private:
  struct Due {
    absl::Time at;
    std::size_t index;
    bool operator<(const Due& other) const { return at > other.at; }  // earliest on top
  };

  void LaunchDue(absl::Time now) {
    while (!due_.empty() && due_.top().at <= now && open_ < options_.max_open) {
      auto flight = std::make_shared<Flight>();
      flight->index = due_.top().index;
      flight->due = due_.top().at;
      due_.pop();
      ++open_;
      const ReplayRequest& request = workload_.requests[flight->index];
      results_[flight->index].late_s = absl::ToDoubleSeconds(now - flight->due);
      flight->tokens = MaterialisePrompt(request, answers_);
      pool_->Run([this, flight] {
        flight->pick = router_->Pick(
            {.model = options_.model,
             .tokens = flight->tokens,
             .policy = options_.policy,
             .expected_output_tokens = workload_.requests[flight->index].output_tokens});
        {
          absl::MutexLock lock(&mu_);
          picked_.push_back(flight);
        }
        http_->Wake();
      });
    }
  }

  void TakePicked() {
    std::vector<std::shared_ptr<Flight>> picked;
    {
      absl::MutexLock lock(&mu_);
      picked.swap(picked_);
    }
    for (const std::shared_ptr<Flight>& flight : picked) {
      if (!flight->pick.ok()) {
        Complete(flight, absl::StrCat("pick: ", flight->pick.status().ToString()));
        continue;
      }
      RequestResult& result = results_[flight->index];
      result.prompt_tokens = flight->tokens.size();
      result.predicted_cached_tokens = flight->pick->predicted_cached_tokens;
      Send(flight);
    }
  }

  const client::PickedEndpoint& Endpoint(const Flight& flight) const {
    return flight.attempt == 0 ? flight.pick->endpoint : flight.pick->fallbacks[flight.attempt - 1];
  }

  void Send(const std::shared_ptr<Flight>& flight) {
    const client::PickedEndpoint& endpoint = Endpoint(*flight);
    flight->reader = std::make_unique<CompletionReader>();
    HttpPost post;
    post.url = absl::StrCat("http://", endpoint.address, "/v1/completions");
    post.headers = endpoint.headers;
    post.body = CompletionBody(options_.model, flight->tokens,
                               workload_.requests[flight->index].output_tokens);
    post.timeout = options_.request_timeout;
    post.on_bytes = [this, flight](std::string_view bytes) { return OnBytes(flight, bytes); };
    post.on_done = [this, flight](absl::Status status, bool connected) {
      OnDone(flight, std::move(status), connected);
    };
    http_->Start(std::move(post));
  }

  absl::Status OnBytes(const std::shared_ptr<Flight>& flight, std::string_view bytes) {
    absl::Status status = flight->reader->Feed(bytes);
    if (status.ok() && !flight->first_token && flight->reader->output_tokens() > 0) {
      flight->first_token = true;
      const absl::Duration ttft = SystemClock().Now() - flight->due;
      results_[flight->index].ttft_s = absl::ToDoubleSeconds(ttft);
      const double late = results_[flight->index].late_s;
      Report(flight,
             {.kind = client::OutcomeKind::kFirstToken, .ttft = ttft - absl::Seconds(late)});
    }
    return status;
  }

  void OnDone(const std::shared_ptr<Flight>& flight, absl::Status status, bool connected) {
    if (status.ok() && !flight->reader->done()) {
      status = absl::UnavailableError("the engine's answer ended early");
    }
    if (!status.ok() && !connected && flight->attempt < flight->pick->fallbacks.size()) {
      ++flight->attempt;
      Send(flight);
      return;
    }
    if (!status.ok()) {
      Report(flight, {.kind = client::OutcomeKind::kFailed});
      Complete(flight, status.ToString());
      return;
    }
    const CompletionReader& reader = *flight->reader;
    RequestResult& result = results_[flight->index];
    result.output_tokens = reader.output_tokens();
    result.actual_cached_tokens = reader.cached_tokens().value_or(0);
    result.total_s = absl::ToDoubleSeconds(SystemClock().Now() - flight->due);
    const client::PickedEndpoint& endpoint = Endpoint(*flight);
    result.worker = absl::StrCat(endpoint.worker_id, "/", endpoint.rank);
    result.fell_back = flight->attempt > 0;
    client::OutcomeArgs outcome{
        .kind = client::OutcomeKind::kFinished,
        .output_tokens = static_cast<std::uint32_t>(reader.output_tokens())};
    if (reader.cached_tokens().has_value()) {
      outcome.actual_cached_tokens = static_cast<std::uint32_t>(*reader.cached_tokens());
    }
    if (reader.prompt_tokens().has_value()) {
      outcome.actual_prompt_tokens = static_cast<std::uint32_t>(*reader.prompt_tokens());
    }
    Report(flight, outcome);
    answers_[flight->index] = reader.output();
    Complete(flight, "");
  }

  // Reports are best effort: a lost one is closed by the reservation's lease.
  void Report(const std::shared_ptr<Flight>& flight, client::OutcomeArgs outcome) {
    outcome.reservation_id = flight->pick->reservation_id;
    std::string served_by = flight->attempt > 0 ? Endpoint(*flight).address : "";
    pool_->Run([this, flight, outcome, served_by = std::move(served_by)]() mutable {
      outcome.served_by = served_by;
      router_->Report(outcome).IgnoreError();
    });
  }

  void Complete(const std::shared_ptr<Flight>& flight, std::string error) {
    RequestResult& result = results_[flight->index];
    result.finished = error.empty();
    errors_ += error.empty() ? 0 : 1;
    result.error = std::move(error);
    ++done_;
    --open_;
    const absl::Time now = SystemClock().Now();
    for (const std::size_t next : dependents_[flight->index]) {
      const absl::Time planned = start_ + absl::Seconds(workload_.requests[next].arrival_s);
      due_.push({std::max(planned, now + absl::Seconds(options_.min_think_s)), next});
    }
  }

  const Workload& workload_;
  client::Client* const router_;
  const LiveOptions& options_;
  const std::unique_ptr<HttpStreams> http_;
  RpcPool* pool_ = nullptr;  // outlives every task; set by Run

  absl::Time start_;
  std::priority_queue<Due> due_;
  std::vector<RequestResult> results_;
  std::vector<std::vector<TokenId>> answers_;
  std::vector<std::vector<std::size_t>> dependents_;
  std::size_t open_ = 0;
  std::size_t done_ = 0;
  std::size_t errors_ = 0;

  absl::Mutex mu_;
  std::vector<std::shared_ptr<Flight>> picked_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::vector<RequestResult>> RunLive(const Workload& workload, client::Client* router,
                                                   const LiveOptions& options) {
  auto http = HttpStreams::Create();
  if (!http.ok()) return http.status();
  return LiveRun(workload, router, options, *std::move(http)).Run();
}

}  // namespace warmpath::replay
