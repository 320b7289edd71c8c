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

TEST(CanonicalTest, StoresAndRemovalsBecomeChainHashes) {
  Canonical canonical(Options());
  const std::vector<ChainHash> chain = Chain(1, 3);
  auto changes = canonical.Apply(Batch({Store({11, 12, 13}, std::nullopt, 1)}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].tier, Tier::kGpu);
  EXPECT_THAT(changes[0].stored, UnorderedElementsAreArray(chain));
  EXPECT_THAT(changes[0].removed, IsEmpty());
  EXPECT_EQ(canonical.digest(Tier::kGpu), (SetDigest{3, chain[0] ^ chain[1] ^ chain[2]}));
  EXPECT_TRUE(canonical.IsHeld(Tier::kGpu, chain[2]));

  changes = canonical.Apply(Batch({Remove({13})}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_THAT(changes[0].removed, ElementsAre(chain[2]));
  EXPECT_EQ(canonical.digest(Tier::kGpu), (SetDigest{2, chain[0] ^ chain[1]}));
  EXPECT_TRUE(canonical.causes().empty());
  EXPECT_EQ(canonical.skipped().Total(), 0u);
}

TEST(CanonicalTest, LaterEventsContinueTheChain) {
  Canonical canonical(Options());
  canonical.Apply(Batch({Store({11}, std::nullopt, 1)}));
  canonical.Apply(Batch({Store({12, 13}, 11, 5)}));
  EXPECT_THAT(Held(canonical), UnorderedElementsAreArray(Chain(1, 3)));
}

TEST(CanonicalTest, StoreAndRemovalInOneBatchCancel) {
  Canonical canonical(Options());
  EXPECT_THAT(canonical.Apply(Batch({Store({11}, std::nullopt, 1), Remove({11})})), IsEmpty());
  canonical.Apply(Batch({Store({11}, std::nullopt, 1)}));
  EXPECT_THAT(canonical.Apply(Batch({Remove({11}), Store({11}, std::nullopt, 1)})), IsEmpty());
  EXPECT_EQ(canonical.digest(Tier::kGpu).count, 1u);
}

TEST(CanonicalTest, Fault03_ChildrenOfAnUnknownParentWait) {
  Canonical canonical(Options());
  EXPECT_THAT(canonical.Apply(Batch({Store({13, 14}, 12, 9)})), IsEmpty());
  EXPECT_EQ(canonical.orphans(), 2u);
  EXPECT_THAT(Held(canonical), IsEmpty()) << "never credited at a wrong depth";
  // The parent is an orphan itself: still nothing.
  EXPECT_THAT(canonical.Apply(Batch({Store({12}, 11, 5)})), IsEmpty());
  EXPECT_EQ(canonical.orphans(), 3u);
  canonical.Apply(Batch({Store({11}, std::nullopt, 1)}));
  EXPECT_EQ(canonical.orphans(), 0u);
  EXPECT_THAT(Held(canonical), UnorderedElementsAreArray(Chain(1, 4)));
}

TEST(CanonicalTest, Fault03_RemovedOrphansAreForgotten) {
  Canonical canonical(Options());
  canonical.Apply(Batch({Store({13, 14}, 12, 9)}));
  canonical.Apply(Batch({Remove({14}), Remove({13})}));
  EXPECT_EQ(canonical.orphans(), 0u);
  EXPECT_EQ(canonical.blocks(), 0u) << "the placeholder of the parent goes with its children";
  canonical.Apply(Batch({Store({11, 12}, std::nullopt, 1)}));
  EXPECT_THAT(Held(canonical), UnorderedElementsAreArray(Chain(1, 2)));
}

TEST(CanonicalTest, Fault03_OrphansAreBounded) {
  CanonicalOptions options = Options();
  options.max_orphans = 3;
  Canonical canonical(options);
  canonical.Apply(Batch({Store({21, 22, 23, 24, 25}, 12, 9)}));
  EXPECT_EQ(canonical.orphans(), 3u);
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kOrphanBound), 2u);
  canonical.Apply(Batch({Store({31}, std::nullopt, 50)}));
  EXPECT_EQ(canonical.digest(Tier::kGpu).count, 1u) << "the others go on";
}

TEST(CanonicalTest, Fault04_RemovalKeepsToItsTierAndDomain) {
  Canonical canonical(Options());
  BlockStored lora = Store({21}, std::nullopt, 1);
  lora.lora_name = "a";
  canonical.Apply(
      Batch({Store({11}, std::nullopt, 1), Store({11}, std::nullopt, 1, Tier::kHost), lora}));
  canonical.Apply(Batch({Remove({11})}));
  EXPECT_THAT(Held(canonical, Tier::kHost), ElementsAreArray(Chain(1, 1)));
  EXPECT_THAT(Held(canonical), ElementsAreArray(Chain(1, 1, kBlock, "a")));
}

TEST(CanonicalTest, Fault05_ClearedMeansTheGpuTierOnly) {
  Canonical canonical(Options(8));
  canonical.Apply(
      Batch({Store({11, 12, 13}, std::nullopt, 1), Store({11, 12}, std::nullopt, 1, Tier::kHost)}));
  const auto changes = canonical.Apply(Batch({AllBlocksCleared{}}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_THAT(changes[0].removed, ElementsAreArray(Chain(1, 1, 8)));
  EXPECT_THAT(Held(canonical), IsEmpty());
  EXPECT_THAT(Held(canonical, Tier::kHost), ElementsAreArray(Chain(1, 1, 8)));
  EXPECT_EQ(canonical.blocks(), 2u);
  canonical.Apply(Batch({Store({13, 14}, 12, 9)}));
  EXPECT_THAT(Held(canonical), ElementsAre(Chain(1, 2, 8)[1]))
      << "chains go on where the other tier kept them";
}

TEST(CanonicalTest, Fault06_CopiesAreCounted) {
  Canonical canonical(Options());
  for (int i = 0; i < 3; ++i) canonical.Apply(Batch({Store({11}, std::nullopt, 1)}));
  EXPECT_THAT(canonical.Apply(Batch({Remove({11})})), IsEmpty());
  EXPECT_THAT(canonical.Apply(Batch({Remove({11})})), IsEmpty());
  EXPECT_EQ(canonical.digest(Tier::kGpu).count, 1u);
  EXPECT_EQ(canonical.Apply(Batch({Remove({11})})).size(), 1u);
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kUnderflow), 0u);
  canonical.Apply(Batch({Remove({11})}));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kUnderflow), 1u);
  EXPECT_EQ(canonical.blocks(), 0u);
}

TEST(CanonicalTest, ReportsOfReuseAreNoCopies) {
  Canonical canonical(Options());
  canonical.Apply(Batch({Store({11}, std::nullopt, 1)}));
  BlockStored again = Store({11}, std::nullopt, 1);
  again.origin = "REUSED";
  canonical.Apply(Batch({again}));
  EXPECT_EQ(canonical.Apply(Batch({Remove({11})})).size(), 1u);

  CanonicalOptions options = Options();
  options.reports_reuse = true;
  Canonical flagged(options);
  for (int i = 0; i < 3; ++i) flagged.Apply(Batch({Store({11}, std::nullopt, 1)}));
  EXPECT_EQ(flagged.Apply(Batch({Remove({11})})).size(), 1u);
}

TEST(CanonicalTest, Fault08_SelfAndCyclicParentsAreSkipped) {
  Canonical canonical(Options());
  canonical.Apply(Batch({Store({7}, 7, 1)}));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kBadParent), 1u);
  EXPECT_EQ(canonical.blocks(), 0u);
  // 8 below 9, then 9 below 8.
  canonical.Apply(Batch({Store({8}, 9, 1)}));
  canonical.Apply(Batch({Store({9}, 8, 5)}));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kBadParent), 2u);
  // A longer way round: 1 <- 2 <- 3, then 1 below 3.
  canonical.Apply(Batch({Store({2, 3}, 1, 1)}));
  canonical.Apply(Batch({Store({1}, 3, 5)}));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kBadParent), 3u);
  // The same hash twice in a row.
  canonical.Apply(Batch({Store({20, 20, 21}, std::nullopt, 1)}));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kBadParent), 5u);
  EXPECT_THAT(Held(canonical), ElementsAreArray(Chain(1, 1)));
  // A known block under another parent.
  canonical.Apply(Batch({Store({31}, std::nullopt, 70), Store({20}, 31, 1)}));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kBadParent), 6u);
  // The honest parent may still come.
  canonical.Apply(Batch({Store({9}, std::nullopt, 100)}));
  EXPECT_EQ(canonical.orphans(), 2u) << "2 and 3, not 8";
}

// ---- Domains ----------------------------------------------------------------------------------

ExtraKey Bare(std::string text) { return {ExtraKey::Kind::kBare, std::move(text), 0}; }
ExtraKey Image(std::string id, std::int64_t offset) {
  return {ExtraKey::Kind::kItem, std::move(id), offset};
}

TEST(CanonicalTest, Fault09_LoraSaltAndItemsAreSeparateDomains) {
  Canonical canonical(Options());
  BlockStored plain = Store({1}, std::nullopt, 1);
  plain.extra_keys.emplace(1);
  BlockStored lora = Store({2}, std::nullopt, 1);
  lora.lora_name = "x";
  lora.extra_keys = {{Bare("x")}};
  BlockStored salt = Store({3}, std::nullopt, 1);
  salt.extra_keys = {{Bare("x")}};
  BlockStored both = Store({4}, std::nullopt, 1);
  both.lora_name = "x";
  both.extra_keys = {{Bare("x"), Bare("x")}};
  BlockStored image = Store({5}, std::nullopt, 1);
  image.extra_keys = {{Image("x", 0)}};
  BlockStored sglang = Store({6}, std::nullopt, 1);
  sglang.cache_salt = "tenant";
  canonical.Apply(Batch({plain, lora, salt, both, image, sglang}));

  const MultimodalItem item{"x", 0, kBlock};
  EXPECT_THAT(Held(canonical),
              UnorderedElementsAre(Chain(1, 1)[0], Chain(1, 1, kBlock, "x")[0],
                                   Chain(1, 1, kBlock, std::nullopt, "x")[0],
                                   Chain(1, 1, kBlock, "x", "x")[0],
                                   LocalHash(kHashSeed, Tokens(1, kBlock), {&item, 1}, 0),
                                   Chain(1, 1, kBlock, std::nullopt, "tenant")[0]));
  EXPECT_EQ(canonical.digest(Tier::kGpu).count, 6u);
  EXPECT_TRUE(canonical.causes().empty());
}

TEST(CanonicalTest, ChildrenInheritLoraAndSalt) {
  Canonical canonical(Options());
  BlockStored root = Store({1, 2}, std::nullopt, 1);
  root.lora_name = "l";
  root.extra_keys = {{Bare("l"), Bare("s")}, {Bare("l")}};
  BlockStored child = Store({3}, 2, 9);
  child.lora_name = "l";
  child.extra_keys = {{Bare("l")}};
  canonical.Apply(Batch({child, root}));
  EXPECT_THAT(Held(canonical), UnorderedElementsAreArray(Chain(1, 3, kBlock, "l", "s")));
}

TEST(CanonicalTest, LoraNumberAloneIsADomainOfItsOwn) {
  CanonicalOptions options = Options();
  options.lora_names[7] = "known";
  Canonical canonical(options);
  BlockStored numbered = Store({1}, std::nullopt, 1);
  numbered.lora_id = 3;
  BlockStored mapped = Store({2}, std::nullopt, 1);
  mapped.lora_id = 7;
  canonical.Apply(Batch({numbered, mapped}));
  EXPECT_THAT(Held(canonical), UnorderedElementsAre(Chain(1, 1, kBlock, "lora-id:3")[0],
                                                    Chain(1, 1, kBlock, "known")[0]));
}

TEST(CanonicalTest, ItemsAcrossEngineBlocksCountOnce) {
  Canonical canonical(Options(8));
  BlockStored event = Store({1, 2}, std::nullopt, 1);
  // One image from token 2 to 6, another from token 6: the first is reported with both blocks.
  event.extra_keys = {{Image("a", 2)}, {Image("a", -2), Image("b", 2)}};
  canonical.Apply(Batch({event}));
  const std::vector<MultimodalItem> items = {{"a", 2, 4}, {"b", 6, 2}};
  EXPECT_THAT(Held(canonical), ElementsAre(LocalHash(kHashSeed, Tokens(1, 8), items, 0)));
}

TEST(CanonicalTest, UnknownKeysAreNotCredited) {
  Canonical canonical(Options());
  BlockStored embeds = Store({1, 2}, std::nullopt, 1);
  embeds.extra_keys = {{ExtraKey{}}, {}};
  BlockStored stray = Store({11, 12}, std::nullopt, 50);
  stray.extra_keys = {{}, {Bare("who knows")}};
  canonical.Apply(Batch({embeds, stray, Store({3}, 2, 9)}));
  EXPECT_THAT(Held(canonical), ElementsAreArray(Chain(50, 1)));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kUnknownKey), 2u);
  EXPECT_TRUE(canonical.causes().empty()) << "not credited, but nothing is wrong";
  canonical.Apply(Batch({Remove({1, 2, 3, 11, 12})}));
  EXPECT_EQ(canonical.blocks(), 0u);
}

TEST(CanonicalTest, Fault09_TwoHashesForOneContentAreHidden) {
  Canonical canonical(Options());
  canonical.Apply(Batch({Store({1, 2, 3}, std::nullopt, 1)}));
  EXPECT_EQ(canonical.digest(Tier::kGpu).count, 3u);
  // The same tokens below the same parent under another name: an unreported salt, say.
  const auto changes = canonical.Apply(Batch({Store({22}, 1, 5)}));
  ASSERT_EQ(changes.size(), 1u);
  const std::vector<ChainHash> chain = Chain(1, 3);
  EXPECT_THAT(changes[0].removed, UnorderedElementsAre(chain[1], chain[2]))
      << "neither is credited, nor what hangs below";
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kHiddenDomain));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kHiddenDomain), 3u);
  // One of them gone does not make the other certain.
  canonical.Apply(Batch({Remove({2, 3})}));
  canonical.Apply(Batch({Remove({22}), Store({33}, 1, 5)}));
  EXPECT_THAT(Held(canonical), ElementsAre(chain[0]));
  canonical.Clear();
  EXPECT_TRUE(canonical.causes().empty());
}

TEST(CanonicalTest, AConnectorMayNameItsCopiesDifferently) {
  Canonical canonical(Options());
  canonical.Apply(Batch({Store({1, 2}, std::nullopt, 1)}));
  canonical.Apply(Batch({Store({91, 92}, std::nullopt, 1, Tier::kHost)}));
  EXPECT_TRUE(canonical.causes().empty());
  EXPECT_THAT(Held(canonical), UnorderedElementsAreArray(Chain(1, 2)));
  EXPECT_THAT(Held(canonical, Tier::kHost), UnorderedElementsAreArray(Chain(1, 2)));
  // Within one tier it stays a contradiction, and then counts in all.
  canonical.Apply(Batch({Store({92}, 91, 5)}));
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kHiddenDomain));
  EXPECT_THAT(Held(canonical), ElementsAreArray(Chain(1, 1)));
  EXPECT_THAT(Held(canonical, Tier::kHost), ElementsAreArray(Chain(1, 1)));
  canonical.Apply(Batch({Remove({1, 2, 92}), Remove({91, 92}, Tier::kHost)}));
  EXPECT_EQ(canonical.blocks(), 0u);
}

// ---- Block sizes ------------------------------------------------------------------------------

TEST(CanonicalTest, Fault11_EngineBlocksAddUpToRoutingBlocks) {
  Canonical canonical(Options(16));
  const std::vector<ChainHash> chain = Chain(1, 2, 16);
  EXPECT_THAT(canonical.Apply(Batch({Store({1, 2, 3}, std::nullopt, 1)})), IsEmpty());
  canonical.Apply(Batch({Store({4, 5, 6, 7, 8}, 3, 13)}));
  EXPECT_THAT(Held(canonical), UnorderedElementsAreArray(chain));
  // A hole in the middle of the first routing block; the second one does not need it.
  auto changes = canonical.Apply(Batch({Remove({2})}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_THAT(changes[0].removed, ElementsAre(chain[0]));
  changes = canonical.Apply(Batch({Store({2}, 1, 5)}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_THAT(changes[0].stored, ElementsAre(chain[0]));
}

TEST(CanonicalTest, Fault11_SiblingsBranchInsideARoutingBlock) {
  Canonical canonical(Options(8));
  canonical.Apply(Batch({Store({1, 2}, std::nullopt, 1)}));
  canonical.Apply(Batch({Store({3}, 1, 100)}));
  std::vector<TokenId> other = Tokens(1, 4);
  for (const TokenId token : Tokens(100, 4)) other.push_back(token);
  std::vector<ChainHash> branch;
  AppendChain(kHashSeed, 8, other, {}, &branch);
  EXPECT_THAT(Held(canonical), UnorderedElementsAre(Chain(1, 1, 8)[0], branch[0]));
  const auto changes = canonical.Apply(Batch({Remove({1})}));
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].removed.size(), 2u) << "both stand on the first block";
}

TEST(CanonicalTest, Fault11_SizesThatDoNotDivideAreRefusedByName) {
  EXPECT_THAT(CheckBlockSizes(16, 64), IsOk());
  EXPECT_THAT(CheckBlockSizes(64, 64), IsOk());
  EXPECT_THAT(CheckBlockSizes(48, 64),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("48"), HasSubstr("64"), HasSubstr("routing_block"))));
  EXPECT_THAT(CheckBlockSizes(128, 64), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(CheckBlockSizes(0, 64), StatusIs(absl::StatusCode::kFailedPrecondition));

  Canonical canonical(Options(6));
  canonical.Apply(Batch({Store({1}, std::nullopt, 1)}));
  EXPECT_THAT(Held(canonical), IsEmpty());
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kBlockSize), 1u);
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kDrift));
}

TEST(CanonicalTest, Fault11_TheEventsOwnSizeRulesAndIsReported) {
  CanonicalOptions options = Options(8);
  options.engine_block = 8;
  Canonical canonical(options);
  canonical.Apply(Batch({Store({1, 2}, std::nullopt, 1)}));  // blocks of 4
  EXPECT_THAT(Held(canonical), ElementsAreArray(Chain(1, 1, 8)));
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kDrift));
  EXPECT_EQ(canonical.seen_block_size(), 4u);
}

TEST(CanonicalTest, BlocksThatStraddleARoutingBlockAreNotCredited) {
  Canonical canonical(Options(8));
  canonical.Apply(Batch({Store({1}, std::nullopt, 1)}));
  BlockStored wide = Store({2}, 1, 5);
  wide.token_ids = Tokens(5, 8);
  wide.block_size = 8;
  canonical.Apply(Batch({wide, Store({3}, 2, 13)}));
  EXPECT_THAT(Held(canonical), IsEmpty());
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kBlockSize), 1u);
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kDrift));
  canonical.Apply(Batch({Remove({3, 2, 1})}));
  EXPECT_EQ(canonical.blocks(), 0u);
}

TEST(CanonicalTest, ParentsOutliveTheirCopiesWhileNeeded) {
  Canonical canonical(Options());
  canonical.Apply(Batch({Store({1, 2}, std::nullopt, 1)}));
  canonical.Apply(Batch({Remove({1})}));
  EXPECT_EQ(canonical.blocks(), 2u);
  canonical.Apply(Batch({Store({3}, 2, 9)}));
  const std::vector<ChainHash> chain = Chain(1, 3);
  EXPECT_THAT(Held(canonical), UnorderedElementsAre(chain[1], chain[2]));
  canonical.Apply(Batch({Remove({2, 3})}));
  EXPECT_EQ(canonical.blocks(), 0u);
}

// ---- Groups and shapes ------------------------------------------------------------------------

TEST(CanonicalTest, Fault12_OtherGroupsAreCountedAndSkipped) {
  Canonical canonical(Options());
  for (const char* kind : {"sliding_window", "mamba", "sink_full_attention", "unknown"}) {
    BlockStored other = Store({1}, std::nullopt, 1);
    other.group_idx = 1;
    other.kv_cache_spec_kind = kind;
    canonical.Apply(Batch({other}));
  }
  EXPECT_THAT(Held(canonical), IsEmpty());
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kGroup), 4u);
  for (const char* kind : {"full_attention", "mla_attention"}) {
    BlockStored main = Store({1}, std::nullopt, 1);
    main.group_idx = 0;
    main.kv_cache_spec_kind = kind;
    canonical.Apply(Batch({main}));
  }
  EXPECT_THAT(Held(canonical), ElementsAreArray(Chain(1, 1)));
  // The other group evicts the same hash: not our block.
  BlockRemoved removed = Remove({1});
  removed.group_idx = 1;
  canonical.Apply(Batch({removed}));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kGroup), 5u);
  removed.group_idx = 0;
  EXPECT_THAT(canonical.Apply(Batch({removed})), IsEmpty()) << "the second copy";
  EXPECT_EQ(canonical.Apply(Batch({removed})).size(), 1u);
}

TEST(CanonicalTest, Fault12_SeveralCountingGroupsMustAllHold) {
  Canonical canonical(Options());
  const auto in_group = [](BlockStored event, std::uint32_t group) {
    event.group_idx = group;
    event.kv_cache_spec_kind = "full_attention";
    return event;
  };
  canonical.Apply(Batch({in_group(Store({1, 2}, std::nullopt, 1), 0)}));
  EXPECT_EQ(canonical.digest(Tier::kGpu).count, 2u);
  const auto changes = canonical.Apply(Batch({in_group(Store({1}, std::nullopt, 1), 3)}));
  const std::vector<ChainHash> chain = Chain(1, 2);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_THAT(changes[0].removed, ElementsAre(chain[1]));
  EXPECT_THAT(changes[0].stored, IsEmpty());
  EXPECT_EQ(canonical.digest(Tier::kGpu), (SetDigest{1, chain[0]}));
  BlockRemoved removed = Remove({1});
  removed.group_idx = 3;
  canonical.Apply(Batch({removed}));
  EXPECT_THAT(Held(canonical), IsEmpty());
}

TEST(CanonicalTest, PlaceholdersAndMaskedStoresAreSkipped) {
  Canonical canonical(Options());
  BlockStored placeholder;
  placeholder.block_hashes = {99};
  placeholder.tier = Tier::kHost;
  BlockStored masked = Store({1}, std::nullopt, 1);
  masked.token_ids = Tokens(1, 12);
  BlockStored all_masked = masked;
  all_masked.block_hashes.clear();
  BlockStored few_tokens = Store({5, 6}, std::nullopt, 1);
  few_tokens.token_ids.pop_back();
  canonical.Apply(Batch({placeholder, masked, all_masked}));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kPlaceholder), 1u);
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kMasked), 2u);
  EXPECT_TRUE(canonical.causes().empty());
  canonical.Apply(Batch({few_tokens}));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kMalformed), 1u);
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kDrift));
  EXPECT_THAT(Held(canonical), IsEmpty());
}

TEST(CanonicalTest, Fault13_BlocksAreBounded) {
  CanonicalOptions options = Options();
  options.max_blocks = 3;
  Canonical canonical(options);
  canonical.Apply(Batch({Store({1, 2, 3, 4, 5}, std::nullopt, 1)}));
  EXPECT_EQ(canonical.blocks(), 3u);
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kBlockBound), 2u);
  EXPECT_TRUE(canonical.causes().Has(FeedCause::kDrift));
  canonical.Apply(Batch({Store({9}, 8, 1)}));
  EXPECT_EQ(canonical.skipped().Of(SkipCause::kBlockBound), 3u);
  canonical.Apply(Batch({Remove({3, 2})}));
  canonical.Apply(Batch({Store({9}, std::nullopt, 50)}));
  EXPECT_EQ(canonical.digest(Tier::kGpu).count, 2u);
}

}  // namespace
}  // namespace warmpath
