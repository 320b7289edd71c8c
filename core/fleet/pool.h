// One base model's pool: its targets, index and load ledger behind one mutex.
//
// Lock order: fleet's registry mutex, then Pool::mu(), then a FeedSink's own. The index has its own
// synchronisation and is read without mu().
#ifndef WARMPATH_CORE_FLEET_POOL_H_
#define WARMPATH_CORE_FLEET_POOL_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/random.h"
#include "core/fleet/fleet.h"
#include "core/fleet/load_ledger.h"
#include "core/fleet/worker.h"
#include "core/index/index.h"

namespace warmpath {

// Learned speed of one target's prefill; POLICY "Unknown and cold".
struct LearnedRate {
  double tokens_per_s = 0;   // 0: nothing learned yet
  double ctx_half = 30'000;  // tokens of context at which prefill takes twice as long
  std::uint64_t samples = 0;
};

// State of one target. Written by the fleet (streams, lifecycle) and by outcomes (rate, drift
// window); read by picks. All under Pool::mu().
struct TargetState {
  bool in_use = false;
  std::string worker_id;
  RankSpec spec;
  Lifecycle lifecycle = Lifecycle::kJoining;
  bool draining = false;         // operator's wish; survives NOT_READY and reconnects
  bool engine_reachable = true;  // as the agent says
  bool had_snapshot = false;     // in this epoch, whole
  CauseSet causes;
  Slot slot = kNoSlot;  // serving slot; kNoSlot: nothing credited from events
  std::optional<std::uint64_t> engine_seq;
  double event_lag_s = 0;
  std::optional<EngineLoad> load;
  LearnedRate rate;
  // Of the last 100 outcomes with actual cached tokens: which fell short by more than one block.
  std::vector<bool> shortfalls;
  std::size_t shortfall_next = 0;

  Freshness freshness() const {
    if (!spec.has_events || !had_snapshot) return Freshness::kNone;
    return causes.empty() ? Freshness::kExact : Freshness::kDegraded;
  }
  // May receive picks. JOINING targets may: by load, with h = 0.
  bool eligible() const {
    return in_use && !draining && engine_reachable &&
           (lifecycle == Lifecycle::kReady || lifecycle == Lifecycle::kJoining);
  }
};

class Pool {
 public:
  Pool(PoolConfig config, std::unique_ptr<Index> index, std::uint64_t random_seed,
       std::uint32_t max_reservations);

  const PoolConfig& config() const { return config_; }
  const std::string& name() const { return config_.name; }
  Index& index() { return *index_; }
  const Index& index() const { return *index_; }

  // B; 0 until configured or the first registration. Fixed while the pool has workers.
  std::uint32_t routing_block_size() const { return block_size_.load(std::memory_order_acquire); }

  absl::Mutex& mu() const ABSL_LOCK_RETURNED(mu_) { return mu_; }
  // Dense by TargetId; entries with !in_use are free.
  std::vector<TargetState>& targets() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return targets_; }
  // Valid once the block size is fixed.
  LoadLedger& ledger() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return *ledger_; }
  Random& random() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return random_; }

  // --- For the fleet.
  // Fixes B and creates the ledger. REQUIRES: not fixed yet, or no target in use.
  void FixBlockSize(std::uint32_t tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  TargetId AddTarget(TargetState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveTarget(TargetId target, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

 private:
  const PoolConfig config_;
  const std::unique_ptr<Index> index_;
  const std::uint32_t max_reservations_;
  std::atomic<std::uint32_t> block_size_{0};

  mutable absl::Mutex mu_;
  std::vector<TargetState> targets_ ABSL_GUARDED_BY(mu_);
  std::vector<TargetId> free_targets_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<LoadLedger> ledger_ ABSL_GUARDED_BY(mu_);
  Random random_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_POOL_H_
