#include "core/index/page_arena.h"

#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath::index_internal {
namespace {

constexpr std::size_t kReserve = std::size_t{1} << 30;
constexpr std::uint64_t kPage = PageArena::kPageBytes;

TEST(RunMapTest, MergesNeighboursAndFitsBest) {
  RunMap runs;
  runs.Add(10, 5);
  runs.Add(20, 2);
  EXPECT_EQ(runs.Take(2), 20u) << "the run that fits best";
  EXPECT_EQ(runs.Take(6), std::nullopt);
  runs.Add(15, 1);
  EXPECT_EQ(runs.Take(6), 10u) << "merged behind";
  runs.Add(30, 2);
  runs.Add(34, 2);
  runs.Add(32, 2);
  EXPECT_EQ(runs.pages(), 6u);
  EXPECT_EQ(runs.Take(6), 30u) << "merged on both sides";
  EXPECT_EQ(runs.pages(), 0u);
}

TEST(RunMapTest, AgreesWithASetOfPages) {
  Random random(1);
  RunMap runs;
  std::set<std::uint32_t> free;
  std::map<std::uint32_t, std::uint32_t> taken;  // start, pages
  runs.Add(0, 1000);
  for (std::uint32_t page = 0; page < 1000; ++page) free.insert(page);
  for (int i = 0; i < 20000; ++i) {
    if (random.Below(2) == 0) {
      const auto pages = static_cast<std::uint32_t>(1 + random.Below(20));
      const auto start = runs.Take(pages);
      if (!start.has_value()) continue;
      for (std::uint32_t page = *start; page < *start + pages; ++page) {
        ASSERT_EQ(free.erase(page), 1u);
      }
      taken[*start] = pages;
    } else if (!taken.empty()) {
      auto it = taken.lower_bound(static_cast<std::uint32_t>(random.Below(1000)));
      if (it == taken.end()) it = taken.begin();
      runs.Add(it->first, it->second);
      for (std::uint32_t page = it->first; page < it->first + it->second; ++page) free.insert(page);
      taken.erase(it);
    }
    ASSERT_EQ(runs.pages(), free.size());
  }
}

TEST(PageArenaTest, ChargesWhatItHoldsAndGivesItBack) {
  MemoryAccount account(0);
  {
    PageArena arena(kReserve, &account);
    EXPECT_EQ(account.used(), 0u);
    void* const a = arena.Allocate(3, MemoryUse::kStore);
    void* const b = arena.Allocate(2, MemoryUse::kStore);
    ASSERT_NE(a, nullptr);
    ASSERT_NE(b, nullptr);
    std::memset(a, 1, 3 * kPage);
    std::memset(b, 2, 2 * kPage);
    EXPECT_EQ(account.used(), 5 * kPage);
    arena.Free(a, 3);
    EXPECT_EQ(account.used(), 5 * kPage) << "kept for reuse, and so counted";
    EXPECT_EQ(arena.Allocate(2, MemoryUse::kStore), a);
    arena.Trim();
    EXPECT_EQ(account.used(), 4 * kPage);
    EXPECT_EQ(static_cast<char*>(b)[0], 2);
  }
  EXPECT_EQ(account.used(), 0u);
}

TEST(PageArenaTest, ManyFreePagesAreGivenBackUnasked) {
  MemoryAccount account(0);
  PageArena arena(kReserve, &account);
  std::vector<void*> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(arena.Allocate(32, MemoryUse::kStore));
  EXPECT_EQ(account.used(), 3200 * kPage);
  for (int i = 0; i < 90; ++i) arena.Free(blocks[static_cast<std::size_t>(i)], 32);
  EXPECT_LT(account.used(), 1000 * kPage);
}

TEST(PageArenaTest, StoresStopShortOfTheBoundAndRemovalsReachIt) {
  MemoryAccount account(160 * kPage);  // a sixteenth is for removals
  PageArena arena(kReserve, &account);
  EXPECT_EQ(arena.Allocate(151, MemoryUse::kStore), nullptr);
  void* const stored = arena.Allocate(150, MemoryUse::kStore);
  ASSERT_NE(stored, nullptr);
  EXPECT_EQ(arena.Allocate(1, MemoryUse::kStore), nullptr);
  EXPECT_NE(arena.Allocate(10, MemoryUse::kRemoval), nullptr);
  EXPECT_EQ(arena.Allocate(1, MemoryUse::kRemoval), nullptr);
  EXPECT_EQ(account.used(), 160 * kPage);
  // Free pages do not stand in the way of a run that none of them holds.
  arena.Free(stored, 150);
  EXPECT_NE(arena.Allocate(140, MemoryUse::kStore), nullptr);
}

TEST(PageArenaTest, EndsWithItsAddresses) {
  MemoryAccount account(0);
  PageArena arena(std::size_t{64} << 20, &account);
  EXPECT_EQ(arena.Allocate((64 << 20) / kPage + 1, MemoryUse::kStore), nullptr);
  EXPECT_EQ(account.used(), 0u);
  EXPECT_NE(arena.Allocate(1, MemoryUse::kStore), nullptr);
}

}  // namespace
}  // namespace warmpath::index_internal
