// The model itself, by hand-computed answers.
#include "core/index/reference_index.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Hashes = std::vector<ChainHash>;

TEST(ReferenceIndexTest, MatchCountsLeadingRunsAndTiers) {
  ReferenceIndex index({});
  const Slot a = *index.OpenSlot();
  const Slot b = *index.OpenSlot();
  index.Apply(a, Tier::kGpu, {}, Hashes{1, 2, 4});
  index.Apply(a, Tier::kHost, {}, Hashes{2, 3});
  index.Apply(b, Tier::kDisk, {}, Hashes{1});
  MatchResult result;
  index.Match(Hashes{1, 2, 3, 4, 5}, &result);
  EXPECT_THAT(result.slots, UnorderedElementsAre(SlotMatch{a, 2, 4, {3, 1, 0, 0}},
                                                 SlotMatch{b, 0, 1, {0, 0, 1, 0}}));
  EXPECT_EQ(index.VerifiedGpuDepth(a, Hashes{1, 2, 3, 4, 5}, 0, 5), 2u);
  EXPECT_EQ(index.VerifiedGpuDepth(a, Hashes{1, 2, 3, 4, 5}, 3, 5), 4u);
}

TEST(ReferenceIndexTest, AHoleEndsTheMatch) {
  ReferenceIndex index({});
  const Slot a = *index.OpenSlot();
  index.Apply(a, Tier::kGpu, {}, Hashes{1, 2, 3, 4});
  index.Apply(a, Tier::kGpu, Hashes{2, 9}, {});
  MatchResult result;
  index.Match(Hashes{1, 2, 3, 4}, &result);
  EXPECT_THAT(result.slots, ElementsAre(SlotMatch{a, 1, 1, {1, 0, 0, 0}}));
}

TEST(ReferenceIndexTest, CountsWhatWasApplied) {
  ReferenceIndex index({.bound_bytes = 3 * ReferenceIndex::kBytesPerPair});
  const Slot a = *index.OpenSlot();
  EXPECT_EQ(index.Apply(a, Tier::kGpu, {}, Hashes{1, 2}), (ApplyResult{.stored = 2}));
  EXPECT_EQ(
      index.Apply(a, Tier::kGpu, Hashes{1, 7}, Hashes{1, 2, 3, 4}),
      (ApplyResult{
          .stored = 2, .already_stored = 1, .removed = 1, .removed_missing = 1, .refused = 1}));
  EXPECT_EQ(index.Digest(a, Tier::kGpu), (HoldingsDigest{3, 1 ^ 2 ^ 3}));
  EXPECT_EQ(index.Stats().refused_stores, 1u);
}

TEST(ReferenceIndexTest, AClosedSlotIsNeverReportedAndComesBackEmpty) {
  ReferenceIndex index({});
  const Slot a = *index.OpenSlot();
  index.Apply(a, Tier::kGpu, {}, Hashes{1});
  index.CloseSlot(a);
  index.CloseSlot(a);
  MatchResult result;
  index.Match(Hashes{1}, &result);
  EXPECT_THAT(result.slots, IsEmpty());
  EXPECT_FALSE(index.Holds(a, Tier::kGpu, 1));
  EXPECT_NE(*index.OpenSlot(), a) << "a number is not reused before it is swept";
  EXPECT_FALSE(index.Maintain(1));
  EXPECT_EQ(*index.OpenSlot(), a);
  EXPECT_FALSE(index.Holds(a, Tier::kGpu, 1));
}

}  // namespace
}  // namespace warmpath
