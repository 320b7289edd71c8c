// The background work of the index, cut into small steps.
//
// A cycle walks the bucket table once. It finds out which sets are in use, removes the members of
// closed slots, and makes sparse parts of the table smaller; then it takes out the sets that are
// not in use, waits until nobody can see them, and lets them and the slots be used again. Writers
// go on all the time. What keeps that right:
//
//  1. When there are closed slots, the mask of them is published and all writers at work are
//     waited for. From then on no writer interns a set with a closed slot in it.
//  2. All marks are cleared, the generation moves on, and again writers at work are waited for.
//     From then on whatever a writer puts into the table it interned in this generation, which
//     marked it: its transition cache began empty.
//  3. The walk marks the sets it finds, or replaces them. An entry that changes behind the walk's
//     back changes to a marked set without closed slots.
//  4. Unmarked sets are taken out of the table of contents. A writer that wants one back meets it
//     either before, and marks it, or after, and makes a new one.
//  5. The generation moves on, and readers and writers at work are waited for. Then nobody holds an
//     unmarked set's id, in a pin or in a cache, and no reader has seen an entry with a closed
//     slot.
#ifndef WARMPATH_CORE_INDEX_SWEEPER_H_
#define WARMPATH_CORE_INDEX_SWEEPER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/index/bucket_table.h"
#include "core/index/epoch.h"
#include "core/index/memory_account.h"
#include "core/index/set_table.h"
#include "core/index/slot_map.h"
#include "core/index/worker_set.h"

namespace warmpath::index_internal {

// Slots whose members writers leave out of every set they make. Thread-safe.
class DeadSlots {
 public:
  void Publish(const SlotMask& mask, bool any);
  void Clear() { any_.store(false, std::memory_order_relaxed); }
  // Removes dead members from the set under construction.
  void Strip(SetBuilder* builder) const;

 private:
  std::atomic<bool> any_{false};
  std::array<std::atomic<std::uint64_t>, kMaxWords> mask_{};
};

// One thread at a time, but for generation() and dead_slots().
class Sweeper {
 public:
  // All must outlive the sweeper.
  Sweeper(BucketTable* table, SetTable* sets, SlotMap* slots, EpochDomain* epochs,
          MemoryAccount* account);

  // At most about `budget` blocks of work. True while more is left. REQUIRES: the calling thread
  // holds no pin.
  bool Step(std::size_t budget);

  // Completes the cycle at work, then a whole one. The calling thread waits for others' pins.
  void CollectNow();

  std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }
  const DeadSlots& dead_slots() const { return dead_; }

 private:
  enum class Phase { kIdle, kAwaitDead, kAwaitMarks, kWalk, kSweepSets, kAwaitEnd };

  bool ShouldBegin() const;
  bool WantsCompaction() const;
  void Begin();
  void ClearMarks();
  void Walk(std::size_t* budget);
  // Brings the entries of these hashes up to date. How many of them are gone then.
  template <Writing kMode>
  std::size_t Change(std::span<const ChainHash> hashes);
  void End();
  // Moves to `phase`, to be entered when all pins held now are gone.
  void Await(Phase phase);

  // What the entry with this set should hold; kNoSet when there is no memory for it.
  SetId Translate(SetId id);
  bool HasDeadSlots(const SetNode& node);

  BucketTable* const table_;
  SetTable* const sets_;
  SlotMap* const slots_;
  EpochDomain* const epochs_;
  MemoryAccount* const account_;

  std::atomic<std::uint64_t> generation_{1};
  DeadSlots dead_;

  Phase phase_ = Phase::kIdle;
  EpochNumber awaited_ = 0;
  SlotMask dead_mask_{};
  bool any_dead_ = false;
  bool compacting_ = false;
  bool complete_ = true;        // every entry was translated
  std::uint64_t position_ = 0;  // of the walk
  // As they were at the end of the last cycle: sets ever created, the table's entries and capacity.
  std::uint64_t created_ = 0;
  std::uint64_t end_entries_ = 0;
  std::uint64_t end_capacity_ = 0;
  absl::flat_hash_map<SetId, SetId> translations_;
  std::vector<ChainHash> to_change_;
  SetBuilder builder_;
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_SWEEPER_H_
