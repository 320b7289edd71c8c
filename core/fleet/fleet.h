// All pools and all workers: what worker streams write and what operators read.
// The pick itself is core/routing/picker.h, which works on the same pools.
#ifndef WARMPATH_CORE_FLEET_FLEET_H_
#define WARMPATH_CORE_FLEET_FLEET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/ids.h"
#include "core/fleet/feed.h"
#include "core/fleet/worker.h"
#include "core/index/index.h"

namespace warmpath {

class Pool;  // core/fleet/pool.h

// SageMaker's PrefixAwareRoutingConfig (limits in docs/sagemaker.md).
struct PrefixAwareConfig {
  std::uint32_t prefix_length = 4096;        // 1,024 .. 65,536
  std::uint32_t concurrency_threshold = 32;  // 1 .. 1,024
};

struct PoolConfig {
  std::string name;  // the base model's name
  std::uint32_t routing_block_size =
      0;  // tokens; 0: smallest multiple of the first engine block >= 64
  std::string policy = "marginal_cost";
  std::uint64_t index_bound_bytes = 2ull << 30;
  std::uint64_t predicted_bound_blocks = 1u << 20;  // per target, or its capacity if that is less
  absl::Duration max_wait;                          // zero: off
  // False: prompts in flight count as load, but not as knowledge of what a target will hold. For
  // simulations of what that knowledge is worth.
  bool overlay = true;
  // False: only what lies in the GPUs counts as held. For simulations of what slower tiers are
  // worth.
  bool slow_tiers = true;
  // Tenants that use more than their share pay for the wait of others' requests; docs/policy.md.
  bool tenant_fairness = false;
  PrefixAwareConfig prefix_aware;
  std::vector<std::string> aliases;
};

struct FleetConfig {
  std::vector<PoolConfig> pools;  // pools with settings of their own
  PoolConfig defaults;            // for pools made by a registration
  bool create_pools = true;       // false: a Register for an unknown model is refused
  std::uint32_t max_workers = 10'000;
  std::uint32_t max_pools = 256;
  absl::Duration worker_lease = absl::Seconds(10);
  absl::Duration heartbeat = absl::Seconds(2);
  // So long after the start a model that nobody has registered is not NOT_FOUND yet: agents may be
  // on their way back.
  absl::Duration warm_up;
  std::uint32_t max_concurrent_snapshots = 8;
  std::uint32_t max_reservations_per_pool = 1u << 20;
};

// What a model name means.
struct ModelRef {
  std::shared_ptr<Pool> pool;
  std::optional<std::string> lora;  // set when the name is an adapter's
};

struct PoolView {
  std::string name;
  std::uint32_t routing_block_size = 0;  // 0: not fixed yet
  std::string policy;
  IndexStats index;
  std::uint64_t inflight_blocks = 0;
  std::uint64_t predicted_blocks = 0;
  std::uint64_t audit_failures = 0;
  std::uint64_t open_reservations = 0;
  double saturation = 0;  // rho
};

enum class KnowledgeSource : std::uint8_t { kEvents, kInFlight, kPredicted };

struct DumpHeader {
  std::optional<std::uint64_t> engine_seq;
  Freshness freshness = Freshness::kNone;
  CauseSet causes;
  std::uint32_t routing_block_size = 0;
  Epoch epoch = 0;
};

// Counters since start, cumulative; read at scrape.
struct FleetCounters {
  std::uint64_t updates_wrong_session = 0;
  std::uint64_t updates_duplicate = 0;  // a delta_seq that was applied before
  std::uint64_t deltas_applied = 0;
  std::uint64_t blocks_stored = 0;
  std::uint64_t blocks_removed = 0;
  std::uint64_t removed_missing = 0;
  std::uint64_t snapshots_applied = 0;
  std::uint64_t snapshots_failed = 0;
  std::uint64_t resyncs = 0;
  std::uint64_t audit_failures = 0;
  // Summed over agents' RankState reports.
  std::vector<std::pair<std::string, std::uint64_t>> events_by_kind;
  std::vector<std::pair<std::string, std::uint64_t>> skipped_by_cause;
};

// Thread-safe.
class Fleet {
 public:
  // `clock` must outlive the fleet. INVALID_ARGUMENT when a pool's settings are out of bounds.
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(FleetConfig config, const Clock* clock,
                                                       std::uint64_t random_seed);
  virtual ~Fleet() = default;

  // Accepts or refuses a worker's Register; on success Registered has been sent through the sink.
  // FAILED_PRECONDITION: stale epoch, block size, protocol. ALREADY_EXISTS: another agent's live
  // stream holds the worker id. INVALID_ARGUMENT, RESOURCE_EXHAUSTED (max_workers): with the field.
  // `peer` is the agent's address, for messages and operators.
  virtual absl::StatusOr<std::unique_ptr<WorkerFeed>> Register(const Registration& registration,
                                                               std::string_view peer,
                                                               std::shared_ptr<FeedSink> sink) = 0;

  // NOT_FOUND naming the model and the known ones; UNAVAILABLE instead during FleetConfig::warm_up.
  virtual absl::StatusOr<ModelRef> Resolve(std::string_view model) const = 0;

  // Every pool, in the order of their numbers. One that a registration made ends with the last of
  // its workers, LOST ones included; its number may then be another's.
  virtual std::vector<std::shared_ptr<Pool>> Pools() const = 0;
  // Null when there is no such pool. O(1): each outcome asks.
  virtual std::shared_ptr<Pool> PoolByNumber(std::uint32_t number) const = 0;

  virtual std::vector<WorkerView> ListWorkers(std::string_view pool) const = 0;
  virtual std::vector<PoolView> ListPools(std::string_view pool) const = 0;

  // Returns the number of open reservations. NOT_FOUND for an unknown worker.
  virtual absl::StatusOr<std::uint32_t> Drain(std::string_view worker_id, bool undo) = 0;

  // Header and hashes of one consistent instant (updates of the target wait meanwhile).
  virtual absl::StatusOr<DumpHeader> Dump(std::string_view worker_id, Rank rank, Tier tier,
                                          KnowledgeSource source,
                                          std::vector<ChainHash>* hashes) const = 0;

  // True once every target registered so far has its snapshot whole, or 5 s after the first
  // Register, or 10 s after start; stays true.
  virtual bool Ready() const = 0;

  // Periodic work: leases of workers and reservations, delayed overlay removals, acks that wait
  // 100 ms, snapshot turns, index_full recovery, rho. Call about every 20 ms.
  virtual void Tick() = 0;
  // After Tick: nothing is open, lingering, acknowledged late or waiting for its turn, so that the
  // next one may come somewhat later.
  virtual bool Quiet() const { return false; }

  // Background sweeps of all indexes, about `budget_blocks` each; true while more is left.
  virtual bool MaintainIndexes(std::size_t budget_blocks) = 0;

  virtual FleetCounters Counters() const = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_FLEET_H_
