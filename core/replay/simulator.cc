#include "core/replay/simulator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <span>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/replay/sim_clock.h"
#include "core/replay/sim_router.h"

namespace warmpath {
namespace {

using Nanos = std::int64_t;

constexpr Nanos kTickEvery = 20'000'000;
constexpr std::size_t kHeadTokens = 1'024;
constexpr std::size_t kSampleCount = 500;
constexpr std::size_t kProgressEvery = 64;

Nanos ToNanos(double seconds) { return static_cast<Nanos>(std::llround(seconds * 1e9)); }
double ToSeconds(Nanos nanos) { return static_cast<double>(nanos) * 1e-9; }

enum class Kind : std::uint8_t {
  kArrival,     // of request `index`
  kStepEnd,     // of engine `index`
  kCacheNews,   // the oldest batch of engine `index` becomes visible
  kFirstToken,  // of request `index`, as the router hears of it
  kFinish,
  kReport,      // engine `index` looks at its load
  kReportNews,  // its oldest report reaches the router
  kTick,
  kSample,
};

struct Event {
  Nanos at = 0;
  std::uint64_t order = 0;  // events of one moment run in the order in which they were made
  Kind kind = Kind::kArrival;
  std::uint32_t index = 0;
};
struct Later {
  bool operator()(const Event& a, const Event& b) const {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }
};

EngineProfile Faster(EngineProfile profile, double speed) {
  profile.step_base_s /= speed;
  profile.prefill_tokens_per_s *= speed;
  profile.decode_s /= speed;
  profile.context_token_s /= speed;
  return profile;
}

absl::Status CheckOptions(const SimOptions& o) {
  const auto invalid = [](std::string_view field, std::string_view must) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": must be ", ToAbsl(must)));
  };
  if (o.workers == 0 || o.workers > 10'000) return invalid("workers", "1 to 10000");
  if (o.block_size == 0) return invalid("block_size", "at least 1 token");
  if (o.speeds.empty()) return invalid("speeds", "at least one number");
  for (const double speed : o.speeds) {
    if (!(speed >= 0.001 && speed <= 1'000)) return invalid("speeds", "0.001 to 1000 each");
  }
  if (!(o.event_loss >= 0 && o.event_loss <= 1)) return invalid("event_loss", "0 to 1");
  const std::pair<std::string_view, double> lags[] = {{"event_lag_s", o.event_lag_s},
                                                      {"report_lag_s", o.report_lag_s},
                                                      {"signal_lag_s", o.signal_lag_s}};
  for (const auto& [field, seconds] : lags) {
    if (!(seconds >= 0 && seconds <= 3'600)) return invalid(field, "0 to 3600 s");
  }
  if (!(o.report_interval_s >= 0.001 && o.report_interval_s <= 3'600)) {
    return invalid("report_interval_s", "0.001 to 3600 s");
  }
  if (!(o.hint_factor >= 0 && o.hint_factor <= 1'000)) return invalid("hint_factor", "0 to 1000");
  if (o.host_kv_tokens > 0) {
    if (o.host_kv_tokens < o.block_size || o.host_kv_tokens > 1'000'000'000'000) {
      return invalid("host_kv_tokens", "0, or one block to 1e12 tokens");
    }
    if (!(o.host_copy_tokens_per_s >= 1 && o.host_copy_tokens_per_s <= 1e9)) {
      return invalid("host_copy_tokens_per_s", "1 to 1e9");
    }
    if (!(o.copy_hint_factor >= 0 && o.copy_hint_factor <= 1'000)) {
      return invalid("copy_hint_factor", "0 to 1000");
    }
  }
  return absl::OkStatus();
}

class Simulation {
 public:
  Simulation(const Workload& workload, const SimOptions& options)
      : workload_(workload),
        o_(options),
        bound_(options.policy == kBoundPolicy),
        loss_random_(options.seed + 0x10551055u) {}

  absl::StatusOr<SimResult> Run() {
    WARMPATH_RETURN_IF_ERROR(Prepare());
    while (done_ < requests_.size()) {
      const Event event = queue_.top();
      queue_.pop();
      now_ = event.at;
      clock_.SetNanoseconds(now_);
      WARMPATH_RETURN_IF_ERROR(Handle(event));
    }
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      result_.prefill_rates.push_back(router_->PrefillRate(i));
    }
    if (o_.on_progress) o_.on_progress(done_);
    return std::move(result_);
  }

 private:
  struct Request {
    std::vector<BlockKey> keys;            // of prompt and answer
    std::size_t prompt_blocks = 0;         // full ones
    std::vector<std::uint32_t> followers;  // wait for its end
    std::uint64_t session = 0;
    bool follow_up = false;
    SimRouter::Placement placement;
    Nanos due = 0;
    Nanos first_token = 0;
  };
  struct CacheNews {
    std::vector<ChainHash> removed;
    std::vector<ChainHash> stored;
    std::vector<ChainHash> host_removed;
    std::vector<ChainHash> host_stored;
  };
  struct Report {
    std::uint32_t running = 0;
    std::uint32_t waiting = 0;
    double kv_usage = 0;
  };
  struct Engine {
    std::unique_ptr<EngineModel> model;
    const StepResult* step = nullptr;  // under way; null when idle
    std::deque<CacheNews> news;
    std::deque<Report> reports;
  };

  absl::Status Prepare() {
    WARMPATH_RETURN_IF_ERROR(PrepareEngines());
    PrepareRequests();
    const Nanos interval = ToNanos(o_.report_interval_s);
    for (std::uint32_t i = 0; i < engines_.size(); ++i) {
      // Agents do not report in step.
      const Nanos phase = interval * (i + 1) / static_cast<Nanos>(engines_.size());
      At(phase, Kind::kReport, i);
    }
    At(kTickEvery, Kind::kTick, 0);
    sample_every_ = std::max<Nanos>(
        kTickEvery, ToNanos(workload_.duration_s) / static_cast<Nanos>(kSampleCount));
    At(sample_every_, Kind::kSample, 0);
    return absl::OkStatus();
  }

  absl::Status PrepareEngines() {
    SimRouterOptions router{.policy = bound_ ? "marginal_cost" : o_.policy,
                            .block_size = o_.block_size,
                            .overlay = o_.overlay,
                            .tenant_fairness = o_.tenant_fairness,
                            .competitors_see_host = o_.competitors_see_host,
                            .no_holes = o_.event_loss == 0,
                            .seed = o_.seed};
    for (std::uint32_t i = 0; i < o_.workers; ++i) {
      EngineModelOptions engine;
      const double speed = o_.speeds[i % o_.speeds.size()];
      engine.profile = Faster(o_.profile, speed);
      engine.block_size = o_.block_size;
      engine.host_blocks = o_.host_kv_tokens / o_.block_size;
      engine.host_copy_tokens_per_s = o_.host_copy_tokens_per_s * speed;
      WARMPATH_RETURN_IF_ERROR(ValidateEngineModelOptions(engine));
      Engine& added = engines_.emplace_back();
      added.model = std::make_unique<EngineModel>(engine);
      router.workers.push_back(
          {.kv_capacity_tokens = added.model->CapacityTokens(),
           .prefill_tokens_per_s = engine.profile.prefill_tokens_per_s * o_.hint_factor,
           .host_copy_tokens_per_s = engine.host_copy_tokens_per_s * o_.copy_hint_factor});
    }
    WARMPATH_ASSIGN_OR_RETURN(router_, SimRouter::Create(router, &clock_));
    return absl::OkStatus();
  }

  void PrepareRequests() {
    requests_.resize(workload_.requests.size());
    result_.requests.resize(requests_.size());
    for (std::uint32_t i = 0; i < requests_.size(); ++i) {
      const ReplayRequest& from = workload_.requests[i];
      Request& request = requests_[i];
      request.keys = BlockKeys(from, o_.block_size);
      const std::uint64_t prompt = from.PromptTokens();
      request.prompt_blocks = prompt / o_.block_size;
      request.session = i;
      const std::int32_t before = from.after != kNoRequest ? from.after : from.previous_turn;
      if (before != kNoRequest) {
        request.session = requests_[static_cast<std::size_t>(before)].session;
        request.follow_up = true;
      }
      result_.requests[i].prompt_tokens = prompt;
      result_.requests[i].output_tokens = from.output_tokens;
      result_.requests[i].tenant = from.tenant;
      if (from.after == kNoRequest) {
        At(ToNanos(from.arrival_s), Kind::kArrival, i);
      } else {
        requests_[static_cast<std::size_t>(from.after)].followers.push_back(i);
      }
    }
  }

  void At(Nanos at, Kind kind, std::uint32_t index) {
    queue_.push({.at = at, .order = next_order_++, .kind = kind, .index = index});
  }
  void After(double seconds, Kind kind, std::uint32_t index) {
    At(now_ + ToNanos(seconds), kind, index);
  }

  absl::Status Handle(const Event& event) {
    switch (event.kind) {
      case Kind::kArrival:
        return Arrive(event.index);
      case Kind::kStepEnd:
        return EndStep(event.index);
      case Kind::kCacheNews:
        return ShowNews(event.index);
      case Kind::kFirstToken:
        return router_->FirstToken(requests_[event.index].placement,
                                   result_.requests[event.index].ttft_s);
      case Kind::kFinish:
        return Finish(event.index);
      case Kind::kReport:
        LookAtLoad(event.index);
        return absl::OkStatus();
      case Kind::kReportNews:
        return ShowReport(event.index);
      case Kind::kTick:
        router_->Tick();
        At(now_ + kTickEvery, Kind::kTick, 0);
        return absl::OkStatus();
      case Kind::kSample:
        Sample();
        At(now_ + sample_every_, Kind::kSample, 0);
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  SimPrompt PromptOf(std::uint32_t index) const {
    const Request& request = requests_[index];
    return SimPrompt{.chain = std::span(request.keys).first(request.prompt_blocks),
                     .prompt_tokens = result_.requests[index].prompt_tokens,
                     .head = {},
                     .session = request.session,
                     .follow_up = request.follow_up,
                     .tenant = result_.requests[index].tenant};
  }

  // What the shared cache of the bound holds of the prompt, at most all but one token.
  std::uint32_t BoundHit(std::uint32_t index) const {
    const Request& request = requests_[index];
    const std::uint64_t prompt = result_.requests[index].prompt_tokens;
    const std::size_t most = (prompt - 1) / o_.block_size;
    std::size_t hit = 0;
    while (hit < most && shared_.contains(request.keys[hit])) ++hit;
    return static_cast<std::uint32_t>(hit * o_.block_size);
  }

  absl::Status Arrive(std::uint32_t index) {
    Request& request = requests_[index];
    SimRequestResult& out = result_.requests[index];
    request.due = now_;
    out.due_s = ToSeconds(now_);
    SimPrompt prompt = PromptOf(index);
    std::vector<TokenId> head;
    if (o_.policy == "prefix_aware") {
      head = Head(workload_.requests[index]);
      prompt.head = head;
    }
    EngineRequest engine_request{.id = index,
                                 .prompt_tokens = static_cast<std::uint32_t>(out.prompt_tokens),
                                 .output_tokens = static_cast<std::uint32_t>(out.output_tokens),
                                 .keys = request.keys};
    if (bound_) {
      engine_request.given_tokens = BoundHit(index);
      // Nobody differs in what it holds: the router sees the work alone.
      prompt.chain = {};
      prompt.prompt_tokens -= engine_request.given_tokens;
    }
    ++result_.picks;
    const auto placement = router_->Pick(prompt, ToSeconds(now_));
    if (absl::IsResourceExhausted(placement.status())) {
      out.refused = true;
      CountDone(index);
      return absl::OkStatus();
    }
    if (!placement.ok()) return placement.status();
    request.placement = *placement;
    out.worker = static_cast<std::uint32_t>(placement->worker);
    out.predicted_tokens = placement->predicted_cached_tokens + engine_request.given_tokens;
    Engine& engine = engines_[placement->worker];
    WARMPATH_RETURN_IF_ERROR(engine.model->Add(std::move(engine_request)));
    if (engine.step == nullptr) StartStep(out.worker);
    return absl::OkStatus();
  }

  static std::vector<TokenId> Head(const ReplayRequest& request) {
    std::vector<TokenId> tokens;
    for (const PromptSegment& segment : request.prompt) {
      for (std::uint32_t i = 0; i < segment.tokens && tokens.size() < kHeadTokens; ++i) {
        tokens.push_back(ContentToken(segment.content, i));
      }
    }
    return tokens;
  }

  void StartStep(std::uint32_t index) {
    Engine& engine = engines_[index];
    engine.step = nullptr;
    if (engine.model->idle()) return;
    engine.step = &engine.model->Step();
    ++result_.steps;
    for (const StepResult::Admission& admission : engine.step->admitted) {
      result_.requests[admission.id].cached_tokens = admission.cached_tokens;
      result_.requests[admission.id].copied_tokens = admission.copied_tokens;
    }
    After(engine.step->seconds, Kind::kStepEnd, index);
  }

  absl::Status EndStep(std::uint32_t index) {
    engines_[index].model->EndStep();
    const StepResult& step = *engines_[index].step;
    for (const std::uint64_t id : step.first_token) {
      Request& request = requests_[id];
      request.first_token = now_;
      result_.requests[id].ttft_s = ToSeconds(now_ - request.due);
      After(o_.signal_lag_s, Kind::kFirstToken, static_cast<std::uint32_t>(id));
    }
    for (const std::uint64_t id : step.finished) {
      SimRequestResult& out = result_.requests[id];
      if (out.output_tokens > 1) {
        out.tpot_s = ToSeconds(now_ - requests_[id].first_token) /
                     static_cast<double>(out.output_tokens - 1);
      }
      After(o_.signal_lag_s, Kind::kFinish, static_cast<std::uint32_t>(id));
      Release(static_cast<std::uint32_t>(id));
    }
    SendNews(index, step);
    StartStep(index);
    return absl::OkStatus();
  }

  // Requests that had to wait for the end of this one.
  void Release(std::uint32_t index) {
    for (const std::uint32_t follower : requests_[index].followers) {
      At(std::max(now_, ToNanos(workload_.requests[follower].arrival_s)), Kind::kArrival, follower);
    }
  }

  void SendNews(std::uint32_t index, const StepResult& step) {
    if (step.events.empty()) return;
    CacheNews news;
    for (const CacheEvent& event : step.events) {
      if (event.kind == CacheEvent::Kind::kEvicted) {
        if (event.copies_left == 0) news.removed.push_back(event.key);
        continue;
      }
      if (event.kind != CacheEvent::Kind::kStored) {
        // The last word of a step on a block counts: one message removes before it stores.
        host_last_[event.key] = event.kind == CacheEvent::Kind::kHostStored;
        continue;
      }
      const std::vector<BlockKey>& keys = requests_[event.request_id].keys;
      const auto first = keys.begin() + static_cast<std::ptrdiff_t>(event.first_block);
      news.stored.insert(news.stored.end(), first,
                         first + static_cast<std::ptrdiff_t>(event.block_count));
    }
    for (const auto& [key, stored] : host_last_) {
      (stored ? news.host_stored : news.host_removed).push_back(key);
    }
    host_last_.clear();
    if (bound_) shared_.insert(news.stored.begin(), news.stored.end());
    if (o_.event_loss > 0 && loss_random_.Unit() < o_.event_loss) return;
    engines_[index].news.push_back(std::move(news));
    After(o_.event_lag_s, Kind::kCacheNews, index);
  }

  absl::Status ShowNews(std::uint32_t index) {
    const CacheNews news = std::move(engines_[index].news.front());
    engines_[index].news.pop_front();
    WARMPATH_RETURN_IF_ERROR(
        router_->CacheDelta(index, Tier::kHost, news.host_removed, news.host_stored));
    return router_->CacheDelta(index, Tier::kGpu, news.removed, news.stored);
  }

  absl::Status Finish(std::uint32_t index) {
    const SimRequestResult& out = result_.requests[index];
    SimPrompt prompt = PromptOf(index);
    std::uint64_t cached = out.cached_tokens;
    if (bound_) {
      prompt.chain = {};
      prompt.prompt_tokens = requests_[index].placement.uncached_tokens;
      cached = 0;
    }
    const double decode_s = out.tpot_s * static_cast<double>(out.output_tokens - 1);
    WARMPATH_RETURN_IF_ERROR(
        router_->Finished(requests_[index].placement, prompt, cached, out.output_tokens, decode_s));
    CountDone(index);
    return absl::OkStatus();
  }

  void CountDone(std::uint32_t index) {
    // A refused request ends here; a finished one has let its followers go already.
    if (result_.requests[index].refused) Release(index);
    ++done_;
    requests_[index].keys = std::vector<BlockKey>();
    if (o_.on_progress && done_ % kProgressEvery == 0) o_.on_progress(done_);
  }

  void LookAtLoad(std::uint32_t index) {
    Engine& engine = engines_[index];
    const BlockCache& cache = engine.model->cache();
    engine.reports.push_back({.running = static_cast<std::uint32_t>(engine.model->running()),
                              .waiting = static_cast<std::uint32_t>(engine.model->waiting()),
                              .kv_usage = static_cast<double>(cache.pinned_blocks()) /
                                          static_cast<double>(cache.capacity())});
    After(o_.report_lag_s, Kind::kReportNews, index);
    After(o_.report_interval_s, Kind::kReport, index);
  }

  absl::Status ShowReport(std::uint32_t index) {
    const Report report = engines_[index].reports.front();
    engines_[index].reports.pop_front();
    return router_->Load(index, report.running, report.waiting, report.kv_usage,
                         absl::Nanoseconds(ToNanos(o_.report_lag_s)));
  }

  void Sample() {
    SimSample sample{.time_s = ToSeconds(now_)};
    for (const Engine& engine : engines_) {
      const auto running = static_cast<std::uint32_t>(engine.model->running());
      const auto waiting = static_cast<std::uint32_t>(engine.model->waiting());
      sample.running += running;
      sample.waiting += waiting;
      sample.busiest = std::max(sample.busiest, running + waiting);
    }
    result_.samples.push_back(sample);
  }

  const Workload& workload_;
  const SimOptions& o_;
  const bool bound_;
  SimClock clock_;
  Nanos now_ = 0;
  std::priority_queue<Event, std::vector<Event>, Later> queue_;
  std::uint64_t next_order_ = 0;
  std::unique_ptr<SimRouter> router_;
  std::vector<Engine> engines_;
  std::vector<Request> requests_;
  absl::flat_hash_set<BlockKey> shared_;  // of the bound
  Random loss_random_;
  std::map<BlockKey, bool> host_last_;  // reused: of one step's blocks in host memory, held at last
  Nanos sample_every_ = 0;
  std::size_t done_ = 0;
  SimResult result_;
};

}  // namespace

absl::StatusOr<SimResult> Simulate(const Workload& workload, const SimOptions& options) {
  WARMPATH_RETURN_IF_ERROR(CheckOptions(options));
  return Simulation(workload, options).Run();
}

}  // namespace warmpath
