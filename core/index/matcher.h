// How far do the slots hold a chain? The reading side of the index.
//
// Entries of one chain that hold the same set id hold the same members, so the matcher looks for
// the few positions at which the running intersection of sets shrinks: it gallops along the chain
// while nothing is lost, and where something is, bisects to the place. A handful of cache misses
// answers for a chain of any length.
//
// A position that was jumped over is taken to hold what its neighbours hold. Content that was
// evicted from the tail, as engines do, makes this exact; a slot with a hole in the middle may be
// credited past it. It is never credited less than it holds: every depth given is a position at
// which the slot was seen to be missing, or the chain's end.
#ifndef WARMPATH_CORE_INDEX_MATCHER_H_
#define WARMPATH_CORE_INDEX_MATCHER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/ids.h"
#include "core/index/bucket_table.h"
#include "core/index/index.h"
#include "core/index/set_table.h"
#include "core/index/slot_map.h"

namespace warmpath::index_internal {

// One lookup. REQUIRES: the thread holds a pin for as long as it lives.
class Matcher {
 public:
  Matcher(const BucketTable& table, const SetTable& sets, const SlotMap& slots,
          std::span<const ChainHash> chain)
      : table_(table), sets_(sets), slots_(slots), chain_(chain), words_(slots.words()) {}

  // Fills `result`. False when it met a member of another tier than the GPU: the segments are
  // right, but do not tell all that Match must.
  bool Gpu(MatchSegments* result);

  // Fills `result` with all tiers, galloping or, with `exact`, looking at every block.
  void AllTiers(bool exact, MatchResult* result);

  std::size_t VerifiedGpuDepth(Slot slot, std::size_t from, std::size_t limit) const;

 private:
  SetId At(std::size_t position) const { return table_.Find(chain_[position]); }
  void Prefetch(std::size_t position) const {
    if (position < chain_.size()) table_.PrefetchForRead(chain_[position]);
  }
  void PrefetchGallop() const;

  // Whether all slots of `mask` are GPU members of `id`.
  bool Covers(SetId id, const std::uint64_t* mask, std::uint64_t* scratch);

  const BucketTable& table_;
  const SetTable& sets_;
  const SlotMap& slots_;
  const std::span<const ChainHash> chain_;
  const std::size_t words_;
  bool gpu_only_ = true;
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_MATCHER_H_
