#include "core/replay/block_cache.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

using Evicted = std::vector<std::pair<BlockKey, std::uint32_t>>;

// Runs a whole request: hits, fresh blocks, names for all of them.
std::vector<BlockSlot> RunRequest(BlockCache& cache, const std::vector<BlockKey>& keys) {
  std::vector<BlockSlot> table;
  const std::size_t hits = cache.MatchPrefix(keys);
  EXPECT_TRUE(cache.Acquire(std::span(keys).first(hits), keys.size() - hits, &table));
  for (std::size_t i = hits; i < keys.size(); ++i) {
    table[i] = cache.Store(table[i], keys[i]).slot;
  }
  return table;
}

class BlockCacheTest : public ::testing::Test {
 protected:
  BlockCache::EvictionCallback Recorder() {
    return [this](const BlockCache::Eviction& e) { evicted_.emplace_back(e.key, e.copies_left); };
  }
  Evicted evicted_;
};

TEST_F(BlockCacheTest, TailsAreEvictedFirstAndOldRequestsBeforeNewOnes) {
  BlockCache cache(6, BlockCache::Duplicates::kShare, Recorder());
  const auto a = RunRequest(cache, {1, 2, 3});
  const auto b = RunRequest(cache, {11, 12, 13});
  EXPECT_EQ(cache.free_blocks(), 0u);
  cache.Release(a);
  cache.Release(b);
  EXPECT_EQ(cache.free_blocks(), 6u);
  EXPECT_EQ(cache.cached_keys(), 6u);
  RunRequest(cache, {21, 22, 23, 24, 25});
  EXPECT_THAT(evicted_, ElementsAre(Pair(3, 0), Pair(2, 0), Pair(1, 0), Pair(13, 0), Pair(12, 0)));
  EXPECT_EQ(cache.Copies(11), 1u);
}

TEST_F(BlockCacheTest, EmptyBlocksAreUsedBeforeCachedOnes) {
  BlockCache cache(4, BlockCache::Duplicates::kShare, Recorder());
  cache.Release(RunRequest(cache, {1, 2}));
  RunRequest(cache, {5, 6});
  EXPECT_THAT(evicted_, IsEmpty());
  EXPECT_EQ(cache.MatchPrefix(std::vector<BlockKey>{1, 2, 3}), 2u);
}

TEST_F(BlockCacheTest, PinnedBlocksStayAndAHitRefreshesItsBlocks) {
  BlockCache cache(4, BlockCache::Duplicates::kShare, Recorder());
  const auto a = RunRequest(cache, {1, 2});
  const auto again = RunRequest(cache, {1, 2});
  EXPECT_EQ(again, a);
  EXPECT_EQ(cache.pinned_blocks(), 2u);
  cache.Release(a);
  std::vector<BlockSlot> table;
  EXPECT_FALSE(cache.Acquire({}, 3, &table));
  EXPECT_THAT(table, IsEmpty());
  cache.Release(again);
  cache.Release(RunRequest(cache, {7, 8}));
  cache.Release(RunRequest(cache, {1, 2}));  // Freed last now: 7 and 8 go first.
  EXPECT_TRUE(cache.Acquire({}, 3, &table));
  EXPECT_THAT(evicted_, ElementsAre(Pair(8, 0), Pair(7, 0), Pair(2, 0)));
}

TEST_F(BlockCacheTest, ARequestNeverEvictsItsOwnPrefix) {
  BlockCache cache(4, BlockCache::Duplicates::kShare, Recorder());
  cache.Release(RunRequest(cache, {1, 2, 3}));
  std::vector<BlockSlot> table;
  const std::vector<BlockKey> prefix = {1, 2};
  EXPECT_FALSE(cache.Acquire(prefix, 3, &table));
  EXPECT_THAT(evicted_, IsEmpty());
  EXPECT_TRUE(cache.Acquire(prefix, 2, &table));
  EXPECT_THAT(evicted_, ElementsAre(Pair(3, 0)));
  EXPECT_EQ(cache.free_blocks(), 0u);
}

TEST_F(BlockCacheTest, ARefusedRequestDoesNotChangeTheEvictionOrder) {
  BlockCache cache(4, BlockCache::Duplicates::kShare, Recorder());
  cache.Release(RunRequest(cache, {1, 2}));
  cache.Release(RunRequest(cache, {5, 6}));
  std::vector<BlockSlot> table;
  EXPECT_FALSE(cache.Acquire(std::vector<BlockKey>{1, 2}, 3, &table));
  EXPECT_TRUE(cache.Acquire({}, 1, &table));
  EXPECT_THAT(evicted_, ElementsAre(Pair(2, 0)));
}

TEST_F(BlockCacheTest, SharingMovesTheSecondWriterToTheCachedCopy) {
  BlockCache cache(4, BlockCache::Duplicates::kShare, Recorder());
  std::vector<BlockSlot> a, b;
  ASSERT_TRUE(cache.Acquire({}, 1, &a));
  ASSERT_TRUE(cache.Acquire({}, 1, &b));
  EXPECT_TRUE(cache.Store(a[0], 9).is_new);
  const auto second = cache.Store(b[0], 9);
  EXPECT_FALSE(second.is_new);
  EXPECT_EQ(second.slot, a[0]);
  EXPECT_EQ(cache.free_blocks(), 3u);
  cache.Release(a);
  EXPECT_EQ(cache.free_blocks(), 3u);
  cache.Release(std::vector<BlockSlot>{second.slot});
  EXPECT_EQ(cache.free_blocks(), 4u);
  EXPECT_EQ(cache.Copies(9), 1u);
}

TEST_F(BlockCacheTest, KeptCopiesAreEvictedOneByOne) {
  BlockCache cache(3, BlockCache::Duplicates::kKeep, Recorder());
  std::vector<BlockSlot> a, b, c;
  ASSERT_TRUE(cache.Acquire({}, 1, &a));
  ASSERT_TRUE(cache.Acquire({}, 1, &b));
  ASSERT_TRUE(cache.Acquire({}, 1, &c));
  for (const auto* table : {&a, &b, &c}) EXPECT_TRUE(cache.Store((*table)[0], 9).is_new);
  EXPECT_EQ(cache.Copies(9), 3u);
  EXPECT_EQ(cache.cached_keys(), 1u);
  cache.Release(b);
  cache.Release(a);
  std::vector<BlockSlot> table;
  ASSERT_TRUE(cache.Acquire({}, 2, &table));
  EXPECT_THAT(evicted_, ElementsAre(Pair(9, 2), Pair(9, 1)));
  // The copy that is left serves hits.
  std::vector<BlockSlot> hit;
  ASSERT_TRUE(cache.Acquire(std::vector<BlockKey>{9}, 0, &hit));
  EXPECT_EQ(hit, c);
}

TEST_F(BlockCacheTest, ClearRefusesWhilePinnedAndForgetsAllElse) {
  BlockCache cache(3, BlockCache::Duplicates::kShare, Recorder());
  const auto a = RunRequest(cache, {1, 2});
  EXPECT_FALSE(cache.Clear());
  EXPECT_EQ(cache.Copies(1), 1u);
  cache.Release(a);
  EXPECT_TRUE(cache.Clear());
  EXPECT_EQ(cache.cached_keys(), 0u);
  EXPECT_THAT(evicted_, IsEmpty());
  RunRequest(cache, {4, 5, 6});
  EXPECT_THAT(evicted_, IsEmpty());
}

// The rules written down as plainly as possible: a vector of blocks and a deque of free ones.
class PlainCache {
 public:
  PlainCache(std::size_t n, bool share) : share_(share), blocks_(n) {}

  std::size_t MatchPrefix(const std::vector<BlockKey>& keys) const {
    std::size_t n = 0;
    while (n < keys.size() && Find(keys[n])) ++n;
    return n;
  }
  std::size_t Free() const {
    return std::count_if(blocks_.begin(), blocks_.end(), [](const B& b) { return b.refs == 0; });
  }
  bool Acquire(const std::vector<BlockKey>& keys, std::size_t hits, std::size_t fresh,
               std::vector<std::size_t>* table, Evicted* evicted) {
    std::size_t pinned_by_hits = 0;
    for (std::size_t i = 0; i < hits; ++i) pinned_by_hits += blocks_[*Find(keys[i])].refs == 0;
    if (fresh + pinned_by_hits > Free()) return false;
    for (std::size_t i = 0; i < hits; ++i) {
      const std::size_t b = *Find(keys[i]);
      std::erase(freed_, b);
      ++blocks_[b].refs;
      table->push_back(b);
    }
    for (std::size_t i = 0; i < fresh; ++i) table->push_back(Take(evicted));
    return true;
  }
  std::size_t Store(std::size_t b, BlockKey key) {
    if (const auto other = Find(key); other && share_) {
      std::erase(freed_, *other);
      ++blocks_[*other].refs;
      blocks_[b] = B();
      return *other;
    }
    blocks_[b].key = key;
    blocks_[b].named_at = ++stores_;
    return b;
  }
  void Release(const std::vector<std::size_t>& table) {
    for (auto it = table.rbegin(); it != table.rend(); ++it) {
      if (--blocks_[*it].refs > 0) continue;
      if (blocks_[*it].key) freed_.push_back(*it);
    }
  }
  std::map<BlockKey, std::uint32_t> Held() const {
    std::map<BlockKey, std::uint32_t> held;
    for (const B& b : blocks_) {
      if (b.key) ++held[*b.key];
    }
    return held;
  }

 private:
  struct B {
    std::optional<BlockKey> key;
    int refs = 0;
    int named_at = 0;
  };
  // Any copy will do for presence; which copy is pinned shows only in the eviction order, where the
  // real cache promises nothing but the oldest name. The second oldest is not promised, so the
  // differential run with copies compares sets, not orders.
  std::optional<std::size_t> Find(BlockKey key) const {
    std::optional<std::size_t> found;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].key == key && (!found || blocks_[i].named_at < blocks_[*found].named_at)) {
        found = i;
      }
    }
    return found;
  }
  std::size_t Take(Evicted* evicted) {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].refs == 0 && !blocks_[i].key) {
        blocks_[i].refs = 1;
        return i;
      }
    }
    const std::size_t b = freed_.front();
    freed_.pop_front();
    const BlockKey key = *blocks_[b].key;
    blocks_[b] = B{.key = std::nullopt, .refs = 1};
    evicted->emplace_back(key, static_cast<std::uint32_t>(Held()[key]));
    return b;
  }

  const bool share_;
  std::vector<B> blocks_;
  std::deque<std::size_t> freed_;  // Named and unreferenced, least recently freed first.
  int stores_ = 0;
};

TEST(BlockCacheDifferentialTest, SharedBlocksMatchThePlainModelExactly) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    Evicted evicted, plain_evicted;
    const std::size_t capacity = 8 + random.Below(24);
    BlockCache cache(capacity, BlockCache::Duplicates::kShare,
                     [&](const auto& e) { evicted.emplace_back(e.key, e.copies_left); });
    PlainCache plain(capacity, /*share=*/true);
    struct Open {
      std::vector<BlockKey> keys;
      std::size_t named = 0;
      std::vector<BlockSlot> table;
      std::vector<std::size_t> plain_table;
    };
    std::vector<Open> open;
    for (int i = 0; i < 1'500; ++i) {
      const std::uint64_t action = random.Below(3);
      if (action == 0) {
        Open request;
        BlockKey chain = random.Below(3);
        const std::size_t length = 1 + random.Below(8);
        for (std::size_t k = 0; k < length; ++k) {
          chain = chain * 31 + 7 + random.Below(2);
          request.keys.push_back(chain);
        }
        const std::size_t hits = cache.MatchPrefix(request.keys);
        ASSERT_EQ(hits, plain.MatchPrefix(request.keys));
        const std::size_t fresh = length - hits + random.Below(2);
        const bool ok = cache.Acquire(std::span(request.keys).first(hits), fresh, &request.table);
        ASSERT_EQ(ok,
                  plain.Acquire(request.keys, hits, fresh, &request.plain_table, &plain_evicted));
        request.named = hits;
        if (ok) open.push_back(std::move(request));
      } else if (!open.empty()) {
        Open& request = open[random.Below(open.size())];
        if (action == 1 && request.named < request.keys.size()) {
          const std::size_t at = request.named++;
          request.table[at] = cache.Store(request.table[at], request.keys[at]).slot;
          request.plain_table[at] = plain.Store(request.plain_table[at], request.keys[at]);
        } else {
          cache.Release(request.table);
          plain.Release(request.plain_table);
          std::swap(request, open.back());
          open.pop_back();
        }
      }
      ASSERT_EQ(evicted, plain_evicted) << "seed " << seed << " action " << i;
      ASSERT_EQ(cache.free_blocks(), plain.Free());
      std::map<BlockKey, std::uint32_t> held;
      cache.ForEachKey([&](BlockKey key, std::uint32_t copies) { held[key] = copies; });
      ASSERT_EQ(held, plain.Held()) << "seed " << seed << " action " << i;
    }
  }
}

TEST(BlockCacheDifferentialTest, KeptCopiesAreCountedRight) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    std::map<BlockKey, std::uint32_t> counts;
    BlockCache cache(12, BlockCache::Duplicates::kKeep, [&](const auto& e) {
      ASSERT_EQ(--counts[e.key], e.copies_left);
      if (e.copies_left == 0) counts.erase(e.key);
    });
    std::vector<std::vector<BlockSlot>> open;
    for (int i = 0; i < 2'000; ++i) {
      std::vector<BlockSlot> table;
      if (random.Below(2) == 0 && cache.Acquire({}, 1 + random.Below(3), &table)) {
        for (const BlockSlot slot : table) {
          const BlockKey key = random.Below(5);
          EXPECT_EQ(cache.Store(slot, key).slot, slot);
          ++counts[key];
        }
        open.push_back(std::move(table));
      } else if (!open.empty()) {
        std::swap(open[random.Below(open.size())], open.back());
        cache.Release(open.back());
        open.pop_back();
      }
      std::map<BlockKey, std::uint32_t> held;
      cache.ForEachKey([&](BlockKey key, std::uint32_t copies) { held[key] = copies; });
      ASSERT_EQ(held, counts);
    }
  }
}

}  // namespace
}  // namespace warmpath
