#include "tests/fakes/engine/cache_history.h"

#include <memory>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

BlockInfoPtr Block(std::uint64_t hash) {
  auto block = std::make_shared<BlockInfo>();
  block->hash = hash;
  return block;
}

std::set<std::uint64_t> At(const CacheHistory& history, std::optional<std::uint64_t> seq) {
  std::set<std::uint64_t> hashes;
  const auto blocks = history.At(seq);
  EXPECT_THAT(blocks, IsOk());
  for (const BlockInfoPtr& block : *blocks) hashes.insert(block->hash);
  return hashes;
}

TEST(CacheHistoryTest, EveryBatchCanBeAskedForAgain) {
  CacheHistory history(10);
  history.Stored(Block(1));
  history.Stored(Block(2));
  history.Commit(0);
  history.Evicted(1);
  history.Stored(Block(3));
  history.Commit(1);
  history.Stored(Block(1));
  history.Evicted(3);
  history.Stored(Block(3));  // Gone and back within a batch.
  history.Commit(2);
  history.Evicted(2);  // Not in a batch yet.

  EXPECT_THAT(At(history, 0), UnorderedElementsAre(1, 2));
  EXPECT_THAT(At(history, 1), UnorderedElementsAre(2, 3));
  EXPECT_THAT(At(history, 2), UnorderedElementsAre(1, 2, 3));
  EXPECT_THAT(At(history, std::nullopt), UnorderedElementsAre(1, 2, 3));
  EXPECT_EQ(history.size(), 2u);
  EXPECT_THAT(history.At(3), StatusIs(absl::StatusCode::kNotFound, HasSubstr("the last is 2")));
}

TEST(CacheHistoryTest, ABlockIsHeldWhileACopyIs) {
  CacheHistory history(10);
  history.Stored(Block(1));
  history.Stored(Block(1));
  history.Commit(0);
  history.Evicted(1);
  history.Commit(1);
  EXPECT_THAT(At(history, 1), UnorderedElementsAre(1));
  history.Evicted(1);
  history.Commit(2);
  EXPECT_THAT(At(history, 2), UnorderedElementsAre());
  EXPECT_THAT(At(history, 0), UnorderedElementsAre(1));
}

TEST(CacheHistoryTest, ClearingIsOneMoreChange) {
  CacheHistory history(10);
  history.Stored(Block(1));
  history.Commit(0);
  history.Cleared();
  history.Stored(Block(2));
  history.Commit(1);
  EXPECT_THAT(At(history, 0), UnorderedElementsAre(1));
  EXPECT_THAT(At(history, 1), UnorderedElementsAre(2));
}

TEST(CacheHistoryTest, OldBatchesAreForgotten) {
  CacheHistory history(2);
  for (std::uint64_t seq = 0; seq < 5; ++seq) {
    history.Stored(Block(seq));
    history.Commit(seq);
  }
  EXPECT_THAT(At(history, 2), UnorderedElementsAre(0, 1, 2));
  EXPECT_THAT(history.At(1),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("oldest kept is 2")));
}

TEST(CacheHistoryTest, BeforeTheFirstBatchNothingIsHeld) {
  CacheHistory history(2);
  history.Stored(Block(1));
  EXPECT_THAT(At(history, std::nullopt), UnorderedElementsAre());
  EXPECT_THAT(history.At(0), StatusIs(absl::StatusCode::kNotFound, HasSubstr("the last is none")));
}

}  // namespace
}  // namespace warmpath::engine
