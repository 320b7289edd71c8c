// One cache line of the table: five entries (chain hash -> set id) and a control word.
//
// Writers hold the bucket's lock bit. Readers take no lock and never wait: an entry is published
// by one store of its set id, and a version counts the times an entry of the bucket was given to
// another hash, the only change that can pair a hash with a set that was never its own.
#ifndef WARMPATH_CORE_INDEX_BUCKET_H_
#define WARMPATH_CORE_INDEX_BUCKET_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "core/base/ids.h"

namespace warmpath::index_internal {

// Names one interned set of members (set_table.h).
using SetId = std::uint32_t;
inline constexpr SetId kEmptySet = 0;

// The protocol, in which "tenancy" is the time between an entry's being given to a hash and its
// being freed:
//
//   take:   version + 1; hash = H; set = S     holding this bucket's lock
//   change: set = S'                           holding the lock of H's home bucket
//   free:   set = 0                            holding the lock of H's home bucket
//
// All stores release, all loads acquire. A reader loads version, set, hash, version in this order
// and goes by the pair if the versions agree. Why that is sound: say the set was read in one
// tenancy and the hash in another. The hash's cannot be the older one, since reading the set
// acquired every store of its tenancy's start. So it is the younger one, and its start, version
// first, came after the set's tenancy had ended with set = 0. Had the first load of the version
// seen that start, the load of the set would have seen 0 or something younger; had it not, the
// second one does, because reading the hash acquired it. The versions disagree.
//
// Readers thus repeat only when a writer has completed something, and no store that they could
// see half of exists: a writer that is descheduled holding the lock delays writers alone.
//
// The version has 18 bits. To be fooled, a reader would have to sleep between two of its four
// loads while exactly a multiple of 262,144 entries of that one bucket are taken.
struct alignas(64) Bucket {
  static constexpr int kEntries = 5;

  static constexpr std::uint32_t kLocked = 1u << 31;
  // Of the entries whose home this bucket is, but which lie in a later one because it was full:
  // the distance to the farthest, and a filter over their hashes (bit h % 8 for hash h; bits of
  // those that were freed stay until none is left).
  static constexpr int kReachShift = 26;
  static constexpr std::uint32_t kReachMask = 0x1Fu << kReachShift;
  static constexpr int kMaxReach = 31;
  static constexpr int kFilterShift = 18;
  static constexpr std::uint32_t kFilterMask = 0xFFu << kFilterShift;
  static constexpr std::uint32_t kVersionMask = (1u << kFilterShift) - 1;

  std::atomic<std::uint64_t> hash[kEntries];
  std::atomic<SetId> set[kEntries];
  std::atomic<std::uint32_t> control;

  // Before the bucket is shared. Hashes of free entries mean nothing.
  void Clear() {
    for (auto& id : set) id.store(kEmptySet, std::memory_order_relaxed);
    control.store(0, std::memory_order_relaxed);
  }

  // The entry's (hash, set), as they were at one moment. The set is kEmptySet if it was free.
  struct Entry {
    ChainHash hash;
    SetId set;
  };
  Entry Read(int i) const {
    for (;;) {
      const std::uint32_t before = control.load(std::memory_order_acquire);
      const SetId id = set[i].load(std::memory_order_acquire);
      const ChainHash key = hash[i].load(std::memory_order_acquire);
      const std::uint32_t after = control.load(std::memory_order_relaxed);
      if (((before ^ after) & kVersionMask) == 0) return {key, id};
    }
  }

  // Bit i is set if entry i names `key`; a free entry may as well. Written out, so that it has no
  // branches: which entry it is cannot be predicted.
  std::uint32_t Naming(ChainHash key) const {
    const auto bit = [&](int i) {
      return static_cast<std::uint32_t>(hash[i].load(std::memory_order_relaxed) == key) << i;
    };
    return bit(0) | bit(1) | bit(2) | bit(3) | bit(4);
  }

  // The set of `key` in this bucket, or kEmptySet.
  SetId Find(ChainHash key) const {
    for (std::uint32_t bits = Naming(key); bits != 0; bits &= bits - 1) {
      const Entry entry = Read(std::countr_zero(bits));
      if (entry.hash == key && entry.set != kEmptySet) return entry.set;
    }
    return kEmptySet;
  }

  // For a writer that holds the lock of `key`'s home bucket: nobody else can then give an entry to
  // `key` or free it, so its set read first and its hash after it need no version.
  int Locate(ChainHash key) const {
    for (std::uint32_t bits = Naming(key); bits != 0; bits &= bits - 1) {
      const int i = std::countr_zero(bits);
      if (set[i].load(std::memory_order_acquire) != kEmptySet &&
          hash[i].load(std::memory_order_acquire) == key) {
        return i;
      }
    }
    return -1;
  }

  // REQUIRES: locked. -1 when full.
  int FreeEntry() const {
    const auto bit = [&](int i) {
      return static_cast<std::uint32_t>(set[i].load(std::memory_order_acquire) == kEmptySet) << i;
    };
    const std::uint32_t bits = bit(0) | bit(1) | bit(2) | bit(3) | bit(4);
    return bits == 0 ? -1 : std::countr_zero(bits);
  }

  // REQUIRES: locked, and entry i free.
  void Take(int i, ChainHash key, SetId id) {
    const std::uint32_t word = control.load(std::memory_order_relaxed);
    control.store((word & ~kVersionMask) | ((word + 1) & kVersionMask), std::memory_order_release);
    hash[i].store(key, std::memory_order_release);
    set[i].store(id, std::memory_order_release);
  }

  bool TryLock() {
    std::uint32_t word = control.load(std::memory_order_relaxed);
    return (word & kLocked) == 0 &&
           control.compare_exchange_weak(word, word | kLocked, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  // REQUIRES: locked; only the holder changes the control word.
  void Unlock() {
    control.store(control.load(std::memory_order_relaxed) & ~kLocked, std::memory_order_release);
  }
  int Reach() const {
    return static_cast<int>((control.load(std::memory_order_acquire) & kReachMask) >> kReachShift);
  }
  // Whether an entry of `key`, whose home this is, may lie in a later bucket.
  bool MayLieLater(ChainHash key) const {
    return (control.load(std::memory_order_acquire) & FilterBit(key)) != 0;
  }
  // REQUIRES: locked, or not shared yet. To be called before the later entry is taken.
  void AddLater(ChainHash key, int distance) {
    const std::uint32_t word = control.load(std::memory_order_relaxed);
    const auto reach = static_cast<std::uint32_t>(distance) << kReachShift;
    control.store((word & ~kReachMask) | std::max(word & kReachMask, reach) | FilterBit(key),
                  std::memory_order_release);
  }
  // REQUIRES: locked. After a later entry was freed: the farthest is now at this distance.
  void LowerReach(int distance) {
    const std::uint32_t word = control.load(std::memory_order_relaxed);
    const std::uint32_t gone = distance == 0 ? kReachMask | kFilterMask : kReachMask;
    control.store((word & ~gone) | (static_cast<std::uint32_t>(distance) << kReachShift),
                  std::memory_order_release);
  }

 private:
  static std::uint32_t FilterBit(ChainHash key) { return 1u << (kFilterShift + key % 8); }
};
static_assert(sizeof(Bucket) == 64);

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_BUCKET_H_
