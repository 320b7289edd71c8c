#include "core/fleet/fleet_impl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fleet/registration.h"
#include "core/fleet/worker_feed.h"

namespace warmpath {
namespace {

constexpr absl::Duration kReadyAfterRegister = absl::Seconds(5);
constexpr absl::Duration kReadyAfterStart = absl::Seconds(10);
constexpr absl::Duration kRecoveryEvery = absl::Milliseconds(200);
// A ledger does a bounded amount of work in each call; picks get in between.
constexpr int kMaxLedgerSteps = 64;

// Without what the pool is called anyway, and each name once.
WorkerNames NamesOf(const Registration& registration, std::shared_ptr<Pool> pool) {
  WorkerNames names;
  StringSet seen;
  seen.insert(registration.model);
  for (const std::string& alias : registration.aliases) {
    if (seen.insert(alias).second) names.aliases.push_back(alias);
  }
  for (const std::string& lora : registration.loras) {
    if (seen.insert(lora).second) names.loras.push_back(lora);
  }
  names.pool = std::move(pool);
  return names;
}

}  // namespace

FleetImpl::FleetImpl(FleetConfig config, const Clock* clock, std::uint64_t random_seed,
                     IndexFactory create_index)
    : context_(std::move(config), clock),
      create_index_(std::move(create_index)),
      started_(clock->Now()),
      random_(random_seed) {
  absl::MutexLock lock(&registry_mu_);
  for (const PoolConfig& pool : context_.config.pools)
    ListEntry(MakeEntry(pool, /*configured=*/true));
}

// ---- Register

absl::StatusOr<std::unique_ptr<WorkerFeed>> FleetImpl::Register(const Registration& registration,
                                                                std::string_view peer,
                                                                std::shared_ptr<FeedSink> sink) {
  WARMPATH_RETURN_IF_ERROR(ValidateRegistration(registration));
  std::unique_ptr<WorkerFeed> feed;
  {
    absl::MutexLock lock(&registry_mu_);
    WARMPATH_ASSIGN_OR_RETURN(feed, RegisterLocked(registration, peer, std::move(sink)));
  }
  PumpTurns(context_);
  return feed;
}

absl::StatusOr<std::unique_ptr<WorkerFeed>> FleetImpl::RegisterLocked(
    const Registration& registration, std::string_view peer, std::shared_ptr<FeedSink> sink) {
  const absl::Time now = context_.clock->Now();
  auto it = workers_.find(registration.worker_id);
  const Member* own = it == workers_.end() ? nullptr : &it->second;
  const WorkerNames* own_names = own == nullptr ? nullptr : &own->names;

  // Everything that may refuse it comes before anything that changes.
  if (own == nullptr) {
    WARMPATH_RETURN_IF_ERROR(MakeRoom(now));
  } else {
    absl::MutexLock lock(&own->record->mu);
    WARMPATH_RETURN_IF_ERROR(own->record->CheckTakeover(registration, peer, now));
  }
  WARMPATH_ASSIGN_OR_RETURN(const std::shared_ptr<PoolEntry> entry,
                            EntryFor(registration, own_names));
  WorkerNames names = NamesOf(registration, entry->pool);
  WARMPATH_RETURN_IF_ERROR(names_.Check(names, registration.model, own_names));
  WARMPATH_ASSIGN_OR_RETURN(const std::uint32_t block_size,
                            AgreeOnBlockSize(*entry, registration, own));
  if (entry->targets + registration.ranks.size() > kMaxTargetsPerPool) {
    return absl::ResourceExhaustedError(absl::StrCat("ranks: pool '", entry->pool->name(), "' has ",
                                                     entry->targets, " targets; at most ",
                                                     kMaxTargetsPerPool));
  }

  if (PoolByNumber(entry->pool->number()) != entry->pool) ListEntry(entry);
  const bool refix = entry->pool->routing_block_size() != block_size;
  bool draining = false;
  bool go_on = false;
  if (own != nullptr) {
    absl::MutexLock lock(&own->record->mu);
    draining = own->record->draining();
    go_on = !refix && &own->record->entry() == entry.get() && own->record->SameShape(registration);
  }
  if (own != nullptr && !go_on) {
    RemoveMember(it, absl::AbortedError(absl::StrCat("superseded by ", ToAbsl(peer))), now);
  }
  if (refix) {
    // Nobody live depends on the old size; LOST workers make way.
    for (auto other = workers_.begin(); other != workers_.end();) {
      const auto member = other++;
      if (&member->second.record->entry() == entry.get()) {
        RemoveMember(member, absl::AbortedError("the pool's routing block has changed"), now);
      }
    }
    absl::MutexLock lock(&entry->pool->mu());
    entry->pool->FixBlockSize(block_size);
  }
  if (!go_on) {
    Member member;
    member.record =
        std::make_shared<WorkerRecord>(registration.worker_id, entry, &context_, random_());
    it = workers_.insert_or_assign(registration.worker_id, std::move(member)).first;
    entry->targets += registration.ranks.size();
    ++entry->live_workers;
  }
  Member& member = it->second;
  SessionId session = 0;
  while (session == 0) session = random_();
  {
    absl::MutexLock lock(&member.record->mu);
    if (go_on) {
      // The older stream may have announced a newer epoch in the meantime.
      WARMPATH_RETURN_IF_ERROR(member.record->CheckTakeover(registration, peer, now));
    } else {
      member.record->set_draining(draining);
    }
    member.record->Attach(registration, peer, std::move(sink), session, now);
  }
  names_.Add(names);
  names_.Remove(member.names, member.lost);
  member.names = std::move(names);
  if (std::exchange(member.lost, false)) ++entry->live_workers;
  if (!first_register_.has_value()) first_register_ = now;
  return std::make_unique<StreamFeed>(member.record, session, &context_);
}

absl::Status FleetImpl::MakeRoom(absl::Time now) {
  if (workers_.size() < context_.config.max_workers) return absl::OkStatus();
  const auto lost = std::find_if(workers_.begin(), workers_.end(),
                                 [](const auto& member) { return member.second.lost; });
  if (lost == workers_.end()) {
    return absl::ResourceExhaustedError(absl::StrCat("worker_id: the router has ", workers_.size(),
                                                     " workers, as many as max_workers allows"));
  }
  RemoveMember(lost, absl::AbortedError("made room for another worker"), now);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<PoolEntry>> FleetImpl::EntryFor(const Registration& registration,
                                                               const WorkerNames* own) {
  WARMPATH_ASSIGN_OR_RETURN(const std::shared_ptr<Pool> pool,
                            names_.PoolForModel(registration.model, own));
  if (pool != nullptr) {
    absl::MutexLock lock(&pools_mu_);
    return pools_[pool->number()];
  }
  if (!context_.config.create_pools) {
    return absl::FailedPreconditionError(
        absl::StrCat("model: '", registration.model,
                     "' is not configured; add it to pools, or set create_pools"));
  }
  if (Entries().size() >= context_.config.max_pools) {
    return absl::ResourceExhaustedError(absl::StrCat("model: '", registration.model,
                                                     "' would be one pool more than max_pools, ",
                                                     context_.config.max_pools, ", allows"));
  }
  PoolConfig config = context_.config.defaults;
  config.name = registration.model;
  config.aliases.clear();
  return MakeEntry(std::move(config), /*configured=*/false);
}

std::shared_ptr<PoolEntry> FleetImpl::MakeEntry(PoolConfig config, bool configured) {
  std::unique_ptr<Index> index =
      create_index_({.bound_bytes = config.index_bound_bytes, .seed = random_()});
  std::uint32_t number = 0;
  {
    absl::MutexLock lock(&pools_mu_);
    const auto free = std::find(pools_.begin(), pools_.end(), nullptr);
    number = static_cast<std::uint32_t>(free - pools_.begin());
  }
  return std::make_shared<PoolEntry>(
      std::make_shared<Pool>(std::move(config), std::move(index), random_(),
                             context_.config.max_reservations_per_pool, number),
      configured);
}

void FleetImpl::ListEntry(std::shared_ptr<PoolEntry> entry) {
  names_.AddPool(entry->pool, entry->pool->config().aliases);
  const std::uint32_t number = entry->pool->number();
  absl::MutexLock lock(&pools_mu_);
  if (number == pools_.size()) pools_.emplace_back();
  pools_[number] = std::move(entry);
}

absl::StatusOr<std::uint32_t> FleetImpl::AgreeOnBlockSize(const PoolEntry& entry,
                                                          const Registration& registration,
                                                          const Member* own) const {
  const PoolConfig& config = entry.pool->config();
  const bool own_is_live = own != nullptr && !own->lost && &own->record->entry() == &entry;
  std::uint32_t block_size = entry.pool->routing_block_size();
  if (block_size == 0 || entry.live_workers == (own_is_live ? 1u : 0u)) {
    block_size = DeriveBlockSize(config, registration);
  }
  WARMPATH_RETURN_IF_ERROR(CheckBlockSizes(config, block_size, registration));
  return block_size;
}

void FleetImpl::RemoveMember(Members::iterator member, const absl::Status& why, absl::Time now) {
  const Member removed = std::move(member->second);
  workers_.erase(member);
  names_.Remove(removed.names, removed.lost);
  absl::MutexLock lock(&removed.record->mu);
  removed.record->Remove(why, now);
  PoolEntry& entry = removed.record->entry();
  entry.targets -= removed.record->ranks();
  if (!removed.lost) --entry.live_workers;
}

// ---- Ticks

void FleetImpl::Tick() {
  const absl::Time now = context_.clock->Now();
  absl::MutexLock tick_lock(&tick_mu_);
  bool quiet = true;
  for (const auto& entry : Entries()) {
    if (entry->pool->routing_block_size() == 0) continue;
    bool more = true;
    for (int i = 0; more && i < kMaxLedgerSteps; ++i) {
      absl::MutexLock lock(&entry->pool->mu());
      LoadLedger& ledger = entry->pool->ledger();
      more = ledger.Tick(now);
      quiet = quiet && !more && ledger.open() == 0 && ledger.InFlightBlocks() == 0;
    }
  }
  for (const auto& record : context_.acks.TakeDue(now)) {
    absl::MutexLock lock(&record->mu);
    record->SendDueAck();
  }
  std::size_t waiting = context_.turns.waiting();
  const std::vector<RankRef> holders = context_.turns.Holders();
  quiet_.store(quiet && waiting == 0 && holders.empty() && context_.acks.empty(),
               std::memory_order_relaxed);
  for (const RankRef& holder : holders) {
    absl::MutexLock lock(&holder.record->mu);
    if (holder.record->CheckTurn(holder.rank, waiting > 0, now) && waiting > 0) --waiting;
  }
  for (const auto& record : context_.silent.TakeDue(now)) {
    absl::MutexLock lock(&record->mu);
    record->CheckSilence(now);
  }
  ExpireLeases(now);
  RetireLost(now);
  if (now >= next_recovery_) {
    next_recovery_ = now + kRecoveryEvery;
    RecoverFullIndexes(now);
    RetirePools();
  }
  PumpTurns(context_);
  Ready();
}

void FleetImpl::ExpireLeases(absl::Time now) {
  for (const auto& record : context_.leases.TakeDue(now)) {
    absl::MutexLock registry_lock(&registry_mu_);
    absl::MutexLock lock(&record->mu);
    if (!record->LeaseOver(now)) continue;
    record->Lose(now);
    const auto member = workers_.find(record->id());
    if (member == workers_.end() || member->second.record != record) continue;
    member->second.lost = true;
    names_.MarkLost(member->second.names);
    --record->entry().live_workers;
  }
}

void FleetImpl::RetireLost(absl::Time now) {
  for (const auto& record : context_.retired.TakeDue(now)) {
    absl::MutexLock registry_lock(&registry_mu_);
    {
      absl::MutexLock lock(&record->mu);
      if (!record->RetirementOver(now)) continue;
    }
    const auto member = workers_.find(record->id());
    if (member == workers_.end() || member->second.record != record) continue;
    RemoveMember(member, absl::AbortedError("the worker was LOST for too long"), now);
  }
}

void FleetImpl::RetirePools() {
  for (const auto& entry : Entries()) {
    if (entry->configured) continue;
    absl::MutexLock registry_lock(&registry_mu_);
    // Also one whose first registration was refused at the last step.
    if (entry->targets > 0) continue;
    absl::MutexLock lock(&pools_mu_);
    std::shared_ptr<PoolEntry>& listed = pools_[entry->pool->number()];
    if (listed != entry) continue;
    names_.RemovePool(*entry->pool);
    listed.reset();
  }
}

void FleetImpl::RecoverFullIndexes(absl::Time now) {
  for (const auto& entry : Entries()) {
    std::optional<IndexFullQueue::Entry> first = entry->index_full.Front();
    if (!first.has_value()) continue;
    const IndexStats stats = entry->pool->index().Stats();
    const bool room =
        static_cast<double>(stats.bytes) < kRoomAt * static_cast<double>(stats.bound_bytes);
    auto step = WorkerRecord::FullStep::kDone;
    while (first.has_value()) {
      const std::shared_ptr<WorkerRecord> record = first->record.lock();
      if (record != nullptr) {
        absl::MutexLock lock(&record->mu);
        step = record->RecoverFull(first->rank, room, now);
      }
      if (record != nullptr && step != WorkerRecord::FullStep::kDone) break;
      entry->index_full.PopFront();
      first = entry->index_full.Front();
    }
    // Only the first may be busy: one snapshot at a time.
    if (first.has_value() && step == WorkerRecord::FullStep::kLater) entry->index_full.Rotate();
  }
}

bool FleetImpl::MaintainIndexes(std::size_t budget_blocks) {
  bool more = false;
  for (const auto& entry : Entries()) more |= entry->pool->index().Maintain(budget_blocks);
  return more;
}

bool FleetImpl::Ready() const {
  if (ready_.load(std::memory_order_acquire)) return true;
  const absl::Time now = context_.clock->Now();
  bool ready = now - started_ >= kReadyAfterStart;
  {
    absl::MutexLock lock(&registry_mu_);
    ready = ready || (first_register_.has_value() && now - *first_register_ >= kReadyAfterRegister);
  }
  if (!ready) {
    const auto records = Records();
    ready = !records.empty() && std::all_of(records.begin(), records.end(), [](const auto& r) {
      absl::MutexLock lock(&r->mu);
      return r->SnapshotsWhole();
    });
  }
  if (ready) ready_.store(true, std::memory_order_release);
  return ready;
}

}  // namespace warmpath
