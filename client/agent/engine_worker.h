// One engine, start to end: its sockets, its ranks' feeds, its load, and a publisher per router.
//
//   ZmqSource (per rank) -> RankFeed -> Publisher (per router) -> router
//   LoadScraper ------------------------^
//
// Threads: the engine thread owns sources, feeds and the order of everything; the scrape thread
// asks the engine over HTTP (which blocks) and leaves its report; gRPC's threads wake the engine
// thread when a router wants something.
#ifndef WARMPATH_CLIENT_AGENT_ENGINE_WORKER_H_
#define WARMPATH_CLIENT_AGENT_ENGINE_WORKER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/agent/agent_config.h"
#include "client/agent/engine/load_scraper.h"
#include "client/agent/engine/zmq_source.h"
#include "client/agent/engine_facts.h"
#include "client/agent/feed/rank_feed.h"
#include "client/agent/feed/state_journal.h"
#include "client/agent/publish/publisher.h"
#include "client/agent/worker_view.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/log.h"

namespace warmpath {

class EngineWorker final : private RankFeedListener {
 public:
  struct Router {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
  };

  // Opens sockets and reads the state files. INVALID_ARGUMENT: an endpoint; other errors: the
  // state file's folder can not be used. `zmq` and `clock` must outlive the worker. `http` null:
  // libcurl.
  static absl::StatusOr<std::unique_ptr<EngineWorker>> Create(
      const EngineConfig& config, const std::vector<Router>& routers, const ZmqContext& zmq,
      const Clock& clock, std::uint64_t random_seed, std::unique_ptr<HttpGetter> http = nullptr);
  // Stops the threads, then the streams.
  ~EngineWorker() override;

  // Once.
  void Start();

  // Thread-safe.
  WorkerView View() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class RankSink;
  struct RankState {
    std::unique_ptr<ZmqSource> source;  // null without events
    std::unique_ptr<RankFeed> feed;     // null until the routing block is known
    Epoch epoch = 0;
    bool was_linked = false;
    bool linked = false;
    RankVerdict verdict;  // as last given to the publishers
    double event_lag_s = 0;
  };

  EngineWorker(const EngineConfig& config, const Clock& clock);

  // --- Engine thread.
  void Run();
  void RunOnce();
  void WaitForWork(bool busy);
  int IdleMs() const;  // until time alone makes something due
  bool PollSources();
  void TickAll();
  void OnReport(const EngineReport& report);
  void OnFacts(const EngineFacts& facts);
  void OnEngineProcess(const EngineReport& report);
  void HandlePublishers();
  void OnRegistered(std::size_t publisher, std::uint32_t routing_block);
  void StartFeeds();
  void StartFeed(Rank rank);
  // New epochs for ranks without a feed, which draws its own; at least `at_least`.
  void DrawEpochs(Epoch at_least = 0);
  void OnStaleEpoch();
  void Announce();  // SetRegister at every publisher, when everything is known
  void PublishVerdict(Rank rank, FeedCauses causes);
  void SetEpoch(Rank rank, Epoch epoch);
  bool EngineReachable() const;
  void RefreshView();

  // RankFeedListener, from within a feed's methods.
  void OnChanges(Rank rank, std::span<const BlockChanges> changes,
                 std::optional<std::uint64_t> engine_seq) override;
  void OnNewEpoch(Rank rank, Epoch epoch, std::string_view reason) override;
  void RequestReplay(Rank rank, std::uint64_t from, std::uint64_t attempt) override;
  void ReplayDone(Rank rank, std::uint64_t attempt) override;

  // --- Scrape thread.
  void Scrape();
  void ScrapeSoon() ABSL_LOCKS_EXCLUDED(mu_);

  void Wake();
  std::string StatePath(std::string_view suffix) const;

  const EngineConfig config_;
  const Clock& clock_;
  AgentInstance instance_{};
  int wake_fd_ = -1;  // eventfd; outlives the publishers, which write to it
  std::unique_ptr<HttpGetter> http_;
  std::unique_ptr<LoadScraper> scraper_;  // scrape thread
  LogEvery log_waiting_;
  LogEvery log_journal_;

  // Engine thread only.
  std::vector<RankState> ranks_;
  std::vector<std::unique_ptr<Publisher>> publishers_;  // the vector itself is fixed
  std::optional<EngineFacts> facts_;
  EngineReport report_;
  bool had_report_ = false;
  bool engine_up_ = false;
  std::optional<double> process_start_;
  std::uint32_t routing_block_ = 0;  // 0: not known yet
  bool announced_ = false;
  int stale_epochs_ = 0;  // refusals so far
  absl::Time view_at_ = absl::InfinitePast();

  mutable absl::Mutex mu_;
  std::optional<EngineReport> new_report_ ABSL_GUARDED_BY(mu_);
  bool scrape_soon_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  WorkerView view_ ABSL_GUARDED_BY(mu_);

  std::thread engine_thread_;
  std::thread scrape_thread_;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_ENGINE_WORKER_H_
