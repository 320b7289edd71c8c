// What the router relies on, case by case. Random histories: prefix_index_diff_test.cc.
#include "core/index/prefix_index.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using ::warmpath::testing::StatusIs;

using Hashes = std::vector<ChainHash>;

Hashes Range(ChainHash first, std::size_t count) {
  Hashes hashes(count);
  for (std::size_t i = 0; i < count; ++i) hashes[i] = (first + i) * 0x9E3779B97F4A7C15ULL;
  return hashes;
}

std::vector<SlotMatch> MatchOf(const Index& index, std::span<const ChainHash> chain) {
  MatchResult result;
  index.Match(chain, &result);
  return result.slots;
}

SlotMatch GpuMatch(Slot slot, std::uint32_t depth) {
  return {.slot = slot, .gpu_depth = depth, .usable_depth = depth, .by_tier = {depth, 0, 0, 0}};
}

void Settle(Index* index) {
  for (int i = 0; i < 10000 && index->Maintain(1 << 20); ++i) {
  }
}

class PrefixIndexTest : public ::testing::Test {
 protected:
  std::unique_ptr<Index> index_ = CreateIndex({});
};

TEST_F(PrefixIndexTest, AnswersForAnEmptyIndexAndAnEmptyChain) {
  EXPECT_THAT(MatchOf(*index_, Range(1, 5)), IsEmpty());
  const Slot slot = *index_->OpenSlot();
  EXPECT_THAT(MatchOf(*index_, Range(1, 5)), IsEmpty());
  EXPECT_THAT(MatchOf(*index_, {}), IsEmpty());
  EXPECT_EQ(index_->VerifiedGpuDepth(slot, {}, 0, 0), 0u);
  EXPECT_EQ(index_->VerifiedGpuDepth(slot, Range(1, 5), 7, 9), 7u);
  EXPECT_EQ(index_->Digest(slot, Tier::kGpu), HoldingsDigest{});
  EXPECT_EQ(index_->Digest(12345678, Tier::kGpu), HoldingsDigest{});
}

TEST_F(PrefixIndexTest, DepthsTiersAndHoles) {
  const Slot a = *index_->OpenSlot();
  const Slot b = *index_->OpenSlot();
  const Hashes chain = Range(1, 6);
  const std::span<const ChainHash> all(chain);
  index_->Apply(a, Tier::kGpu, {}, all.first(4));
  index_->Apply(a, Tier::kHost, {}, all.subspan(3, 2));
  index_->Apply(b, Tier::kDisk, {}, all.first(2));
  index_->Apply(b, Tier::kGpu, {}, all.subspan(4, 1));
  EXPECT_THAT(MatchOf(*index_, chain), UnorderedElementsAre(SlotMatch{a, 4, 5, {4, 1, 0, 0}},
                                                            SlotMatch{b, 0, 2, {0, 0, 2, 0}}));
  index_->Apply(a, Tier::kGpu, all.subspan(1, 1), {});
  EXPECT_THAT(MatchOf(*index_, chain),
              UnorderedElementsAre(GpuMatch(a, 1), SlotMatch{b, 0, 2, {0, 0, 2, 0}}));
}

TEST_F(PrefixIndexTest, CountsWhatWasApplied) {
  const Slot slot = *index_->OpenSlot();
  EXPECT_EQ(index_->Apply(slot, Tier::kGpu, Hashes{9}, Hashes{1, 2}),
            (ApplyResult{.stored = 2, .removed_missing = 1}));
  EXPECT_EQ(index_->Apply(slot, Tier::kGpu, Hashes{1}, Hashes{1, 2, 3}),
            (ApplyResult{.stored = 2, .already_stored = 1, .removed = 1}));
  EXPECT_EQ(index_->Digest(slot, Tier::kGpu), (HoldingsDigest{3, 1 ^ 2 ^ 3}));
  EXPECT_EQ(index_->Digest(slot, Tier::kHost), HoldingsDigest{});
}

TEST_F(PrefixIndexTest, Fault04_RemovalIsScopedToItsTargetAndTier) {
  const Slot a = *index_->OpenSlot();
  const Slot b = *index_->OpenSlot();  // another worker, or another rank of the same one
  const Hashes chain = Range(1, 4);
  for (const Slot slot : {a, b}) {
    index_->Apply(slot, Tier::kGpu, {}, chain);
    index_->Apply(slot, Tier::kHost, {}, chain);
  }
  EXPECT_EQ(index_->Apply(a, Tier::kGpu, chain, {}).removed, 4u);
  EXPECT_THAT(MatchOf(*index_, chain),
              UnorderedElementsAre(SlotMatch{a, 0, 4, {0, 4, 0, 0}}, GpuMatch(b, 4)));
  for (const ChainHash hash : chain) {
    EXPECT_FALSE(index_->Holds(a, Tier::kGpu, hash));
    EXPECT_TRUE(index_->Holds(a, Tier::kHost, hash));
    EXPECT_TRUE(index_->Holds(b, Tier::kGpu, hash));
    EXPECT_TRUE(index_->Holds(b, Tier::kHost, hash));
  }
  EXPECT_EQ(index_->Digest(b, Tier::kGpu).count, 4u);
}

TEST_F(PrefixIndexTest, Fault14_AClosedSlotIsMaskedAtOnce) {
  const Slot dead = *index_->OpenSlot();
  const Slot live = *index_->OpenSlot();
  const Hashes chain = Range(1, 300);
  index_->Apply(dead, Tier::kGpu, {}, chain);
  index_->Apply(live, Tier::kGpu, {}, std::span(chain).first(7));
  index_->CloseSlot(dead);
  index_->CloseSlot(dead);
  index_->CloseSlot(4000);  // never opened
  // Nothing has been swept yet.
  EXPECT_THAT(MatchOf(*index_, chain), ElementsAre(GpuMatch(live, 7)));
  MatchSegments segments;
  index_->MatchGpu(chain, &segments);
  ASSERT_EQ(segments.segments.size(), 1u);
  EXPECT_EQ(segments.segments[0].depth, 7u);
  EXPECT_EQ(index_->VerifiedGpuDepth(dead, chain, 0, 300), 0u);
  EXPECT_FALSE(index_->Holds(dead, Tier::kGpu, chain[0]));
  EXPECT_EQ(index_->Digest(dead, Tier::kGpu), HoldingsDigest{});
  EXPECT_EQ(index_->Apply(dead, Tier::kGpu, {}, chain), ApplyResult{});
  IndexStats stats = index_->Stats();
  EXPECT_EQ(stats.pairs, 7u);
  EXPECT_EQ(stats.closed_slots_unswept, 1u);
  EXPECT_NE(*index_->OpenSlot(), dead) << "the number is still in sets";
  Settle(index_.get());
  stats = index_->Stats();
  EXPECT_EQ(stats.blocks, 7u);
  EXPECT_EQ(stats.closed_slots_unswept, 0u);
  EXPECT_EQ(*index_->OpenSlot(), dead);
  EXPECT_THAT(MatchOf(*index_, chain), ElementsAre(GpuMatch(live, 7)));
}

TEST_F(PrefixIndexTest, ASnapshotIsBuiltBesideTheOldContentAndSwappedIn) {
  const Slot old_slot = *index_->OpenSlot();
  index_->Apply(old_slot, Tier::kGpu, {}, Range(1, 10));
  const Slot new_slot = *index_->OpenSlot();
  index_->Apply(new_slot, Tier::kGpu, {}, Range(1, 4));
  EXPECT_THAT(MatchOf(*index_, Range(1, 10)),
              UnorderedElementsAre(GpuMatch(old_slot, 10), GpuMatch(new_slot, 4)));
  index_->CloseSlot(old_slot);
  EXPECT_THAT(MatchOf(*index_, Range(1, 10)), ElementsAre(GpuMatch(new_slot, 4)));
}

TEST_F(PrefixIndexTest, BeyondTheExactBlocksAHoleMayBeJumpedAndIsFoundByVerification) {
  index_ = CreateIndex({.exact_blocks = 128});
  const Slot slot = *index_->OpenSlot();
  const Hashes chain = Range(1, 1000);
  const std::span<const ChainHash> all(chain);
  index_->Apply(slot, Tier::kGpu, {}, chain);
  index_->Apply(slot, Tier::kGpu, all.subspan(200, 1), {});
  MatchResult result;
  index_->Match(chain, &result);
  EXPECT_EQ(result.exact_to, 128u);
  ASSERT_EQ(result.slots.size(), 1u);
  EXPECT_EQ(result.slots[0].gpu_depth, 1000u);
  EXPECT_EQ(index_->VerifiedGpuDepth(slot, chain, result.exact_to, 1000), 200u);
  index_->MatchExact(chain, &result);
  EXPECT_THAT(result.slots, ElementsAre(GpuMatch(slot, 200)));
  // Within them it is seen.
  index_->Apply(slot, Tier::kGpu, all.subspan(20, 1), {});
  EXPECT_THAT(MatchOf(*index_, chain), ElementsAre(GpuMatch(slot, 20)));
}

TEST_F(PrefixIndexTest, RunsOutOfSlotsWithAStatus) {
  std::vector<Slot> slots;
  for (;;) {
    const auto slot = index_->OpenSlot();
    if (!slot.ok()) {
      EXPECT_THAT(slot, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("16000")));
      break;
    }
    slots.push_back(*slot);
    ASSERT_LE(slots.size(), 16000u);
  }
  EXPECT_EQ(slots.size(), 16000u);
  // All of them in one set, and gone again.
  for (const Slot slot : slots) index_->Apply(slot, Tier::kExternal, {}, Hashes{1});
  EXPECT_EQ(MatchOf(*index_, Hashes{1}).size(), 16000u);
  for (const Slot slot : slots) index_->CloseSlot(slot);
  Settle(index_.get());
  EXPECT_EQ(index_->Stats().blocks, 0u);
  EXPECT_TRUE(index_->OpenSlot().ok());
}

TEST_F(PrefixIndexTest, ForEachMayCallBack) {
  const Slot slot = *index_->OpenSlot();
  index_->Apply(slot, Tier::kGpu, {}, Range(1, 5000));
  std::size_t held = 0;
  index_->ForEach(slot, Tier::kGpu, [&](ChainHash hash) {
    held += index_->Holds(slot, Tier::kGpu, hash);
    index_->Apply(slot, Tier::kHost, {}, Hashes{hash});
  });
  EXPECT_EQ(held, 5000u);
  EXPECT_EQ(index_->Digest(slot, Tier::kHost).count, 5000u);
}

// Many sets that no transition cache and no sharing can help.
class RandomHolders {
 public:
  RandomHolders(Index* index, std::size_t slots) : index_(index) {
    for (std::size_t i = 0; i < slots; ++i) slots_.push_back(*index->OpenSlot());
  }
  // Block i to three slots of its own.
  ApplyResult Store(std::size_t first, std::size_t count) {
    ApplyResult sum;
    std::map<Slot, Hashes> by_slot;
    for (std::size_t i = first; i < first + count; ++i) {
      for (const std::size_t which : {0, 1, 2}) by_slot[Holder(i, which)].push_back(Block(i));
    }
    for (const auto& [slot, hashes] : by_slot) {
      const ApplyResult result = index_->Apply(slot, Tier::kGpu, {}, hashes);
      sum.stored += result.stored;
      sum.refused += result.refused;
    }
    return sum;
  }
  std::uint32_t Remove(std::size_t first, std::size_t count) {
    std::uint32_t removed = 0;
    for (std::size_t i = first; i < first + count; ++i) {
      for (const std::size_t which : {0, 1, 2}) {
        removed += index_->Apply(Holder(i, which), Tier::kGpu, Hashes{Block(i)}, {}).removed;
      }
    }
    return removed;
  }

 private:
  static ChainHash Block(std::size_t i) { return Range(i, 1)[0]; }
  Slot Holder(std::size_t i, std::size_t which) const {
    const std::size_t share = slots_.size() / 3;
    return slots_[which * share + Random(i * 3 + which).Below(share)];
  }

  Index* const index_;
  std::vector<Slot> slots_;
};

TEST_F(PrefixIndexTest, Fault13_MemoryFallsWhenBlocksGo) {
  RandomHolders holders(index_.get(), 300);
  constexpr std::size_t kBlocks = 200'000;
  holders.Store(0, kBlocks);
  Settle(index_.get());
  const IndexStats full = index_->Stats();
  EXPECT_EQ(full.blocks, kBlocks);
  EXPECT_EQ(full.pairs, 3 * kBlocks);
  EXPECT_LT(static_cast<double>(full.bytes) / static_cast<double>(full.pairs), 32.0);
  holders.Remove(0, kBlocks / 10 * 9);
  Settle(index_.get());
  EXPECT_LT(index_->Stats().bytes, full.bytes * 3 / 10);
  holders.Remove(kBlocks / 10 * 9, kBlocks / 10);
  Settle(index_.get());
  EXPECT_EQ(index_->Stats().blocks, 0u);
  EXPECT_LT(index_->Stats().sets, 5000u) << "so few may wait for the next sweep";
  EXPECT_LT(index_->Stats().bytes, std::uint64_t{3} << 20);
}

// The sweep itself removes these, and must notice that it has.
TEST_F(PrefixIndexTest, Fault13_MemoryFallsWhenAWorkerLeaves) {
  const Slot leaving = *index_->OpenSlot();
  const Slot staying = *index_->OpenSlot();
  Random random(6);
  std::vector<ChainHash> hashes(200'000);
  for (ChainHash& hash : hashes) hash = random();
  index_->Apply(leaving, Tier::kGpu, {}, hashes);
  index_->Apply(staying, Tier::kGpu, {}, std::span(hashes).first(10'000));
  Settle(index_.get());
  const std::uint64_t full = index_->Stats().bytes;
  index_->CloseSlot(leaving);
  Settle(index_.get());
  EXPECT_EQ(index_->Stats().blocks, 10'000u);
  EXPECT_LT(index_->Stats().bytes, full / 4);
}

TEST(PrefixIndexBoundTest, Fault13_StoresAreRefusedAtTheBoundAndRemovalsGoOn) {
  constexpr std::uint64_t kBound = std::uint64_t{8} << 20;
  const auto index = CreateIndex({.bound_bytes = kBound});
  EXPECT_EQ(index->Stats().bound_bytes, kBound);
  RandomHolders holders(index.get(), 300);
  constexpr std::size_t kStep = 1000;
  std::size_t stored = 0;
  std::uint64_t refused = 0;
  for (int full = 0; full < 20;) {
    const ApplyResult result = holders.Store(stored, kStep);
    stored += kStep;
    refused += result.refused;
    full += result.refused > 0;
    ASSERT_LE(index->Stats().bytes, kBound);
    ASSERT_LT(stored, 1'000'000u);
    index->Maintain(10'000);
  }
  EXPECT_EQ(index->Stats().refused_stores, refused);
  EXPECT_GT(index->Stats().pairs, 200'000u);
  // No background work at all from here on: removals must find their memory by themselves.
  std::uint64_t removed = 0;
  const std::uint64_t pairs = index->Stats().pairs;
  for (std::size_t i = 0; i < stored; i += kStep) {
    removed += holders.Remove(i, kStep);
    ASSERT_LE(index->Stats().bytes, kBound);
  }
  EXPECT_EQ(removed, pairs);
  EXPECT_EQ(index->Stats().pairs, 0u);
  EXPECT_EQ(index->Stats().blocks, 0u);
  Settle(index.get());
  EXPECT_EQ(holders.Store(0, kStep).refused, 0u) << "there is room again";
}

// An index that is smaller than its own tables still answers.
// Nearly every block has a set of its own, so that each removal needs room for a new one. Stores
// that took what removals before them had left used up what is kept for removals, for good.
TEST(PrefixIndexBoundTest, ChurnAtTheBoundLeavesRoomForRemovals) {
  constexpr ChainHash kBlocks = 3000;
  const auto index = CreateIndex({.bound_bytes = std::uint64_t{2} << 20});
  Random random(1);
  struct Worker {
    Slot slot;
    std::set<ChainHash> held;  // or refused: a removal of what is not there changes nothing
  };
  std::vector<Worker> workers(1000);
  std::uint64_t refused = 0;
  const auto apply = [&](Worker* worker, int changes) {
    std::set<ChainHash> removed;
    std::set<ChainHash> stored;
    for (int i = 0; i < changes; ++i) {
      const ChainHash block = 1 + random.Below(kBlocks);
      if (removed.contains(block) || stored.contains(block)) continue;
      if (worker->held.erase(block) > 0) {
        removed.insert(block);
      } else {
        worker->held.insert(block);
        stored.insert(block);
      }
    }
    const ApplyResult result = index->Apply(worker->slot, Tier::kGpu,
                                            std::vector<ChainHash>(removed.begin(), removed.end()),
                                            std::vector<ChainHash>(stored.begin(), stored.end()));
    refused += result.refused;
    return result.not_removed;
  };
  for (std::size_t i = 0; i < workers.size(); ++i) {
    workers[i].slot = *index->OpenSlot();
    ASSERT_EQ(apply(&workers[i], 100), 0u);
    if (i % 20 == 0) index->Maintain(100'000);
  }
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_EQ(apply(&workers[random.Below(workers.size())], 8), 0u) << i;
    if (i % 20 == 0) index->Maintain(20'000);
    ASSERT_LE(index->Stats().bytes, index->Stats().bound_bytes);
  }
  EXPECT_GT(refused, 10'000u) << "it was at its bound";
}

TEST(PrefixIndexBoundTest, ATinyBoundRefusesEverythingAndBreaksNothing) {
  const auto index = CreateIndex({.bound_bytes = 1});
  const Slot slot = *index->OpenSlot();
  const ApplyResult result = index->Apply(slot, Tier::kGpu, Hashes{5}, Range(1, 100));
  EXPECT_EQ(result.stored, 0u);
  EXPECT_EQ(result.refused, 100u);
  EXPECT_EQ(result.removed_missing, 1u);
  EXPECT_THAT(MatchOf(*index, Range(1, 100)), IsEmpty());
  Settle(index.get());
}

}  // namespace
}  // namespace warmpath
