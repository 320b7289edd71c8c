#include "core/index/bucket_table.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <new>

namespace warmpath::index_internal {
namespace {

std::uint32_t HomeBuckets(std::uint32_t pages, std::uint32_t tail) {
  return pages * static_cast<std::uint32_t>(PageArena::kPageBytes / sizeof(Bucket)) - 1 - tail;
}

}  // namespace

BucketTable::BucketTable(std::uint64_t seed, PageArena* pages, EpochDomain* epochs,
                         std::uint64_t roomy_bytes)
    : seed_(seed), roomy_bytes_(roomy_bytes), pages_(pages), epochs_(epochs) {
  Directory* const directory = NewDirectory(0, MemoryUse::kFixed);
  Segment* const segment = NewSegment(1, 0, MemoryUse::kFixed);
  if (directory == nullptr || segment == nullptr) std::abort();  // two pages, at start
  directory->entries()[0].store(Pack(segment), std::memory_order_relaxed);
  directory_.store(directory, std::memory_order_release);
}

BucketTable::~BucketTable() {
  Directory* const directory = directory_.load(std::memory_order_acquire);
  std::uint64_t position = 0;
  do {
    Segment* const segment = SegmentOf(EntryFor(position));
    position = segment->depth == 0
                   ? 0
                   : ((position >> (64 - segment->depth)) + 1) << (64 - segment->depth);
    FreeSegment(segment);
  } while (position != 0);
  pages_->Free(directory, directory->pages);
  PlainLock lock(&retired_mu_);
  for (const Retired& retired : retired_) pages_->Free(retired.memory, retired.pages);
}

void BucketTable::WaitForHome(ChainHash hash, Place* place) const {
  SpinWait wait;
  do {
    wait.Once();
    *place = PlaceToWrite(hash);
  } while (!place->home->TryLock());
}

void BucketTable::Lock(Bucket* bucket) {
  SpinWait wait;
  while (!bucket->TryLock()) wait.Once();
}

template <Writing kMode>
bool BucketTable::InsertLater(Bucket* home, ChainHash hash, SetId id) {
  // The later bucket is locked while the home is held: in rising order, as everywhere.
  for (int distance = 1; distance <= kTailBuckets; ++distance) {
    Bucket* const bucket = home + distance;
    int slot = bucket->FreeEntry();
    if (slot < 0) continue;
    if constexpr (kMode == Writing::kShared) {
      Lock(bucket);
      slot = bucket->FreeEntry();
    }
    if (slot >= 0) {
      // Readers must know to look further before there is anything to find.
      home->AddLater(hash, distance);
      bucket->Take(slot, hash, id);
    }
    Unlock<kMode>(bucket);
    if (slot >= 0) return true;
  }
  return false;
}
template bool BucketTable::InsertLater<Writing::kAlone>(Bucket*, ChainHash, SetId);
template bool BucketTable::InsertLater<Writing::kShared>(Bucket*, ChainHash, SetId);

SetId BucketTable::FindLater(const Bucket* home, std::uint32_t control, ChainHash hash) {
  for (;;) {
    const int reach = Bucket::Reach(control);
    for (int i = 1; i <= reach; ++i) {
      const SetId id = home[i].Find(hash);
      if (id != kEmptySet) return id;
    }
    // Unless it was moved home behind our back, it is nowhere.
    const std::uint32_t now = home->Control();
    if (Bucket::SameVersion(control, now)) return kEmptySet;
    control = now;
    const SetId id = home->Find(control, hash);
    if (id != kEmptySet || !Bucket::MayLieLater(control, hash)) return id;
  }
}

BucketTable::Found BucketTable::LocateLater(ChainHash hash, Bucket* home) {
  const Bucket* const last = home + home->Reach();
  for (Bucket* bucket = home + 1; bucket <= last; ++bucket) {
    const int slot = bucket->Locate(hash);
    if (slot >= 0) return {bucket, slot};
  }
  return {home, -1};
}

std::uint32_t BucketTable::WithHome(const Bucket& bucket, Place place) const {
  // All five without a branch: each could go either way.
  std::uint32_t bits = 0;
  for (int i = 0; i < Bucket::kEntries; ++i) {
    // As Locate does it: entries of this home do not change while it is locked.
    const bool used = bucket.set[i].load(std::memory_order_acquire) != kEmptySet;
    const ChainHash hash = bucket.hash[i].load(std::memory_order_acquire);
    const bool ours = used & (Home(place.entry, Mix(hash)) == place.home);
    bits |= static_cast<std::uint32_t>(ours) << i;
  }
  return bits;
}

void BucketTable::MoveBack(Place place, int slot) const {
  Bucket* const home = place.home;
  // The farthest: there is one, and it is the dearest to find.
  const int reach = home->Reach();
  Bucket* const from = home + reach;
  const std::uint32_t ours = WithHome(*from, place);
  const int i = std::countr_zero(ours);
  home->Take(slot, from->hash[i].load(std::memory_order_acquire),
             from->set[i].load(std::memory_order_acquire));
  home->EndMove();
  from->set[i].store(kEmptySet, std::memory_order_release);
  if ((ours & (ours - 1)) == 0) LowerReach(place, reach - 1);
}

void BucketTable::LowerReach(Place place, int reach) const {
  Bucket* const home = place.home;
  while (reach > 0 && WithHome(home[reach], place) == 0) --reach;
  home->LowerReach(reach);
}

BucketTable::Segment* BucketTable::NewSegment(std::uint32_t pages, int depth, MemoryUse use) {
  void* const memory = pages_->Allocate(pages, use);
  if (memory == nullptr) return nullptr;
  auto* const segment = new (memory) Segment;
  segment->pages = pages;
  segment->depth = depth;
  segment->home_buckets = HomeBuckets(pages, kTailBuckets);
  const Packing& now = packing();
  segment->full_entries = FullEntries(pages, now);
  segment->away_limit = static_cast<std::int32_t>(segment->home_buckets * now.max_away);
  Bucket* const buckets = segment->buckets();
  for (std::uint32_t i = 0; i < segment->all_buckets(); ++i) new (buckets + i) Bucket;
  capacity_.fetch_add(segment->room(), std::memory_order_relaxed);
  return segment;
}

void BucketTable::FreeSegment(Segment* segment) {
  capacity_.fetch_sub(segment->room(), std::memory_order_relaxed);
  pages_->Free(segment, segment->pages);
}

BucketTable::Directory* BucketTable::NewDirectory(int depth, MemoryUse use) {
  const std::size_t bytes = sizeof(Directory) + (std::size_t{8} << depth);
  const auto pages =
      static_cast<std::uint32_t>((bytes + PageArena::kPageBytes - 1) / PageArena::kPageBytes);
  void* const memory = pages_->Allocate(pages, use);
  if (memory == nullptr) return nullptr;
  auto* const directory = new (memory) Directory;
  directory->depth = depth;
  directory->shift = 63 - depth;
  directory->pages = pages;
  return directory;
}

std::int32_t BucketTable::FullEntries(std::uint32_t pages, const Packing& packing) {
  return static_cast<std::int32_t>(HomeBuckets(pages, kTailBuckets) * Bucket::kEntries *
                                   packing.max_load);
}

std::uint32_t BucketTable::PagesFor(double entries, std::uint64_t mixed, int depth,
                                    std::uint32_t more_than, const Packing& packing) {
  // Sizes are growth^(i + phase). The phase depends on the first leading bits alone, so that where
  // sizes double, the halves of a segment are as large as it was, and pages that are freed are of
  // use again; all the more as there are few different sizes.
  const int bits = std::min(depth, kPhaseBits);
  const std::uint64_t prefix = bits == 0 ? 1 : (mixed >> (64 - bits)) | std::uint64_t{1} << bits;
  const double phase = static_cast<double>((prefix * 0x9E3779B97F4A7C15ULL) >> 11) * 0x1.0p-53;
  double size = std::pow(packing.growth, phase);
  const auto pages = [&size] {
    const auto whole = static_cast<std::uint32_t>(size);
    return whole > 8 ? (whole + 1) / 2 * 2 : whole;
  };
  while (pages() <= more_than || FullEntries(pages(), packing) < entries) size *= packing.growth;
  return pages();
}

BucketTable::Resize BucketTable::Grow(Entry entry, ChainHash hash, MemoryUse use, Writing mode) {
  const std::uint64_t mixed = Mix(hash);
  Segment* const old = SegmentOf(entry);
  const double estimate = EstimateEntries(old);
  if (estimate * 2 < old->full_entries) {
    // Crowded buckets in a half-empty segment are not what growth can help.
    return old->replacing.load(std::memory_order_acquire) != 0 ? Resize::kRaced : Resize::kNoMemory;
  }
  // Many more where growth was refused for long. Else the estimate would only add chance.
  const double entries = estimate > old->full_entries * 1.1 ? estimate : old->full_entries;
  const Packing& now = packing();
  const std::uint32_t pages = PagesFor(entries, mixed, old->depth, old->pages + 1, now);
  if (pages <= kMaxPages) return Replace(old, mixed, pages, 0, use, mode);
  if (old->depth >= kMaxDepth) return Resize::kNoMemory;
  // Halves are equal but for chance, of which this is three times the usual measure.
  const double half = entries / 2 + 1.5 * std::sqrt(entries);
  const std::uint64_t bit = std::uint64_t{1} << (63 - old->depth);
  const int depth = old->depth + 1;
  const auto pages_for_half = [&](std::uint64_t leading_bits) {
    return std::min(PagesFor(half, leading_bits, depth, 0, now), kMaxPages);
  };
  return Replace(old, mixed, pages_for_half(mixed & ~bit), pages_for_half(mixed | bit), use, mode);
}

double BucketTable::EstimateEntries(Segment* segment) {
  constexpr std::uint32_t kSample = 64;  // buckets; chance makes a few percent of difference
  const std::uint32_t step = std::max(segment->home_buckets / kSample, 1u);
  int room = 0;
  int used = 0;
  for (std::uint32_t i = 0; i < segment->home_buckets; i += step) {
    room += Bucket::kEntries;
    for (const auto& id : segment->buckets()[i].set) {
      used += static_cast<int>(id.load(std::memory_order_relaxed) != kEmptySet);
    }
  }
  return static_cast<double>(segment->room()) * used / room;
}

void BucketTable::ShrinkSegment(std::uint64_t position, std::size_t entries, Writing mode) {
  Segment* const old = SegmentOf(EntryFor(position));
  const auto held = static_cast<double>(entries);
  if (old->pages == 1 || held > old->full_entries * kShrinkLoad) return;
  const std::uint32_t pages = PagesFor(held * 1.1, position, old->depth, 0, packing());
  if (pages < old->pages) Replace(old, position, pages, 0, MemoryUse::kRemoval, mode);
}

BucketTable::Resize BucketTable::Replace(Segment* old, std::uint64_t mixed,
                                         std::uint32_t first_pages, std::uint32_t second_pages,
                                         MemoryUse use, Writing mode) {
  // Whoever replaces a segment sets this for good, so that nobody does it twice; a failure takes
  // it back.
  if (old->replacing.exchange(1, std::memory_order_acq_rel) != 0) return Resize::kRaced;
  Reclaim();
  const bool split = second_pages != 0;
  if (split && !DeepenDirectory(old->depth + 1, use)) {
    old->replacing.store(0, std::memory_order_release);
    return Resize::kNoMemory;
  }
  const int depth = old->depth + (split ? 1 : 0);
  // More pages are tried when a copy does not fit; hashes crowded on purpose may fit nowhere, and
  // what was to shrink may not grow.
  const bool shrinks = !split && first_pages < old->pages;
  const std::uint32_t most_pages =
      shrinks ? old->pages - 1
              : std::min(std::max(first_pages, second_pages) + old->pages + 1, kMaxPages);
  bool frozen = false;
  for (;; ++first_pages, second_pages += split ? 1 : 0) {
    const bool hopeless = std::max(first_pages, second_pages) > most_pages;
    Segment* const first = hopeless ? nullptr : NewSegment(first_pages, depth, use);
    Segment* const second =
        first != nullptr && split ? NewSegment(second_pages, depth, use) : nullptr;
    if (first == nullptr || (split && second == nullptr)) {
      if (first != nullptr) FreeSegment(first);
      if (frozen) {
        for (std::uint32_t i = 0; i < old->all_buckets(); ++i) old->buckets()[i].Unlock();
      }
      old->replacing.store(0, std::memory_order_release);
      return Resize::kNoMemory;
    }
    if (!frozen) {
      // From here on no writer changes the segment. Rising order, as in InsertLater: a writer that
      // holds a home bucket can always finish.
      for (std::uint32_t i = 0; i < old->all_buckets(); ++i) {
        if (mode == Writing::kAlone) {
          old->buckets()[i].MarkLocked();
        } else {
          Lock(old->buckets() + i);
        }
      }
      frozen = true;
    }
    if (split ? CopyInto<true>(old, first, second) : CopyInto<false>(old, first, nullptr)) {
      Publish(mixed, old, first, second);
      capacity_.fetch_sub(old->room(), std::memory_order_relaxed);
      Retire(old, old->pages);
      return Resize::kDone;
    }
    FreeSegment(first);
    if (second != nullptr) FreeSegment(second);
  }
}

template <bool kSplit>
bool BucketTable::CopyInto(Segment* old, Segment* first, Segment* second) const {
  struct Half {
    Bucket* buckets;
    std::uint64_t home_buckets;
    std::int32_t away;
  };
  std::array<Half, 2> halves = {{{first->buckets(), first->home_buckets, 0}, {}}};
  if constexpr (kSplit) halves[1] = {second->buckets(), second->home_buckets, 0};
  // Entries of each new bucket in use; nobody frees any meanwhile.
  std::array<std::array<std::uint8_t, kMaxBuckets>, kSplit ? 2 : 1> used{};
  const int shift = 63 - old->depth;
  for (std::uint32_t i = 0; i < old->all_buckets(); ++i) {
    const Bucket& from = old->buckets()[i];
    for (int k = 0; k < Bucket::kEntries; ++k) {
      const SetId id = from.set[k].load(std::memory_order_relaxed);
      if (id == kEmptySet) continue;
      const ChainHash hash = from.hash[k].load(std::memory_order_relaxed);
      const std::uint64_t mixed = Mix(hash);
      const std::size_t side = kSplit ? (mixed >> shift) & 1 : 0;
      Half& half = halves[side];
      const std::uint64_t home = ((mixed & 0xFFFFFFFF) * half.home_buckets) >> 32;
      std::uint64_t at = home;
      if (used[side][at] == Bucket::kEntries) {
        do {
          if (++at > home + kTailBuckets) return false;
        } while (used[side][at] == Bucket::kEntries);
        half.buckets[home].AddLater(hash, static_cast<int>(at - home));
        ++half.away;
      }
      const std::size_t slot = used[side][at]++;
      half.buckets[at].hash[slot].store(hash, std::memory_order_relaxed);
      half.buckets[at].set[slot].store(id, std::memory_order_relaxed);
    }
  }
  first->away.store(halves[0].away, std::memory_order_relaxed);
  if constexpr (kSplit) second->away.store(halves[1].away, std::memory_order_relaxed);
  return true;
}

void BucketTable::Publish(std::uint64_t mixed, Segment* old, Segment* first, Segment* second) {
  PlainLock lock(&directory_mu_);
  Directory* const directory = directory_.load(std::memory_order_relaxed);
  // The directory entries that share the segment's leading bits.
  const std::uint64_t count = std::uint64_t{1} << (directory->depth - old->depth);
  const std::uint64_t begin = old->depth == 0 ? 0 : (mixed >> (64 - old->depth)) * count;
  for (std::uint64_t i = 0; i < count; ++i) {
    Segment* const to = second != nullptr && i >= count / 2 ? second : first;
    directory->entries()[begin + i].store(Pack(to), std::memory_order_release);
  }
}

bool BucketTable::DeepenDirectory(int depth, MemoryUse use) {
  PlainLock lock(&directory_mu_);
  Directory* const old = directory_.load(std::memory_order_relaxed);
  if (old->depth >= depth) return true;
  Directory* const deeper = NewDirectory(old->depth + 1, use);
  if (deeper == nullptr) return false;
  for (std::uint64_t i = 0; i < std::uint64_t{1} << deeper->depth; ++i) {
    deeper->entries()[i].store(old->entries()[i / 2].load(std::memory_order_relaxed),
                               std::memory_order_relaxed);
  }
  directory_.store(deeper, std::memory_order_release);
  Retire(old, old->pages);
  return true;
}

void BucketTable::Retire(void* memory, std::uint32_t pages) {
  PlainLock lock(&retired_mu_);
  retired_.push_back({memory, pages, epochs_->Advance()});
}

void BucketTable::Reclaim() {
  PlainLock lock(&retired_mu_);
  std::size_t kept = 0;
  // Oldest first; the first that is still visible hides the rest.
  while (kept < retired_.size() && epochs_->AllLeft(retired_[kept].epoch)) ++kept;
  for (std::size_t i = 0; i < kept; ++i) pages_->Free(retired_[i].memory, retired_[i].pages);
  retired_.erase(retired_.begin(), retired_.begin() + static_cast<std::ptrdiff_t>(kept));
}

}  // namespace warmpath::index_internal
