#include "core/fleet/spare_chains.h"

#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace warmpath {
namespace {

using Chain = std::vector<ChainHash>;

TEST(SpareChainsTest, MemoryIsUsedAgain) {
  SpareChains spare;
  EXPECT_EQ(spare.Take().capacity(), 0u);
  Chain chain(100, 7);
  const ChainHash* const memory = chain.data();
  spare.Give(std::move(chain));
  const Chain next(90, 8);
  const Chain copy = SpareChains::Copy(next, spare.Take());
  EXPECT_EQ(copy, next);
  EXPECT_EQ(copy.data(), memory);
  EXPECT_EQ(spare.size(), 0u);
}

TEST(SpareChainsTest, AShortChainDoesNotKeepTheMemoryOfALongOne) {
  const Chain chain(10, 8);
  Chain large;
  large.reserve(1000);
  EXPECT_LE(SpareChains::Copy(chain, std::move(large)).capacity(), 20u);
  Chain small;
  small.reserve(5);
  EXPECT_EQ(SpareChains::Copy(chain, std::move(small)), chain);
}

TEST(SpareChainsTest, WhatIsKeptIsBounded) {
  SpareChains spare;
  Chain long_one;
  long_one.reserve(SpareChains::kMostBlocks + 1);
  spare.Give(std::move(long_one));
  spare.Give({});
  EXPECT_EQ(spare.size(), 0u);
  for (std::size_t i = 0; i < 2 * SpareChains::kMost; ++i) spare.Give(Chain(10, i));
  EXPECT_EQ(spare.size(), SpareChains::kMost);
}

}  // namespace
}  // namespace warmpath
