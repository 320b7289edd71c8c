#include "core/index/prefix_index.h"

#include <algorithm>
#include <array>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/index/matcher.h"

namespace warmpath {

namespace internal = index_internal;
using internal::BucketTable;
using internal::EpochDomain;
using internal::kEmptySet;
using internal::Matcher;
using internal::Member;
using internal::MemoryUse;
using internal::PlainLock;
using internal::SetId;
using internal::SetTable;
using internal::WriterGate;
using internal::Writing;

namespace {

// Addresses, not memory: the account decides how much of it is used.
constexpr std::size_t kPageReserveBytes = std::size_t{1} << 38;

// Blocks applied under one pin, so that a long message does not hold reclamation up.
constexpr std::size_t kBlocksPerPin = 512;

// Buckets asked for ahead of their turn: enough to cover a miss to memory at full speed.
constexpr std::size_t kPrefetchAhead = 16;

// A small bound is to be used well.
std::uint64_t RoomyBytes(std::uint64_t bound_bytes) {
  return bound_bytes == 0 ? BucketTable::kRoomyBytes
                          : std::min(BucketTable::kRoomyBytes, bound_bytes / 4);
}

}  // namespace

PrefixIndex::PrefixIndex(const IndexOptions& options)
    : exact_blocks_(std::max(options.exact_blocks, 1u)),
      account_(options.bound_bytes),
      pages_(kPageReserveBytes, &account_, RoomyBytes(options.bound_bytes)),
      sets_(&pages_, &account_),
      table_(options.seed, &pages_, &epochs_, RoomyBytes(options.bound_bytes)),
      slots_(&account_),
      sweeper_(&table_, &sets_, &slots_, &epochs_, &account_) {
  account_.ForceCharge(sizeof(*this));
}

PrefixIndex::~PrefixIndex() = default;

absl::StatusOr<Slot> PrefixIndex::OpenSlot() {
  const std::optional<Slot> slot = slots_.Open();
  if (slot.has_value()) return *slot;
  return absl::ResourceExhaustedError(
      "index: all 16000 slots are in use; a pool holds at most 16000 targets (workers x ranks), "
      "closed ones that are not yet swept included: split the pool");
}

void PrefixIndex::CloseSlot(Slot slot) { slots_.Close(slot); }

// The lock is one of many, chosen as it goes, which the analysis of locks cannot follow.
class PrefixIndex::WriterLease {
 public:
  explicit WriterLease(PrefixIndex* index) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    // Any place will do; a thread that keeps to one finds its transitions there.
    const std::size_t hint = std::hash<std::thread::id>{}(std::this_thread::get_id());
    for (std::size_t i = 0; i < kWriters && place_ == nullptr; ++i) {
      WriterPlace& place = index->writers_[(hint + i) % kWriters];
      if (place.mu.TryLock()) place_ = &place;
    }
    if (place_ == nullptr) {
      place_ = &index->writers_[hint % kWriters];
      place_->mu.Lock();
    }
    index->WriterIn(&place_->writer);
  }
  ~WriterLease() ABSL_NO_THREAD_SAFETY_ANALYSIS { place_->mu.Unlock(); }
  WriterLease(const WriterLease&) = delete;
  WriterLease& operator=(const WriterLease&) = delete;

  Writer* get() const ABSL_NO_THREAD_SAFETY_ANALYSIS { return place_->writer.get(); }

 private:
  WriterPlace* place_ = nullptr;
};

ApplyResult PrefixIndex::Apply(Slot slot, Tier tier, std::span<const ChainHash> removed,
                               std::span<const ChainHash> stored) {
  Changes left = {removed, stored};
  ApplyResult result;
  bool collected = false;
  while (!left.removed.empty() || !left.stored.empty()) {
    if (ApplyPinned(slot, tier, &left, &result)) {
      collected = false;
      continue;
    }
    // A removal that needs a set for which there is no memory. Stores stop short of the bound, so
    // what is in the way are sets that nobody uses any more.
    if (collected) {
      ++result.not_removed;
      left.removed = left.removed.subspan(1);
    } else {
      CollectNow();
      collected = true;
    }
  }
  if (result.refused > 0) refused_.fetch_add(result.refused, std::memory_order_relaxed);
  return result;
}

bool PrefixIndex::ApplyPinned(Slot slot, Tier tier, Changes* left, ApplyResult* result) {
  EpochDomain::Pin pin(&epochs_);
  // Not before the pin: a slot closed later is swept only when this pin is gone.
  if (!slots_.IsOpen(slot)) {
    *left = {};
    return true;
  }
  const WriterGate::Pass pass(table_.gate());
  if (pass.mode() == Writing::kAlone) {
    return ApplyBoth<Writing::kAlone>(WriterIn(&alone_), slot, tier, left, result);
  }
  const WriterLease writer(this);
  return ApplyBoth<Writing::kShared>(writer.get(), slot, tier, left, result);
}

PrefixIndex::Writer* PrefixIndex::WriterIn(std::unique_ptr<Writer>* place) {
  if (*place == nullptr) {
    *place = std::make_unique<Writer>();
    account_.ForceCharge(sizeof(Writer));
  }
  return place->get();
}

template <Writing kMode>
bool PrefixIndex::ApplyBoth(Writer* writer, Slot slot, Tier tier, Changes* left,
                            ApplyResult* result) {
  writer->cache.Begin(sweeper_.generation());
  const auto removed = left->removed.first(std::min(left->removed.size(), kBlocksPerPin));
  const auto later = left->removed.subspan(removed.size());
  const Batch gone =
      ApplySome<false, kMode>(writer, slot, tier, removed, later.empty() ? left->stored : later);
  result->removed += gone.changed;
  result->removed_missing += gone.unchanged;
  const std::size_t done = gone.changed + gone.unchanged;
  left->removed = left->removed.subspan(done);
  if (done < removed.size()) return false;
  if (!left->removed.empty()) return true;
  const auto stored =
      left->stored.first(std::min(left->stored.size(), kBlocksPerPin - removed.size()));
  left->stored = left->stored.subspan(stored.size());
  const Batch come = ApplySome<true, kMode>(writer, slot, tier, stored, left->stored);
  result->stored += come.changed;
  result->already_stored += come.unchanged;
  result->refused += come.refused;
  return true;
}

template <bool kAdd, Writing kMode>
PrefixIndex::Batch PrefixIndex::ApplySome(Writer* writer, Slot slot, Tier tier,
                                          std::span<const ChainHash> hashes,
                                          std::span<const ChainHash> then) {
  Batch batch;
  if (hashes.empty()) return batch;
  constexpr MemoryUse kUse = kAdd ? MemoryUse::kStore : MemoryUse::kRemoval;
  const Member member = internal::MakeMember(slot, tier);
  SetId last_from = SetTable::kNoSet;
  SetId last_to = SetTable::kNoSet;
  const auto step = [&](SetId from) {
    if (from == last_from) return last_to;
    const SetId to = Step(writer, from, member, kAdd);
    if (to != SetTable::kNoSet) {
      last_from = from;
      last_to = to;
    }
    return to;
  };
  std::int64_t entries = 0;
  std::uint64_t xor_of_hashes = 0;
  // What is asked for next: the rest of the hashes, then those after them.
  const ChainHash* const end = hashes.data() + hashes.size();
  const ChainHash* ahead = hashes.data();
  const ChainHash* ahead_end = end;
  const auto ask_for_next = [&](BucketTable::Place* place) {
    if (ahead == ahead_end) return;
    *place = table_.PlaceToWrite(*ahead);
    if (++ahead == end) {
      ahead = then.data();
      ahead_end = ahead + then.size();
    }
  };
  std::array<BucketTable::Place, kPrefetchAhead> places;  // of hashes[i], at i % kPrefetchAhead
  for (auto& place : places) ask_for_next(&place);
  std::size_t turn = 0;
  for (const ChainHash* at = hashes.data(); at != end; ++at) {
    const ChainHash hash = *at;
    const BucketTable::Place place = places[turn];
    ask_for_next(&places[turn]);
    turn = (turn + 1) % kPrefetchAhead;
    const BucketTable::Update update = table_.Apply<kMode>(place, hash, kUse, step);
    if (update.outcome == BucketTable::Outcome::kUnchanged) {
      ++batch.unchanged;
      continue;
    }
    if (update.outcome == BucketTable::Outcome::kNoMemory) {
      if (!kAdd) break;
      ++batch.refused;
      continue;
    }
    ++batch.changed;
    xor_of_hashes ^= hash;
    entries += static_cast<int>(update.outcome == BucketTable::Outcome::kInserted) -
               static_cast<int>(update.outcome == BucketTable::Outcome::kErased);
  }
  if (batch.changed > 0) {
    const std::int64_t count = batch.changed;
    slots_.AddToDigest(slot, tier, kAdd ? count : -count, xor_of_hashes);
  }
  if (entries != 0) table_.AddEntries(entries);
  return batch;
}

SetId PrefixIndex::Step(Writer* writer, SetId from, Member member, bool add) {
  const std::uint64_t key = internal::TransitionCache::Key(from, member, add);
  if (const SetId* const known = writer->cache.Find(key)) return *known;
  internal::SetBuilder& builder = writer->builder;
  if (from == kEmptySet) {
    builder.Clear();
  } else {
    builder.Load(sets_.Node(from));
  }
  SetId to = from;
  if (add ? builder.Add(member) : builder.Remove(member)) {
    sweeper_.dead_slots().Strip(&builder);
    to = builder.count() == 0
             ? kEmptySet
             : sets_.Intern(*builder.Finish(), add ? MemoryUse::kStore : MemoryUse::kRemoval);
  }
  if (to != SetTable::kNoSet) writer->cache.Put(key, to);
  return to;
}

void PrefixIndex::CollectNow() {
  PlainLock lock(&maintain_mu_);
  sweeper_.CollectNow();
}

bool PrefixIndex::MatchGpu(std::span<const ChainHash> chain, MatchSegments* result) const {
  EpochDomain::Pin pin(&epochs_);
  return Matcher(table_, sets_, slots_, chain).Gpu(exact_blocks_, result);
}

void PrefixIndex::Match(std::span<const ChainHash> chain, MatchResult* result) const {
  EpochDomain::Pin pin(&epochs_);
  Matcher matcher(table_, sets_, slots_, chain);
  if (!matcher.Gpu(exact_blocks_, &result->segments)) {
    matcher.AllTiers(exact_blocks_, result);
    return;
  }
  result->slots.clear();
  result->exact_to = result->segments.exact_to;
  const MatchSegments& segments = result->segments;
  for (const MatchSegments::Segment& segment : segments.segments) {
    const SlotMatch match = {.gpu_depth = segment.depth,
                             .usable_depth = segment.depth,
                             .by_tier = {segment.depth, 0, 0, 0}};
    segments.ForEachSlot(segment, [&](Slot slot) {
      result->slots.push_back(match);
      result->slots.back().slot = slot;
    });
  }
}

void PrefixIndex::MatchExact(std::span<const ChainHash> chain, MatchResult* result) const {
  EpochDomain::Pin pin(&epochs_);
  Matcher(table_, sets_, slots_, chain).AllTiers(/*exact=*/chain.size(), result);
}

std::size_t PrefixIndex::VerifiedGpuDepth(Slot slot, std::span<const ChainHash> chain,
                                          std::size_t from, std::size_t limit) const {
  if (from >= limit) return from;  // the match was exact that far
  EpochDomain::Pin pin(&epochs_);
  const Matcher matcher(table_, sets_, slots_, chain);
  // Without holes the last block speaks for all before it.
  if (!slots_.MayHaveHoles(slot) && limit <= chain.size() && matcher.HoldsGpu(slot, limit - 1) &&
      !slots_.MayHaveHoles(slot)) {
    return limit;
  }
  return matcher.VerifiedGpuDepth(slot, from, limit);
}

SlotMatch PrefixIndex::VerifiedMatch(Slot slot, std::span<const ChainHash> chain,
                                     std::size_t from) const {
  EpochDomain::Pin pin(&epochs_);
  return Matcher(table_, sets_, slots_, chain).VerifiedMatch(slot, from);
}

bool PrefixIndex::Holds(Slot slot, Tier tier, ChainHash hash) const {
  EpochDomain::Pin pin(&epochs_);
  if (!slots_.IsOpen(slot)) return false;
  const SetId id = table_.Find(hash);
  return id != kEmptySet && sets_.Node(id).Contains(internal::MakeMember(slot, tier));
}

HoldingsDigest PrefixIndex::Digest(Slot slot, Tier tier) const { return slots_.Digest(slot, tier); }

void PrefixIndex::ForEach(Slot slot, Tier tier, absl::FunctionRef<void(ChainHash)> visit) const {
  if (!slots_.IsOpen(slot)) return;
  const Member member = internal::MakeMember(slot, tier);
  std::vector<ChainHash> hashes;
  std::uint64_t position = 0;
  do {
    hashes.clear();
    {
      EpochDomain::Pin pin(&epochs_);
      position = table_.VisitSegment(position, [&](ChainHash hash, SetId id) {
        if (sets_.Node(id).Contains(member)) hashes.push_back(hash);
      });
    }
    // Those that were moved meanwhile came twice.
    std::sort(hashes.begin(), hashes.end());
    hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
    // Without the pin, so that `visit` may take its time.
    for (const ChainHash hash : hashes) visit(hash);
  } while (position != 0);
}

IndexStats PrefixIndex::Stats() const {
  return {.blocks = table_.entries(),
          .pairs = slots_.pairs(),
          .sets = sets_.sets(),
          .bytes = account_.used(),
          .bound_bytes = account_.bound() == ~std::uint64_t{0} ? 0 : account_.bound(),
          .refused_stores = refused_.load(std::memory_order_relaxed),
          .open_slots = slots_.open_count(),
          .slots_with_holes = slots_.holes_count(),
          .closed_slots_unswept = slots_.unswept_count()};
}

bool PrefixIndex::Maintain(std::size_t budget_blocks) {
  PlainLock lock(&maintain_mu_);
  return sweeper_.Step(budget_blocks);
}

}  // namespace warmpath
