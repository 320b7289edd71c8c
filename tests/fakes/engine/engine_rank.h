// One data-parallel rank in real time: runs the step model, sleeps for each step's duration
// (divided by the speed factor), delivers tokens, publishes what the cache did. One scheduler
// thread; it sleeps while a step "computes" and blocks while there is nothing to do.
//
// Thread-safe.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_ENGINE_RANK_H_
#define WARMPATH_TESTS_FAKES_ENGINE_ENGINE_RANK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/replay/engine_model.h"
#include "tests/fakes/engine/cache_history.h"
#include "tests/fakes/engine/event_publisher.h"
#include "tests/fakes/engine/job.h"
#include "tests/fakes/engine/kv_events.h"

namespace warmpath::engine {

struct RankOptions {
  Rank rank = 0;
  EngineModelOptions model;
  double speed_factor = 1;
  std::uint64_t hash_seed = 0;
  EventFormat event_format = EventFormat::kMap;
  std::size_t history_batches = 20'000;
};

struct RankStats {
  std::size_t running = 0;
  std::size_t waiting = 0;
  std::size_t blocks = 0;
  std::size_t free_blocks = 0;    // Empty or evictable.
  std::size_t cached_blocks = 0;  // Distinct.
  std::uint64_t steps = 0;
  std::uint64_t prefix_query_tokens = 0;
  std::uint64_t prefix_hit_tokens = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t generation_tokens = 0;
  std::uint64_t finished = 0;
  std::optional<std::uint64_t> last_seq;
  // Cache changes whose batch has not been published yet.
  bool unpublished = false;
};

class EngineRank {
 public:
  // `publisher` may be null: no events. It must outlive the rank.
  EngineRank(const RankOptions& options, EventPublisher* publisher);
  // Aborts what is in flight.
  ~EngineRank();

  EngineRank(const EngineRank&) = delete;
  EngineRank& operator=(const EngineRank&) = delete;

  // Queues the job. INVALID_ARGUMENT when it can never fit; UNAVAILABLE while stopping.
  absl::Status Submit(const std::shared_ptr<Job>& job);
  // The client is gone: frees what the job holds. Nothing if it has ended.
  void Cancel(const std::shared_ptr<Job>& job);

  // FAILED_PRECONDITION while blocks are in use. AllBlocksCleared goes out with the next step's
  // batch; an idle rank publishes it at once.
  absl::Status ResetPrefixCache();

  // What the cache held after batch `seq`; see CacheHistory::At. INTERNAL if the history and the
  // cache disagree, which would be a bug of this engine.
  absl::StatusOr<std::vector<BlockInfoPtr>> CacheAt(std::optional<std::uint64_t> seq) const;

  RankStats Stats() const;
  Rank rank() const { return options_.rank; }
  std::size_t CapacityTokens() const { return capacity_tokens_; }

 private:
  struct InFlight {
    std::shared_ptr<Job> job;
    std::vector<BlockKey> keys;
  };

  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RecordStep(const StepResult& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RecordStored(const CacheEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends pending events as one batch, if there are any.
  void PublishPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DeliverTokens(const StepResult& step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const RankOptions options_;
  EventPublisher* const publisher_;

  mutable absl::Mutex mu_;
  EngineModel model_ ABSL_GUARDED_BY(mu_);
  const std::size_t capacity_tokens_;
  CacheHistory history_ ABSL_GUARDED_BY(mu_);
  std::vector<KvEvent> pending_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::uint64_t, InFlight> in_flight_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<const Job*, std::uint64_t> ids_ ABSL_GUARDED_BY(mu_);
  std::uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::uint64_t next_seq_without_publisher_ ABSL_GUARDED_BY(mu_) = 0;
  RankStats totals_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // Last: it starts when everything else exists.
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_ENGINE_RANK_H_
