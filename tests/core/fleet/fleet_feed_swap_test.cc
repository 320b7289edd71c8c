// What replaces all that one stream said: snapshots, clears, new epochs.
#include <algorithm>
#include <cstddef>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/feed_fixture.h"
#include "tests/core/fleet/fleet_harness.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- Snapshots

TEST_F(FeedTest, ASnapshotIsSwappedInInOneStep) {
  EXPECT_EQ(fleet_.Look("w"), (Glance{Lifecycle::kJoining, Freshness::kNone, "resync"}));
  ASSERT_THAT(agent_.Begin(), IsOk());
  ASSERT_THAT(agent_.Chunk({1, 2}), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), IsEmpty());
  EXPECT_EQ(fleet_.CreditedDepth("w", {1, 2}), 0u);
  EXPECT_EQ(fleet_.Look("w").freshness, Freshness::kNone);
  ASSERT_THAT(agent_.Chunk({3}, Tier::kHost), IsOk());
  ASSERT_THAT(agent_.End(3, 1 ^ 2 ^ 3, 42), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1, 2));
  EXPECT_THAT(fleet_.Dump("w", Tier::kHost), ElementsAre(3));
  EXPECT_EQ(fleet_.View("w")->engine_seq, 42u);
  // Another one, of a rank that serves already.
  ASSERT_THAT(agent_.Begin(), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kResyncing);
  ASSERT_THAT(agent_.Chunk({9}), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1, 2));
  ASSERT_THAT(agent_.End(1, 9, std::nullopt), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(9));
  EXPECT_THAT(fleet_.Dump("w", Tier::kHost), IsEmpty());
  EXPECT_EQ(fleet_.View("w")->engine_seq, std::nullopt);
  EXPECT_EQ(fleet_->Counters().snapshots_applied, 2u);
}

TEST_F(FeedTest, AnEmptySnapshotIsWhole) {
  ASSERT_THAT(agent_.Begin(), IsOk());
  ASSERT_THAT(agent_.End(0, 0), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
}

TEST_F(FeedTest, AMismatchIsAskedForAgainWithAGrowingPause) {
  Start({1});
  agent_.sink().TakeResyncs();
  absl::Duration expected = absl::Milliseconds(100);
  for (int i = 0; i < 12; ++i) {
    ASSERT_THAT(agent_.Begin(), IsOk());
    ASSERT_THAT(agent_.Chunk({2, 3}), IsOk());
    // Count wrong, xor wrong, or both.
    ASSERT_THAT(agent_.End(i % 2 == 0 ? 3 : 2,
                           i % 3 == 0   ? 2 ^ 3 ^ 4
                           : i % 2 == 0 ? 1
                                        : 0,
                           11),
                IsOk());
    EXPECT_EQ(fleet_.Look("w"), kResyncing);
    EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1)) << "the old slot serves on";
    const auto resyncs = agent_.sink().TakeResyncReplies();
    ASSERT_EQ(resyncs.size(), 1u);
    EXPECT_EQ(resyncs[0].reason, "snapshot_mismatch");
    EXPECT_GE(resyncs[0].backoff, expected * 0.8);
    EXPECT_LE(resyncs[0].backoff, expected * 1.2);
    expected = std::min<absl::Duration>(expected * 2, absl::Seconds(30));
  }
  EXPECT_EQ(fleet_->Counters().snapshots_failed, 12u);
  ASSERT_THAT(agent_.Snapshot({2, 3}, 11), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
  // Only an audit that agrees ends the row of failures.
  ASSERT_THAT(agent_.Heartbeat({2}), IsOk());
  EXPECT_GE(agent_.sink().TakeResyncReplies().at(0).backoff, absl::Seconds(24));
  ASSERT_THAT(agent_.Snapshot({2}, 11), IsOk());
  ASSERT_THAT(agent_.Heartbeat({2}), IsOk());
  ASSERT_THAT(agent_.Heartbeat({3}), IsOk());
  EXPECT_LE(agent_.sink().TakeResyncReplies().at(0).backoff, absl::Milliseconds(120));
}

TEST_F(FeedTest, AHashThatComesTwiceInASnapshotIsAMismatch) {
  ASSERT_THAT(agent_.Begin(), IsOk());
  ASSERT_THAT(agent_.Chunk({1, 2}), IsOk());
  ASSERT_THAT(agent_.Chunk({2}), IsOk());
  ASSERT_THAT(agent_.End(3, 1, 11), IsOk());
  EXPECT_THAT(agent_.sink().TakeResyncs(), ElementsAre("snapshot_mismatch@0"));
  EXPECT_EQ(fleet_.Look("w").freshness, Freshness::kNone);
}

TEST_F(FeedTest, ADeltaInsideASnapshotVoidsIt) {
  Start({1});
  ASSERT_THAT(agent_.Begin(), IsOk());
  ASSERT_THAT(agent_.Chunk({1}), IsOk());
  ASSERT_THAT(agent_.Delta({}, {5}, 12, Tier::kGpu, 1), IsOk()) << "of another rank: no matter";
  EXPECT_THAT(agent_.sink().TakeResyncs(), IsEmpty());
  ASSERT_THAT(agent_.Delta({}, {6}, 12), IsOk());
  EXPECT_THAT(agent_.sink().TakeResyncs(), ElementsAre("delta_in_snapshot@0"));
  ASSERT_THAT(agent_.End(1, 1, 12), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kResyncing);
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1, 6));
}

TEST_F(FeedTest, ASnapshotMayBeginAnew) {
  ASSERT_THAT(agent_.Begin(), IsOk());
  ASSERT_THAT(agent_.Chunk({1}), IsOk());
  ASSERT_THAT(agent_.Begin(), IsOk());
  ASSERT_THAT(agent_.Chunk({2}), IsOk());
  ASSERT_THAT(agent_.End(1, 2, 5), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(2));
  EXPECT_EQ(fleet_->ListPools("")[0].index.open_slots, 1u) << "nothing leaks";
}

TEST_F(FeedTest, PartsOfNoSnapshotAreIgnored) {
  Start({1});
  ASSERT_THAT(agent_.Chunk({2}), IsOk());
  ASSERT_THAT(agent_.End(1, 2, 11), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1));
}

TEST_F(FeedTest, BeforeTheFirstSnapshotDeltasAreNotApplied) {
  ASSERT_THAT(agent_.Delta({}, {1}, 3), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), IsEmpty());
  EXPECT_EQ(fleet_.Look("w").freshness, Freshness::kNone);
  ASSERT_THAT(agent_.Snapshot({1}, 3), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
}

// ---- Cleared and new epochs

TEST_F(FeedTest, Fault05_ClearedEmptiesOneTierOfOneRankAndStaysExact) {
  Start({1, 2, 3});
  ASSERT_THAT(agent_.Snapshot({1, 8}, 10, 1), IsOk());
  ASSERT_THAT(agent_.Cleared(Tier::kGpu, 11), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), IsEmpty());
  EXPECT_EQ(fleet_.CreditedDepth("w", {1, 2, 3}), 0u);
  EXPECT_EQ(fleet_.Look("w"), kExact);
  EXPECT_EQ(DumpedSeq(), 11u);
  EXPECT_THAT(fleet_.Dump("w", Tier::kGpu, 1), ElementsAre(1, 8));
  // With blocks in another tier.
  Hashes many;
  for (ChainHash hash = 1; hash <= 10'000; ++hash) many.push_back(hash * 7919);
  for (std::size_t at = 0; at < many.size(); at += 4096) {
    const Hashes part(
        many.begin() + static_cast<std::ptrdiff_t>(at),
        many.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(at + 4096, many.size())));
    ASSERT_THAT(agent_.Delta({}, part, 12 + at), IsOk());
  }
  ASSERT_THAT(agent_.Delta({}, {7919, 5}, 20'000, Tier::kHost), IsOk());
  ASSERT_THAT(agent_.Cleared(Tier::kGpu, 20'001), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), IsEmpty());
  EXPECT_THAT(fleet_.Dump("w", Tier::kHost), ElementsAre(5, 7919));
  EXPECT_EQ(fleet_.Look("w"), kExact);
  EXPECT_EQ(DumpedSeq(), 20'001u);
  // Life goes on in it.
  ASSERT_THAT(agent_.Delta({}, {4}, 20'002), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(4));
  ASSERT_THAT(agent_.Cleared(Tier::kHost, 20'003), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(4));
  EXPECT_THAT(fleet_.Dump("w", Tier::kHost), IsEmpty());
}

TEST_F(FeedTest, ANewEpochInTheStreamMasksTheOldSlotAtOnce) {
  Start({1, 2});
  fleet_.Reserve("w");
  ASSERT_THAT(agent_.NewEpoch(200), IsOk());
  EXPECT_EQ(fleet_.CreditedDepth("w", {1, 2}), 0u);
  EXPECT_THAT(fleet_.Dump("w"), IsEmpty());
  EXPECT_EQ(fleet_.OpenReservations(), 0u);
  EXPECT_EQ(fleet_.ClosedBy(CloseCause::kNewEpoch), 1u);
  EXPECT_EQ(fleet_.View("w")->epoch, 200u);
  EXPECT_EQ(DumpedSeq(), std::nullopt);
  EXPECT_EQ(fleet_.Look("w"), kResyncing) << "until somebody confirms it";
  EXPECT_EQ(fleet_.Look("w", 1), kExact);
  // Deltas fill the new process's slot at once.
  ASSERT_THAT(agent_.Delta({}, {5}, 0), IsOk());
  EXPECT_EQ(fleet_.CreditedDepth("w", {5}), 1u);
  EXPECT_EQ(fleet_.Look("w"), kResyncing);
  // An audit that agrees confirms it, like a snapshot.
  ASSERT_THAT(agent_.Heartbeat({5}, 0), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
  ASSERT_THAT(agent_.NewEpoch(201), IsOk());
  ASSERT_THAT(agent_.Snapshot({6}, 1), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(6));
}

TEST_F(FeedTest, ANewEpochInsideASnapshotVoidsIt) {
  ASSERT_THAT(agent_.Begin(), IsOk());
  ASSERT_THAT(agent_.Chunk({1}), IsOk());
  ASSERT_THAT(agent_.NewEpoch(200), IsOk());
  ASSERT_THAT(agent_.End(1, 1, 9), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), IsEmpty());
  EXPECT_EQ(fleet_.Look("w"), kResyncing);
  ASSERT_THAT(agent_.Snapshot({2}, 0), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(2));
  EXPECT_EQ(fleet_.Look("w"), kExact);
}

TEST_F(FeedTest, ASnapshotMayBringTheNewEpoch) {
  Start({1});
  ASSERT_THAT(agent_.Begin(0, 200), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), IsEmpty());
  EXPECT_EQ(fleet_.Look("w").lifecycle, Lifecycle::kJoining);
  ASSERT_THAT(agent_.Chunk({3}), IsOk());
  ASSERT_THAT(agent_.End(1, 3, 0), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
  EXPECT_EQ(fleet_.View("w")->epoch, 200u);
}

TEST_F(FeedTest, AStaleEpochEndsTheStream) {
  Start({1});
  EXPECT_THAT(agent_.Begin(0, 99), StatusIs(absl::StatusCode::kFailedPrecondition,
                                            HasSubstr("snapshot_begin.epoch: stale epoch 99")));
  EXPECT_THAT(agent_.NewEpoch(99), StatusIs(absl::StatusCode::kFailedPrecondition,
                                            HasSubstr("new_epoch.epoch: stale epoch 99")));
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1));
}

TEST_F(FeedTest, TheKnownEpochChangesNothing) {
  Start({1});
  ASSERT_THAT(agent_.NewEpoch(100), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1));
  EXPECT_EQ(fleet_.Look("w"), kExact);
}

}  // namespace
}  // namespace warmpath::testing
