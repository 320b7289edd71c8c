// How far do the slots hold a chain? The reading side of the index.
//
// The first blocks of a chain are looked at one by one, which is cheap because their cache lines
// are fetched ahead and because entries with the same set id have the same members: nothing else
// is compared. What lies beyond kExactBlocks is searched: while the running intersection of sets
// loses nothing the matcher gallops on, and where something is lost it bisects to the place. A
// handful of further cache misses answers for a chain of any length.
//
// A position that was jumped over is taken to hold what its neighbours hold. Content that was
// evicted from the tail, as engines do, makes this exact; a slot with a hole in the middle may be
// credited past it. It is never credited less than it holds: every depth given is a position at
// which the slot was seen to be missing, or the chain's end.
#ifndef WARMPATH_CORE_INDEX_MATCHER_H_
#define WARMPATH_CORE_INDEX_MATCHER_H_

#include <array>
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
  // Up to here a search would not touch fewer cache lines than the verification of its winner
  // does, so that looking at all is the cheaper of two ways to the same certainty.
  static constexpr std::size_t kExactBlocks = 128;

  Matcher(const BucketTable& table, const SetTable& sets, const SlotMap& slots,
          std::span<const ChainHash> chain)
      : table_(table), sets_(sets), slots_(slots), chain_(chain), words_(slots.words()) {}

  // Fills `result`. False when it met a member of another tier than the GPU: the segments are
  // right, but do not tell all that Match must.
  bool Gpu(MatchSegments* result);

  // Fills `result` with all tiers. Looks at each of the first `exact` blocks.
  void AllTiers(std::size_t exact, MatchResult* result);

  std::size_t VerifiedGpuDepth(Slot slot, std::size_t from, std::size_t limit) const;

 private:
  // Reads positions [from, end) one after another, fetching ahead.
  class Walk {
   public:
    Walk(const BucketTable& table, std::span<const ChainHash> chain, std::size_t from,
         std::size_t end);
    SetId Next() {
      const ChainHash hash = chain_[position_];
      BucketTable::Place& place = places_[position_ % kAhead];
      const BucketTable::Place here = place;
      if (position_ + kAhead < end_) place = table_.PlaceToRead(chain_[position_ + kAhead]);
      ++position_;
      return table_.FindAt(here, hash);
    }

   private:
    // Far enough to hide a cache miss behind the probes between.
    static constexpr std::size_t kAhead = 16;

    const BucketTable& table_;
    const std::span<const ChainHash> chain_;
    std::size_t position_;
    const std::size_t end_;
    std::array<BucketTable::Place, kAhead> places_;
  };

  SetId At(std::size_t position) const { return table_.Find(chain_[position]); }
  void Prefetch(std::size_t position) const {
    if (position < chain_.size()) table_.PlaceToRead(chain_[position]);
  }

  // Whether all slots of `mask` are GPU members of `id`.
  bool Covers(SetId id, const std::uint64_t* mask, std::uint64_t* scratch);
  // Closes a segment: what the result's running mask loses at `position`, whose set is `id`.
  // False if nothing is left.
  bool Lose(std::size_t position, SetId id, MatchSegments* result) const;

  const BucketTable& table_;
  const SetTable& sets_;
  const SlotMap& slots_;
  const std::span<const ChainHash> chain_;
  const std::size_t words_;
  bool gpu_only_ = true;
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_MATCHER_H_
