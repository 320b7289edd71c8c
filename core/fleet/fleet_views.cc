// What operators and scrapes read of the fleet. Nothing here holds a pool's mutex for longer than
// it takes to copy one target.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/fleet/fleet_impl.h"

namespace warmpath {

absl::StatusOr<ModelRef> FleetImpl::Resolve(std::string_view model) const {
  absl::StatusOr<ModelRef> ref = names_.Resolve(model);
  const absl::Duration up = context_.clock->Now() - started_;
  if (!absl::IsNotFound(ref.status()) || up >= context_.config.warm_up) return ref;
  return absl::UnavailableError(
      absl::StrCat(ref.status().message(), "; the router started ",
                   absl::FormatDuration(absl::Trunc(up, absl::Milliseconds(100))),
                   " ago and agents may still be on their way back: ask again in a moment"));
}

std::vector<std::shared_ptr<PoolEntry>> FleetImpl::Entries() const {
  absl::MutexLock lock(&pools_mu_);
  std::vector<std::shared_ptr<PoolEntry>> entries;
  entries.reserve(pools_.size());
  for (const auto& entry : pools_) {
    if (entry != nullptr) entries.push_back(entry);
  }
  return entries;
}

std::vector<std::shared_ptr<PoolEntry>> FleetImpl::EntriesNamed(std::string_view pool) const {
  std::vector<std::shared_ptr<PoolEntry>> entries = Entries();
  if (!pool.empty()) {
    std::erase_if(entries, [pool](const auto& entry) { return entry->pool->name() != pool; });
  }
  return entries;
}

std::vector<std::shared_ptr<Pool>> FleetImpl::Pools() const {
  std::vector<std::shared_ptr<Pool>> pools;
  for (const auto& entry : Entries()) pools.push_back(entry->pool);
  return pools;
}

std::shared_ptr<Pool> FleetImpl::PoolByNumber(std::uint32_t number) const {
  absl::MutexLock lock(&pools_mu_);
  if (number >= pools_.size() || pools_[number] == nullptr) return nullptr;
  return pools_[number]->pool;
}

std::shared_ptr<WorkerRecord> FleetImpl::FindRecord(std::string_view worker_id) const {
  absl::MutexLock lock(&registry_mu_);
  const auto it = workers_.find(worker_id);
  return it == workers_.end() ? nullptr : it->second.record;
}

std::vector<std::shared_ptr<WorkerRecord>> FleetImpl::Records() const {
  std::vector<std::shared_ptr<WorkerRecord>> records;
  absl::MutexLock lock(&registry_mu_);
  records.reserve(workers_.size());
  for (const auto& [id, member] : workers_) records.push_back(member.record);
  return records;
}

std::vector<WorkerView> FleetImpl::ListWorkers(std::string_view pool) const {
  std::map<const PoolEntry*, PeerRates> peers_of;
  for (const auto& entry : EntriesNamed(pool)) {
    absl::MutexLock lock(&entry->pool->mu());
    peers_of[entry.get()] = entry->pool->peer_rates();
  }
  const absl::Time now = context_.clock->Now();
  std::vector<WorkerView> views;
  for (const auto& record : Records()) {
    const auto peers = peers_of.find(&record->entry());
    if (peers == peers_of.end()) continue;
    absl::MutexLock lock(&record->mu);
    if (!record->removed()) views.push_back(record->View(peers->second, now));
  }
  std::sort(views.begin(), views.end(),
            [](const WorkerView& a, const WorkerView& b) { return a.worker_id < b.worker_id; });
  return views;
}

std::vector<PoolView> FleetImpl::ListPools(std::string_view pool) const {
  std::vector<PoolView> views;
  for (const auto& entry : EntriesNamed(pool)) {
    PoolView view;
    view.name = entry->pool->name();
    view.routing_block_size = entry->pool->routing_block_size();
    view.policy = entry->pool->config().policy;
    view.index = entry->pool->index().Stats();
    view.audit_failures = entry->audit_failures.load(std::memory_order_relaxed);
    if (view.routing_block_size != 0) {
      absl::MutexLock lock(&entry->pool->mu());
      const LoadLedger& ledger = entry->pool->ledger();
      const std::vector<TargetState>& targets = entry->pool->targets();
      for (TargetId target = 0; target < targets.size(); ++target) {
        if (targets[target].in_use) view.predicted_blocks += ledger.PredictedBlocks(target);
      }
      view.inflight_blocks = ledger.InFlightBlocks();
      view.open_reservations = ledger.open();
      view.saturation = ledger.Averages().rho;
    }
    views.push_back(std::move(view));
  }
  return views;
}

absl::StatusOr<std::uint32_t> FleetImpl::Drain(std::string_view worker_id, bool undo) {
  const std::shared_ptr<WorkerRecord> record = FindRecord(worker_id);
  if (record != nullptr) {
    absl::MutexLock lock(&record->mu);
    if (!record->removed()) return record->SetDraining(!undo);
  }
  return absl::NotFoundError(
      absl::StrCat("worker_id: '", ToAbsl(worker_id), "' is not registered"));
}

absl::StatusOr<DumpHeader> FleetImpl::Dump(std::string_view worker_id, Rank rank, Tier tier,
                                           KnowledgeSource source,
                                           std::vector<ChainHash>* hashes) const {
  const std::shared_ptr<WorkerRecord> record = FindRecord(worker_id);
  if (record != nullptr) {
    absl::MutexLock lock(&record->mu);
    if (!record->removed()) return record->Dump(rank, tier, source, hashes);
  }
  return absl::NotFoundError(
      absl::StrCat("worker_id: '", ToAbsl(worker_id), "' is not registered"));
}

FleetCounters FleetImpl::Counters() const {
  const FleetStats& stats = context_.stats;
  const auto load = [](const std::atomic<std::uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  FleetCounters counters;
  counters.updates_wrong_session = load(stats.updates_wrong_session);
  counters.updates_duplicate = load(stats.updates_duplicate);
  counters.deltas_applied = load(stats.deltas_applied);
  counters.blocks_stored = load(stats.blocks_stored);
  counters.blocks_removed = load(stats.blocks_removed);
  counters.removed_missing = load(stats.removed_missing);
  counters.snapshots_applied = load(stats.snapshots_applied);
  counters.snapshots_failed = load(stats.snapshots_failed);
  counters.resyncs = load(stats.resyncs);
  counters.audit_failures = load(stats.audit_failures);
  counters.events_by_kind = stats.events_by_kind.Sums();
  counters.skipped_by_cause = stats.skipped_by_cause.Sums();
  return counters;
}

}  // namespace warmpath
