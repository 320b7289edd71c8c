#include "core/hashing/chain_hash.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

std::vector<TokenId> Ramp(std::uint32_t count, std::uint32_t first = 0, std::uint32_t step = 1) {
  std::vector<TokenId> tokens(count);
  for (std::uint32_t i = 0; i < count; ++i) tokens[i] = first + i * step;
  return tokens;
}

std::vector<ChainHash> Chain(std::span<const TokenId> tokens, std::uint32_t block,
                             std::uint64_t seed = kHashSeed,
                             std::span<const MultimodalItem> items = {}) {
  std::vector<ChainHash> chain;
  AppendChain(seed, block, tokens, items, &chain);
  return chain;
}

struct Golden {
  std::string_view name;
  std::uint32_t block;
  std::uint32_t count, first, step;
  std::optional<std::string_view> lora, salt;
  std::vector<MultimodalItem> items;
  std::vector<ChainHash> chain;
};

const std::vector<Golden>& GoldenCases() {
  static const auto& cases = *new std::vector<Golden>{
#include "tests/core/hashing/golden_hashes.inc"
  };
  return cases;
}

// The numbers were computed by an independent implementation: tests/data/make_golden_hashes.py.
TEST(ChainHashTest, GoldenValues) {
  ASSERT_GE(GoldenCases().size(), 10u);
  for (const Golden& golden : GoldenCases()) {
    EXPECT_THAT(Chain(Ramp(golden.count, golden.first, golden.step), golden.block,
                      DomainSeed(golden.lora, golden.salt), golden.items),
                ElementsAreArray(golden.chain))
        << golden.name;
  }
}

// AppendChain has its own fast path for blocks of many sizes; the plain functions are the model.
TEST(ChainHashTest, AppendChainIsLocalHashesChained) {
  Random random(1);
  for (const std::uint32_t block :
       {1u, 2u, 3u, 4u, 5u, 16u, 32u, 59u, 60u, 61u, 64u, 128u, 256u, 257u, 1024u}) {
    std::vector<TokenId> tokens(block * 5 + block / 2);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random());
    const std::uint64_t seed = random();
    std::vector<ChainHash> expected;
    for (std::size_t i = 0; i < 5; ++i) {
      const std::uint64_t local = LocalHash(seed, std::span(tokens).subspan(i * block, block));
      expected.push_back(i == 0 ? local : ExtendChain(expected.back(), local));
    }
    EXPECT_THAT(Chain(tokens, block, seed), ElementsAreArray(expected)) << "block " << block;
  }
}

TEST(ChainHashTest, AppendsToWhatIsThere) {
  std::vector<ChainHash> chain = {42};
  AppendChain(kHashSeed, 16, Ramp(48), {}, &chain);
  ASSERT_EQ(chain.size(), 4u);
  EXPECT_EQ(chain[0], 42u);
  EXPECT_EQ(std::vector<ChainHash>(chain.begin() + 1, chain.end()), Chain(Ramp(48), 16));
}

TEST(ChainHashTest, NothingForAPromptShorterThanABlock) {
  EXPECT_THAT(Chain(Ramp(63), 64), IsEmpty());
  EXPECT_THAT(Chain({}, 64), IsEmpty());
}

TEST(ChainHashTest, Fault22_ChainDependsOnOrder) {
  std::vector<TokenId> ab = Ramp(16);
  const std::vector<TokenId> b = Ramp(16, 1000);
  std::vector<TokenId> ba = b;
  ba.insert(ba.end(), ab.begin(), ab.end());
  ab.insert(ab.end(), b.begin(), b.end());
  const auto chain_ab = Chain(ab, 16);
  const auto chain_ba = Chain(ba, 16);
  EXPECT_NE(chain_ab[1], chain_ba[1]) << "the same blocks in another order";
  // Two equal blocks do not cancel out, as they would under XOR.
  const auto twice = Chain(std::vector<TokenId>(48, 7), 16);
  EXPECT_EQ(std::set<ChainHash>(twice.begin(), twice.end()).size(), 3u);
  EXPECT_NE(twice[1], 0u);
  // A chain never returns to the hash of the bare block.
  EXPECT_NE(chain_ab[1], Chain(b, 16)[0]);
}

TEST(ChainHashTest, Fault09_LoraSaltAndItemsAreSeparateDomains) {
  const std::string long_name(1000, 'x');
  std::set<std::uint64_t> seeds;
  int count = 0;
  const std::vector<std::optional<std::string_view>> names = {
      std::nullopt, "", "a", "b", "ab", std::string_view("\0", 1), long_name};
  for (const auto& lora : names) {
    for (const auto& salt : names) {
      seeds.insert(DomainSeed(lora, salt));
      ++count;
    }
  }
  EXPECT_EQ(static_cast<int>(seeds.size()), count);
  EXPECT_EQ(DomainSeed(std::nullopt, std::nullopt), kHashSeed);

  // Items are part of the content: which item, and where.
  const auto tokens = Ramp(16);
  const auto local = [&](std::vector<MultimodalItem> items) {
    return LocalHash(kHashSeed, tokens, items, 0);
  };
  const std::set<std::uint64_t> locals = {local({}),
                                          local({{"a", 0, 4}}),
                                          local({{"b", 0, 4}}),
                                          local({{"a", 1, 4}}),
                                          local({{"a", 0, 4}, {"b", 0, 4}}),
                                          local({{"", 0, 4}})};
  EXPECT_EQ(locals.size(), 6u);
}

TEST(ChainHashTest, AnItemTouchesTheBlocksItCoversAndTheirChildrenOnly) {
  const auto plain = Chain(Ramp(64), 16);
  const std::vector<MultimodalItem> item = {{"img", 16, 16}};
  const auto with_item = Chain(Ramp(64), 16, kHashSeed, item);
  EXPECT_EQ(with_item[0], plain[0]);
  for (int i = 1; i < 4; ++i) EXPECT_NE(with_item[i], plain[i]) << i;
  // Block 2 holds no part of the item: only its parent differs.
  EXPECT_EQ(with_item[2], ExtendChain(with_item[1], LocalHash(kHashSeed, Ramp(16, 32))));
}

TEST(ChainHashTest, ALongItemIsSeenPastAShortOneThatEnded) {
  const std::vector<MultimodalItem> items = {{"long", 0, 64}, {"short", 2, 2}};
  const auto chain = Chain(Ramp(64), 16, kHashSeed, items);
  const std::vector<MultimodalItem> long_only = {{"long", 0, 64}};
  EXPECT_EQ(chain[3], ExtendChain(chain[2], LocalHash(kHashSeed, Ramp(16, 48), long_only, 48)));
}

TEST(ChainHashTest, HostileItemPositionsAreHarmless) {
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const auto plain = Chain(Ramp(32), 16);
  for (const std::int64_t start : {kMin, std::int64_t{-1}, std::int64_t{5}, kMax}) {
    for (const std::int64_t length : {kMin, std::int64_t{-1}, std::int64_t{0}}) {
      const std::vector<MultimodalItem> items = {{"img", start, length}};
      EXPECT_EQ(Chain(Ramp(32), 16, kHashSeed, items), plain) << start << " " << length;
    }
    const std::vector<MultimodalItem> longest = {{"img", start, kMax}};
    EXPECT_EQ(Chain(Ramp(32), 16, kHashSeed, longest)[1] == plain[1],
              start == kMin || start == kMax)
        << start;
  }
}

}  // namespace
}  // namespace warmpath
