// One base model's pool: its targets, index and load ledger behind one mutex.
//
// Lock order: the registry's mutex, WorkerRecord::mu, Pool::mu(), then leaves such as a FeedSink's
// own (core/fleet/worker_record.h). The index has its own synchronisation and is used without mu().
#ifndef WARMPATH_CORE_FLEET_POOL_H_
#define WARMPATH_CORE_FLEET_POOL_H_

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/base/random.h"
#include "core/fleet/fleet.h"
#include "core/fleet/load_ledger.h"
#include "core/fleet/prefill_rate.h"
#include "core/fleet/worker.h"
#include "core/index/index.h"

namespace warmpath {

// State of one target. Written by the fleet (streams, lifecycle) and by outcomes (rate, drift
// window); read by picks. All under Pool::mu().
struct TargetState {
  bool in_use = false;
  Lifecycle lifecycle = Lifecycle::kJoining;
  bool draining = false;         // operator's wish; survives NOT_READY and reconnects
  bool engine_reachable = true;  // as the agent says
  bool had_snapshot = false;     // in this epoch, whole
  bool drifting = false;  // as outcomes say; apart from causes, so that neither erases the other
  CauseSet causes;        // as the agent and the feed say; see AllCauses()
  Slot slot = kNoSlot;    // serving slot; kNoSlot: nothing credited from events
  LearnedRate rate;
  LearnedCopyRate copy_rate;
  RankSpec spec;

  std::string worker_id;
  std::vector<std::string> loras;  // adapters the worker registered
  std::optional<std::uint64_t> engine_seq;
  double event_lag_s = 0;
  std::optional<EngineLoad> load;
  // Of the last 100 outcomes with actual cached tokens: which fell short by more than one block.
  std::vector<bool> shortfalls;
  std::size_t shortfall_next = 0;

  CauseSet AllCauses() const {
    CauseSet all = causes;
    if (drifting) all.Set(FreshnessCause::kDrift);
    return all;
  }
  Freshness freshness() const {
    if (!spec.has_events || !had_snapshot) return Freshness::kNone;
    return AllCauses().empty() ? Freshness::kExact : Freshness::kDegraded;
  }
  // May receive picks. JOINING targets may: by load, with h = 0.
  bool eligible() const {
    return in_use && !draining && engine_reachable &&
           (lifecycle == Lifecycle::kReady || lifecycle == Lifecycle::kJoining);
  }
};

// What every pick reads of every target, beside its load: a few words of the TargetState, which is
// seven cache lines, packed so that a pick over a hundred targets reads forty lines one after
// another. Made by Pool from the states and never written otherwise.
struct PickRow {
  bool eligible = false;                   // TargetState::eligible()
  bool capacity_known = false;             // kv_capacity is the target's own
  Freshness freshness = Freshness::kNone;  // TargetState::freshness()
  Slot slot = kNoSlot;
  double rate = 0;  // tokens/s: RateInUse
  // Tokens; of a target that tells none the pool's upper median, or infinity.
  double kv_capacity = std::numeric_limits<double>::infinity();

  friend bool operator==(const PickRow&, const PickRow&) = default;
};
static_assert(sizeof(PickRow) == 24);

// The rows anew from the states. O(targets).
std::vector<PickRow> PickRowsOf(std::span<const TargetState> targets, const PeerRates& peers);

// What picks keep between them. Written by core/routing only, read at scrape.
struct PickState {
  TargetId last_turn = kNoTarget;  // whom round_robin chose last
  std::uint64_t prompt_tokens = 0;
  std::uint64_t matched_tokens = 0;           // longest match over all candidates
  std::uint64_t predicted_cached_tokens = 0;  // of the chosen targets
  std::uint64_t actual_cached_tokens = 0;     // as outcomes said
  std::uint64_t shed = 0;
  std::uint64_t not_finite = 0;      // candidates left out for a cost that is no number: a bug
  std::vector<std::uint64_t> picks;  // by (policy, reason, freshness), numbered by core/routing
};

class Pool {
 public:
  // `number` names the pool inside its fleet (Fleet::PoolByNumber) and is part of every reservation
  // id; below 2^16.
  Pool(PoolConfig config, std::unique_ptr<Index> index, std::uint64_t random_seed,
       std::uint32_t max_reservations, std::uint32_t number);

  std::uint32_t number() const { return number_; }
  const PoolConfig& config() const { return config_; }
  const std::string& name() const { return config_.name; }
  Index& index() { return *index_; }
  const Index& index() const { return *index_; }

  // B; 0 until configured or the first registration. Fixed while the pool has workers.
  std::uint32_t routing_block_size() const { return block_size_.load(std::memory_order_acquire); }

  absl::Mutex& mu() const ABSL_LOCK_RETURNED(mu_) { return mu_; }
  // Dense by TargetId; entries with !in_use are free.
  const std::vector<TargetState>& targets() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return targets_;
  }
  // The way to change a target (but for its rates: ObservePrefill, ObserveCopy, ForgetOutcomes):
  // `edit` does, and the target's row follows.
  void Edit(TargetId target, absl::FunctionRef<void(TargetState&)> edit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // By TargetId. Always equal to PickRowsOf(targets(), peer_rates()).
  std::span<const PickRow> rows() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (rows_stale_) RefreshRows();
    return rows_;
  }
  // The mean of the rates of rows() in use: what a second of the pool's mean target does.
  double mean_rate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (rows_stale_) RefreshRows();
    return mean_rate_;
  }
  // Their rates differ by more than kUnequal, fastest against slowest.
  bool unequal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (rows_stale_) RefreshRows();
    return unequal_;
  }
  // Valid once the block size is fixed.
  LoadLedger& ledger() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return *ledger_; }
  Random& random() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return random_; }
  PickState& pick_state() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return pick_state_; }

  // A prefill of a target in use, as LearnedRate::Observe.
  void ObservePrefill(TargetId target, double work, double seconds)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // So many tokens of KV came from the host tier in so many seconds.
  void ObserveCopy(TargetId target, double tokens, double seconds, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    targets_[target].copy_rate.Observe(tokens, seconds, now);
  }
  // What outcomes taught is about one engine process: for a new epoch.
  void ForgetOutcomes(TargetId target) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What targets in use that have learned their rates tell of all. As of half a fleet's worth of
  // prefills ago at most, so that its O(targets) are spread over as many outcomes.
  const PeerRates& peer_rates() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return peer_rates_; }

  // --- For the fleet.
  // Fixes B and creates the ledger. REQUIRES: not fixed yet, or no target in use.
  void FixBlockSize(std::uint32_t tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  TargetId AddTarget(TargetState state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveTarget(TargetId target, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

 private:
  // Brings a target's row up to date after a change of its state.
  void UpdateRow(TargetId target) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RefreshRows() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RefreshPeerRates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const PoolConfig config_;
  const std::unique_ptr<Index> index_;
  const std::uint32_t max_reservations_;
  const std::uint32_t number_;
  std::atomic<std::uint32_t> block_size_{0};

  mutable absl::Mutex mu_;
  std::vector<TargetState> targets_ ABSL_GUARDED_BY(mu_);
  std::vector<PickRow> rows_ ABSL_GUARDED_BY(mu_);  // by TargetId
  // What rows take from other targets has changed: the peers' rates or the median capacity.
  bool rows_stale_ ABSL_GUARDED_BY(mu_) = false;
  std::uint64_t median_capacity_ ABSL_GUARDED_BY(mu_) = 0;  // as of the last RefreshRows
  double mean_rate_ ABSL_GUARDED_BY(mu_) = 0;               // likewise
  bool unequal_ ABSL_GUARDED_BY(mu_) = false;               // likewise
  std::vector<TargetId> free_targets_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<LoadLedger> ledger_ ABSL_GUARDED_BY(mu_);
  Random random_ ABSL_GUARDED_BY(mu_);
  PickState pick_state_ ABSL_GUARDED_BY(mu_);
  PeerRates peer_rates_ ABSL_GUARDED_BY(mu_);
  std::size_t observed_ ABSL_GUARDED_BY(mu_) = 0;  // prefills since peer_rates_ was computed
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_POOL_H_
