#include "core/index/bucket.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/sanitizers.h"

namespace warmpath::index_internal {
namespace {

TEST(BucketTest, TakesFindsAndFrees) {
  const auto bucket = std::make_unique<Bucket>();
  EXPECT_EQ(bucket->Find(0), kEmptySet) << "a free entry's hash means nothing";
  ASSERT_TRUE(bucket->TryLock());
  EXPECT_FALSE(bucket->TryLock());
  for (int i = 0; i < Bucket::kEntries; ++i) {
    EXPECT_EQ(bucket->FreeEntry(), i);
    bucket->Take(i, 100 + static_cast<ChainHash>(i), 7 + static_cast<SetId>(i));
  }
  EXPECT_EQ(bucket->FreeEntry(), -1);
  bucket->Unlock();
  EXPECT_EQ(bucket->Find(102), 9u);
  EXPECT_EQ(bucket->Locate(104), 4);
  EXPECT_EQ(bucket->Locate(105), -1);
  bucket->set[2].store(kEmptySet);
  EXPECT_EQ(bucket->Find(102), kEmptySet);
  EXPECT_EQ(bucket->FreeEntry(), 2);
}

// Hashes of few different halves, so that most that differ are half the same, and sets and control
// words that are zero as often as not.
TEST(BucketTest, LooksAtAllEntriesAsAtEachByItself) {
  const auto bucket = std::make_unique<Bucket>();
  Random random(4);
  const auto hash = [&] { return random.Below(3) << 32 | random.Below(3); };
  int found = 0;
  for (int round = 0; round < 20'000; ++round) {
    for (auto& entry : bucket->hash) entry.store(hash());
    for (auto& entry : bucket->set) entry.store(static_cast<SetId>(random.Below(2) << 31));
    bucket->control.store(static_cast<std::uint32_t>(random.Below(2)));
    const ChainHash wanted = hash();
    int naming = Bucket::kEntries;
    int free = -1;
    for (int i = Bucket::kEntries; i-- > 0;) {
      if (bucket->hash[i] == wanted) naming = i;
      if (bucket->set[i] == kEmptySet) free = i;
    }
    ASSERT_EQ(bucket->FirstNaming(wanted), naming);
    ASSERT_EQ(bucket->FreeEntry(), free);
    found += static_cast<int>(naming < Bucket::kEntries);
  }
  EXPECT_GT(found, 5'000);
}

TEST(BucketTest, TheControlWordKeepsItsPartsApart) {
  const auto bucket = std::make_unique<Bucket>();
  ASSERT_TRUE(bucket->TryLock());
  bucket->control.store(Bucket::kLocked | Bucket::kVersionMask);  // the version wraps around next
  bucket->Take(0, 1, 1);
  EXPECT_EQ(bucket->control.load(), Bucket::kLocked);
  EXPECT_EQ(bucket->Reach(), 0);
  bucket->AddLater(8 + 5, Bucket::kMaxReach);
  bucket->AddLater(16 + 3, 2);
  EXPECT_EQ(bucket->Reach(), Bucket::kMaxReach);
  for (ChainHash hash = 0; hash < 8; ++hash) {
    EXPECT_EQ(bucket->MayLieLater(hash), hash == 3 || hash == 5);
  }
  bucket->LowerReach(2);
  EXPECT_EQ(bucket->Reach(), 2);
  EXPECT_TRUE(bucket->MayLieLater(3));
  bucket->LowerReach(0);
  EXPECT_EQ(bucket->Reach(), 0);
  EXPECT_FALSE(bucket->MayLieLater(3));
  EXPECT_EQ(bucket->control.load() & Bucket::kVersionMask, 0u);
  bucket->Unlock();
  EXPECT_TRUE(bucket->TryLock());
}

// One entry changes hands between hashes without pause, and each has a set of its own. A reader
// that pairs one hash with another's set has seen a torn entry. (Reading without the version, in
// the order hash, set, fails here within milliseconds.)
TEST(BucketTest, ReadersNeverSeeATornEntry) {
  const auto bucket = std::make_unique<Bucket>();
  constexpr ChainHash kHashes = 4;
  constexpr int kReads = testing::kSanitized ? 200'000 : 10'000'000;
  std::atomic<bool> stop{false};
  std::atomic<bool> writing{false};
  std::thread writer([&] {
    for (ChainHash next = 0; !stop; next = (next + 1) % kHashes) {
      ASSERT_TRUE(bucket->TryLock());
      bucket->set[0].store(kEmptySet, std::memory_order_release);
      bucket->Take(0, 1000 + next, static_cast<SetId>(1 + next));
      bucket->Unlock();
      writing = true;
    }
  });
  while (!writing) std::this_thread::yield();
  std::vector<std::thread> readers;
  readers.reserve(2);
  std::atomic<int> torn{0};
  std::atomic<int> found{0};
  for (int r = 0; r < 2; ++r) {
    readers.emplace_back([&] {
      int mine = 0;
      // On one core the writer may be stopped between two entries for as long as a reader runs.
      for (int i = 0; i < kReads || (mine == 0 && i < 100 * kReads); ++i) {
        const ChainHash hash = static_cast<ChainHash>(i) % kHashes;
        const SetId id = bucket->Find(1000 + hash);
        if (id == kEmptySet) continue;
        ++mine;
        if (id != 1 + hash) ++torn;
      }
      found += mine;
    });
  }
  for (auto& reader : readers) reader.join();
  stop = true;
  writer.join();
  EXPECT_EQ(torn, 0);
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace warmpath::index_internal
