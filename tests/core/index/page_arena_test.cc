#include "core/index/page_arena.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>
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

constexpr std::uint32_t kRegionPages = (2 << 20) / kPage;

// An arena that has outgrown its small pages, and what fills them.
class HugePageArenaTest : public ::testing::Test {
 protected:
  HugePageArenaTest() { first_.push_back(arena_.Allocate(kSmallPages, MemoryUse::kStore)); }

  static constexpr std::uint32_t kSmallPages = 4 * kRegionPages;
  std::uint64_t pages() const { return account_.used() / kPage; }

  MemoryAccount account_{0};
  PageArena arena_{kReserve, &account_, kReserve};
  std::vector<void*> first_;
};

TEST_F(HugePageArenaTest, ARegionIsChargedFromItsFirstPageOn) {
  EXPECT_EQ(pages(), kSmallPages);
  void* const a = arena_.Allocate(3, MemoryUse::kStore);
  EXPECT_EQ(pages(), kSmallPages + kRegionPages);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % (2 << 20), 0u);
  void* const b = arena_.Allocate(kRegionPages - 3, MemoryUse::kStore);
  EXPECT_EQ(pages(), kSmallPages + kRegionPages) << "from what was charged";
  arena_.Free(a, 3);
  arena_.Trim();
  EXPECT_EQ(pages(), kSmallPages + kRegionPages) << "a part of a huge page stays";
  arena_.Free(b, kRegionPages - 3);
  arena_.Trim();
  EXPECT_EQ(pages(), kSmallPages) << "a whole one goes";
  // More than one at once.
  void* const c = arena_.Allocate(2 * kRegionPages + 1, MemoryUse::kStore);
  ASSERT_NE(c, nullptr);
  std::memset(c, 1, (2 * kRegionPages + 1) * kPage);
  EXPECT_EQ(pages(), kSmallPages + 3 * kRegionPages);
}

TEST_F(HugePageArenaTest, HugePagesAreCutWhenMuchIsFreeBetweenUsedPages) {
  std::vector<void*> blocks;
  for (std::uint32_t i = 0; i < 8 * kRegionPages / 32; ++i) {
    blocks.push_back(arena_.Allocate(32, MemoryUse::kStore));
    std::memset(blocks.back(), static_cast<int>(i % 100), 32 * kPage);
  }
  EXPECT_EQ(pages(), kSmallPages + 8 * kRegionPages);
  // Seven of eight, so that no region becomes wholly free.
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 8 != 0) arena_.Free(blocks[i], 32);
  }
  const std::uint64_t used = kSmallPages + kRegionPages;
  EXPECT_GE(pages(), used);
  EXPECT_LE(pages(), used + used / 4 + 512);
  for (std::size_t i = 0; i < blocks.size(); i += 8) {
    EXPECT_EQ(static_cast<char*>(blocks[i])[32 * kPage - 1], static_cast<char>(i % 100));
    arena_.Free(blocks[i], 32);
  }
  arena_.Trim();
  EXPECT_EQ(pages(), kSmallPages) << "all of what was cut is whole again, and gone";
  arena_.Allocate(1, MemoryUse::kStore);
  EXPECT_EQ(pages(), kSmallPages + kRegionPages) << "huge again";
}

TEST_F(HugePageArenaTest, SmallPagesAreLeftForHugeOnes) {
  arena_.Free(first_[0], kSmallPages);
  EXPECT_EQ(pages(), 0u) << "given back at once";
  void* const a = arena_.Allocate(1, MemoryUse::kStore);
  EXPECT_EQ(a, first_[0]) << "the same addresses";
  EXPECT_EQ(pages(), kRegionPages) << "but a huge page now";
}

// A region that removals asked for must not hand the rest of itself to stores.
TEST(PageArenaTest, HugePagesLeaveRemovalsTheirReserve) {
  constexpr std::uint64_t kBound = std::uint64_t{64} << 20;
  MemoryAccount account(kBound);
  PageArena arena(kReserve, &account, kReserve);
  ASSERT_NE(arena.Allocate(4 * kRegionPages, MemoryUse::kStore), nullptr);
  const std::uint64_t elsewhere = account.store_limit() - account.used();
  ASSERT_TRUE(account.Charge(elsewhere, MemoryUse::kStore));
  const std::uint64_t reserve = (kBound - account.store_limit()) / kPage;
  std::vector<void*> removals;
  for (std::uint64_t i = 0; i < reserve; ++i) {
    removals.push_back(arena.Allocate(1, MemoryUse::kRemoval));
    ASSERT_NE(removals.back(), nullptr);
    ASSERT_EQ(arena.Allocate(1, MemoryUse::kStore), nullptr);
  }
  EXPECT_EQ(account.used(), kBound);
  // Stores may not have what removals give back, until as much is free as they had to take.
  for (void* const page : removals) {
    ASSERT_EQ(arena.Allocate(1, MemoryUse::kStore), nullptr);
    arena.Free(page, 1);
  }
  account.Release(elsewhere);
  EXPECT_NE(arena.Allocate(1, MemoryUse::kStore), nullptr);
}

TEST(PageArenaTest, WhatCannotBeRefusedTakesNoMoreThanItMust) {
  MemoryAccount account(std::uint64_t{64} << 20);
  PageArena arena(kReserve, &account, kReserve);
  ASSERT_NE(arena.Allocate(4 * kRegionPages, MemoryUse::kStore), nullptr);
  ASSERT_TRUE(account.Charge(account.bound() - account.used(), MemoryUse::kRemoval));
  ASSERT_NE(arena.Allocate(1, MemoryUse::kFixed), nullptr);
  EXPECT_EQ(account.used(), account.bound() + kPage);
}

TEST(PageArenaTest, NearTheBoundPagesAreSmall) {
  MemoryAccount account((4 * kRegionPages + 100) * kPage);
  PageArena arena(kReserve, &account, kReserve);
  void* const first = arena.Allocate(4 * kRegionPages - 100, MemoryUse::kRemoval);
  ASSERT_NE(first, nullptr);
  EXPECT_NE(arena.Allocate(100, MemoryUse::kRemoval), nullptr) << "the rest of the small region";
  for (int i = 0; i < 100; ++i) {
    ASSERT_NE(arena.Allocate(1, MemoryUse::kRemoval), nullptr) << "a huge one would not fit";
  }
  EXPECT_EQ(account.used(), account.bound());
  EXPECT_EQ(arena.Allocate(1, MemoryUse::kRemoval), nullptr);
  arena.Free(first, 4 * kRegionPages - 100);
  EXPECT_NE(arena.Allocate(300, MemoryUse::kRemoval), nullptr);
}

// Runs never overlap, keep what is written to them, and are all that is charged but for free pages
// within the limit.
TEST(PageArenaTest, AgreesWithPlainBookkeeping) {
  struct Held {
    char* memory;
    std::uint32_t pages;
    char mark;
  };
  Random random(1);
  MemoryAccount account(0);
  // Grows past what it wants huge pages for, and comes back.
  PageArena arena(kReserve, &account, /*roomy_bytes=*/std::uint64_t{24} << 20);
  std::vector<Held> held;
  std::uint64_t used = 0;
  const auto intact = [](const Held& run) {
    for (std::uint32_t page = 0; page < run.pages; ++page) {
      if (run.memory[page * kPage] != run.mark) return false;
      if (run.memory[page * kPage + kPage - 1] != run.mark) return false;
    }
    return true;
  };
  // Up and down: to about 12,000 pages, then to few, again and again.
  for (int i = 0; i < 60'000; ++i) {
    const bool grow = i / 4000 % 2 == 0;
    if (held.empty() || random.Below(100) < (grow ? 70u : 20u)) {
      const auto pages = static_cast<std::uint32_t>(random.Below(200) == 0 ? 400 + random.Below(400)
                                                                           : 1 + random.Below(32));
      auto* const memory = static_cast<char*>(arena.Allocate(pages, MemoryUse::kStore));
      ASSERT_NE(memory, nullptr);
      held.push_back({memory, pages, static_cast<char>(1 + i % 100)});
      for (std::uint32_t page = 0; page < pages; ++page) {
        memory[page * kPage] = memory[page * kPage + kPage - 1] = held.back().mark;
      }
      used += pages;
    } else {
      std::swap(held[random.Below(held.size())], held.back());
      ASSERT_TRUE(intact(held.back()));
      arena.Free(held.back().memory, held.back().pages);
      used -= held.back().pages;
      held.pop_back();
    }
    if (random.Below(1000) == 0) arena.Trim();
    ASSERT_GE(account.used(), used * kPage);
    // A region that was just begun comes on top.
    ASSERT_LE(account.used(), (used + used / 4 + 512 + 2 * std::uint64_t{kRegionPages}) * kPage);
  }
  for (const Held& run : held) {
    ASSERT_TRUE(intact(run));
    arena.Free(run.memory, run.pages);
  }
  arena.Trim();
  EXPECT_EQ(account.used(), 0u);
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
