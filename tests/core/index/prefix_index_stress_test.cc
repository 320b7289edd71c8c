// Writers, readers, joins, leaves and the sweep at once. Run under ThreadSanitizer it shows that
// nothing is read unguarded; everywhere it shows that no reader is ever told a lie:
//
//  - A slot stores blocks of its own family only, the remainder of its number. A lookup of one
//    family's chain that names a slot of another has seen a torn entry, a set id that was reused
//    under it, or a slot number given out too early.
//  - Pinned slots hold whole chains that are never touched. A lookup that misses part of one has
//    been lost in a table that moved; one that credits more has jumped over a hole.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "core/base/random.h"
#include "core/index/index.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/sanitizers.h"

namespace warmpath {
namespace {

constexpr std::uint32_t kFamilies = 4;
constexpr std::uint32_t kChains = 48;
constexpr std::uint32_t kChainBlocks = 64;

// The sanitizer makes everything about ten times slower.
constexpr int kRounds = testing::kSanitized ? 150 : 1500;

ChainHash BlockHash(std::uint32_t family, std::uint32_t chain, std::uint32_t block) {
  // Chains of one family share their first blocks, so that sets grow large there.
  if (block < 4) chain = 0;
  std::uint64_t z = (std::uint64_t{family} << 48 | std::uint64_t{chain} << 24 | block) + 1;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  return z ^ (z >> 27);
}

std::vector<ChainHash> Chain(std::uint32_t family, std::uint32_t chain, std::uint32_t blocks) {
  std::vector<ChainHash> hashes;
  for (std::uint32_t i = 0; i < blocks; ++i) hashes.push_back(BlockHash(family, chain, i));
  return hashes;
}

// What one thread knows of one of its slots.
struct OwnSlot {
  Slot slot;
  std::set<ChainHash> held[kTierCount];
};

class Stress {
 public:
  // Without holes: writers keep whole prefixes in the GPU tier of nearly all slots, and say so.
  explicit Stress(bool without_holes) : index_(CreateIndex({})), without_holes_(without_holes) {
    // One pinned slot for each family, holding chains that writers never touch.
    std::map<std::uint32_t, Slot> pinned;
    std::vector<Slot> others;
    while (pinned.size() < kFamilies) {
      const Slot slot = *index_->OpenSlot();
      if (!pinned.emplace(slot % kFamilies, slot).second) others.push_back(slot);
    }
    for (const Slot slot : others) index_->CloseSlot(slot);
    for (const auto& [family, slot] : pinned) {
      pinned_.push_back(slot);
      if (without_holes) index_->SetMayHaveHoles(slot, false);
      for (std::uint32_t chain = 0; chain < 4; ++chain) {
        index_->Apply(slot, Tier::kGpu, {}, Chain(family, kChains + chain, kChainBlocks));
      }
    }
  }

  void Writer(std::uint64_t seed) {
    Random random(seed);
    std::vector<OwnSlot> slots;
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t dice = random.Below(100);
      if (slots.empty() || (dice < 8 && slots.size() < 12)) {
        slots.push_back({*index_->OpenSlot(), {}});
        if (without_holes_ && random.Below(16) != 0) {
          index_->SetMayHaveHoles(slots.back().slot, false);
        }
      } else if (dice < 12) {
        const std::size_t i = random.Below(slots.size());
        index_->CloseSlot(slots[i].slot);
        slots.erase(slots.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        Write(&slots[random.Below(slots.size())], &random);
      }
    }
    for (const OwnSlot& own : slots) {
      for (const Tier tier : kAllTiers) {
        const auto& held = own.held[static_cast<std::size_t>(tier)];
        std::set<ChainHash> content;
        index_->ForEach(own.slot, tier, [&](ChainHash hash) { content.insert(hash); });
        EXPECT_EQ(content, held);
        HoldingsDigest digest{.count = held.size()};
        for (const ChainHash hash : held) digest.xor_of_hashes ^= hash;
        EXPECT_EQ(index_->Digest(own.slot, tier), digest);
      }
    }
    --writers_;
  }

  void Reader(std::uint64_t seed) {
    Random random(seed);
    MatchResult result;
    MatchSegments segments;
    std::uint64_t wrong = 0;
    while (writers_.load() > 0) {
      const auto family = static_cast<std::uint32_t>(random.Below(kFamilies));
      const auto chain = static_cast<std::uint32_t>(random.Below(kChains + 4));
      const auto hashes = Chain(family, chain, kChainBlocks);
      std::uint32_t pinned_depth = 0;
      switch (random.Below(4)) {
        case 0:
          index_->MatchGpu(hashes, &segments);
          for (const auto& segment : segments.segments) {
            segments.ForEachSlot(segment, [&](Slot slot) { wrong += slot % kFamilies != family; });
            if (segments.Contains(segment, pinned_[family])) pinned_depth = segment.depth;
          }
          wrong += pinned_depth != (chain >= kChains ? kChainBlocks : 4);
          break;
        case 1:
          index_->MatchExact(hashes, &result);
          wrong += CountWrong(result, family);
          break;
        default:
          index_->Match(hashes, &result);
          wrong += CountWrong(result, family);
          break;
      }
      const Slot pinned = pinned_[family];
      if (index_->VerifiedGpuDepth(pinned, hashes, 4, kChainBlocks) !=
          (chain >= kChains ? kChainBlocks : 4)) {
        ++wrong;
      }
      if (index_->Holds(pinned_[(family + 1) % kFamilies], Tier::kGpu,
                        hashes[random.Below(kChainBlocks)])) {
        ++wrong;
      }
    }
    EXPECT_EQ(wrong, 0u);
  }

  void Maintainer() {
    Random random(7);
    while (writers_.load() > 0) {
      if (!index_->Maintain(1 + random.Below(20000))) std::this_thread::yield();
    }
    for (int i = 0; i < 100000 && index_->Maintain(100000); ++i) {
    }
  }

  void Run(int writers, int readers) {
    writers_ = writers;
    std::vector<std::thread> threads;
    threads.reserve(static_cast<std::size_t>(writers + readers + 1));
    for (int i = 0; i < writers; ++i) {
      threads.emplace_back([this, i] { Writer(static_cast<std::uint64_t>(100 + i)); });
    }
    for (int i = 0; i < readers; ++i) {
      threads.emplace_back([this, i] { Reader(static_cast<std::uint64_t>(200 + i)); });
    }
    threads.emplace_back([this] { Maintainer(); });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(index_->Stats().closed_slots_unswept, 0u);
  }

  Index& index() { return *index_; }

 private:
  static std::uint64_t CountWrong(const MatchResult& result, std::uint32_t family) {
    std::uint64_t wrong = 0;
    for (const SlotMatch& match : result.slots) wrong += match.slot % kFamilies != family;
    return wrong;
  }

  void Write(OwnSlot* own, Random* random) {
    const auto family = own->slot % kFamilies;
    const auto chain = static_cast<std::uint32_t>(random->Below(kChains));
    const auto blocks = static_cast<std::uint32_t>(1 + random->Below(kChainBlocks));
    const Tier tier = random->Below(4) == 0 ? Tier::kHost : Tier::kGpu;
    auto& held = own->held[static_cast<std::size_t>(tier)];
    std::vector<ChainHash> hashes = Chain(family, chain, blocks);
    std::vector<ChainHash> removed;
    std::vector<ChainHash> stored;
    if (random->Below(2) == 0) {
      stored = hashes;
    } else {
      // To the chain's end, and not into what chains share, where no hole may be left.
      if (without_holes_) hashes = Chain(family, chain, kChainBlocks);
      const auto begin = without_holes_ ? std::max(blocks / 2, 4u) : blocks / 2;
      removed.assign(hashes.begin() + static_cast<std::ptrdiff_t>(begin), hashes.end());
    }
    ApplyResult expected;
    for (const ChainHash hash : removed)
      ++(held.erase(hash) ? expected.removed : expected.removed_missing);
    for (const ChainHash hash : stored)
      ++(held.insert(hash).second ? expected.stored : expected.already_stored);
    EXPECT_EQ(index_->Apply(own->slot, tier, removed, stored), expected);
  }

  std::unique_ptr<Index> index_;
  const bool without_holes_;
  std::vector<Slot> pinned_;
  std::atomic<int> writers_{0};
};

TEST(PrefixIndexStressTest, FourWritersTwoReaders) {
  Stress stress(/*without_holes=*/false);
  stress.Run(4, 2);
}

TEST(PrefixIndexStressTest, SixWritersThreeReaders) {
  Stress stress(/*without_holes=*/false);
  stress.Run(6, 3);
}

TEST(PrefixIndexStressTest, FourWritersTwoReadersWithoutHoles) {
  Stress stress(/*without_holes=*/true);
  stress.Run(4, 2);
}

// Each writer is alone at times and one of several at others, and all change the same few entries.
// (When one that is alone does not keep the others out, changes are lost by the hundred.)
TEST(PrefixIndexStressTest, WritersOfTheSameBlocksLoseNothing) {
  constexpr int kWriters = 4;
  const std::vector<ChainHash> blocks = Chain(0, 1, 256);
  const auto index = CreateIndex({});
  std::vector<OwnSlot> own(kWriters);
  for (OwnSlot& slot : own) slot.slot = *index->OpenSlot();
  std::atomic<bool> stop{false};
  std::thread sweeper([&] {
    while (!stop) {
      // Something to be swept out of these entries, too.
      const Slot slot = *index->OpenSlot();
      index->Apply(slot, Tier::kGpu, {}, blocks);
      index->CloseSlot(slot);
      while (index->Maintain(10'000)) std::this_thread::yield();
    }
  });
  std::vector<std::thread> writers;
  writers.reserve(kWriters);
  for (int i = 0; i < kWriters; ++i) {
    writers.emplace_back([&, i] {
      Random random(static_cast<std::uint64_t>(i));
      std::set<ChainHash>& held = own[static_cast<std::size_t>(i)].held[0];
      for (int round = 0; round < 4 * kRounds; ++round) {
        std::vector<ChainHash> removed;
        std::vector<ChainHash> stored;
        const std::uint64_t share = 1 + random.Below(8);
        for (const ChainHash block : blocks) {
          if (random.Below(8) >= share) continue;
          if (held.erase(block) > 0) {
            removed.push_back(block);
          } else {
            held.insert(block);
            stored.push_back(block);
          }
        }
        const ApplyResult result =
            index->Apply(own[static_cast<std::size_t>(i)].slot, Tier::kGpu, removed, stored);
        ASSERT_EQ(result.removed, removed.size());
        ASSERT_EQ(result.stored, stored.size());
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  sweeper.join();
  for (const OwnSlot& slot : own) {
    for (const ChainHash block : blocks) {
      ASSERT_EQ(index->Holds(slot.slot, Tier::kGpu, block), slot.held[0].contains(block));
    }
  }
}

// A change that is under way is seen by halves, in whatever order its blocks come. Still nobody is
// told of more than was held before or after it, nor of less.
TEST(PrefixIndexStressTest, AChangeUnderWayIsBetweenBeforeAndAfter) {
  constexpr std::uint32_t kLess = 200;
  constexpr std::uint32_t kMore = 900;
  const auto index = CreateIndex({});
  const Slot slot = *index->OpenSlot();
  index->SetMayHaveHoles(slot, false);
  const std::vector<ChainHash> chain = Chain(0, 1, 1000);
  const std::span<const ChainHash> whole(chain);
  index->Apply(slot, Tier::kGpu, {}, whole.first(kLess));
  std::vector<ChainHash> part(chain.begin() + kLess, chain.begin() + kMore);
  std::atomic<bool> writing{true};
  std::jthread writer([&] {
    Random random(1);
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = part.size(); i-- > 1;) std::swap(part[i], part[random.Below(i + 1)]);
      index->Apply(slot, Tier::kGpu, {}, part);
      index->Apply(slot, Tier::kGpu, part, {});
    }
    writing = false;
  });
  MatchSegments segments;
  std::uint64_t between = 0;
  while (writing) {
    index->MatchGpu(chain, &segments);
    ASSERT_EQ(segments.segments.size(), 1u);
    const std::uint32_t depth = segments.segments[0].depth;
    ASSERT_GE(depth, kLess);
    ASSERT_LE(depth, kMore);
    between += static_cast<std::uint64_t>(depth > kLess && depth < kMore);
    const std::size_t verified = index->VerifiedGpuDepth(slot, chain, 0, depth);
    ASSERT_GE(verified, kLess);
    ASSERT_LE(verified, depth);
  }
  RecordProperty("seen_between", static_cast<int>(between));
}

}  // namespace
}  // namespace warmpath
