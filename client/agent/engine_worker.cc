#include "client/agent/engine_worker.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

// How long the engine thread sleeps at most: feeds and publishers want to be ticked this often.
constexpr int kTickMs = 100;
// Messages per rank and turn, so that one rank's flood does not keep the others waiting.
constexpr std::size_t kMessagesPerTurn = 512;

std::uint32_t ReadRoutingBlock(const std::string& path) {
  std::ifstream file(path);
  std::uint32_t block = 0;
  return file >> block && block <= 65536 ? block : 0;
}

// The first line of the file: editors and secret mounts like to end it.
absl::StatusOr<std::string> ReadApiKey(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path);
  std::string key;
  if (!std::getline(file, key) || key.empty()) {
    return absl::NotFoundError(absl::StrCat("api_key_file: can not read a key from \"", path,
                                            "\"; put it on the first line"));
  }
  return key;
}

absl::Status WriteRoutingBlock(const std::string& path, std::uint32_t block) {
  const std::string next = path + ".new";
  const std::string text = absl::StrCat(block, "\n");
  const int fd = open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  const bool written =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) close(fd);
  if (!written || std::rename(next.c_str(), path.c_str()) != 0) {
    return absl::UnavailableError(absl::StrCat("state_file: can not write ", path));
  }
  return absl::OkStatus();
}

}  // namespace

// Hands one rank's messages to its feed.
class EngineWorker::RankSink final : public ZmqSourceSink {
 public:
  explicit RankSink(RankState* state) : state_(state) {}
  void OnMessage(std::uint64_t seq, std::string payload) override {
    state_->feed->OnMessage(seq, std::move(payload));
  }
  void OnReplayMessage(std::uint64_t attempt, std::uint64_t seq,
                       std::string_view payload) override {
    state_->feed->OnReplayMessage(attempt, seq, payload);
  }
  void OnReplayEnd(std::uint64_t attempt) override { state_->feed->OnReplayEnd(attempt); }
  void OnConnected() override {
    state_->linked = true;
    state_->was_linked = true;
    state_->feed->OnConnected();
  }
  void OnDisconnected() override {
    state_->linked = false;
    lost_link_ = true;
    state_->feed->OnDisconnected();
  }
  bool lost_link() const { return lost_link_; }

 private:
  RankState* const state_;
  bool lost_link_ = false;
};

absl::StatusOr<std::unique_ptr<EngineWorker>> EngineWorker::Create(
    const EngineConfig& config, const std::vector<Router>& routers, const ZmqContext& zmq,
    const Clock& clock, std::uint64_t random_seed, std::unique_ptr<HttpGetter> http) {
  std::unique_ptr<EngineWorker> worker(new EngineWorker(config, clock));
  Random random(random_seed);
  if (http == nullptr) {
    HttpOptions options;
    WARMPATH_ASSIGN_OR_RETURN(options.bearer_token, ReadApiKey(config.api_key_file));
    http = MakeCurlGetter(options);
  }
  worker->http_ = std::move(http);
  worker->scraper_ = std::make_unique<LoadScraper>(ScraperOptions{.base_url = config.http},
                                                   worker->http_.get(), clock);
  worker->wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (worker->wake_fd_ < 0) return absl::ResourceExhaustedError("no eventfd");
  worker->routing_block_ = config.routing_block;
  if (config.state_file.empty()) {
    for (std::uint8_t& byte : worker->instance_) byte = static_cast<std::uint8_t>(random());
  } else {
    auto instance = LoadOrCreateAgentInstance(worker->StatePath("id"), random);
    if (!instance.ok()) return instance.status();
    worker->instance_ = *instance;
    if (worker->routing_block_ == 0) {
      worker->routing_block_ = ReadRoutingBlock(worker->StatePath("block"));
    }
  }
  worker->ranks_.resize(config.ranks);
  for (Rank rank = 0; rank < config.ranks && config.has_events(); ++rank) {
    ZmqSourceOptions options;
    auto events = EndpointOfRank(config.events, rank);
    if (!events.ok()) return events.status();
    options.events = *events;
    if (!config.replay.empty()) {
      auto replay = EndpointOfRank(config.replay, rank);
      if (!replay.ok()) return replay.status();
      options.replay = *replay;
    }
    options.topic = config.topic;
    options.high_water_mark = static_cast<int>(config.event_queue);
    auto source = ZmqSource::Open(zmq, options);
    if (!source.ok()) return source.status();
    worker->ranks_[rank].source = *std::move(source);
  }
  for (const Router& router : routers) {
    PublisherOptions options;
    options.router = router.address;
    options.worker = config.worker_id;
    options.session.max_pending = config.max_pending;
    worker->publishers_.push_back(std::make_unique<Publisher>(
        std::move(options), router.channel, clock, random(), [w = worker.get()] { w->Wake(); }));
  }
  return worker;
}

EngineWorker::EngineWorker(const EngineConfig& config, const Clock& clock)
    : config_(config),
      clock_(clock),
      log_waiting_(absl::Seconds(10)),
      log_journal_(absl::Seconds(60)) {}

EngineWorker::~EngineWorker() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  Wake();
  if (engine_thread_.joinable()) engine_thread_.join();
  if (scrape_thread_.joinable()) scrape_thread_.join();
  publishers_.clear();
  if (wake_fd_ >= 0) close(wake_fd_);
}

void EngineWorker::Start() {
  engine_thread_ = std::thread([this] { Run(); });
  scrape_thread_ = std::thread([this] { Scrape(); });
}

std::string EngineWorker::StatePath(std::string_view suffix) const {
  return absl::StrCat(config_.state_file, ".", ToAbsl(suffix));
}

void EngineWorker::Wake() {
  const std::uint64_t one = 1;
  // Full means that a wake-up is pending already.
  (void)!write(wake_fd_, &one, sizeof one);
}

// ---- Scrape thread.

void EngineWorker::Scrape() {
  const absl::Duration interval = absl::Milliseconds(config_.scrape_interval_ms);
  while (true) {
    EngineReport report = scraper_->Round();
    {
      absl::MutexLock lock(&mu_);
      new_report_ = std::move(report);
    }
    Wake();
    absl::MutexLock lock(&mu_);
    mu_.AwaitWithTimeout(absl::Condition(
                             +[](EngineWorker* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mu_) {
                               return self->stop_ || self->scrape_soon_;
                             },
                             this),
                         interval);
    if (stop_) return;
    scrape_soon_ = false;
  }
}

void EngineWorker::ScrapeSoon() {
  absl::MutexLock lock(&mu_);
  scrape_soon_ = true;
}

// ---- Engine thread.

void EngineWorker::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return;
    }
    RunOnce();
  }
}

void EngineWorker::RunOnce() {
  std::optional<EngineReport> report;
  {
    absl::MutexLock lock(&mu_);
    report = std::exchange(new_report_, std::nullopt);
  }
  if (report) OnReport(*report);
  HandlePublishers();
  const bool busy = PollSources();
  TickAll();
  RefreshView();
  WaitForWork(busy);
}

int EngineWorker::IdleMs() const {
  absl::Time due = absl::InfiniteFuture();
  for (const auto& publisher : publishers_) due = std::min(due, publisher->TickDue());
  const absl::Duration left =
      std::clamp(due - clock_.Now(), absl::ZeroDuration(), absl::Milliseconds(kTickMs - 1));
  return static_cast<int>(absl::ToInt64Milliseconds(left)) + 1;
}

void EngineWorker::WaitForWork(bool busy) {
  std::vector<void*> sockets;
  for (const RankState& rank : ranks_) {
    // Without a feed the messages wait in the socket, which bounds them.
    if (rank.source != nullptr && rank.feed != nullptr) rank.source->AppendSockets(&sockets);
  }
  std::vector<zmq_pollitem_t> items;
  items.push_back({.socket = nullptr, .fd = wake_fd_, .events = ZMQ_POLLIN, .revents = 0});
  for (void* socket : sockets) {
    items.push_back({.socket = socket, .fd = 0, .events = ZMQ_POLLIN, .revents = 0});
  }
  zmq_poll(items.data(), static_cast<int>(items.size()), busy ? 0 : IdleMs());
  std::uint64_t count = 0;
  (void)!read(wake_fd_, &count, sizeof count);
}

bool EngineWorker::PollSources() {
  bool busy = false;
  for (RankState& rank : ranks_) {
    if (rank.source == nullptr || rank.feed == nullptr) continue;
    RankSink sink(&rank);
    busy = rank.source->Poll(&sink, kMessagesPerTurn) || busy;
    // Ask at once whether the engine is gone or only its connection.
    if (sink.lost_link()) ScrapeSoon();
  }
  return busy;
}

void EngineWorker::TickAll() {
  for (Rank rank = 0; rank < config_.ranks; ++rank) {
    RankState& state = ranks_[rank];
    if (state.feed != nullptr) state.feed->Tick();
    PublishVerdict(rank, state.feed != nullptr ? state.feed->causes() : FeedCauses());
  }
  for (const auto& publisher : publishers_) publisher->Tick();
}

bool EngineWorker::EngineReachable() const {
  if (!report_.reachable) return false;
  // The connection broke and nobody listens: no need to wait for the third failure.
  return !report_.refused || std::none_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) {
    return rank.was_linked && !rank.linked;
  });
}

void EngineWorker::OnReport(const EngineReport& report) {
  report_ = report;
  const bool up = EngineReachable();
  if (up != engine_up_ || !had_report_) {
    Log(up ? LogLevel::kInfo : LogLevel::kWarn, up ? "engine reachable" : "engine unreachable",
        {{"worker", config_.worker_id}, {"http", config_.http}, {"why", report.status}});
  }
  had_report_ = true;
  if (!report.status.ok()) {
    engine_up_ = up;
    return;
  }
  const absl::StatusOr<EngineFacts> facts = FactsOf(config_, report);
  if (facts.ok()) {
    if (facts_ != *facts) OnFacts(*facts);
  } else if (std::uint64_t suppressed = 0; log_waiting_.Due(&suppressed)) {
    Log(LogLevel::kWarn, "can not register the engine yet",
        {{"worker", config_.worker_id}, {"why", facts.status()}});
  }
  OnEngineProcess(report);
  engine_up_ = up;
  for (Rank rank = 0; rank < config_.ranks; ++rank) {
    const RankMetrics metrics = report.metrics.ForRank(rank, config_.ranks);
    if (!metrics.running && !metrics.waiting && !metrics.kv_usage) continue;
    const RankLoad load{.running = metrics.running.value_or(0),
                        .waiting = metrics.waiting.value_or(0),
                        .kv_usage = metrics.kv_usage.value_or(0),
                        .asked = report.asked};
    for (const auto& publisher : publishers_) publisher->SetLoad(rank, load);
  }
}

void EngineWorker::StartFeeds() {
  if (!config_.has_events()) return;
  if (!config_.state_file.empty()) {
    const absl::Status status = WriteRoutingBlock(StatePath("block"), routing_block_);
    if (!status.ok()) {
      Log(LogLevel::kError, "no state is kept", {{"worker", config_.worker_id}, {"why", status}});
    }
  }
  for (Rank rank = 0; rank < config_.ranks; ++rank) StartFeed(rank);
}

void EngineWorker::StartFeed(Rank rank) {
  RankState& state = ranks_[rank];
  RankFeedOptions options;
  options.rank = rank;
  options.canonical.routing_block = routing_block_;
  options.canonical.engine_block = facts_->ranks[rank].block_size;
  options.canonical.capacity[static_cast<std::size_t>(Tier::kGpu)] = facts_->ranks[rank].num_blocks;
  options.canonical.max_blocks = config_.max_blocks;
  options.canonical.reports_reuse = config_.reports_reuse;
  options.canonical.lora_names = config_.lora_id_map;
  options.feed.replay = !config_.replay.empty();
  if (!config_.state_file.empty()) options.journal_path = StatePath(absl::StrCat("rank", rank));
  options.agent_instance = instance_;
  // The old one first: both would write the same file.
  state.feed.reset();
  RankFeedListener* const listener = this;
  state.feed = std::make_unique<RankFeed>(std::move(options), clock_, listener);
  const absl::Status status = state.feed->Start();
  if (!status.ok()) {
    Log(LogLevel::kWarn, "state file",
        {{"worker", config_.worker_id}, {"rank", rank}, {"why", status}});
  }
  if (report_.metrics.process_start) state.feed->OnProcessStart(*report_.metrics.process_start);
  // What the routers were told so far must not be taken back.
  if (announced_ && state.feed->epoch() < state.epoch) state.feed->RenewEpoch(state.epoch + 1);
  SetEpoch(rank, state.feed->epoch());
  Log(LogLevel::kInfo, "following engine events",
      {{"worker", config_.worker_id},
       {"rank", rank},
       {"epoch", state.feed->epoch()},
       {"blocks", state.feed->canonical().blocks()},
       {"replay", !config_.replay.empty()}});
}

void EngineWorker::SetEpoch(Rank rank, Epoch epoch) {
  ranks_[rank].epoch = epoch;
  for (const auto& publisher : publishers_) publisher->NewEpoch(rank, epoch);
}

// ---- From within a feed.

void EngineWorker::OnChanges(Rank rank, std::span<const BlockChanges> changes,
                             std::optional<std::uint64_t> engine_seq) {
  RankState& state = ranks_[rank];
  const double now = static_cast<double>(absl::ToUnixMicros(clock_.WallNow())) * 1e-6;
  state.event_lag_s = std::max(0.0, now - state.feed->engine_ts());
  // Bad news before the changes, good news after them (TickAll).
  PublishVerdict(rank, state.feed->causes() | state.verdict.causes);
  const bool no_holes = state.feed->canonical().holes() == 0;
  for (const auto& publisher : publishers_) {
    publisher->Offer(rank, changes, engine_seq, no_holes);
  }
}

void EngineWorker::OnNewEpoch(Rank rank, Epoch epoch, std::string_view reason) {
  Log(LogLevel::kInfo, "new engine process",
      {{"worker", config_.worker_id}, {"rank", rank}, {"epoch", epoch}, {"why", reason}});
  SetEpoch(rank, epoch);
  // Its models and capacity may be others.
  ScrapeSoon();
}

void EngineWorker::RequestReplay(Rank rank, std::uint64_t from, std::uint64_t attempt) {
  ranks_[rank].source->RequestReplay(from, attempt);
}

void EngineWorker::ReplayDone(Rank rank, std::uint64_t attempt) {
  ranks_[rank].source->CloseReplay(attempt);
}

void EngineWorker::PublishVerdict(Rank rank, FeedCauses causes) {
  RankState& state = ranks_[rank];
  RankVerdict verdict;
  verdict.engine_reachable = EngineReachable();
  verdict.causes = causes;
  verdict.event_lag_s = state.event_lag_s;
  if (state.feed != nullptr) {
    const SkipCounts skipped = state.feed->skipped();
    for (std::size_t i = 0; i < kSkipCauseCount; ++i) {
      const auto cause = static_cast<SkipCause>(i);
      if (const std::uint64_t n = skipped.Of(cause); n != 0) {
        verdict.skipped[std::string(SkipCauseName(cause))] = n;
      }
    }
    const RankFeed::EventCounts& events = state.feed->events();
    verdict.events = {
        {"stored", events.stored}, {"removed", events.removed}, {"cleared", events.cleared}};
    if (events.bad_batches != 0) verdict.skipped["bad_batch"] = events.bad_batches;
  }
  if (!announced_) return;
  if (verdict == state.verdict) return;
  state.verdict = verdict;
  for (const auto& publisher : publishers_) publisher->SetVerdict(rank, verdict);
}

void EngineWorker::RefreshView() {
  const absl::Time now = clock_.Now();
  if (now < view_at_) return;
  view_at_ = now + absl::Milliseconds(kTickMs);
  WorkerView view;
  view.worker = config_.worker_id;
  view.model = facts_ ? facts_->model : "";
  view.engine_up = EngineReachable();
  view.scrape_failures = report_.failures;
  for (Rank rank = 0; rank < config_.ranks; ++rank) {
    const RankState& state = ranks_[rank];
    RankView& out = view.ranks.emplace_back();
    out.rank = rank;
    out.epoch = state.epoch;
    out.event_lag_s = state.event_lag_s;
    if (state.source != nullptr) out.source = state.source->counts();
    if (state.feed == nullptr) continue;
    out.running = true;
    out.causes = state.feed->causes();
    out.engine_seq = state.feed->engine_seq();
    out.held = state.feed->digests();
    out.engine_blocks = state.feed->canonical().blocks();
    out.orphans = state.feed->canonical().orphans();
    out.holes = state.feed->canonical().holes();
    out.bytes = state.feed->canonical().bytes();
    out.feed = state.feed->sequencer().counts();
    out.events = state.feed->events();
    out.skipped = state.feed->skipped();
    if (state.feed->journal_failing() && log_journal_.Due()) {
      Log(LogLevel::kError, "the state file can not be written; a restart would start from replay",
          {{"worker", config_.worker_id}, {"file", config_.state_file}});
    }
  }
  absl::MutexLock lock(&mu_);
  view_ = std::move(view);
}

WorkerView EngineWorker::View() const {
  WorkerView view;
  {
    absl::MutexLock lock(&mu_);
    view = view_;
  }
  view.worker = config_.worker_id;
  for (const auto& publisher : publishers_) view.routers.push_back(publisher->View());
  return view;
}

}  // namespace warmpath
