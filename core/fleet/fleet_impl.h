// The registry of pools and workers behind the Fleet interface. Lock order: worker_record.h.
#ifndef WARMPATH_CORE_FLEET_FLEET_IMPL_H_
#define WARMPATH_CORE_FLEET_FLEET_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/base/random.h"
#include "core/base/strings.h"
#include "core/fleet/fleet.h"
#include "core/fleet/fleet_context.h"
#include "core/fleet/model_names.h"
#include "core/fleet/worker_record.h"

namespace warmpath {

class FleetImpl final : public Fleet {
 public:
  using IndexFactory = std::function<std::unique_ptr<Index>(const IndexOptions&)>;

  // Each target may need two slots at once, and slot numbers end at 2^16.
  static constexpr std::size_t kMaxTargetsPerPool = 1 << 15;
  // Below this share of its bound a full index takes snapshots again.
  static constexpr double kRoomAt = 0.9;

  // REQUIRES: ValidateFleetConfig(config) is OK. Feeds must be gone before the fleet.
  FleetImpl(FleetConfig config, const Clock* clock, std::uint64_t random_seed,
            IndexFactory create_index);

  absl::StatusOr<std::unique_ptr<WorkerFeed>> Register(const Registration& registration,
                                                       std::string_view peer,
                                                       std::shared_ptr<FeedSink> sink) override;
  absl::StatusOr<ModelRef> Resolve(std::string_view model) const override;
  std::vector<std::shared_ptr<Pool>> Pools() const override;
  std::shared_ptr<Pool> PoolByNumber(std::uint32_t number) const override;
  std::vector<WorkerView> ListWorkers(std::string_view pool) const override;
  std::vector<PoolView> ListPools(std::string_view pool) const override;
  absl::StatusOr<std::uint32_t> Drain(std::string_view worker_id, bool undo) override;
  absl::StatusOr<DumpHeader> Dump(std::string_view worker_id, Rank rank, Tier tier,
                                  KnowledgeSource source,
                                  std::vector<ChainHash>* hashes) const override;
  bool Ready() const override;
  void Tick() override;
  bool Quiet() const override { return quiet_.load(std::memory_order_relaxed); }
  bool MaintainIndexes(std::size_t budget_blocks) override;
  FleetCounters Counters() const override;

 private:
  // A worker in the registry.
  struct Member {
    std::shared_ptr<WorkerRecord> record;
    WorkerNames names;
    bool lost = false;
  };
  using Members = StringMap<Member>;

  absl::StatusOr<std::unique_ptr<WorkerFeed>> RegisterLocked(const Registration& registration,
                                                             std::string_view peer,
                                                             std::shared_ptr<FeedSink> sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry_mu_);
  // Evicts a LOST worker if the registry is full. RESOURCE_EXHAUSTED if nobody is LOST.
  absl::Status MakeRoom(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry_mu_);
  // The pool that the registration joins, made but not listed yet if it is new.
  absl::StatusOr<std::shared_ptr<PoolEntry>> EntryFor(const Registration& registration,
                                                      const WorkerNames* own)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry_mu_);
  std::shared_ptr<PoolEntry> MakeEntry(PoolConfig config, bool configured)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry_mu_);
  void ListEntry(std::shared_ptr<PoolEntry> entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry_mu_);
  // B for the registration: the pool's, or a new one when no other live worker depends on it.
  absl::StatusOr<std::uint32_t> AgreeOnBlockSize(const PoolEntry& entry,
                                                 const Registration& registration,
                                                 const Member* own) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry_mu_);
  void RemoveMember(Members::iterator member, const absl::Status& why, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(registry_mu_);

  void ExpireLeases(absl::Time now);
  void RetireLost(absl::Time now);
  void RetirePools();
  void RecoverFullIndexes(absl::Time now);

  std::vector<std::shared_ptr<PoolEntry>> Entries() const;
  std::vector<std::shared_ptr<PoolEntry>> EntriesNamed(std::string_view pool) const;
  std::shared_ptr<WorkerRecord> FindRecord(std::string_view worker_id) const;
  std::vector<std::shared_ptr<WorkerRecord>> Records() const;

  // First: records refer to it.
  mutable FleetContext context_;
  const IndexFactory create_index_;
  const absl::Time started_;

  mutable absl::Mutex registry_mu_;
  Members workers_ ABSL_GUARDED_BY(registry_mu_);
  Random random_ ABSL_GUARDED_BY(registry_mu_);
  std::optional<absl::Time> first_register_ ABSL_GUARDED_BY(registry_mu_);

  // Changed under the registry's mutex only; but for that of `names_` a leaf.
  mutable absl::Mutex pools_mu_;
  // By number; null where a pool has ended.
  std::vector<std::shared_ptr<PoolEntry>> pools_ ABSL_GUARDED_BY(pools_mu_);

  ModelNames names_;
  mutable std::atomic<bool> ready_{false};

  std::atomic<bool> quiet_{false};
  absl::Mutex tick_mu_;
  absl::Time next_recovery_ ABSL_GUARDED_BY(tick_mu_) = absl::InfinitePast();
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_FLEET_IMPL_H_
