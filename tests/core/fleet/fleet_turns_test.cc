// Snapshots take turns, and a full index recovers one target at a time.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/index/reference_index.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/fleet_harness.h"
#include "tests/core/fleet/forwarding_index.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

const Glance kExact{Lifecycle::kReady, Freshness::kExact, ""};

class TurnsTest : public ::testing::Test {
 protected:
  void Join(int workers) {
    for (int i = 0; i < workers; ++i) {
      agents_.push_back(
          std::make_unique<TestAgent>(*fleet_, MakeRegistration(absl::StrCat("w", i))));
      ASSERT_THAT(agents_.back()->Register(), IsOk());
    }
  }
  TestAgent& operator[](int i) { return *agents_[static_cast<std::size_t>(i)]; }
  Glance Look(int i) { return fleet_.Look(absl::StrCat("w", i)); }

  // These agents send no heartbeats.
  FleetHarness fleet_{FleetConfig{.heartbeat = absl::Minutes(1)}};
  std::vector<std::unique_ptr<TestAgent>> agents_;
};

TEST_F(TurnsTest, EightAtATimeAndTheOthersInTheirOrder) {
  Join(12);
  for (int i = 0; i < 12; ++i) {
    EXPECT_THAT((*this)[i].registered().snapshot_ranks, SizeIs(i < 8 ? 1 : 0)) << i;
  }
  ASSERT_THAT((*this)[3].Begin(), IsOk());
  EXPECT_THAT((*this)[8].sink().TakeResyncs(), IsEmpty());
  ASSERT_THAT((*this)[3].End(0, 0), IsOk());
  EXPECT_EQ(Look(3), kExact);
  EXPECT_THAT((*this)[8].sink().TakeResyncs(), ElementsAre("turn@0"));
  EXPECT_THAT((*this)[9].sink().TakeResyncs(), IsEmpty());
  // A stream that ends gives its turn back as well, and one that waits leaves the queue.
  (*this)[9].Close();
  (*this)[0].Close();
  EXPECT_THAT((*this)[10].sink().TakeResyncs(), ElementsAre("turn@0"));
  ASSERT_THAT((*this)[10].Snapshot({1}), IsOk());
  EXPECT_EQ(Look(10), kExact);
  EXPECT_THAT((*this)[11].sink().TakeResyncs(), ElementsAre("turn@0"));
  for (const int i : {1, 2, 4, 5, 6, 7, 8, 11}) {
    ASSERT_THAT((*this)[i].Snapshot({1}), IsOk());
    EXPECT_EQ(Look(i), kExact) << i;
  }
}

TEST_F(TurnsTest, ASnapshotOutOfTurnIsNotLookedAtAndAskedForLater) {
  Join(9);
  ASSERT_THAT((*this)[8].Snapshot({1}), IsOk());
  EXPECT_EQ(Look(8).freshness, Freshness::kNone);
  EXPECT_EQ(fleet_->Counters().snapshots_applied, 0u);
  ASSERT_THAT((*this)[0].Snapshot({1}), IsOk());
  EXPECT_THAT((*this)[8].sink().TakeResyncs(), ElementsAre("turn@0"));
  ASSERT_THAT((*this)[8].Snapshot({1}), IsOk());
  EXPECT_EQ(Look(8), kExact);
}

TEST_F(TurnsTest, ASnapshotWithoutBeingAskedNeedsOnlyAFreeTurn) {
  Join(8);
  ASSERT_THAT((*this)[0].Snapshot({1}), IsOk());
  ASSERT_THAT((*this)[0].Snapshot({2}), IsOk());
  EXPECT_EQ(Look(0), kExact);
  EXPECT_THAT(fleet_.Dump("w0"), ElementsAre(2));
}

TEST_F(TurnsTest, WhoDoesNotBeginOrGoOnLosesItsTurn) {
  Join(9);
  ASSERT_THAT((*this)[1].Begin(), IsOk());
  fleet_.Pass(absl::Milliseconds(9999));
  EXPECT_THAT((*this)[8].sink().TakeResyncs(), IsEmpty());
  ASSERT_THAT((*this)[1].Chunk({1}), IsOk()) << "a sign of life";
  fleet_.Pass(absl::Milliseconds(1));
  EXPECT_THAT((*this)[8].sink().TakeResyncs(), ElementsAre("turn@0"));
  // Those that lost their turn queued behind it and have it again, as there is room.
  EXPECT_THAT((*this)[0].sink().TakeResyncs(), ElementsAre("snapshot_timeout@0"));
  EXPECT_THAT((*this)[1].sink().TakeResyncs(), IsEmpty());
  fleet_.Pass(absl::Milliseconds(9999));
  EXPECT_THAT((*this)[7].sink().TakeResyncs(), ElementsAre("snapshot_timeout@0"));
  EXPECT_THAT((*this)[1].sink().TakeResyncs(), IsEmpty());
  fleet_.Pass(absl::Milliseconds(1));
  EXPECT_THAT((*this)[1].sink().TakeResyncs(), ElementsAre("snapshot_timeout@0"));
  EXPECT_EQ(fleet_->Counters().snapshots_failed, 1u);
  ASSERT_THAT((*this)[1].Snapshot({1}), IsOk());
  EXPECT_EQ(Look(1), kExact);
}

TEST_F(TurnsTest, ATrickleOfChunksDoesNotKeepATurnForEver) {
  Join(9);
  for (int i = 0; i < 8; ++i) ASSERT_THAT((*this)[i].Begin(), IsOk());
  for (int second = 0; second < 60; second += 5) {
    for (int i = 0; i < 8; ++i) {
      if (second == 30) {
        ASSERT_THAT((*this)[i].Begin(), IsOk()) << "begins again";
      }
      ASSERT_THAT((*this)[i].Chunk({}), IsOk());
    }
    fleet_.Pass(absl::Seconds(5) - (second == 55 ? absl::Milliseconds(1) : absl::ZeroDuration()));
    EXPECT_THAT((*this)[8].sink().TakeResyncs(), IsEmpty()) << second;
  }
  fleet_.Pass(absl::Milliseconds(1));
  EXPECT_THAT((*this)[8].sink().TakeResyncs(), ElementsAre("turn@0"));
  EXPECT_EQ(fleet_->Counters().snapshots_failed, 1u) << "one makes room for the one that waits";
  ASSERT_THAT((*this)[8].Snapshot({1}), IsOk());
  EXPECT_EQ(Look(8), kExact);
}

TEST_F(TurnsTest, WhileNobodyWaitsASnapshotMayTakeLong) {
  // Nobody waits: as long as it takes.
  Join(1);
  ASSERT_THAT((*this)[0].Begin(), IsOk());
  for (int second = 0; second < 90; second += 5) {
    ASSERT_THAT((*this)[0].Chunk({}), IsOk());
    fleet_.Pass(absl::Seconds(5));
  }
  ASSERT_THAT((*this)[0].End(0, 0), IsOk());
  EXPECT_EQ(Look(0), kExact);
}

TEST_F(TurnsTest, APauseHoldsNoTurnAndEndsWithAnotherRequest) {
  Join(9);
  ASSERT_THAT((*this)[0].Begin(), IsOk());
  ASSERT_THAT((*this)[0].End(7, 7), IsOk());  // mismatch: asked again after a pause
  EXPECT_THAT((*this)[0].sink().TakeResyncs(), ElementsAre("snapshot_mismatch@0"));
  EXPECT_THAT((*this)[8].sink().TakeResyncs(), ElementsAre("turn@0"));
  ASSERT_THAT((*this)[8].Snapshot({}), IsOk());
  // The agent does not answer; its heartbeat reminds the router.
  fleet_.clock().Advance(absl::Seconds(11));
  ASSERT_THAT((*this)[0].Heartbeat({}), IsOk());
  EXPECT_THAT((*this)[0].sink().TakeResyncs(), ElementsAre("snapshot_timeout@0"));
  ASSERT_THAT((*this)[0].Snapshot({}), IsOk());
  EXPECT_EQ(Look(0), kExact);
}

TEST_F(TurnsTest, AWorkerThatFlapsDoesNotFillTheQueue) {
  Join(9);
  for (int i = 0; i < 1000; ++i) {
    if (i % 2 == 0) (*this)[8].Close();
    ASSERT_THAT((*this)[8].Register(), IsOk());
  }
  ASSERT_THAT((*this)[0].Snapshot({}), IsOk());
  EXPECT_THAT((*this)[8].sink().TakeResyncs(), ElementsAre("turn@0"));
  ASSERT_THAT((*this)[8].Snapshot({}), IsOk());
  EXPECT_EQ(Look(8), kExact);
}

// An index with room for `blocks` pairs.
FleetConfig SmallIndex(std::uint64_t blocks) {
  FleetConfig config;
  config.defaults.index_bound_bytes = blocks * ReferenceIndex::kBytesPerPair;
  return config;
}

TEST(IndexFullTest, ATargetThatLostStoresSaysSoAndRecovers) {
  FleetHarness fleet(SmallIndex(10), CreateReferenceIndex);
  TestAgent a(*fleet, MakeRegistration("a"));
  TestAgent b(*fleet, MakeRegistration("b"));
  TestAgent c(*fleet, MakeRegistration("c"));
  ASSERT_THAT(a.Register(), IsOk());
  ASSERT_THAT(b.Register(), IsOk());
  ASSERT_THAT(c.Register(), IsOk());
  ASSERT_THAT(a.Snapshot({1, 2, 3, 4, 5, 6, 7, 8}), IsOk());
  ASSERT_THAT(b.Snapshot({}), IsOk());
  ASSERT_THAT(c.Snapshot({}), IsOk());
  ASSERT_THAT(b.Delta({}, {1, 2, 3}, 5), IsOk());
  ASSERT_THAT(c.Delta({}, {1}, 5), IsOk());
  const Glance full{Lifecycle::kReady, Freshness::kDegraded, "index_full"};
  EXPECT_EQ(fleet.Look("a"), kExact);
  EXPECT_EQ(fleet.Look("b"), full);
  EXPECT_EQ(fleet.Look("c"), full);
  EXPECT_THAT(fleet.Dump("b"), ElementsAre(1, 2));
  // Known to differ: no audit, no snapshot that would be refused again.
  ASSERT_THAT(b.Heartbeat({1, 2, 3}), IsOk());
  fleet.Pass(absl::Seconds(5));
  EXPECT_EQ(fleet->Counters().audit_failures, 0u);
  EXPECT_THAT(b.sink().TakeResyncs(), IsEmpty());
  // Removals go on, and at 90 % it is still too full.
  ASSERT_THAT(a.Delta({1}, {}, 2), IsOk());
  fleet.Pass(absl::Seconds(1));
  EXPECT_THAT(b.sink().TakeResyncs(), IsEmpty());
  ASSERT_THAT(a.Delta({2, 3, 4, 5, 6}, {}, 3), IsOk());
  fleet.Pass(absl::Seconds(1));
  fleet.Pass(absl::Seconds(1));
  // One at a time.
  const bool b_first = b.sink().TakeResyncs() == std::vector<std::string>{"index_full@0"};
  TestAgent& first = b_first ? b : c;
  TestAgent& second = b_first ? c : b;
  EXPECT_THAT(second.sink().TakeResyncs(), IsEmpty());
  ASSERT_THAT(first.Snapshot({1, 2, 3}, 5), IsOk());
  EXPECT_EQ(fleet.Look(first.registration().worker_id), kExact);
  fleet.Pass(absl::Seconds(1));
  EXPECT_THAT(second.sink().TakeResyncs(), ElementsAre("index_full@0"));
  ASSERT_THAT(second.Snapshot({1}, 5), IsOk());
  EXPECT_EQ(fleet.Look("b"), kExact);
  EXPECT_EQ(fleet.Look("c"), kExact);
  fleet.Pass(absl::Seconds(5));
  EXPECT_THAT(a.sink().TakeResyncs(), IsEmpty());
  EXPECT_THAT(b.sink().TakeResyncs(), IsEmpty());
  EXPECT_THAT(c.sink().TakeResyncs(), IsEmpty());
}

TEST(IndexFullTest, AnAgentThatNeverDeliversKeepsTheOthersWaitingForAMinuteOnly) {
  FleetHarness fleet(SmallIndex(10), CreateReferenceIndex);
  TestAgent a(*fleet, MakeRegistration("a"));
  TestAgent b(*fleet, MakeRegistration("b"));
  TestAgent c(*fleet, MakeRegistration("c"));
  for (TestAgent* agent : {&a, &b, &c}) ASSERT_THAT(agent->Register(), IsOk());
  ASSERT_THAT(a.Snapshot({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}), IsOk());
  ASSERT_THAT(b.Snapshot({}), IsOk());
  ASSERT_THAT(c.Snapshot({}), IsOk());
  ASSERT_THAT(b.Delta({}, {1}, 5), IsOk());
  ASSERT_THAT(c.Delta({}, {2}, 5), IsOk());
  ASSERT_THAT(a.Delta({1, 2, 3, 4, 5}, {}, 2), IsOk());
  // All are alive, and none sends the snapshot that it is asked for.
  const auto pass = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      for (TestAgent* agent : {&a, &b, &c}) {
        ASSERT_THAT(agent->Send(HeartbeatUpdate{.delta_seq = agent->seq(), .digests = {}}), IsOk());
      }
      fleet.Pass(absl::Seconds(1));
    }
  };
  pass(3);
  const bool b_first = !b.sink().TakeResyncs().empty();
  TestAgent& second = b_first ? c : b;
  EXPECT_THAT(second.sink().TakeResyncs(), IsEmpty());
  pass(50);
  EXPECT_THAT(second.sink().TakeResyncs(), IsEmpty());
  pass(12);
  EXPECT_THAT(second.sink().TakeResyncs(), Contains("index_full@0"));
  ASSERT_THAT(second.Snapshot({1}, 5), IsOk());
  EXPECT_EQ(fleet.Look(second.registration().worker_id), kExact);
}

TEST(IndexFullTest, ASnapshotThatDoesNotFitServesWhatFits) {
  FleetHarness fleet(SmallIndex(4), CreateReferenceIndex);
  TestAgent a(*fleet, MakeRegistration("a"));
  ASSERT_THAT(a.Register(), IsOk());
  ASSERT_THAT(a.Snapshot({1, 2, 3, 4, 5, 6}), IsOk());
  EXPECT_EQ(fleet.Look("a"), (Glance{Lifecycle::kReady, Freshness::kDegraded, "index_full"}));
  EXPECT_EQ(fleet.CreditedDepth("a", {1, 2, 3, 4, 5}), 4u);
  EXPECT_EQ(fleet->Counters().snapshots_failed, 0u);
  // It shrinks, is asked, and does not fit again: the pauses grow.
  ASSERT_THAT(a.Delta({1, 2, 3}, {}, 2), IsOk());
  std::vector<absl::Duration> pauses;
  absl::Time last = fleet.clock().Now();
  for (int i = 0; i < 400 && pauses.size() < 4; ++i) {
    fleet.Pass(absl::Milliseconds(200));
    if (a.sink().TakeResyncs().empty()) continue;
    pauses.push_back(fleet.clock().Now() - last);
    last = fleet.clock().Now();
    ASSERT_THAT(a.Snapshot({1, 2, 3, 4, 5, 6}, 3), IsOk());
    EXPECT_EQ(fleet.Look("a").causes, "index_full");
    ASSERT_THAT(a.Delta({1, 2, 3}, {}, 4), IsOk());
  }
  EXPECT_THAT(pauses,
              ElementsAre(absl::Seconds(1), absl::Seconds(2), absl::Seconds(4), absl::Seconds(8)));
}

// An index that runs out of slot numbers.
class FewSlots final : public ForwardingIndex {
 public:
  explicit FewSlots(std::size_t slots) : left_(slots) {}
  absl::StatusOr<Slot> OpenSlot() override {
    if (left_ == 0) return absl::ResourceExhaustedError("no slot left");
    --left_;
    return ForwardingIndex::OpenSlot();
  }
  void CloseSlot(Slot slot) override {
    ForwardingIndex::CloseSlot(slot);
    ++left_;
  }

 private:
  std::size_t left_;
};

TEST(IndexFullTest, WithoutAFreeSlotTheTargetWaitsForOne) {
  FleetHarness fleet({}, [](const IndexOptions&) { return std::make_unique<FewSlots>(1); });
  TestAgent a(*fleet, MakeRegistration("a"));
  TestAgent b(*fleet, MakeRegistration("b"));
  ASSERT_THAT(a.Register(), IsOk());
  ASSERT_THAT(b.Register(), IsOk());
  ASSERT_THAT(a.Snapshot({1, 2}), IsOk());
  ASSERT_THAT(b.Snapshot({1, 2}), IsOk());
  EXPECT_EQ(fleet.Look("b"), (Glance{Lifecycle::kJoining, Freshness::kNone, "resync,index_full"}));
  EXPECT_TRUE(fleet.Eligible("b"));
  // A Cleared finds no fresh slot and removes instead.
  ASSERT_THAT(a.Cleared(Tier::kGpu, 7), IsOk());
  EXPECT_THAT(fleet.Dump("a"), IsEmpty());
  EXPECT_EQ(fleet.Look("a"), kExact);
  // A new epoch gives its slot back before it takes one.
  ASSERT_THAT(a.NewEpoch(200), IsOk());
  ASSERT_THAT(a.Delta({}, {3}, 0), IsOk());
  EXPECT_THAT(fleet.Dump("a"), ElementsAre(3));
  a.Close();
  fleet.Pass(absl::Seconds(10));
  fleet.Pass(absl::Seconds(1));
  EXPECT_THAT(b.sink().TakeResyncs(), ElementsAre("index_full@0"));
  ASSERT_THAT(b.Snapshot({1, 2}), IsOk());
  EXPECT_EQ(fleet.Look("b"), kExact);
}

}  // namespace
}  // namespace warmpath::testing
