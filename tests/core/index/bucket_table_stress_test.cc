// Several writers in one bucket table that grows, shrinks and is at its bound at times: nothing of
// what they were told is lost. Run under ThreadSanitizer, too.
#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "core/base/random.h"
#include "core/index/bucket_table.h"
#include "gtest/gtest.h"
#include "tests/testing/sanitizers.h"

namespace warmpath::index_internal {
namespace {

constexpr int kRounds = testing::kSanitized ? 60 : 400;
constexpr int kWriters = 3;
constexpr std::uint64_t kRoomyBytes = std::uint64_t{1} << 20;

class BucketTableStress {
 public:
  explicit BucketTableStress(std::uint64_t bound) : account_(bound) {}

  // Each writer has hashes of its own, in the same buckets as the others'.
  void Writer(int number, bool always_shared) {
    Random random(static_cast<std::uint64_t>(number));
    std::map<ChainHash, SetId>& truth = truth_[static_cast<std::size_t>(number)];
    for (int round = 0; round < kRounds; ++round) {
      const bool grow = round / 20 % 2 == 0;
      std::vector<ChainHash> hashes;
      for (int i = 0; i < 200; ++i) {
        auto known = truth.lower_bound(random());
        if (known == truth.end()) known = truth.begin();
        hashes.push_back(known == truth.end() || random.Below(100) < (grow ? 80u : 15u)
                             ? random() * kWriters + static_cast<std::uint64_t>(number)
                             : known->first);
      }
      const EpochDomain::Pin pin(&epochs_);
      if (always_shared) {
        Change<Writing::kShared>(hashes, &random, &truth);
        continue;
      }
      const WriterGate::Pass pass(table_.gate());
      if (pass.mode() == Writing::kAlone) {
        Change<Writing::kAlone>(hashes, &random, &truth);
      } else {
        Change<Writing::kShared>(hashes, &random, &truth);
      }
    }
  }

  void ShrinkUntil(const std::atomic<bool>& stop, bool always_shared) {
    for (std::uint64_t position = 0; !stop;) {
      const EpochDomain::Pin pin(&epochs_);
      std::size_t entries = 0;
      const std::uint64_t next =
          table_.VisitSegment(position, [&](ChainHash, SetId) { ++entries; });
      if (always_shared) {
        table_.ShrinkSegment(position, entries, Writing::kShared);
      } else {
        const WriterGate::Pass pass(table_.gate());
        table_.ShrinkSegment(position, entries, pass.mode());
      }
      position = next;
      table_.Reclaim();
      if (position == 0) table_.Trim();
      std::this_thread::yield();
    }
  }

  void Run(bool always_shared) {
    std::atomic<bool> stop{false};
    std::vector<std::thread> writers;
    writers.reserve(kWriters);
    for (int i = 0; i < kWriters; ++i)
      writers.emplace_back([=, this] { Writer(i, always_shared); });
    std::thread shrinker([&] { ShrinkUntil(stop, always_shared); });
    for (std::thread& writer : writers) writer.join();
    stop = true;
    shrinker.join();
    std::map<ChainHash, SetId> all;
    for (const auto& truth : truth_) all.insert(truth.begin(), truth.end());
    std::map<ChainHash, SetId> content;
    std::uint64_t position = 0;
    const EpochDomain::Pin pin(&epochs_);
    do {
      position = table_.VisitSegment(position, [&](ChainHash hash, SetId id) {
        EXPECT_TRUE(content.emplace(hash, id).second);
      });
    } while (position != 0);
    EXPECT_EQ(content, all);
    for (const auto& [hash, id] : all) ASSERT_EQ(table_.Find(hash), id);
  }

  std::uint64_t refused() const { return refused_; }

 private:
  // Takes known hashes out, puts others in. All places are made before the first change, so that
  // later ones are often of a segment that was replaced meanwhile.
  template <Writing kMode>
  void Change(const std::vector<ChainHash>& hashes, Random* random,
              std::map<ChainHash, SetId>* truth) {
    std::vector<BucketTable::Place> places;
    places.reserve(hashes.size());
    for (const ChainHash hash : hashes) places.push_back(table_.PlaceToWrite(hash));
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const auto known = truth->find(hashes[i]);
      const SetId before = known == truth->end() ? kEmptySet : known->second;
      const SetId after =
          before == kEmptySet ? static_cast<SetId>(1 + random->Below(1000)) : kEmptySet;
      // At times others run, and want to replace the segment, while a bucket of it is locked.
      const bool dawdle = kMode == Writing::kShared && random->Below(16) == 0;
      const auto update = table_.Apply<kMode>(places[i], hashes[i], MemoryUse::kStore, [=](SetId) {
        if (dawdle) std::this_thread::yield();
        return after;
      });
      ASSERT_EQ(update.before, before);
      if (update.outcome == BucketTable::Outcome::kNoMemory) {
        ASSERT_NE(after, kEmptySet) << "an entry that goes needs no memory";
        ++refused_;
      } else if (after == kEmptySet) {
        truth->erase(known);
      } else {
        truth->emplace(hashes[i], after);
      }
    }
  }

  MemoryAccount account_;
  EpochDomain epochs_;
  PageArena pages_{std::size_t{1} << 34, &account_, kRoomyBytes};
  BucketTable table_{12345, &pages_, &epochs_, kRoomyBytes};
  std::map<ChainHash, SetId> truth_[kWriters];
  std::atomic<std::uint64_t> refused_{0};
};

TEST(BucketTableStressTest, NothingIsLostThroughTheGate) {
  BucketTableStress stress(/*bound=*/0);
  stress.Run(/*always_shared=*/false);
  EXPECT_EQ(stress.refused(), 0u);
}

TEST(BucketTableStressTest, NothingIsLostWhenAllShare) {
  BucketTableStress stress(/*bound=*/0);
  stress.Run(/*always_shared=*/true);
  EXPECT_EQ(stress.refused(), 0u);
}

TEST(BucketTableStressTest, NothingThatWasTakenIsLostAtTheBound) {
  for (const bool always_shared : {false, true}) {
    BucketTableStress stress(/*bound=*/std::uint64_t{64} << 10);
    stress.Run(always_shared);
    EXPECT_GT(stress.refused(), 0u);
  }
}

// Several writers of one segment, none of which makes it grow. If they lost count of what lies away
// from home, it would grow too late or too early afterwards.
TEST(BucketTableStressTest, WritersOfOneSegmentKeepCount) {
  constexpr int kChanges = testing::kSanitized ? 100'000 : 1'500'000;
  MemoryAccount account(0);
  EpochDomain epochs;
  PageArena pages(std::size_t{1} << 34, &account, kRoomyBytes);
  BucketTable table(12345, &pages, &epochs, kRoomyBytes);
  Random random(3);
  const auto set = [&](ChainHash hash, SetId id) {
    const EpochDomain::Pin pin(&epochs);
    return table
        .Apply<Writing::kShared>(table.PlaceToWrite(hash), hash, MemoryUse::kStore,
                                 [=](SetId) { return id; })
        .outcome;
  };
  std::size_t entries = 0;
  const auto load = [&] {
    return static_cast<double>(entries) / static_cast<double>(table.capacity());
  };
  // The one segment has grown for the last time, and has room for what chance may bring.
  while (table.capacity() < 2500 || load() < 0.65) {
    ASSERT_EQ(set(random(), 1), BucketTable::Outcome::kInserted);
    ++entries;
  }
  const std::uint64_t capacity = table.capacity();
  std::vector<std::thread> writers;
  writers.reserve(kWriters);
  for (int number = 0; number < kWriters; ++number) {
    writers.emplace_back([&, number] {
      Random mine(static_cast<std::uint64_t>(100 + number));
      for (int i = 0; i < kChanges; ++i) {
        const ChainHash hash = mine();
        ASSERT_EQ(set(hash, 1), BucketTable::Outcome::kInserted);
        ASSERT_EQ(set(hash, kEmptySet), BucketTable::Outcome::kErased);
      }
    });
  }
  for (auto& writer : writers) writer.join();
  ASSERT_EQ(table.capacity(), capacity);
  double full = 0;
  for (; table.capacity() == capacity; ++entries) {
    full = load();
    ASSERT_EQ(set(random(), 1), BucketTable::Outcome::kInserted);
  }
  EXPECT_GT(full, 0.70);
  EXPECT_LT(full, 0.77);
}

}  // namespace
}  // namespace warmpath::index_internal
