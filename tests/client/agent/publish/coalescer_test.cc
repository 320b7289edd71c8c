#include "client/agent/publish/coalescer.h"

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

BlockChanges Change(std::vector<ChainHash> removed, std::vector<ChainHash> stored,
                    Tier tier = Tier::kGpu) {
  BlockChanges change;
  change.tier = tier;
  change.removed = std::move(removed);
  change.stored = std::move(stored);
  return change;
}

std::vector<ChainHash> Range(ChainHash first, std::size_t n) {
  std::vector<ChainHash> hashes;
  for (std::size_t i = 0; i < n; ++i) hashes.push_back(first + i);
  return hashes;
}

void AddOne(Coalescer& coalescer, Rank rank, BlockChanges change, std::uint64_t seq) {
  coalescer.Add(rank, {&change, 1}, seq, /*no_holes=*/false);
}

void AddWhole(Coalescer& coalescer, BlockChanges change, bool no_holes) {
  coalescer.Add(0, {&change, 1}, 1, no_holes);
}

TEST(CoalescerTest, HandsOutWhatWasAddedWithTheSequence) {
  Coalescer coalescer;
  EXPECT_FALSE(coalescer.Take().has_value());
  AddOne(coalescer, 2, Change({7}, {1, 2}), 5);
  EXPECT_TRUE(coalescer.HasPending());
  EXPECT_EQ(coalescer.EngineSeq(2), std::nullopt);
  const auto piece = coalescer.Take();
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->rank, 2u);
  EXPECT_EQ(piece->tier, Tier::kGpu);
  EXPECT_THAT(piece->removed, ElementsAre(7));
  EXPECT_THAT(piece->stored, ElementsAre(1, 2));
  EXPECT_EQ(piece->engine_seq, 5u);
  EXPECT_FALSE(coalescer.Take().has_value());
  EXPECT_EQ(coalescer.EngineSeq(2), 5u);
}

TEST(CoalescerTest, StoreAndRemovalCancelBothWays) {
  Coalescer coalescer;
  AddOne(coalescer, 0, Change({}, {1, 2}), 1);
  AddOne(coalescer, 0, Change({1}, {}), 2);
  auto piece = coalescer.Take();
  ASSERT_TRUE(piece.has_value());
  EXPECT_THAT(piece->stored, ElementsAre(2));
  EXPECT_THAT(piece->removed, IsEmpty());
  AddOne(coalescer, 0, Change({2}, {}), 3);
  AddOne(coalescer, 0, Change({}, {2}), 4);
  EXPECT_FALSE(coalescer.Take().has_value());
  EXPECT_EQ(coalescer.EngineSeq(0), 4u) << "the sequence went on all the same";
}

TEST(CoalescerTest, PiecesAreSmallAndCarryTheNewSequenceLast) {
  Coalescer coalescer;
  AddOne(coalescer, 0, Change({}, {90000}), 1);
  ASSERT_TRUE(coalescer.Take().has_value());
  AddOne(coalescer, 0, Change({}, Range(1, 5000)), 2);
  AddOne(coalescer, 0, Change({}, Range(1, 10), Tier::kHost), 3);
  auto piece = coalescer.Take();
  ASSERT_TRUE(piece.has_value());
  EXPECT_EQ(piece->stored.size(), Coalescer::kMaxPieceHashes);
  EXPECT_EQ(piece->engine_seq, std::nullopt);
  EXPECT_EQ(coalescer.EngineSeq(0), 1u);
  piece = coalescer.Take();
  EXPECT_EQ(piece->stored.size(), 5000 - Coalescer::kMaxPieceHashes);
  EXPECT_EQ(piece->engine_seq, std::nullopt);
  piece = coalescer.Take();
  EXPECT_EQ(piece->tier, Tier::kHost);
  EXPECT_EQ(piece->engine_seq, 3u);
}

// A sequence that changed nothing is told later, if at all: a part of the next batch must not name
// it, for the router would take that for the end of the batch.
TEST(CoalescerTest, APartNamesNoSequenceAlsoAfterOneWithoutChanges) {
  Coalescer coalescer;
  AddOne(coalescer, 0, Change({}, {90000}), 1);
  ASSERT_TRUE(coalescer.Take().has_value());
  AddOne(coalescer, 0, Change({}, {}), 2);
  ASSERT_FALSE(coalescer.Take().has_value());
  AddOne(coalescer, 0, Change({}, Range(1, 5000)), 3);
  EXPECT_EQ(coalescer.Take()->engine_seq, std::nullopt);
  EXPECT_EQ(coalescer.Take()->engine_seq, 3u);
}

// ---- Holes

TEST(CoalescerTest, TheLastPieceSaysWhetherThereAreHoles) {
  Coalescer coalescer;
  AddWhole(coalescer, Change({}, Range(1, 5000)), true);
  auto piece = coalescer.Take();
  EXPECT_FALSE(piece->no_holes) << "what there was before is not known";
  piece = coalescer.Take();
  EXPECT_TRUE(piece->no_holes);
  EXPECT_FALSE(piece->no_holes_in_part);
  EXPECT_TRUE(coalescer.NoHoles(0));
  AddWhole(coalescer, Change({1}, {}), false);
  EXPECT_TRUE(coalescer.NoHoles(0)) << "nothing of it is handed out";
  EXPECT_FALSE(coalescer.Take()->no_holes);
  EXPECT_FALSE(coalescer.NoHoles(0));
}

TEST(CoalescerTest, PartsSayNoHolesOnlyBetweenStatesWithoutAny) {
  Coalescer coalescer;
  AddWhole(coalescer, Change({}, {90000}), true);
  ASSERT_TRUE(coalescer.Take()->no_holes);
  AddWhole(coalescer, Change({}, Range(1, 5000)), true);
  AddWhole(coalescer, Change({}, Range(1, 10), Tier::kHost), true);
  for (int i = 0; i < 3; ++i) {
    const auto piece = coalescer.Take();
    EXPECT_TRUE(piece->no_holes) << i;
    EXPECT_TRUE(piece->no_holes_in_part) << i;
  }
  AddWhole(coalescer, Change(Range(1, 5000), {}), false);
  EXPECT_FALSE(coalescer.Take()->no_holes);
  EXPECT_FALSE(coalescer.Take()->no_holes);
  AddWhole(coalescer, Change({}, Range(1, 5000)), true);
  auto piece = coalescer.Take();
  EXPECT_FALSE(piece->no_holes);
  EXPECT_FALSE(piece->no_holes_in_part);
  piece = coalescer.Take();
  EXPECT_TRUE(piece->no_holes) << "the router has all of the newest state";
  EXPECT_FALSE(piece->no_holes_in_part);
}

TEST(CoalescerTest, AStateOfWhichNothingWasHandedOutDoesNotCount) {
  Coalescer coalescer;
  AddWhole(coalescer, Change({}, {90000}), true);
  ASSERT_TRUE(coalescer.Take()->no_holes);
  AddWhole(coalescer, Change({}, Range(1, 9000)), true);
  EXPECT_TRUE(coalescer.Take()->no_holes);
  AddWhole(coalescer, Change({7}, {}), false);
  AddWhole(coalescer, Change({}, {7}), true);
  EXPECT_TRUE(coalescer.Take()->no_holes);
  AddWhole(coalescer, Change({}, Range(20000, 9000)), false);
  EXPECT_FALSE(coalescer.Take()->no_holes);
  AddWhole(coalescer, Change({}, {7}), true);
  EXPECT_FALSE(coalescer.Take()->no_holes) << "the router may hold a part of a state with holes";
}

TEST(CoalescerTest, HolesThatComeOrGoWithoutChangesAreKnown) {
  Coalescer coalescer;
  AddWhole(coalescer, Change({}, {1}), false);
  ASSERT_FALSE(coalescer.Take()->no_holes);
  AddWhole(coalescer, Change({}, {}), true);
  EXPECT_TRUE(coalescer.NoHoles(0));
  ASSERT_FALSE(coalescer.Take().has_value());
  AddWhole(coalescer, Change({}, Range(2, 5000)), true);
  EXPECT_TRUE(coalescer.Take()->no_holes);
}

TEST(CoalescerTest, ASnapshotSaysWhatItsStateIs) {
  Coalescer coalescer;
  coalescer.BeginSnapshot(0, {}, 1, /*no_holes=*/true);
  AddWhole(coalescer, Change({}, Range(1, 5000)), false);
  EXPECT_TRUE(coalescer.NoHoles(0));
  coalescer.EndSnapshot(0);
  AddWhole(coalescer, Change({}, {5001}), true);
  EXPECT_TRUE(coalescer.Take()->no_holes);
  coalescer.BeginSnapshot(0, {}, 2, /*no_holes=*/false);
  coalescer.EndSnapshot(0);
  EXPECT_FALSE(coalescer.NoHoles(0));
  AddWhole(coalescer, Change({}, Range(1, 5000)), true);
  EXPECT_FALSE(coalescer.Take()->no_holes);
  EXPECT_TRUE(coalescer.Take()->no_holes);
}

TEST(CoalescerTest, RanksTakeTurns) {
  Coalescer coalescer;
  AddOne(coalescer, 0, Change({}, Range(1, 10000)), 1);
  AddOne(coalescer, 1, Change({}, Range(1, 10)), 1);
  EXPECT_EQ(coalescer.Take()->rank, 0u);
  EXPECT_EQ(coalescer.Take()->rank, 1u);
  EXPECT_EQ(coalescer.Take()->rank, 0u);
}

TEST(CoalescerTest, Fault13_BeyondTheBoundASnapshotIsNeeded) {
  Coalescer coalescer(100);
  AddOne(coalescer, 0, Change({}, Range(1, 100)), 1);
  EXPECT_FALSE(coalescer.SnapshotNeeded().has_value());
  AddOne(coalescer, 1, Change({}, Range(1, 50)), 1);
  AddOne(coalescer, 0, Change({}, {101}), 2);
  EXPECT_EQ(coalescer.SnapshotNeeded(), Rank{0});
  EXPECT_EQ(coalescer.pending(0), 0u);
  EXPECT_EQ(coalescer.overflows(), 1u);
  for (int i = 0; i < 1000; ++i) AddOne(coalescer, 0, Change({}, Range(1, 50)), 3);
  EXPECT_EQ(coalescer.pending(0), 0u);
  EXPECT_EQ(coalescer.Take()->rank, 1u) << "other ranks go on";
  EXPECT_FALSE(coalescer.Take().has_value());
}

TEST(CoalescerTest, ChangesWaitDuringASnapshot) {
  Coalescer coalescer;
  coalescer.RequireSnapshot(0);
  AddOne(coalescer, 0, Change({}, {1}), 1);
  EXPECT_EQ(coalescer.pending(0), 0u) << "the snapshot will have it";
  std::array<SetDigest, kTierCount> digests{};
  digests[0].Insert(1);
  coalescer.BeginSnapshot(0, digests, 1, /*no_holes=*/false);
  EXPECT_FALSE(coalescer.SnapshotNeeded(0));
  EXPECT_EQ(coalescer.SentDigest(0, Tier::kGpu), (SetDigest{1, 1}));
  AddOne(coalescer, 0, Change({1}, {2}), 2);
  EXPECT_FALSE(coalescer.HasPending());
  EXPECT_FALSE(coalescer.Take().has_value());
  EXPECT_EQ(coalescer.EngineSeq(0), 1u);
  coalescer.EndSnapshot(0);
  const auto piece = coalescer.Take();
  ASSERT_TRUE(piece.has_value());
  EXPECT_THAT(piece->removed, ElementsAre(1));
  EXPECT_THAT(piece->stored, ElementsAre(2));
  EXPECT_EQ(piece->engine_seq, 2u);
  EXPECT_EQ(coalescer.SentDigest(0, Tier::kGpu), (SetDigest{1, 2}));
}

TEST(CoalescerTest, LogOfCancelledChangesIsCompacted) {
  Coalescer coalescer;
  AddOne(coalescer, 0, Change({}, {5}), 0);
  for (std::uint64_t i = 0; i < 200000; ++i) {
    AddOne(coalescer, 0, i % 2 == 0 ? Change({}, {9}) : Change({9}, {}), i);
  }
  EXPECT_EQ(coalescer.pending(0), 1u);
  EXPECT_THAT(coalescer.Take()->stored, ElementsAre(5));
}

// Whatever is added and whenever the stream lets pieces through, the router's set follows.
TEST(CoalescerTest, RouterFollowsUnderRandomBackPressure) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Coalescer coalescer(200);
    std::map<std::pair<Rank, Tier>, std::set<ChainHash>> truth;
    std::map<std::pair<Rank, Tier>, std::set<ChainHash>> router;
    std::map<Rank, std::uint64_t> seqs;
    std::set<Rank> open_snapshots;
    for (int step = 0; step < 400; ++step) {
      const Rank rank = static_cast<Rank>(random.Below(2));
      const Tier tier = random.Below(4) == 0 ? Tier::kHost : Tier::kGpu;
      if (random.Below(2) == 0) {
        // Net changes of one batch: each hash at most once.
        BlockChanges change;
        change.tier = tier;
        auto& held = truth[{rank, tier}];
        std::set<ChainHash> picked;
        for (std::uint64_t n = random.Below(40); n > 0; --n) picked.insert(1 + random.Below(300));
        for (const ChainHash hash : picked) {
          if (held.erase(hash) != 0) {
            change.removed.push_back(hash);
          } else {
            held.insert(hash);
            change.stored.push_back(hash);
          }
        }
        AddOne(coalescer, rank, change, seqs[rank]++);
        ASSERT_LE(coalescer.pending(rank), 200u);
      } else if (random.Below(4) == 0) {
        if (open_snapshots.erase(rank) != 0) {
          coalescer.EndSnapshot(rank);
        } else if (coalescer.SnapshotNeeded(rank)) {
          std::array<SetDigest, kTierCount> digests{};
          for (const Tier t : kAllTiers) {
            for (const ChainHash hash : truth[{rank, t}]) {
              digests[static_cast<std::size_t>(t)].Insert(hash);
            }
            router[{rank, t}] = truth[{rank, t}];
          }
          coalescer.BeginSnapshot(rank, digests, seqs[rank], /*no_holes=*/false);
          open_snapshots.insert(rank);
        }
      } else if (const auto piece = coalescer.Take()) {
        ASSERT_FALSE(open_snapshots.contains(piece->rank));
        auto& view = router[{piece->rank, piece->tier}];
        for (const ChainHash hash : piece->removed) ASSERT_EQ(view.erase(hash), 1u);
        for (const ChainHash hash : piece->stored) ASSERT_TRUE(view.insert(hash).second);
        SetDigest digest;
        for (const ChainHash hash : view) digest.Insert(hash);
        ASSERT_EQ(coalescer.SentDigest(piece->rank, piece->tier), digest);
      }
    }
    // The stream flows again: all that needs no snapshot catches up.
    for (const Rank rank : open_snapshots) coalescer.EndSnapshot(rank);
    while (const auto piece = coalescer.Take()) {
      auto& view = router[{piece->rank, piece->tier}];
      for (const ChainHash hash : piece->removed) view.erase(hash);
      for (const ChainHash hash : piece->stored) view.insert(hash);
    }
    for (const auto& [key, held] : truth) {
      if (coalescer.SnapshotNeeded(key.first)) continue;
      const auto& view = router[key];
      ASSERT_EQ(view, held);
    }
  }
}

}  // namespace
}  // namespace warmpath
