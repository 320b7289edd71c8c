// Losses of messages, and the state that outlives the process.
#include "client/agent/canonical/canonical.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/hashing/chain_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/events/engine_events.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::AllOf;
using testing::Batch;
using testing::Chain;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using testing::Held;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::kBlock;
using testing::Options;
using testing::Remove;
using testing::StatusIs;
using testing::Store;
using testing::Tokens;
using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

// ---- Losses -----------------------------------------------------------------------------------

CanonicalOptions WithCapacity(std::uint64_t blocks) {
  CanonicalOptions options = Options();
  options.capacity[0] = blocks;
  return options;
}

TEST(CanonicalLossTest, AfterAGapTheOldestAreDroppedBeyondCapacity) {
  Canonical canonical(WithCapacity(4));
  canonical.Apply(Batch({Store({1}, std::nullopt, 10)}));
  canonical.Apply(Batch({Store({2}, std::nullopt, 20)}));
  canonical.Apply(Batch({Store({3}, std::nullopt, 30)}));
  EXPECT_THAT(canonical.MarkLoss(LossKind::kGap), IsEmpty()) << "nothing is cleared";
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kGap));
  EXPECT_EQ(canonical.suspects(), 3u);

  EXPECT_EQ(canonical.Apply(Batch({Store({4}, std::nullopt, 40)}))[0].removed.size(), 0u);
  auto changes = canonical.Apply(Batch({Store({5}, std::nullopt, 50)}));
  EXPECT_THAT(changes[0].removed, ElementsAreArray(Chain(10, 1)));
  changes = canonical.Apply(Batch({Store({6}, std::nullopt, 60)}));
  EXPECT_THAT(changes[0].removed, ElementsAreArray(Chain(20, 1)));
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kGap));
  changes = canonical.Apply(Batch({Store({7}, std::nullopt, 70)}));
  EXPECT_THAT(changes[0].removed, ElementsAreArray(Chain(30, 1)));
  EXPECT_TRUE(canonical.causes().empty()) << "none of it is left: EXACT again";
}

TEST(CanonicalLossTest, OfOneAgeTailsAreDroppedFirst) {
  Canonical canonical(WithCapacity(4));
  canonical.Apply(Batch({Store({1, 2, 3}, std::nullopt, 1)}));
  canonical.MarkLoss(LossKind::kGap);
  const auto changes = canonical.Apply(Batch({Store({7, 8}, std::nullopt, 70)}));
  EXPECT_THAT(changes[0].removed, ElementsAre(Chain(1, 3)[2]));
}

TEST(CanonicalLossTest, AStoreAfterTheGapDoesNotVouchForTheOldCopy) {
  Canonical canonical(WithCapacity(2));
  canonical.Apply(Batch({Store({1}, std::nullopt, 10)}));
  canonical.MarkLoss(LossKind::kGap);
  // Its eviction was lost; it comes back.
  canonical.Apply(Batch({Store({1}, std::nullopt, 10)}));
  EXPECT_EQ(canonical.suspects(), 1u);
  canonical.Apply(Batch({Store({2}, std::nullopt, 20)}));
  EXPECT_EQ(canonical.suspects(), 0u);
  EXPECT_EQ(canonical.digest(Tier::kGpu).count, 2u);
  EXPECT_TRUE(canonical.causes().empty());
  EXPECT_EQ(canonical.Apply(Batch({Remove({1})})).size(), 1u) << "no phantom copy is left";
}

TEST(CanonicalLossTest, RemovalAfterTheGapTakesTheCertainCopyFirst) {
  Canonical canonical(WithCapacity(8));
  canonical.Apply(Batch({Store({1}, std::nullopt, 10)}));
  canonical.MarkLoss(LossKind::kGap);
  canonical.Apply(Batch({Store({1}, std::nullopt, 10)}));
  EXPECT_THAT(canonical.Apply(Batch({Remove({1})})), IsEmpty());
  EXPECT_EQ(canonical.suspects(), 1u);
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kGap));
}

TEST(CanonicalLossTest, AGapIsNotHealedBeforeWhatWasMissedCanBeGone) {
  Canonical canonical(WithCapacity(4));
  canonical.MarkLoss(LossKind::kGap);
  for (EngineHash h = 1; h <= 3; ++h) {
    canonical.Apply(Batch({Store({h}, std::nullopt, static_cast<TokenId>(h * 10))}));
    canonical.Apply(Batch({Remove({h})}));
    EXPECT_TRUE(canonical.causes().Has(FeedCause::kGap)) << h;
  }
  canonical.Apply(Batch({Store({4}, std::nullopt, 40)}));
  EXPECT_TRUE(canonical.causes().empty()) << "turned over once";
}

TEST(CanonicalLossTest, AMissedStartHealsOnlyWhenFullOrCleared) {
  Canonical canonical(WithCapacity(2));
  canonical.MarkLoss(LossKind::kMissedStart);
  for (EngineHash h = 1; h <= 5; ++h) {
    canonical.Apply(Batch({Store({h}, std::nullopt, static_cast<TokenId>(h * 10)), Remove({h})}));
  }
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kMissedStart));
  canonical.Apply(Batch({Store({8}, std::nullopt, 80), Store({9}, std::nullopt, 90)}));
  EXPECT_TRUE(canonical.causes().empty());

  Canonical cleared(WithCapacity(100));
  cleared.MarkLoss(LossKind::kMissedStart);
  cleared.Apply(Batch({Store({1}, std::nullopt, 10)}));
  EXPECT_TRUE(cleared.causes().Has(FeedCause::kMissedStart));
  cleared.Apply(Batch({AllBlocksCleared{}}));
  EXPECT_TRUE(cleared.causes().empty());
}

TEST(CanonicalLossTest, WithoutAKnownCapacityALossStays) {
  Canonical canonical(Options());
  canonical.Apply(Batch({Store({1}, std::nullopt, 10)}));
  canonical.MarkLoss(LossKind::kGap);
  canonical.Apply(Batch({Remove({1})}));
  EXPECT_EQ(canonical.suspects(), 0u);
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kGap));
}

TEST(CanonicalLossTest, ReuseReportsConfirmSuspects) {
  CanonicalOptions options = WithCapacity(2);
  options.reports_reuse = true;
  Canonical canonical(options);
  canonical.Apply(Batch({Store({1}, std::nullopt, 10), Store({2}, std::nullopt, 20)}));
  canonical.MarkLoss(LossKind::kGap);
  canonical.Apply(Batch({Store({1}, std::nullopt, 10)}));
  EXPECT_EQ(canonical.suspects(), 1u);
  const auto changes = canonical.Apply(Batch({Store({3}, std::nullopt, 30)}));
  EXPECT_THAT(changes[0].removed, ElementsAreArray(Chain(20, 1))) << "the unconfirmed one goes";
  EXPECT_TRUE(canonical.causes().empty());
}

TEST(CanonicalLossTest, MalformedEventsOfTheDecoderRaiseDrift) {
  Canonical canonical(Options());
  EngineBatch batch = Batch({Store({1}, std::nullopt, 1)});
  batch.skipped.Add(SkipCause::kUnknownType);
  canonical.Apply(batch);
  EXPECT_TRUE(canonical.causes().empty());
  batch.skipped.Add(SkipCause::kMalformed);
  canonical.Apply(batch);
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kDrift));
}

// ---- State ------------------------------------------------------------------------------------

TEST(CanonicalLossTest, RestoredStateGoesOnLikeTheOriginal) {
  CanonicalOptions options = Options(8);
  options.capacity[0] = 6;
  Canonical original(options);
  BlockStored lora = Store({21, 22}, std::nullopt, 100);
  lora.lora_name = "l";
  original.Apply(Batch({Store({1, 2, 3}, std::nullopt, 1), Store({1, 2}, std::nullopt, 1), lora}));
  original.Apply(Batch({Store({42}, 41, 300), Store({1}, std::nullopt, 1, Tier::kHost)}));
  original.Apply(Batch({Store({52}, 1, 5)}));  // hides the first routing block
  original.MarkLoss(LossKind::kGap);

  Canonical restored(options);
  ASSERT_THAT(restored.Restore(original.Serialize()), IsOk());
  for (const Tier tier : kAllTiers) {
    EXPECT_EQ(restored.digest(tier), original.digest(tier));
    EXPECT_THAT(Held(restored, tier), UnorderedElementsAreArray(Held(original, tier)));
  }
  EXPECT_EQ(restored.causes(), original.causes());
  EXPECT_EQ(restored.blocks(), original.blocks());
  EXPECT_EQ(restored.orphans(), original.orphans());
  EXPECT_EQ(restored.suspects(), original.suspects());
  const std::vector<EngineBatch> more = {
      Batch({Store({4}, 3, 13), Remove({21})}), Batch({Store({41}, std::nullopt, 296)}),
      Batch({Remove({1, 2, 2}), Store({61, 62, 63, 64}, std::nullopt, 500)}),
      Batch({AllBlocksCleared{}})};
  for (const EngineBatch& batch : more) {
    original.Apply(batch);
    restored.Apply(batch);
    EXPECT_EQ(restored.digest(Tier::kGpu), original.digest(Tier::kGpu));
    EXPECT_EQ(restored.causes(), original.causes());
    EXPECT_EQ(restored.blocks(), original.blocks());
  }
}

TEST(CanonicalLossTest, DamagedStateIsRefusedAndLeavesNothing) {
  Canonical original(Options(8));
  original.Apply(Batch({Store({1, 2, 3}, std::nullopt, 1), Store({42}, 41, 300)}));
  const std::string bytes = original.Serialize();
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    Canonical canonical(Options(8));
    EXPECT_FALSE(canonical.Restore(bytes.substr(0, n)).ok()) << n;
    EXPECT_EQ(canonical.blocks(), 0u);
    EXPECT_EQ(canonical.bytes(), Canonical(Options(8)).bytes());
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int flip : {1, 0x80, 0xff}) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ flip);
      Canonical canonical(Options(8));
      if (!canonical.Restore(damaged).ok()) continue;
      // Taken for true: it must at least be usable.
      canonical.Apply(Batch({Remove({1, 2, 3, 42}), Store({4}, 3, 13), AllBlocksCleared{}}));
    }
  }
  Canonical other(Options(16));
  EXPECT_THAT(other.Restore(bytes), StatusIs(absl::StatusCode::kFailedPrecondition,
                                             AllOf(HasSubstr("8"), HasSubstr("16"))));
}

}  // namespace
}  // namespace warmpath
