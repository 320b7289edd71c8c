// All worker sets in use, each stored once: equal sets have equal ids.
//
// Sets lie in an arena of 16-byte units; an id is an offset in it. Nobody counts references: a
// cycle of the sweep (sweeper.h) marks the ids that the bucket table holds, and what is left
// unmarked is taken out of the table of contents and, when no reader can hold it any more, reused.
// When the arena has become mostly holes, a cycle copies what it meets to the other half of the
// address range and gives the whole old half back.
#ifndef WARMPATH_CORE_INDEX_SET_TABLE_H_
#define WARMPATH_CORE_INDEX_SET_TABLE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/index/bucket.h"
#include "core/index/lock.h"
#include "core/index/memory_account.h"
#include "core/index/page_arena.h"
#include "core/index/worker_set.h"

namespace warmpath::index_internal {

// Thread-safe where not said otherwise.
class SetTable {
 public:
  static constexpr SetId kNoSet = ~SetId{0};

  // Both must outlive the table.
  SetTable(PageArena* pages, MemoryAccount* account);
  ~SetTable();
  SetTable(const SetTable&) = delete;
  SetTable& operator=(const SetTable&) = delete;

  // REQUIRES: not kEmptySet, and either read from the bucket table under a pin that is still held
  // or interned since the writer's pin was taken.
  const SetNode& Node(SetId id) const {
    return *reinterpret_cast<const SetNode*>(base_ + id * kUnitBytes);
  }
  void Prefetch(SetId id) const { __builtin_prefetch(base_ + id * kUnitBytes); }

  // The id of the set with this content, marked; kNoSet when there is no memory for a new one.
  SetId Intern(const SetNode& content, MemoryUse use);

  // The sweep's side; one thread at a time.
  //
  // Starts a cycle: nothing is marked. With `compact`, every set counts as outdated until Intern
  // was called with its content; copies draw on memory that is set aside here, under
  // MemoryUse::kFixed. REQUIRES: CanCompact(), if so.
  void BeginCycle(bool compact);
  bool CanCompact() const;
  bool Marked(SetId id) const {
    return (MarkWord(id).load(std::memory_order_relaxed) & MarkBit(id)) != 0;
  }
  void Mark(SetId id) {
    if (!Marked(id)) MarkWord(id).fetch_or(MarkBit(id), std::memory_order_relaxed);
  }
  // True in a compacting cycle for ids that must not stay in the bucket table.
  bool Outdated(SetId id) const {
    const std::uint32_t units = outdated_units_.load(std::memory_order_acquire);
    return id - outdated_begin_.load(std::memory_order_relaxed) < units;
  }
  // Takes unmarked sets out, looking at about `budget` sets; reduces it by what was done. True
  // when all have been looked at.
  bool Sweep(std::size_t* budget);
  // Reuses what Sweep took out. REQUIRES: no reader or writer can hold one of those ids.
  void EndCycle();

  std::uint64_t sets() const { return sets_.load(std::memory_order_relaxed); }
  // Interned since the start, sets taken out since included.
  std::uint64_t created() const { return created_.load(std::memory_order_relaxed); }
  std::uint64_t used_bytes() const {
    return used_units_.load(std::memory_order_relaxed) * kUnitBytes;
  }
  std::uint64_t arena_bytes() const { return arena_bytes_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t kUnitBytes = 16;
  // The arena grows by chunks. A chunk starts with one mark bit for each of its units.
  static constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
  static constexpr std::uint32_t kChunkUnits = kChunkBytes / kUnitBytes;
  static constexpr std::uint32_t kMarkUnits = kChunkUnits / 8 / kUnitBytes;
  static constexpr std::size_t kReserveBytes = std::size_t{1} << 34;  // 2^30 units
  static constexpr std::size_t kMaxUnits =
      (sizeof(SetNode) + kTierCount * kMaxWords * 8 + kUnitBytes - 1) / kUnitBytes;
  static constexpr std::size_t kShards = 64;

  struct Place {
    SetId id;  // kEmptySet: free
    std::uint32_t hash;
  };
  // Open addressing, linear probing.
  struct alignas(64) Shard {
    PlainMutex mu;
    Place* places ABSL_GUARDED_BY(mu) = nullptr;
    std::uint32_t pages ABSL_GUARDED_BY(mu) = 0;
    std::uint32_t capacity ABSL_GUARDED_BY(mu) = 0;
    std::uint32_t used ABSL_GUARDED_BY(mu) = 0;
    std::uint64_t rebuilds ABSL_GUARDED_BY(mu) = 0;
  };

  std::atomic<std::uint64_t>& MarkWord(SetId id) const {
    char* const chunk = base_ + std::size_t{id / kChunkUnits} * kChunkBytes;
    return reinterpret_cast<std::atomic<std::uint64_t>*>(chunk)[id % kChunkUnits / 64];
  }
  static std::uint64_t MarkBit(SetId id) { return std::uint64_t{1} << (id % 64); }

  static std::uint32_t UnitsFor(const SetNode& node) {
    return static_cast<std::uint32_t>((node.bytes() + kUnitBytes - 1) / kUnitBytes);
  }

  Shard& ShardFor(std::uint32_t hash) { return shards_[(hash * 0x9E3779B1u) >> 26]; }
  static std::uint32_t HomePlace(std::uint32_t hash, std::uint32_t capacity);
  bool ResizeShard(Shard* shard, std::uint32_t pages, MemoryUse use)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->mu);
  static void ErasePlace(Shard* shard, std::uint32_t place)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->mu);

  // A copy of `content` in the arena.
  SetId Store(const SetNode& content, MemoryUse use);
  // Where new sets go. Copies of a compaction have chunks of their own, so that writers cannot use
  // up what was set aside for them.
  struct Cursor {
    SetId next = 0;  // free up to `end`
    SetId end = 0;
  };
  bool NewChunk(MemoryUse use, Cursor* cursor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(arena_mu_);
  std::uint64_t RoomForCopies() const { return used_bytes() / 8 * 9 + 2 * kChunkBytes; }
  void PushFree(SetId id, std::uint32_t units) ABSL_EXCLUSIVE_LOCKS_REQUIRED(arena_mu_);
  // In free runs of at least this length.
  std::uint64_t FreeBytes(std::uint32_t units) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(arena_mu_);
  // Room that is free, of this length, or cut from a longer one; kEmptySet when there is none.
  SetId PopFree(std::uint32_t units) ABSL_EXCLUSIVE_LOCKS_REQUIRED(arena_mu_);
  SetId CutFree(std::uint32_t units) ABSL_EXCLUSIVE_LOCKS_REQUIRED(arena_mu_);
  void ClearMarks();
  void ChargeRetired();

  PageArena* const pages_;
  MemoryAccount* const account_;
  AddressRange range_;
  char* const base_;
  const std::uint32_t half_units_;  // units in each half of the range

  std::array<Shard, kShards> shards_;
  std::atomic<std::uint64_t> sets_{0};
  std::atomic<std::uint64_t> created_{0};

  PlainMutex arena_mu_;
  std::uint32_t half_ ABSL_GUARDED_BY(arena_mu_) = 0;    // 0 or 1: the half in use
  std::uint32_t chunks_ ABSL_GUARDED_BY(arena_mu_) = 0;  // of that half
  Cursor new_sets_ ABSL_GUARDED_BY(arena_mu_);
  Cursor copies_ ABSL_GUARDED_BY(arena_mu_);
  std::uint64_t set_aside_ ABSL_GUARDED_BY(arena_mu_) = 0;  // charged for copies, not yet used
  // Heads of lists of free runs by length; a free run's first word is the next one's id.
  std::array<SetId, kMaxUnits + 1> free_ ABSL_GUARDED_BY(arena_mu_){};
  std::array<std::uint32_t, kMaxUnits + 1> free_count_ ABSL_GUARDED_BY(arena_mu_){};
  std::atomic<std::uint64_t> used_units_{0};
  std::atomic<std::uint64_t> arena_bytes_{0};

  // The half that a compacting cycle empties; no units otherwise.
  std::atomic<std::uint32_t> outdated_begin_{0};
  std::atomic<std::uint32_t> outdated_units_{0};

  // The sweep's place, and what it took out.
  std::size_t sweep_shard_ = 0;
  std::uint32_t sweep_place_ = 0;
  std::uint64_t sweep_rebuilds_ = 0;
  std::vector<SetId> retired_;
  std::uint64_t retired_charge_ = 0;  // bytes of retired_ in the account
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_SET_TABLE_H_
