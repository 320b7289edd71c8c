// The hash table of the index: chain hash -> set id, read without locks, written bucket by bucket,
// grown segment by segment.
//
// A directory, indexed by the top bits of the mixed hash, names segments; a segment is a run of at
// most 128 KiB of buckets. An entry lies in its home bucket or, when that was full, in one of the
// next few, and moves at most once while its segment lives: back home, when another entry's removal
// has made room. (Without that, a table under churn ends up with a third of its entries away from
// home, and each costs a reader another cache miss or two.) A segment that fills up is copied into
// a larger one, or into two once it is at its largest. All segments fill at the same rate, so their
// sizes differ: they grow at different times, and the table as a whole is always about as full as
// the average of one step. The old copy stays readable until every reader that could see it is
// gone.
//
// How full a segment is, is told by the entries that lie away from home. Counting all of them would
// touch the segment's header, in most cases another cache miss, for each change instead of for one
// in ten; and what lies away from home is what a fuller segment costs.
#ifndef WARMPATH_CORE_INDEX_BUCKET_TABLE_H_
#define WARMPATH_CORE_INDEX_BUCKET_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/index/bucket.h"
#include "core/index/epoch.h"
#include "core/index/lock.h"
#include "core/index/page_arena.h"
#include "core/index/writer_gate.h"

namespace warmpath::index_internal {

// Thread-safe. Calls that look into the table need a pin of `epochs`; those that take a mode of
// writing, a pass of the gate in this mode, too.
class BucketTable {
 public:
  // The three must outlive the table. `seed` keeps the placement of entries from being known
  // outside: hashes come from agents, and must not be able to crowd one segment.
  // Up to `roomy_bytes` the table takes more memory than it must, for speed.
  BucketTable(std::uint64_t seed, PageArena* pages, EpochDomain* epochs,
              std::uint64_t roomy_bytes = kRoomyBytes);
  ~BucketTable();
  BucketTable(const BucketTable&) = delete;
  BucketTable& operator=(const BucketTable&) = delete;

  static constexpr std::uint64_t kRoomyBytes = std::uint64_t{48} << 20;

  // A pass is to be taken after the pin and kept for short: others may be waiting.
  WriterGate* gate() { return &gate_; }

  // Where a hash belongs, as of now. However old, it serves under the same pin (and, for a writer,
  // pass): a writer begins with it, and a reader sees what was there when it was made, or later.
  struct Place {
    Bucket* home;
    std::uint64_t entry;
  };
  // Both also fetch the bucket into the cache.
  Place PlaceToRead(ChainHash hash) const {
    const Place place = PlaceOf(hash);
    __builtin_prefetch(place.home, 0);
    return place;
  }
  Place PlaceToWrite(ChainHash hash) const {
    const Place place = PlaceOf(hash);
    __builtin_prefetch(place.home, 1);
    // Some entries lie there or will have to. To look first whether it is needed costs about as
    // much; not to ask at all, a tenth of a writer's time.
    __builtin_prefetch(place.home + 1, 1, 2);
    return place;
  }

  // Never waits. An entry present during the whole call, and since the place was made, is found.
  static SetId FindAt(const Place& place, ChainHash hash) {
    const std::uint32_t control = place.home->Control();
    const SetId id = place.home->Find(control, hash);
    if (id != kEmptySet || !Bucket::MayLieLater(control, hash)) return id;
    return FindLater(place.home, control, hash);
  }
  SetId Find(ChainHash hash) const { return FindAt(PlaceOf(hash), hash); }

  // The second half of FindAt, for callers that do something else between: looks into the buckets
  // after the home bucket, in which the entry was not found. `control` is the home bucket's word as
  // it was before that.
  static SetId FindLater(const Bucket* home, std::uint32_t control, ChainHash hash);
  // Asks for the nearest of those buckets; nearly always the entry lies in one of them.
  static void PrefetchLater(const Bucket* home, std::uint32_t control) {
    __builtin_prefetch(home + 1);
    if (Bucket::Reach(control) > 1) __builtin_prefetch(home + 2);
  }
  enum class Outcome {
    kUnchanged,  // before == after
    kChanged,
    kInserted,
    kErased,
    kNoMemory,  // nothing was changed
  };
  struct Update {
    Outcome outcome;
    SetId before;
    SetId after;
  };
  // Replaces the set of `hash` by transition(set), kEmptySet standing for "no entry" on both sides.
  // Atomic with respect to other updates of the same hash. `transition` may return kNoSet when it
  // has no memory; it must not call the table. `use` says how far growth may draw on the bound.
  template <Writing kMode, typename Transition>
  Update Apply(Place place, ChainHash hash, MemoryUse use, Transition transition);
  static constexpr SetId kNoSet = ~SetId{0};

  // Calls visit(hash, set id) for the entries of the segment that covers `position` and returns
  // the position after it: 0 once the last segment was visited. An entry present during the whole
  // walk is visited at least once, one that is moved meanwhile perhaps twice.
  template <typename Visit>
  std::uint64_t VisitSegment(std::uint64_t position, Visit visit) const;

  // Replaces the segment that covers `position` by a smaller one if it is sparse. `entries`: how
  // many it holds, about, as a visit has just found.
  void ShrinkSegment(std::uint64_t position, std::size_t entries, Writing mode);

  // Frees replaced segments that nobody can see any more.
  void Reclaim();
  // Gives what was freed back to the system, instead of keeping some of it for reuse.
  void Trim() { pages_->Trim(); }

  // Entries, as far as callers have reported what they inserted and erased: in batches, because a
  // counter that all writers touched for each block would be the slowest part of a write.
  void AddEntries(std::int64_t change) {
    entries_.fetch_add(static_cast<std::uint64_t>(change), std::memory_order_relaxed);
  }
  std::uint64_t entries() const { return entries_.load(std::memory_order_relaxed); }

  // Room in home buckets of live segments, in entries.
  std::uint64_t capacity() const { return capacity_.load(std::memory_order_relaxed); }

 private:
  // Buckets after the last home bucket, so that passing on never wraps around; and so many may an
  // insertion pass.
  static constexpr int kTailBuckets = 24;
  static_assert(kTailBuckets <= Bucket::kMaxReach);
  static constexpr std::uint32_t kMaxPages = 32;
  static constexpr std::size_t kMaxBuckets = kMaxPages * PageArena::kPageBytes / sizeof(Bucket);
  // A directory of 2^24 segments of a page would hold 64 GiB: deeper means that hashes are crowded
  // on purpose.
  static constexpr int kMaxDepth = 24;
  // Leading bits of the mixed hash that decide which sizes a segment may have.
  static constexpr int kPhaseBits = 5;
  // How segments are made.
  struct Packing {
    double max_load;  // share of the entries in use at which a segment grows, about
    // What decides it: entries away from home for each home bucket. Those of random hashes at
    // max_load, measured while a segment of 1,000 buckets fills; the two belong together.
    double max_away;
    double growth;  // to how many times its size
  };
  // Copies and entries away from home cost a writer a third of its time when memory is used well.
  // In a small table that is not worth it; in a large one it is, up to this load.
  static constexpr Packing kRoomy{.max_load = 0.74, .max_away = 0.374, .growth = 2.0};
  static constexpr Packing kPacked{.max_load = 0.83, .max_away = 0.6, .growth = 1.3};
  static constexpr double kShrinkLoad = 0.4;

  struct alignas(64) Segment {
    std::atomic<std::int32_t> away{0};        // entries away from home
    std::int32_t away_limit = 0;              // at more it grows
    std::atomic<std::uint32_t> replacing{0};  // 1 from the start of a replacement on
    std::uint32_t home_buckets = 0;
    std::uint32_t pages = 0;
    std::int32_t full_entries = 0;  // entries that it holds when it grows, about
    int depth = 0;                  // leading bits of the mixed hash that all its entries share

    template <Writing kMode>
    std::int32_t CountAway(std::int32_t change) {
      if constexpr (kMode == Writing::kShared) {
        return away.fetch_add(change, std::memory_order_relaxed) + change;
      }
      const std::int32_t now = away.load(std::memory_order_relaxed) + change;
      away.store(now, std::memory_order_relaxed);
      return now;
    }
    // After one more entry away from home made them so many. A growth that was refused is tried
    // again some entries later: the attempt is not free.
    bool ShouldGrow(std::int32_t now_away) const {
      constexpr std::int32_t kBetweenAttempts = 16;
      return now_away > away_limit && (now_away - away_limit) % kBetweenAttempts == 1;
    }
    std::uint64_t room() const { return std::uint64_t{home_buckets} * Bucket::kEntries; }
    Bucket* buckets() { return reinterpret_cast<Bucket*>(this + 1); }
    std::uint32_t all_buckets() const { return home_buckets + kTailBuckets; }
  };
  static_assert(sizeof(Segment) == 64);

  // A reader needs a segment's buckets and their number, in one atomic word: the address, which is
  // that of a page, and in its low bits the number of home buckets.
  using Entry = std::uint64_t;
  static constexpr Entry kCountMask = PageArena::kPageBytes - 1;
  static_assert(kMaxBuckets <= kCountMask);
  static Entry Pack(Segment* segment) {
    return reinterpret_cast<std::uintptr_t>(segment) | segment->home_buckets;
  }
  static Segment* SegmentOf(Entry entry) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the inverse of Pack
    return reinterpret_cast<Segment*>(entry & ~kCountMask);
  }

  struct alignas(64) Directory {
    int depth = 0;
    int shift = 63;  // 63 - depth
    std::uint32_t pages = 0;

    std::atomic<Entry>* entries() { return reinterpret_cast<std::atomic<Entry>*>(this + 1); }
    std::atomic<Entry>& For(std::uint64_t mixed) {
      // In two steps: a shift by 64 would be undefined.
      return entries()[(mixed >> 1) >> shift];
    }
  };

  // Top bits choose the segment, low 32 bits the bucket.
  std::uint64_t Mix(ChainHash hash) const {
    const std::uint64_t product = (hash ^ seed_) * 0x9E3779B97F4A7C15ULL;
    return product ^ (product >> 32);
  }
  Entry EntryFor(std::uint64_t mixed) const {
    return directory_.load(std::memory_order_acquire)->For(mixed).load(std::memory_order_acquire);
  }
  Place PlaceOf(ChainHash hash) const {
    const std::uint64_t mixed = Mix(hash);
    const Entry entry = EntryFor(mixed);
    return {Home(entry, mixed), entry};
  }
  static Bucket* Home(Entry entry, std::uint64_t mixed) {
    return SegmentOf(entry)->buckets() + (((mixed & 0xFFFFFFFF) * (entry & kCountMask)) >> 32);
  }

  // Locks the home bucket in the segment that is current then. A replaced segment's buckets stay
  // locked for ever, so a lock that was got at the first attempt, in whatever segment `place`
  // says, is a lock on the current one. Who is alone needs no lock, and finds a bucket locked for
  // that reason only. ("Locked" below means either.)
  template <Writing kMode>
  void LockHome(ChainHash hash, Place* place) const {
    if constexpr (kMode == Writing::kAlone) {
      if (place->home->IsLocked()) *place = PlaceOf(hash);
    } else {
      if (!place->home->TryLock()) WaitForHome(hash, place);
    }
  }
  template <Writing kMode>
  static void Unlock(Bucket* bucket) {
    if constexpr (kMode == Writing::kShared) bucket->Unlock();
  }
  void WaitForHome(ChainHash hash, Place* place) const;
  static void Lock(Bucket* bucket);

  // REQUIRES: `home` locked, and full. False when all buckets after it that may be used are, too.
  template <Writing kMode>
  static bool InsertLater(Bucket* home, ChainHash hash, SetId id);
  struct Found {
    Bucket* bucket;
    int slot;  // -1 if it is nowhere
  };
  // REQUIRES: `home` locked. Looks for the entry in the buckets after it.
  static Found LocateLater(ChainHash hash, Bucket* home);
  // REQUIRES: the home bucket locked. Bit i is set if entry i of a later bucket has this home.
  std::uint32_t WithHome(const Bucket& bucket, Place place) const;
  // REQUIRES: the home bucket locked, its reach not 0, and its entry `slot` free. Moves an entry
  // back to it.
  void MoveBack(Place place, int slot) const;
  // REQUIRES: the home bucket locked; none of its entries lies past distance `reach`.
  void LowerReach(Place place, int reach) const;

  Segment* NewSegment(std::uint32_t pages, int depth, MemoryUse use);
  Directory* NewDirectory(int depth, MemoryUse use);
  void FreeSegment(Segment* segment);

  const Packing& packing() const {
    return capacity() * sizeof(Bucket) / Bucket::kEntries < roomy_bytes_ ? kRoomy : kPacked;
  }
  // Entries that a segment of so many pages holds when it grows, about.
  static std::int32_t FullEntries(std::uint32_t pages, const Packing& packing);
  // The least size for so many entries among those that the segment with these leading bits may
  // have, above `more_than` pages.
  static std::uint32_t PagesFor(double entries, std::uint64_t mixed, int depth,
                                std::uint32_t more_than, const Packing& packing);

  enum class Resize { kDone, kRaced, kNoMemory };
  // Makes room in the segment of `entry`, which covers `hash`.
  Resize Grow(Entry entry, ChainHash hash, MemoryUse use, Writing mode);
  // How many entries it holds, by a look at some of its buckets.
  static double EstimateEntries(Segment* segment);
  // Copies the frozen `old` into one segment or, if it is split, two.
  template <bool kSplit>
  bool CopyInto(Segment* old, Segment* first, Segment* second) const;
  // By one segment of first_pages or, unless second_pages is 0, two.
  Resize Replace(Segment* old, std::uint64_t mixed, std::uint32_t first_pages,
                 std::uint32_t second_pages, MemoryUse use, Writing mode);
  void Publish(std::uint64_t mixed, Segment* old, Segment* first, Segment* second);
  bool DeepenDirectory(int depth, MemoryUse use);
  void Retire(void* memory, std::uint32_t pages);

  WriterGate gate_;
  const std::uint64_t seed_;
  const std::uint64_t roomy_bytes_;
  PageArena* const pages_;
  EpochDomain* const epochs_;
  std::atomic<Directory*> directory_;
  std::atomic<std::uint64_t> capacity_{0};
  std::atomic<std::uint64_t> entries_{0};

  PlainMutex directory_mu_;  // held to change the directory or an entry of it

  struct Retired {
    void* memory;
    std::uint32_t pages;
    EpochNumber epoch;
  };
  PlainMutex retired_mu_;
  std::vector<Retired> retired_ ABSL_GUARDED_BY(retired_mu_);
};

// Inlined into the writer's loop, so that the state of its transition stays in registers.
template <Writing kMode, typename Transition>
[[gnu::always_inline]] inline BucketTable::Update BucketTable::Apply(Place place, ChainHash hash,
                                                                     MemoryUse use,
                                                                     Transition transition) {
  for (;;) {
    LockHome<kMode>(hash, &place);
    Bucket* const home = place.home;
    Found found = {home, home->Locate(hash)};
    if (found.slot < 0 && home->MayLieLater(hash)) found = LocateLater(hash, home);
    Bucket* const bucket = found.bucket;
    const int slot = found.slot;
    const SetId before = slot < 0 ? kEmptySet : bucket->set[slot].load(std::memory_order_relaxed);
    const SetId after = transition(before);
    if (after == before || after == kNoSet) {
      Unlock<kMode>(home);
      return {after == before ? Outcome::kUnchanged : Outcome::kNoMemory, before, before};
    }
    if (before != kEmptySet && after != kEmptySet) {
      bucket->set[slot].store(after, std::memory_order_release);
      Unlock<kMode>(home);
      return {Outcome::kChanged, before, after};
    }
    if (after == kEmptySet) {
      bucket->set[slot].store(kEmptySet, std::memory_order_release);
      if (bucket != home) {
        if (bucket == home + home->Reach()) LowerReach(place, home->Reach());
        SegmentOf(place.entry)->template CountAway<kMode>(-1);
      } else if (home->Reach() > 0) {
        MoveBack(place, slot);
        SegmentOf(place.entry)->template CountAway<kMode>(-1);
      }
      Unlock<kMode>(home);
      return {Outcome::kErased, before, after};
    }
    if (const int free = home->FreeEntry(); free >= 0) {
      home->Take(free, hash, after);
      Unlock<kMode>(home);
      return {Outcome::kInserted, before, after};
    }
    if (InsertLater<kMode>(home, hash, after)) {
      Segment* const segment = SegmentOf(place.entry);
      const bool full = segment->ShouldGrow(segment->template CountAway<kMode>(1));
      Unlock<kMode>(home);
      if (full) Grow(place.entry, hash, use, kMode);
      return {Outcome::kInserted, before, after};
    }
    Unlock<kMode>(home);
    if (Grow(place.entry, hash, use, kMode) == Resize::kNoMemory) {
      return {Outcome::kNoMemory, before, before};
    }
  }
}

template <typename Visit>
std::uint64_t BucketTable::VisitSegment(std::uint64_t position, Visit visit) const {
  Segment* const segment = SegmentOf(EntryFor(position));
  // Backwards: an entry that moves, moves to an earlier bucket, and is met there if it had not been
  // met before. Whoever sees that it is gone has acquired that it was taken elsewhere.
  for (std::uint32_t i = segment->all_buckets(); i-- > 0;) {
    const Bucket& bucket = segment->buckets()[i];
    for (int k = 0; k < Bucket::kEntries; ++k) {
      const Bucket::Entry entry = bucket.Read(k);
      if (entry.set != kEmptySet) visit(entry.hash, entry.set);
    }
  }
  if (segment->depth == 0) return 0;
  return ((position >> (64 - segment->depth)) + 1) << (64 - segment->depth);
}

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_BUCKET_TABLE_H_
