#include "core/index/sweeper.h"

#include <algorithm>
#include <span>
#include <thread>

namespace warmpath::index_internal {
namespace {

// A cycle begins when half as many sets were made as there are (most of them are then garbage, or
// the index is growing), but not for less than this.
constexpr std::uint64_t kLeastCreated = 4096;
// Near the bound it begins earlier.
constexpr std::uint64_t kPressurePercent = 85;
// Below this much, holes are not worth the copying.
constexpr std::uint64_t kLeastCompaction = std::uint64_t{1} << 19;
constexpr std::uint64_t kLeastShrink = 1 << 16;  // entries
// Writers do not wait for more.
constexpr std::size_t kChangesPerPass = 256;
// Interning finds a translation again; remembering it is only faster.
constexpr std::size_t kMostTranslations = 1 << 16;

}  // namespace

void DeadSlots::Publish(const SlotMask& mask, bool any) {
  for (std::size_t i = 0; i < kMaxWords; ++i) mask_[i].store(mask[i], std::memory_order_relaxed);
  any_.store(any, std::memory_order_release);
}

void DeadSlots::Strip(SetBuilder* builder) const {
  if (!any_.load(std::memory_order_acquire)) return;
  SlotMask mask;
  for (std::size_t i = 0; i < kMaxWords; ++i) mask[i] = mask_[i].load(std::memory_order_relaxed);
  builder->RemoveSlots(mask);
}

Sweeper::Sweeper(BucketTable* table, SetTable* sets, SlotMap* slots, EpochDomain* epochs,
                 MemoryAccount* account)
    : table_(table), sets_(sets), slots_(slots), epochs_(epochs), account_(account) {}

bool Sweeper::Step(std::size_t budget) {
  table_->Reclaim();
  while (budget > 0) {
    switch (phase_) {
      case Phase::kIdle:
        if (!ShouldBegin()) return false;
        Begin();
        break;
      case Phase::kAwaitDead:
        if (!epochs_->AllLeft(awaited_)) return true;
        ClearMarks();
        break;
      case Phase::kAwaitMarks:
        if (!epochs_->AllLeft(awaited_)) return true;
        position_ = 0;
        phase_ = Phase::kWalk;
        break;
      case Phase::kWalk:
        Walk(&budget);
        break;
      case Phase::kSweepSets:
        if (!sets_->Sweep(&budget)) return true;
        // Every entry has been stripped: sets made from now on need it no more.
        dead_.Clear();
        generation_.fetch_add(1, std::memory_order_release);
        Await(Phase::kAwaitEnd);
        break;
      case Phase::kAwaitEnd:
        if (!epochs_->AllLeft(awaited_)) return true;
        End();
        return ShouldBegin();
    }
  }
  return true;
}

void Sweeper::CollectNow() {
  const auto finish = [this] {
    do {
      Step(std::size_t{1} << 20);
      if (phase_ != Phase::kIdle) std::this_thread::yield();
    } while (phase_ != Phase::kIdle);
  };
  if (phase_ != Phase::kIdle) finish();
  Begin();
  finish();
}

bool Sweeper::ShouldBegin() const {
  if (slots_->AnyClosed()) return true;
  const std::uint64_t created = sets_->created() - created_;
  if (created > std::max(kLeastCreated, sets_->sets() / 2)) return true;
  // Each set in use is the set of some entry.
  if (sets_->sets() > table_->entries() + std::max(kLeastCreated, sets_->sets() / 4)) return true;
  if (account_->used() > account_->store_limit() / 100 * kPressurePercent &&
      created > std::max<std::uint64_t>(64, sets_->sets() / 16)) {
    return true;
  }
  if (WantsCompaction()) return true;
  // A table of smallest segments stays sparse: once tried, only for a real change.
  return table_->capacity() > kLeastShrink && table_->entries() < table_->capacity() * 2 / 5 &&
         (table_->entries() < end_entries_ / 2 || table_->capacity() > end_capacity_ * 5 / 4);
}

void Sweeper::Begin() {
  dead_mask_ = slots_->BeginSweep();
  any_dead_ = std::any_of(dead_mask_.begin(), dead_mask_.end(),
                          [](std::uint64_t word) { return word != 0; });
  complete_ = true;
  if (!any_dead_) {
    ClearMarks();
    return;
  }
  dead_.Publish(dead_mask_, true);
  Await(Phase::kAwaitDead);
}

bool Sweeper::WantsCompaction() const {
  return sets_->arena_bytes() > kLeastCompaction &&
         sets_->used_bytes() < sets_->arena_bytes() / 2 && sets_->CanCompact();
}

void Sweeper::ClearMarks() {
  compacting_ = WantsCompaction();
  sets_->BeginCycle(compacting_);
  generation_.fetch_add(1, std::memory_order_release);
  Await(Phase::kAwaitMarks);
}

void Sweeper::Await(Phase phase) {
  awaited_ = epochs_->Advance();
  phase_ = phase;
}

void Sweeper::Walk(std::size_t* budget) {
  EpochDomain::Pin pin(epochs_);
  to_change_.clear();
  std::size_t visited = 0;
  const std::uint64_t next = table_->VisitSegment(position_, [&](ChainHash hash, SetId id) {
    ++visited;
    if (sets_->Marked(id) && !sets_->Outdated(id)) return;
    if (Translate(id) != id) to_change_.push_back(hash);
  });
  std::size_t erased = 0;
  for (std::span<const ChainHash> rest = to_change_; !rest.empty();) {
    const auto some = rest.first(std::min(rest.size(), kChangesPerPass));
    rest = rest.subspan(some.size());
    const WriterGate::Pass pass(table_->gate());
    if (pass.mode() == Writing::kAlone) {
      erased += Change<Writing::kAlone>(some);
    } else {
      erased += Change<Writing::kShared>(some);
    }
  }
  *budget -= std::min(*budget, visited + to_change_.size() + 1);
  {
    const WriterGate::Pass pass(table_->gate());
    table_->ShrinkSegment(position_, visited - std::min(visited, erased), pass.mode());
  }
  position_ = next;
  if (next != 0) return;
  translations_ = {};
  if (compacting_ && !complete_) {
    // The system refuses memory. The originals may not go before the copies are complete: walk on.
    complete_ = true;
    return;
  }
  phase_ = Phase::kSweepSets;
}

template <Writing kMode>
std::size_t Sweeper::Change(std::span<const ChainHash> hashes) {
  std::size_t erased = 0;
  for (const ChainHash hash : hashes) {
    const auto update = table_->Apply<kMode>(
        table_->PlaceToWrite(hash), hash, MemoryUse::kRemoval,
        [this](SetId id) { return id == kEmptySet ? kEmptySet : Translate(id); });
    if (update.outcome == BucketTable::Outcome::kErased) ++erased;
    if (update.outcome == BucketTable::Outcome::kNoMemory) complete_ = false;
  }
  table_->AddEntries(-static_cast<std::int64_t>(erased));
  return erased;
}

void Sweeper::End() {
  sets_->EndCycle();
  slots_->EndSweep(complete_);
  table_->Reclaim();
  table_->Trim();
  created_ = sets_->created();
  end_entries_ = table_->entries();
  end_capacity_ = table_->capacity();
  phase_ = Phase::kIdle;
}

bool Sweeper::HasDeadSlots(const SetNode& node) {
  if (!any_dead_) return false;
  const auto dead = [this](Slot slot) { return ((dead_mask_[slot / 64] >> (slot % 64)) & 1) != 0; };
  const auto members = node.members();
  if (std::any_of(members.begin(), members.end(), [&](Member m) { return dead(SlotOf(m)); })) {
    return true;
  }
  for (std::size_t tier = 0; tier < kTierCount && node.words > 0; ++tier) {
    for (std::size_t word = 0; node.has_tier(tier) && word < node.words; ++word) {
      if ((node.bits(tier)[word] & dead_mask_[word]) != 0) return true;
    }
  }
  return false;
}

SetId Sweeper::Translate(SetId id) {
  const bool outdated = sets_->Outdated(id);
  if (!outdated && sets_->Marked(id)) return id;
  const auto known = translations_.find(id);
  if (known != translations_.end()) return known->second;
  const SetNode& node = sets_->Node(id);
  const bool dirty = HasDeadSlots(node);
  if (!dirty && !outdated) {
    sets_->Mark(id);
    return id;
  }
  // In a compacting cycle the room for all that is kept was set aside.
  const MemoryUse use = compacting_ ? MemoryUse::kFixed : MemoryUse::kRemoval;
  SetId to = kEmptySet;
  if (dirty) {
    builder_.Load(node);
    builder_.RemoveSlots(dead_mask_);
    if (builder_.count() > 0) to = sets_->Intern(*builder_.Finish(), use);
  } else {
    to = sets_->Intern(node, use);
  }
  if (to == SetTable::kNoSet) {
    // It stays in the table, dead slots and all, and so must the set; another cycle will try again.
    sets_->Mark(id);
    return to;
  }
  if (translations_.size() >= kMostTranslations) translations_.clear();
  translations_.emplace(id, to);
  return to;
}

}  // namespace warmpath::index_internal
