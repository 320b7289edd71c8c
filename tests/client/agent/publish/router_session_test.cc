#include "client/agent/publish/router_session.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/publish/router_session_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::RouterModel;
using testing::RouterSessionTest;
using testing::StatusIs;

TEST_F(RouterSessionTest, RegistersSnapshotsAndGoesOnWithDeltas) {
  Change({}, {1, 2, 3});
  Begin(7);
  Write();
  ExpectEqual();
  EXPECT_EQ(model_.ranks[0].snapshots, 1);
  EXPECT_EQ(model_.registration.ranks(0).epoch(), 100U);
  Change({2}, {4});
  Write();
  ExpectEqual();
  EXPECT_EQ(model_.ranks[0].snapshots, 1);
  EXPECT_EQ(session_.counts().deltas, 1U);
  EXPECT_EQ(session_.unacked(), 0U);
}

TEST_F(RouterSessionTest, SnapshotOfAnEmptyRank) {
  Begin(7);
  Write();
  EXPECT_TRUE(model_.ranks[0].whole);
  EXPECT_EQ(model_.ranks[0].engine_seq, std::nullopt);
}

TEST_F(RouterSessionTest, ChunksHoldAtMost4096AndChangesWaitForTheEnd) {
  Change({}, Range(1, 10000));
  Begin(7);
  Write(3);  // heartbeat, begin, first chunk
  Change({1, 9999}, {20000});
  Change({20000}, {20001});
  Write();
  ExpectEqual();
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), v1::WorkerUpdate::kSnapshotChunk), 3);
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), v1::WorkerUpdate::kDelta), 1);
}

TEST_F(RouterSessionTest, ARouterMayWantSmallerMessages) {
  session_.OnStreamStart(now_);
  v1::WorkerUpdate update;
  session_.Next(now_, &update);
  model_.Begin(7);
  model_.Apply(update);
  v1::RouterUpdate registered = Registered(7);
  registered.mutable_registered()->set_max_hashes_per_message(10);
  ASSERT_THAT(session_.OnMessage(registered, now_), IsOk());
  Change({}, Range(1, 25));
  Write();
  ExpectEqual();
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), v1::WorkerUpdate::kSnapshotChunk), 3);
  kinds_.clear();
  Change(Range(1, 15), Range(100, 17));
  Write();
  ExpectEqual();
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), v1::WorkerUpdate::kDelta), 4);
}

TEST_F(RouterSessionTest, WhatComesAndGoesWhileBlockedIsNeverSent) {
  Begin(7);
  Write();
  for (int i = 0; i < 1000; ++i) {
    Change({}, {50});
    Change({50}, {});
  }
  Change({}, {51});
  kinds_.clear();
  Write();
  ExpectEqual();
  EXPECT_THAT(kinds_, ElementsAre(v1::WorkerUpdate::kDelta));
}

TEST_F(RouterSessionTest, ASequenceThatAdvancesWithoutChangesIsTold) {
  Change({}, {1});
  Begin(7);
  Write();
  Change({}, {});
  Change({}, {});
  now_ += absl::Milliseconds(100);
  Write();
  ExpectEqual();  // the sequence too
  kinds_.clear();
  Change({}, {});
  Write();
  EXPECT_THAT(kinds_, IsEmpty()) << "at least 100 ms apart";
  now_ += absl::Milliseconds(100);
  Write();
  ExpectEqual();
}

class SmallWindowTest : public RouterSessionTest {
 protected:
  SmallWindowTest() : RouterSessionTest(1, {.window = 4, .max_pending = 20000}) {}
};

TEST_F(SmallWindowTest, NoMoreThanTheWindowIsUnderWay) {
  Begin(7);
  Write();
  for (int i = 0; i < 10; ++i) {
    Change({}, {static_cast<ChainHash>(100 + i)});
    Write(1 << 20, /*ack=*/false);
  }
  EXPECT_EQ(session_.unacked(), 4U);
  EXPECT_EQ(session_.pending(), 6U);
  // Cumulative; one is enough, an older one changes nothing.
  EXPECT_THAT(session_.OnMessage(Ack(model_.delta_seq()), now_), IsOk());
  EXPECT_THAT(session_.OnMessage(Ack(1), now_), IsOk());
  EXPECT_EQ(session_.acked(), model_.delta_seq());
  Write();
  ExpectEqual();
  EXPECT_EQ(session_.counts().deltas, 5U) << "the six that waited went as one";
}

TEST_F(SmallWindowTest, HeartbeatsAndLoadPassAFullWindow) {
  Begin(7);
  Write();
  for (int i = 0; i < 6; ++i) {
    Change({}, {static_cast<ChainHash>(100 + i)});
    Write(1 << 20, /*ack=*/false);
  }
  const int before = model_.heartbeats;
  now_ += absl::Seconds(3);
  session_.SetLoad(0, {.running = 1, .waiting = 0, .kv_usage = 0, .asked = now_});
  Write(1 << 20, /*ack=*/false);
  EXPECT_EQ(model_.heartbeats, before + 1);
  EXPECT_EQ(model_.ranks[0].loads, 1);
}

// A router that does not read: what waits is bounded, and a consistent state arrives in the end.
TEST_F(SmallWindowTest, Fault13_PendingChangesAreBounded) {
  Begin(7);
  Write();
  std::size_t most = 0;
  for (ChainHash i = 0; i < 200; ++i) {
    Change({}, Range(1000 + i * 1000, 1000));
    Write(1 << 20, /*ack=*/false);
    most = std::max(most, session_.pending());
  }
  EXPECT_LE(most, 20000U);
  EXPECT_GE(session_.counts().overflows, 1U);
  EXPECT_THAT(session_.OnMessage(Ack(model_.delta_seq()), now_), IsOk());
  Write();
  ExpectEqual();
  EXPECT_EQ(model_.ranks[0].snapshots, 2);
}

TEST_F(SmallWindowTest, StalledAfterAMinuteWithoutAnyAck) {
  Begin(7);
  Write();
  now_ += absl::Minutes(5);
  EXPECT_FALSE(session_.Stalled(now_)) << "nothing is under way";
  Change({}, {1});
  Write(1 << 20, /*ack=*/false);
  now_ += absl::Seconds(59);
  EXPECT_FALSE(session_.Stalled(now_));
  now_ += absl::Seconds(2);
  EXPECT_TRUE(session_.Stalled(now_));
  EXPECT_THAT(session_.OnMessage(Ack(model_.delta_seq()), now_), IsOk());
  EXPECT_FALSE(session_.Stalled(now_));
}

TEST_F(RouterSessionTest, HeartbeatsCarryDigestsThatTheRouterCanCheck) {
  Begin(7);
  Write();
  EXPECT_EQ(model_.digests, 0) << "nothing to compare before the first snapshot";
  for (int i = 0; i < 50; ++i) {
    Change({}, Range(static_cast<ChainHash>(i) * 100, 30));
    now_ += absl::Milliseconds(700);
    Write();
  }
  // 35 s at 2 s each, jittered by a tenth.
  EXPECT_GE(model_.heartbeats, 15);
  EXPECT_LE(model_.heartbeats, 20);
  EXPECT_EQ(model_.digests, (model_.heartbeats - 1) * 4);
}

TEST_F(RouterSessionTest, HeartbeatsKeepTheSlotThatTheRouterSays) {
  session_.OnStreamStart(now_);
  v1::WorkerUpdate update;
  session_.Next(now_, &update);
  v1::RouterUpdate registered = Registered(7);
  registered.mutable_registered()->set_heartbeat_in_ms(1700);
  const absl::Time began = now_;
  ASSERT_THAT(session_.OnMessage(registered, now_), IsOk());
  EXPECT_EQ(session_.heartbeat_at(), began) << "one at once";
  std::vector<absl::Duration> beats;
  // Each 7 ms, as one is never awake at the very moment; for a while not at all.
  for (; now_ < began + absl::Seconds(14); now_ += absl::Milliseconds(7)) {
    if (now_ > began + absl::Seconds(6) && now_ < began + absl::Seconds(8.5)) continue;
    while (session_.Next(now_, &update)) {
      if (update.has_heartbeat()) beats.push_back(now_ - began);
    }
  }
  const auto at = [](int ms) { return absl::Milliseconds((ms + 6) / 7 * 7); };
  EXPECT_THAT(beats, ElementsAre(absl::ZeroDuration(), at(1700), at(3700), at(5700), at(8501),
                                 at(9700), at(11700), at(13700)));
  EXPECT_EQ(session_.heartbeat_at(), began + absl::Milliseconds(15700));
}

TEST_F(RouterSessionTest, LoadIsSentOnChangeAndWithHeartbeats) {
  Begin(7);
  session_.SetLoad(0, {.running = 1, .waiting = 2, .kv_usage = 0.5, .asked = now_});
  Write();
  EXPECT_EQ(model_.ranks[0].loads, 1);
  now_ += absl::Milliseconds(150);
  session_.SetLoad(0, {.running = 1, .waiting = 2, .kv_usage = 0.505, .asked = now_});
  Write();
  EXPECT_EQ(model_.ranks[0].loads, 1) << "less than 1 % more";
  session_.SetLoad(0, {.running = 2, .waiting = 2, .kv_usage = 0.5, .asked = now_});
  Write();
  EXPECT_EQ(model_.ranks[0].loads, 2);
  now_ += absl::Milliseconds(99);
  session_.SetLoad(0, {.running = 3, .waiting = 2, .kv_usage = 0.5, .asked = now_});
  Write();
  EXPECT_EQ(model_.ranks[0].loads, 2) << "100 ms apart";
  now_ += absl::Milliseconds(1);
  Write();
  EXPECT_EQ(model_.ranks[0].loads, 3);
  EXPECT_EQ(model_.ranks[0].load->age_ms(), 1U);
  EXPECT_EQ(model_.ranks[0].load->running(), 3U);
  now_ += absl::Seconds(3);
  Write();
  EXPECT_EQ(model_.ranks[0].loads, 4) << "with the heartbeat";
  EXPECT_EQ(model_.ranks[0].load->age_ms(), 3001U);

  // In one message: each wakes the router up.
  now_ += absl::Seconds(3);
  v1::WorkerUpdate update;
  ASSERT_TRUE(session_.Next(now_, &update));
  ASSERT_TRUE(update.has_heartbeat());
  ASSERT_EQ(update.heartbeat().loads_size(), 1);
  EXPECT_EQ(update.heartbeat().loads(0).running(), 3U);
  EXPECT_FALSE(session_.Next(now_, &update));
}

TEST_F(RouterSessionTest, BadNewsOvertakesChangesGoodNewsFollowsThem) {
  Begin(7);
  RankVerdict verdict;
  session_.SetVerdict(0, verdict);
  Write();
  kinds_.clear();
  Change({}, {1});
  verdict.causes.Set(FeedCause::kGap);
  session_.SetVerdict(0, verdict);
  Write();
  EXPECT_THAT(kinds_, ElementsAre(v1::WorkerUpdate::kRankState, v1::WorkerUpdate::kDelta));
  EXPECT_THAT(model_.ranks[0].causes, ElementsAre(v1::FRESHNESS_CAUSE_GAP));
  kinds_.clear();
  Change({1}, {2});
  verdict.causes.Set(FeedCause::kGap, false);
  session_.SetVerdict(0, verdict);
  Write();
  EXPECT_THAT(kinds_, ElementsAre(v1::WorkerUpdate::kDelta, v1::WorkerUpdate::kRankState));
  EXPECT_THAT(model_.ranks[0].causes, IsEmpty());
  // An engine that is gone is told at once, and does not clear a cause that still holds here.
  verdict.causes.Set(FeedCause::kGap);
  session_.SetVerdict(0, verdict);
  Write();
  Change({}, {3});
  verdict.causes.Set(FeedCause::kGap, false);
  verdict.engine_reachable = false;
  session_.SetVerdict(0, verdict);
  Write(1);
  EXPECT_FALSE(model_.ranks[0].reachable);
  EXPECT_THAT(model_.ranks[0].causes, ElementsAre(v1::FRESHNESS_CAUSE_GAP));
  Write();
  EXPECT_THAT(model_.ranks[0].causes, IsEmpty());
}

TEST_F(RouterSessionTest, EveryCauseHasItsName) {
  Begin(7);
  RankVerdict verdict;
  for (int i = 0; i < static_cast<int>(FeedCause::kCount); ++i) {
    verdict.causes.Set(static_cast<FeedCause>(i));
  }
  verdict.skipped = {{"malformed", 3}};
  session_.SetVerdict(0, verdict);
  Write();
  EXPECT_THAT(model_.ranks[0].causes,
              ElementsAre(v1::FRESHNESS_CAUSE_RESYNC, v1::FRESHNESS_CAUSE_GAP,
                          v1::FRESHNESS_CAUSE_MISSED_START, v1::FRESHNESS_CAUSE_LATE_JOIN,
                          v1::FRESHNESS_CAUSE_HIDDEN_DOMAIN, v1::FRESHNESS_CAUSE_SILENT,
                          v1::FRESHNESS_CAUSE_DRIFT));
}

TEST_F(RouterSessionTest, RegistrationsThatCanNotWorkAreRefused) {
  const auto refused = [this](auto change) {
    session_.OnStreamStart(now_);
    v1::WorkerUpdate update;
    session_.Next(now_, &update);
    v1::RouterUpdate registered = Registered(7);
    change(registered.mutable_registered());
    const absl::Status status = session_.OnMessage(registered, now_);
    session_.OnStreamEnd();
    return status;
  };
  EXPECT_THAT(refused([](auto* r) { r->set_session(0); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("session")));
  EXPECT_THAT(refused([](auto* r) { r->set_protocol(2); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("same release")));
  EXPECT_THAT(refused([](auto* r) { r->set_hash_seed(1); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("hash_seed")));
  for (const std::uint32_t block : {0U, 65537U}) {
    EXPECT_THAT(refused([block](auto* r) { r->set_routing_block_size(block); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("routing_block_size")));
  }
  Begin(7);
  EXPECT_THAT(session_.OnMessage(Registered(7), now_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("twice")));
}

TEST_F(RouterSessionTest, SetRegisterTellsWhatOnlyANewStreamCanTell) {
  Begin(7);
  v1::Register changed = register_;
  EXPECT_FALSE(session_.SetRegister(changed));
  changed.mutable_ranks(0)->set_epoch(200);
  EXPECT_FALSE(session_.SetRegister(changed)) << "epochs go through NewEpoch";
  Write();
  EXPECT_EQ(model_.ranks[0].epoch, 200U);
  changed.add_loras("sql");
  EXPECT_TRUE(session_.SetRegister(changed));
  (*changed.mutable_labels())["a"] = "b";
  EXPECT_TRUE(session_.SetRegister(changed));
  EXPECT_FALSE(session_.SetRegister(changed));
}

TEST_F(RouterSessionTest, DrainIsHeard) {
  Begin(7);
  v1::RouterUpdate drain;
  drain.mutable_drain()->set_on(true);
  ASSERT_THAT(session_.OnMessage(drain, now_), IsOk());
  EXPECT_TRUE(session_.draining());
  drain.mutable_drain()->set_on(false);
  ASSERT_THAT(session_.OnMessage(drain, now_), IsOk());
  EXPECT_FALSE(session_.draining());
  EXPECT_THAT(session_.OnMessage(v1::RouterUpdate(), now_), IsOk());
}

class TwoRanksTest : public RouterSessionTest {
 protected:
  TwoRanksTest() : RouterSessionTest(2, {.window = 8}) {}
};

TEST_F(TwoRanksTest, Fault10_RanksKeepTheirOwnStateAndEpoch) {
  Change({}, {1, 2}, 0);
  Change({}, {3}, 1);
  Begin(7, {0, 1});
  Write();
  Change({}, {4}, 0);
  held_[1].clear();
  seq_[1].reset();
  session_.NewEpoch(1, 300);
  Change({}, {5}, 1);
  Write();
  ExpectEqual(0);
  ExpectEqual(1);
  EXPECT_EQ(model_.ranks[0].epoch, 100U);
  EXPECT_EQ(model_.ranks[1].epoch, 300U);
  EXPECT_EQ(model_.ranks[0].snapshots, 1);
  EXPECT_EQ(model_.ranks[1].snapshots, 2);
}

TEST_F(TwoRanksTest, DeltasOfOneRankGoOnDuringTheOthersSnapshot) {
  Begin(7, {0, 1});
  Write();
  Change({}, Range(1, 100000), 1);
  v1::RouterUpdate resync;
  resync.mutable_resync()->set_rank(1);
  ASSERT_THAT(session_.OnMessage(resync, now_), IsOk());
  Write(2);
  Change({}, {1}, 0);
  Write(4);
  EXPECT_EQ(model_.held(0), held_[0]);
  EXPECT_TRUE(model_.ranks[1].building.has_value());
  Write();
  ExpectEqual(1);
}

}  // namespace
}  // namespace warmpath
