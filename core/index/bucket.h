// One cache line of the table: five entries (chain hash -> set id) and a control word.
//
// Writers hold the bucket's lock bit, or are alone (writer_gate.h). Readers take no lock and never
// wait: an entry is published by one store of its set id, and a version counts the times an entry
// of the bucket was given to another hash, the only change that can pair a hash with a set that was
// never its own.
#ifndef WARMPATH_CORE_INDEX_BUCKET_H_
#define WARMPATH_CORE_INDEX_BUCKET_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/base/ids.h"

// Where the processor can look at several entries with one instruction. ThreadSanitizer would not
// see what such an instruction reads, and so is shown each entry by itself.
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
#define WARMPATH_BUCKET_SSE2 1
#include <emmintrin.h>
#endif

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
//   move:   take in the home bucket; its version + 1; free where it was
//                                              holding the lock of H's home bucket
//
// A writer that is alone holds all locks without taking them. All stores release, all loads
// acquire (or do what comes to the same, see FirstNaming). A reader loads version, set, hash,
// version in this order and goes by the pair if the versions agree. Why that is sound: say the set
// was read in one tenancy and the hash in another. The hash's cannot be the older one, since
// reading the set acquired every store of its tenancy's start. So it is the younger one, and its
// start, version first, came after the set's tenancy had ended with set = 0. Had the first load of
// the version seen that start, the load of the set would have seen 0 or something younger; had it
// not, the second one does, because reading the hash acquired it. The versions disagree.
//
// Readers thus repeat only when a writer has completed something, and no store that they could
// see half of exists: a writer that is descheduled holding the lock delays writers alone.
//
// A move brings an entry back to its home bucket when there is room again. A reader that found
// nothing in the home bucket and nothing where the entry had been has acquired the free, and so
// sees the second version of the move when it looks at the home bucket's version again; had it
// begun with that version, it would have seen the taken entry. It begins anew if they differ.
//
// The version has 18 bits. To be fooled, a reader would have to sleep between two of its four
// loads while entries of that one bucket are taken, and moved, which counts twice, exactly a
// multiple of 262,144 times.
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

  // All zero in a new bucket: no entry is in use. Hashes of free entries mean nothing.
  std::atomic<std::uint64_t> hash[kEntries];
  std::atomic<SetId> set[kEntries];
  std::atomic<std::uint32_t> control;

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
      if (SameVersion(before, after)) return {key, id};
    }
  }

  // The first entry that names `key`, kEntries if there is none. A free entry may name it, too.
  // Without branches: which entry it is cannot be predicted.
  //
  // By vectors, loads are not atomic in the language's eyes. An x86 processor reads each aligned
  // hash of a vector at one moment, and loads in order; the signal fence keeps the compiler from
  // moving them past later ones. So whoever finds nothing has acquired what five loads would have;
  // an entry that is found is read again by its own rules.
  int FirstNaming(ChainHash key) const {
#ifdef WARMPATH_BUCKET_SSE2
    // Equal halves of hashes, two bits for each: those of entry i are bits 2 i and 2 i + 1.
    const auto* const lanes = reinterpret_cast<const __m128i*>(this);
    const __m128i wanted = _mm_set1_epi64x(static_cast<std::int64_t>(key));
    const __m128i of_0_1 = _mm_cmpeq_epi32(_mm_load_si128(lanes), wanted);
    const __m128i of_2_3 = _mm_cmpeq_epi32(_mm_load_si128(lanes + 1), wanted);
    const __m128i of_4 = _mm_cmpeq_epi32(_mm_load_si128(lanes + 2), wanted);
    const __m128i packed =
        _mm_packs_epi16(_mm_packs_epi32(of_0_1, of_2_3), _mm_packs_epi32(of_4, of_4));
    const auto halves = static_cast<std::uint32_t>(_mm_movemask_epi8(packed));
    std::atomic_signal_fence(std::memory_order_acquire);
    return std::countr_zero((halves & (halves >> 1) & 0x155) | (1u << (2 * kEntries))) / 2;
#else
    const auto prefer = [&](int i, int other) {
      return hash[i].load(std::memory_order_acquire) == key ? i : other;
    };
    return Opaque(prefer(0, prefer(1, prefer(2, prefer(3, prefer(4, kEntries))))));
#endif
  }
  // Bit i is set if entry i names `key`.
  std::uint32_t Naming(ChainHash key) const {
    const auto bit = [&](int i) {
      return static_cast<std::uint32_t>(hash[i].load(std::memory_order_acquire) == key) << i;
    };
    return bit(0) | bit(1) | bit(2) | bit(3) | bit(4);
  }

  // The set of `key` in this bucket, or kEmptySet. `control_word` was loaded before.
  SetId Find(std::uint32_t control_word, ChainHash key) const {
    const int i = FirstNaming(key);
    if (i == kEntries) return kEmptySet;
    // As Read does it, once.
    const SetId id = set[i].load(std::memory_order_acquire);
    const ChainHash there = hash[i].load(std::memory_order_acquire);
    if (id != kEmptySet && there == key &&
        SameVersion(control_word, control.load(std::memory_order_relaxed))) {
      return id;
    }
    return FindSlowly(key);
  }
  SetId Find(ChainHash key) const { return Find(Control(), key); }
  // When the first entry was free, or something changed meanwhile.
  SetId FindSlowly(ChainHash key) const {
    for (std::uint32_t bits = Naming(key); bits != 0; bits &= bits - 1) {
      const Entry entry = Read(std::countr_zero(bits));
      if (entry.hash == key && entry.set != kEmptySet) return entry.set;
    }
    return kEmptySet;
  }

  // For a writer that holds the lock of `key`'s home bucket: nobody else can then give an entry to
  // `key` or free it, so its set read first and its hash after it need no version.
  int Locate(ChainHash key) const {
    const int i = FirstNaming(key);
    if (i == kEntries) return -1;
    if (Holds(i, key)) return i;
    for (std::uint32_t bits = Naming(key); bits != 0; bits &= bits - 1) {
      if (Holds(std::countr_zero(bits), key)) return std::countr_zero(bits);
    }
    return -1;
  }
  bool Holds(int i, ChainHash key) const {
    return set[i].load(std::memory_order_acquire) != kEmptySet &&
           hash[i].load(std::memory_order_acquire) == key;
  }

  // REQUIRES: locked (else it is only a hint). -1 when full. As FirstNaming does it.
  int FreeEntry() const {
#ifdef WARMPATH_BUCKET_SSE2
    const auto* const lanes = reinterpret_cast<const __m128i*>(this);
    const __m128i zero = _mm_setzero_si128();
    const __m128i packed = _mm_packs_epi32(_mm_cmpeq_epi32(_mm_load_si128(lanes + 2), zero),
                                           _mm_cmpeq_epi32(_mm_load_si128(lanes + 3), zero));
    // Bits 0 and 1 are the last hash, 7 is the control word.
    const auto words = static_cast<std::uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(packed, zero)));
    std::atomic_signal_fence(std::memory_order_acquire);
    const std::uint32_t free = (words >> 2) & ((1u << kEntries) - 1);
    return free == 0 ? -1 : std::countr_zero(free);
#else
    const auto prefer = [&](int i, int other) {
      return set[i].load(std::memory_order_acquire) == kEmptySet ? i : other;
    };
    return Opaque(prefer(0, prefer(1, prefer(2, prefer(3, prefer(4, -1))))));
#endif
  }

  // REQUIRES: locked, and entry i free.
  void Take(int i, ChainHash key, SetId id) {
    const std::uint32_t word = control.load(std::memory_order_relaxed);
    control.store((word & ~kVersionMask) | ((word + 1) & kVersionMask), std::memory_order_release);
    hash[i].store(key, std::memory_order_release);
    set[i].store(id, std::memory_order_release);
  }

  // REQUIRES: locked. Between taking an entry that lies later and freeing it there.
  void EndMove() {
    const std::uint32_t word = control.load(std::memory_order_relaxed);
    control.store((word & ~kVersionMask) | ((word + 1) & kVersionMask), std::memory_order_release);
  }

  bool TryLock() {
    std::uint32_t word = control.load(std::memory_order_relaxed);
    return (word & kLocked) == 0 &&
           control.compare_exchange_weak(word, word | kLocked, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  bool IsLocked() const { return (control.load(std::memory_order_relaxed) & kLocked) != 0; }
  // For a writer that is alone.
  void MarkLocked() {
    control.store(control.load(std::memory_order_relaxed) | kLocked, std::memory_order_relaxed);
  }
  // REQUIRES: locked; only the holder changes the control word.
  void Unlock() {
    control.store(control.load(std::memory_order_relaxed) & ~kLocked, std::memory_order_release);
  }
  std::uint32_t Control() const { return control.load(std::memory_order_acquire); }
  int Reach() const { return Reach(Control()); }
  static int Reach(std::uint32_t control_word) {
    return static_cast<int>((control_word & kReachMask) >> kReachShift);
  }
  // Whether an entry of `key`, whose home this is, may lie in a later bucket.
  bool MayLieLater(ChainHash key) const { return MayLieLater(Control(), key); }
  static bool MayLieLater(std::uint32_t control_word, ChainHash key) {
    return ((control_word >> FilterShift(key)) & 1) != 0;
  }
  static bool SameVersion(std::uint32_t control_word, std::uint32_t other) {
    return ((control_word ^ other) & kVersionMask) == 0;
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
  // Nothing is known of the number: else g++ does not select it, but each of the addresses and
  // offsets that callers make of it, which costs a lookup a third of its time.
  static int Opaque(int number) {
#if defined(__GNUC__)
    asm("" : "+r"(number));
#endif
    return number;
  }
  static int FilterShift(ChainHash key) { return kFilterShift + static_cast<int>(key % 8); }
  static std::uint32_t FilterBit(ChainHash key) { return 1u << FilterShift(key); }
};
static_assert(sizeof(Bucket) == 64);
// What the vectors take for granted.
static_assert(offsetof(Bucket, set) == 40 && offsetof(Bucket, control) == 60);
#undef WARMPATH_BUCKET_SSE2

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_BUCKET_H_
