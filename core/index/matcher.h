// How far do the slots hold a chain? The reading side of the index.
//
// Entries with the same set id have the same members, so that ids are compared and little else.
//
// Where no slot has holes (Index::SetMayHaveHoles), a chain is searched: at a few positions, then
// between those whose ids differ. A handful of cache misses answers for a chain of any length. A
// position that was jumped over is taken to hold what its neighbours hold, which is exact; a few
// slots that may have holes are borne with, and may be credited past them. Never less than they
// hold: every depth given is a position at which the slot was seen to be missing, or the chain's
// end.
//
// Otherwise the first blocks are looked at one by one, with their cache lines fetched ahead: no
// more than the verification of a winner would touch. Only what lies beyond is searched.
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
  Matcher(const BucketTable& table, const SetTable& sets, const SlotMap& slots,
          std::span<const ChainHash> chain)
      : table_(table), sets_(sets), slots_(slots), chain_(chain), words_(slots.words()) {}

  // Fills `result`. Looks at each of the first `exact` blocks, > 0, unless it may search. False
  // when it met a member of another tier than the GPU: the segments are right, but do not tell all
  // that Match must.
  bool Gpu(std::size_t exact, MatchSegments* result);

  // Fills `result` with all tiers. Looks at each of the first `exact` blocks.
  void AllTiers(std::size_t exact, MatchResult* result);

  // Whether the slot is open and holds the block at this position in the GPU tier.
  bool HoldsGpu(Slot slot, std::size_t position) const;
  std::size_t VerifiedGpuDepth(Slot slot, std::size_t from, std::size_t limit) const;
  SlotMatch VerifiedMatch(Slot slot, std::size_t from) const;

 private:
  // Slots that may have holes are searched like the others, and may be credited past them, as long
  // as they are at most one in so many: else what is spared would be spent on verification.
  static constexpr std::uint64_t kSearchShare = 8;

  // Reads positions [from, end) one after another. Inside it works in batches: while one is looked
  // into, the home buckets of the next are asked for, so that cache misses overlap.
  class Walk {
   public:
    Walk(const BucketTable& table, std::span<const ChainHash> chain, std::size_t from,
         std::size_t end);
    // REQUIRES: fewer than end - from calls so far.
    SetId Next() {
      if (next_ == ready_) Fill();
      return ids_[next_++];
    }

   private:
    // As many cache misses as a core can have under way. The first batches are smaller: many chains
    // end early, and what was asked for beyond their end is wasted.
    static constexpr std::size_t kBatch = 16;
    static constexpr std::size_t kFirstBatch = 8;

    void Fill();

    const BucketTable& table_;
    const ChainHash* chain_;  // not yet looked at from here on
    std::size_t left_;        // so many
    std::size_t asked_;       // so many of them were asked for: the next batch
    std::size_t batch_ = kFirstBatch;
    std::size_t next_ = 0;
    std::size_t ready_ = 0;
    std::array<const Bucket*, 2 * kBatch> homes_;  // of two batches, in turns
    std::size_t half_ = 0;                         // the one that was asked for
    std::array<SetId, kBatch> ids_;
  };

  SetId At(std::size_t position) const { return table_.Find(chain_[position]); }

  // Gpu's two ways along the chain. Both leave the running mask at what is held so far; false if
  // nothing is.
  //
  // Looks at each block before `end`; *id becomes the last one's set. REQUIRES: end > 0.
  bool WalkTo(std::size_t end, SetId* id, MatchSegments* result);
  // Goes on to the chain's end, after `walked` blocks of which the last has the set `id`. Where no
  // slot has holes, the slots that hold a block become fewer and fewer along the chain, so that
  // equal sets at two positions are the set of all between them.
  bool SearchFrom(std::size_t walked, SetId id, MatchSegments* result);

  // Positions `low` and `high` have different sets: at least one change lies in (low, high].
  struct Interval {
    std::uint32_t low;
    std::uint32_t high;
    SetId low_id;
    SetId high_id;
  };
  // Where a search looks first: at the first block, the last, and these between. Many chains end
  // within a few blocks, where the prompts that share them part.
  static constexpr std::uint32_t kFirstStep = 4;
  static constexpr std::uint32_t kStepGrowth = 4;
  // Then at so many positions in each interval, all intervals at once. More would take fewer rounds
  // of cache misses, but more instructions in each.
  static constexpr std::uint32_t kFan = 5;
  // Positions looked at in one round, but for those of its last interval.
  static constexpr std::size_t kRoundPositions = 32;
  static constexpr std::size_t kMostPositions = kRoundPositions + kFan;
  struct Round {
    std::size_t count = 0;
    std::array<std::uint32_t, kMostPositions> positions;
    std::array<SetId, kMostPositions> ids;

    void Add(std::uint32_t position) { positions[count++] = position; }
  };
  // Fills in the sets. All cache misses of a round overlap.
  void LookAt(Round* round) const;
  // Intervals kept for later. Each round makes an interval six times narrower or resolves it.
  static constexpr std::size_t kIntervals = 512;
  // Whether both sets hold the same of the running mask. While a slot that was closed is being
  // swept out, the sets of a chain's blocks have it here and there, which is no change.
  bool HoldTheSame(SetId a, SetId b, const MatchSegments& result) const;
  // The running mask becomes what the set holds of it; what that loses, if anything, is a segment.
  // False if nothing is left.
  bool Restrict(std::size_t position, SetId id, MatchSegments* result);

  // Starts with the open slots of the chain's first block, whose set is `id`. False if there is
  // none.
  bool Start(SetId id, MatchSegments* result);
  // Closes the last segment: what is left of the running mask ends at `position`.
  void LoseAll(std::size_t position, MatchSegments* result) const;

  const BucketTable& table_;
  const SetTable& sets_;
  const SlotMap& slots_;
  const std::span<const ChainHash> chain_;
  const std::size_t words_;
  bool gpu_only_ = true;
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_MATCHER_H_
