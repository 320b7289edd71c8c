#include "core/index/bucket_table.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/sanitizers.h"

namespace warmpath::index_internal {
namespace {

using Outcome = BucketTable::Outcome;

constexpr std::uint64_t kSeed = 12345;

// In both modes of writing: alone, without locks, and shared.
class BucketTableTest : public ::testing::TestWithParam<Writing> {
 protected:
  BucketTableTest() { Rebuild(0); }

  void Rebuild(std::uint64_t bound, std::uint64_t roomy_bytes = BucketTable::kRoomyBytes) {
    table_.reset();
    pages_.reset();
    account_ = std::make_unique<MemoryAccount>(bound);
    pages_ = std::make_unique<PageArena>(std::size_t{1} << 34, account_.get());
    table_ = std::make_unique<BucketTable>(kSeed, pages_.get(), &epochs_, roomy_bytes);
  }
  Outcome Set(ChainHash hash, SetId id, MemoryUse use = MemoryUse::kStore) {
    const EpochDomain::Pin pin(&epochs_);
    const auto place = table_->PlaceToWrite(hash);
    const auto step = [id](SetId) { return id; };
    return GetParam() == Writing::kAlone
               ? table_->Apply<Writing::kAlone>(place, hash, use, step).outcome
               : table_->Apply<Writing::kShared>(place, hash, use, step).outcome;
  }
  SetId Find(ChainHash hash) {
    const EpochDomain::Pin pin(&epochs_);
    return table_->Find(hash);
  }
  std::map<ChainHash, SetId> Content() {
    std::map<ChainHash, SetId> content;
    std::uint64_t position = 0;
    do {
      const EpochDomain::Pin pin(&epochs_);
      position = table_->VisitSegment(position, [&](ChainHash hash, SetId id) {
        EXPECT_TRUE(content.emplace(hash, id).second);
      });
    } while (position != 0);
    return content;
  }
  void ShrinkAll() {
    std::uint64_t position = 0;
    do {
      const EpochDomain::Pin pin(&epochs_);
      std::size_t entries = 0;
      const std::uint64_t next =
          table_->VisitSegment(position, [&](ChainHash, SetId) { ++entries; });
      table_->ShrinkSegment(position, entries, GetParam());
      position = next;
    } while (position != 0);
    table_->Reclaim();
    pages_->Trim();
  }

  // The hash that the table mixes into `mixed`.
  static ChainHash HashMixedTo(std::uint64_t mixed) {
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15ULL;
    std::uint64_t inverse = kFactor;  // Newton's iteration modulo 2^64
    for (int i = 0; i < 6; ++i) inverse *= 2 - kFactor * inverse;
    return ((mixed ^ (mixed >> 32)) * inverse) ^ kSeed;
  }

  EpochDomain epochs_;
  std::unique_ptr<MemoryAccount> account_;
  std::unique_ptr<PageArena> pages_;
  std::unique_ptr<BucketTable> table_;
};

INSTANTIATE_TEST_SUITE_P(, BucketTableTest, ::testing::Values(Writing::kAlone, Writing::kShared),
                         [](const auto& mode) {
                           return mode.param == Writing::kAlone ? "Alone" : "Shared";
                         });

TEST_P(BucketTableTest, SaysWhatItDid) {
  EXPECT_EQ(Find(0), kEmptySet);
  EXPECT_EQ(Set(0, kEmptySet), Outcome::kUnchanged);
  EXPECT_EQ(Set(0, 5), Outcome::kInserted);
  EXPECT_EQ(Set(0, 5), Outcome::kUnchanged);
  EXPECT_EQ(Set(0, 6), Outcome::kChanged);
  EXPECT_EQ(Find(0), 6u);
  EXPECT_EQ(Set(0, BucketTable::kNoSet), Outcome::kNoMemory);
  EXPECT_EQ(Find(0), 6u);
  EXPECT_EQ(Set(0, kEmptySet), Outcome::kErased);
  EXPECT_EQ(Find(0), kEmptySet);
}

TEST_P(BucketTableTest, AgreesWithAMapThroughGrowthAndShrinking) {
  Random random(1);
  std::map<ChainHash, SetId> truth;
  std::vector<ChainHash> hashes(60'000);
  for (ChainHash& hash : hashes) hash = random();
  for (const int adds : {90, 50, 10, 95, 2}) {
    for (int i = 0; i < 60'000; ++i) {
      const ChainHash hash = hashes[random.Below(hashes.size())];
      if (random.Below(100) < static_cast<std::uint64_t>(adds)) {
        const auto id = static_cast<SetId>(1 + random.Below(1000));
        Set(hash, id);
        truth[hash] = id;
      } else {
        EXPECT_EQ(Set(hash, kEmptySet), truth.erase(hash) ? Outcome::kErased : Outcome::kUnchanged);
      }
    }
    ASSERT_EQ(Content(), truth);
    for (int i = 0; i < 1000; ++i) {
      const ChainHash hash = hashes[random.Below(hashes.size())];
      ASSERT_EQ(Find(hash), truth.contains(hash) ? truth[hash] : kEmptySet);
    }
    ShrinkAll();
    ASSERT_EQ(Content(), truth);
  }
}

// Churn must not leave entries away from home for good: removals bring them back.
TEST_P(BucketTableTest, RemovalsBringEntriesHome) {
  constexpr std::uint64_t kHome = 0x80000000;
  std::vector<ChainHash> same_home;
  for (std::uint64_t i = 0; i < 8; ++i) same_home.push_back(HashMixedTo(i << 32 | kHome));
  for (std::size_t i = 0; i < same_home.size(); ++i) {
    EXPECT_EQ(Set(same_home[i], static_cast<SetId>(i + 1)), Outcome::kInserted);
  }
  const Bucket* home;
  {
    const EpochDomain::Pin pin(&epochs_);
    home = table_->PlaceToRead(same_home[0]).home;
  }
  EXPECT_EQ(home->Reach(), 1);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(home->Reach(), 1);
    EXPECT_EQ(Set(same_home[i], kEmptySet), Outcome::kErased);
  }
  EXPECT_EQ(home->Reach(), 0);
  for (std::size_t i = 3; i < same_home.size(); ++i) {
    EXPECT_EQ(home->Find(same_home[i]), i + 1);
    EXPECT_EQ(Find(same_home[i]), i + 1);
  }
  EXPECT_EQ(Content().size(), 5u);
}

// The sweep may not overlook a set because its entry moved while the segment was walked.
TEST_P(BucketTableTest, AnEntryThatMovesDuringAWalkIsVisited) {
  constexpr std::uint64_t kHome = 0x80000000;
  std::vector<ChainHash> at_home;
  for (std::uint64_t i = 0; i < Bucket::kEntries; ++i) {
    at_home.push_back(HashMixedTo(i << 32 | kHome));
    Set(at_home.back(), 1);
  }
  const ChainHash later = HashMixedTo(std::uint64_t{100} << 32 | kHome);
  Set(later, 2);
  std::set<ChainHash> visited;
  const EpochDomain::Pin pin(&epochs_);
  table_->VisitSegment(0, [&](ChainHash hash, SetId) {
    visited.insert(hash);
    if (hash == at_home.back()) Set(at_home.front(), kEmptySet);
  });
  EXPECT_EQ(table_->PlaceToRead(later).home->Find(later), 2u) << "it was moved";
  EXPECT_TRUE(visited.contains(later));
}

// An entry is moved home again and again while a reader looks for it. (A reader that does not look
// at the home bucket's version again misses it a thousand times.)
TEST_P(BucketTableTest, ReadersNeverMissAnEntryThatMoves) {
  constexpr std::uint64_t kHome = 0x80000000;
  constexpr std::uint64_t kMoves = testing::kSanitized ? 20'000 : 300'000;
  std::vector<ChainHash> others;
  for (std::uint64_t i = 0; i < Bucket::kEntries; ++i) {
    others.push_back(HashMixedTo(i << 32 | kHome));
    Set(others.back(), 1);
  }
  std::atomic<ChainHash> present{0};  // 0: none
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> looks{0};
  std::thread reader([&] {
    std::uint64_t missed = 0;
    while (!stop) {
      const ChainHash hash = present;
      if (hash == 0) continue;
      const SetId id = Find(hash);
      if (present == hash && id != 2) ++missed;
      looks.fetch_add(1, std::memory_order_relaxed);
    }
    EXPECT_EQ(missed, 0u);
  });
  for (std::uint64_t i = 0; i < kMoves; ++i) {
    const ChainHash hash = HashMixedTo((i + 100) << 32 | kHome);
    const ChainHash other = others[i % others.size()];
    Set(hash, 2);  // the home bucket is full
    present = hash;
    // A little time for the reader, before and after; different each time, so that the move meets
    // it in every place.
    for (std::uint64_t spin = 0; spin < 50 + i % 50; ++spin) looks.load();
    Set(other, kEmptySet);
    for (int spin = 0; spin < 100; ++spin) looks.load();
    present = 0;
    Set(hash, kEmptySet);
    Set(other, 1);
  }
  stop = true;
  reader.join();
}

// Growth always finds a next size, from whatever size a segment was shrunk to.
TEST_P(BucketTableTest, WithoutABoundNoStoreIsRefused) {
  for (const std::uint64_t roomy_bytes : {std::uint64_t{0}, BucketTable::kRoomyBytes}) {
    Rebuild(/*bound=*/0, roomy_bytes);
    Random random(7);
    std::vector<ChainHash> hashes;
    for (const std::size_t entries : {300'000, 20'000, 100'000, 1'000, 300'000, 0, 50'000}) {
      while (hashes.size() < entries) {
        hashes.push_back(random());
        ASSERT_EQ(Set(hashes.back(), 1), Outcome::kInserted);
      }
      while (hashes.size() > entries) {
        ASSERT_EQ(Set(hashes.back(), kEmptySet), Outcome::kErased);
        hashes.pop_back();
      }
      ShrinkAll();
    }
  }
}

TEST_P(BucketTableTest, GrowsInSmallSteps) {
  Rebuild(/*bound=*/0, /*roomy_bytes=*/0);
  Random random(2);
  std::uint64_t previous = account_->used();
  std::uint64_t entries = 0;
  double largest_step = 0;
  double most_per_entry = 0;
  while (entries < 2'000'000) {
    for (int i = 0; i < 10'000; ++i, ++entries) Set(random(), 1);
    table_->Reclaim();
    pages_->Trim();
    const std::uint64_t used = account_->used();
    if (entries > 500'000) {
      largest_step =
          std::max(largest_step, static_cast<double>(used) / static_cast<double>(previous));
      most_per_entry =
          std::max(most_per_entry, static_cast<double>(used) / static_cast<double>(entries));
    }
    previous = used;
  }
  EXPECT_LT(largest_step, 1.25);
  EXPECT_LT(most_per_entry, 20.0);
}

// Segments grow by what lies away from home, which churn brings up and down: it must not make them
// grow for ever. (Chance alone makes some grow.)
TEST_P(BucketTableTest, StaysAboutAsFullUnderChurn) {
  constexpr int kChanges = testing::kSanitized ? 200'000 : 2'000'000;
  for (const std::uint64_t roomy_bytes : {std::uint64_t{0}, BucketTable::kRoomyBytes}) {
    Rebuild(/*bound=*/0, roomy_bytes);
    Random random(9);
    std::vector<ChainHash> hashes(100'000);
    for (ChainHash& hash : hashes) Set(hash = random(), 1);
    const auto load = [&] {
      return static_cast<double>(hashes.size()) / static_cast<double>(table_->capacity());
    };
    const double full = load();
    for (int i = 0; i < kChanges; ++i) {
      ChainHash& hash = hashes[random.Below(hashes.size())];
      ASSERT_EQ(Set(hash, kEmptySet), Outcome::kErased);
      ASSERT_EQ(Set(hash = random(), 1), Outcome::kInserted);
    }
    EXPECT_GT(full, roomy_bytes == 0 ? 0.68 : 0.53);
    EXPECT_LT(full, roomy_bytes == 0 ? 0.73 : 0.58);
    EXPECT_GT(load(), roomy_bytes == 0 ? 0.61 : 0.48);
    // Nor may it forget to grow.
    for (int i = 0; i < 100'000; ++i) Set(hashes.emplace_back(random()), 1);
    EXPECT_GT(load(), roomy_bytes == 0 ? 0.65 : 0.45);
    EXPECT_LT(load(), roomy_bytes == 0 ? 0.75 : 0.60);
    int reach = 0;
    for (const ChainHash hash : hashes) {
      reach = std::max(reach, table_->PlaceToRead(hash).home->Reach());
    }
    if (roomy_bytes > 0) {
      EXPECT_LT(reach, 16) << "segments grew only when there was no room at all";
    }
  }
}

// A table begins roomy, and by the time it has doubled after `roomy_bytes` it is as small as one
// that was packed from the start.
TEST_P(BucketTableTest, PacksWhenItIsLarge) {
  constexpr std::uint64_t kRoomy = std::uint64_t{4} << 20;
  const auto fill = [this](std::uint64_t roomy_bytes, std::uint64_t entries) {
    Rebuild(/*bound=*/0, roomy_bytes);
    Random random(2);
    for (std::uint64_t i = 0; i < entries; ++i) Set(random(), 1);
    table_->Reclaim();
    pages_->Trim();
    return static_cast<double>(account_->used()) / static_cast<double>(entries);
  };
  EXPECT_LT(fill(0, 150'000), 20);
  const double roomy = fill(kRoomy, 150'000);
  EXPECT_GT(roomy, 20);
  EXPECT_LT(roomy, 30);
  EXPECT_LT(fill(kRoomy, 600'000), 20);
}

TEST_P(BucketTableTest, ShrinksToWhatIsLeft) {
  Random random(3);
  std::vector<ChainHash> hashes(1'000'000);
  for (ChainHash& hash : hashes) Set(hash = random(), 1);
  table_->Reclaim();
  pages_->Trim();
  const std::uint64_t full = account_->used();
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (i % 10 != 0) Set(hashes[i], kEmptySet);
  }
  ShrinkAll();
  EXPECT_LT(account_->used(), full / 5);
  EXPECT_EQ(Content().size(), hashes.size() / 10);
}

TEST_P(BucketTableTest, AReplacedSegmentOutlivesItsReaders) {
  Set(1, 1);
  const EpochDomain::Pin pin(&epochs_);
  const BucketTable::Place place = table_->PlaceToRead(1);
  Random random(4);
  for (int i = 0; i < 100'000; ++i) Set(random(), 2);
  table_->Reclaim();
  pages_->Trim();
  EXPECT_EQ(BucketTable::FindAt(place, 1), 1u) << "as it was when the place was made";
  Set(1, 9);  // the writer finds the segment of today
  EXPECT_EQ(table_->Find(1), 9u);
}

// Hashes that all want the same bucket. An agent that knew the seed could send them.
TEST_P(BucketTableTest, CrowdedHashesAreRefusedAndHurtNobody) {
  Random random(5);
  std::set<ChainHash> others;
  for (int i = 0; i < 5'000; ++i) others.insert(random());
  for (const ChainHash hash : others) ASSERT_EQ(Set(hash, 1), Outcome::kInserted);
  int refused = 0;
  std::set<ChainHash> crowded;
  for (std::uint64_t i = 0; i < 3'000; ++i) {
    // Equal low words and equal leading bits: one bucket, in one segment, at every size.
    const ChainHash hash = HashMixedTo(i << 32 | 0x12345678);
    const Outcome outcome = Set(hash, 2);
    if (outcome == Outcome::kNoMemory) ++refused;
    if (outcome == Outcome::kInserted) crowded.insert(hash);
  }
  EXPECT_GT(refused, 2'000);
  EXPECT_LT(account_->used(), std::uint64_t{16} << 20);
  for (const ChainHash hash : others) {
    EXPECT_EQ(Find(hash), 1u);
    const EpochDomain::Pin pin(&epochs_);
    EXPECT_FALSE(table_->PlaceToRead(hash).home->IsLocked())
        << "growth that failed leaves no locks";
  }
  for (const ChainHash hash : crowded) EXPECT_EQ(Find(hash), 2u);
  for (const ChainHash hash : crowded) EXPECT_EQ(Set(hash, kEmptySet), Outcome::kErased);
  EXPECT_EQ(Content().size(), others.size());
}

// Two crowds that fit at this size only: side by side they use the last bucket that may be used,
// and in fewer buckets their homes are closer together.
TEST_P(BucketTableTest, AShrinkThatDoesNotFitChangesNothing) {
  Random random(8);
  std::vector<ChainHash> others;
  while (table_->capacity() < 2000) {
    others.push_back(random());
    ASSERT_EQ(Set(others.back(), 1), Outcome::kInserted);
  }
  for (const ChainHash hash : others) Set(hash, kEmptySet);
  const std::uint64_t buckets = table_->capacity() / Bucket::kEntries;
  const std::uint64_t home = buckets / 2;
  const auto low_word = [&](std::uint64_t bucket) { return (bucket << 32) / buckets + 1; };
  std::vector<ChainHash> crowd;
  for (std::uint64_t i = 0; i < 140; ++i) {
    crowd.push_back(HashMixedTo(i << 32 | low_word(home + (i < 70 ? 0 : 3))));
    ASSERT_EQ(Set(crowd.back(), 2), Outcome::kInserted) << i;
  }
  const std::map<ChainHash, SetId> content = Content();
  {
    const EpochDomain::Pin pin(&epochs_);
    table_->ShrinkSegment(0, content.size(), GetParam());
    EXPECT_EQ(table_->capacity(), buckets * Bucket::kEntries);
    for (const ChainHash hash : crowd) {
      EXPECT_FALSE(table_->PlaceToRead(hash).home->IsLocked()) << "or writers would wait for ever";
    }
  }
  EXPECT_EQ(Content(), content);
  EXPECT_EQ(Set(crowd[0], kEmptySet), Outcome::kErased);
}

TEST_P(BucketTableTest, StoresEndAtTheBoundAndRemovalsGoOn) {
  Rebuild(std::uint64_t{4} << 20);
  Random random(6);
  std::vector<ChainHash> stored;
  int refused = 0;
  while (refused < 1000) {
    const ChainHash hash = random();
    if (Set(hash, 1) == Outcome::kInserted) {
      stored.push_back(hash);
    } else {
      ++refused;
    }
    ASSERT_LE(account_->used(), account_->bound());
    ASSERT_LT(stored.size(), 400'000u);
  }
  EXPECT_GT(stored.size(), 180'000u) << "the bound is made use of";
  for (const ChainHash hash : stored) ASSERT_EQ(Set(hash, kEmptySet), Outcome::kErased);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(Set(random(), 1), Outcome::kInserted);
}

}  // namespace
}  // namespace warmpath::index_internal
