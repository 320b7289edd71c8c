// A rank's state over breaks: what the router asks for again, what it kept, another epoch.
#include "client/agent/publish/router_session.h"

#include <algorithm>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/publish/router_session_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::IsOk;
using testing::RouterModel;
using testing::RouterSessionTest;

TEST_F(RouterSessionTest, ResyncBringsANewSnapshotAfterItsPause) {
  Change({}, {1, 2});
  Begin(7);
  Write();
  v1::RouterUpdate resync;
  resync.mutable_resync()->set_reason("audit");
  resync.mutable_resync()->set_backoff_ms(500);
  ASSERT_THAT(session_.OnMessage(resync, now_), IsOk());
  Change({1}, {3});
  Write();
  EXPECT_EQ(model_.ranks[0].snapshots, 1) << "not before its pause";
  now_ += absl::Milliseconds(500);
  Write();
  EXPECT_EQ(model_.ranks[0].snapshots, 2);
  ExpectEqual();
  // In the middle of a snapshot: it starts anew.
  ASSERT_THAT(session_.OnMessage(resync, now_), IsOk());
  now_ += absl::Milliseconds(500);
  kinds_.clear();
  while (kinds_.empty() || kinds_.back() != v1::WorkerUpdate::kSnapshotBegin) Write(1);
  resync.mutable_resync()->set_backoff_ms(0);
  ASSERT_THAT(session_.OnMessage(resync, now_), IsOk());
  Write();
  EXPECT_EQ(model_.ranks[0].snapshots, 4);
  ExpectEqual();
  EXPECT_EQ(session_.counts().resyncs, 3U);
  // Of a rank that is not ours.
  resync.mutable_resync()->set_rank(9);
  EXPECT_THAT(session_.OnMessage(resync, now_), IsOk());
}

TEST_F(RouterSessionTest, Fault01_ANewEpochVoidsTheRankAndStartsFromASnapshot) {
  Change({}, {1, 2, 3});
  Begin(7);
  Write();
  Change({}, {4});  // not written any more
  held_[0].clear();
  seq_[0].reset();
  session_.NewEpoch(0, 101);
  Change({}, {9});
  Write();
  EXPECT_EQ(model_.ranks[0].epoch, 101U);
  ExpectEqual();
  // Only the latest epoch is told.
  held_[0].clear();
  seq_[0].reset();
  session_.NewEpoch(0, 102);
  session_.NewEpoch(0, 103);
  kinds_.clear();
  Write();
  EXPECT_EQ(model_.ranks[0].epoch, 103U);
  EXPECT_EQ(std::count(kinds_.begin(), kinds_.end(), v1::WorkerUpdate::kNewEpoch), 1);
  ExpectEqual();
}

TEST_F(RouterSessionTest, ANewEpochBetweenRegisterAndRegisteredIsTold) {
  session_.OnStreamStart(now_);
  v1::WorkerUpdate update;
  session_.Next(now_, &update);
  model_.Begin(7);
  model_.Apply(update);
  session_.NewEpoch(0, 150);
  ASSERT_THAT(session_.OnMessage(Registered(7), now_), IsOk());
  Write();
  EXPECT_EQ(model_.ranks[0].epoch, 150U);
  EXPECT_TRUE(model_.ranks[0].whole);
}

TEST_F(RouterSessionTest, ARouterThatKeptTheStateGetsOnlyWhatItLacks) {
  Change({}, Range(1, 100));
  Begin(7);
  Write();
  Change({5}, {200});
  Write(1 << 20, /*ack=*/false);  // written; whether it arrived nobody knows
  const RouterModel after_write = model_;
  session_.OnStreamEnd();
  Change({6}, {201});
  // The router may have got the last delta or not: both end well.
  Begin(8, {});
  Write();
  ExpectEqual();
  EXPECT_EQ(model_.ranks[0].snapshots, 1);
  EXPECT_EQ(session_.counts().resumed, 1U);
  EXPECT_EQ(model_.removed_twice, 1);
}

TEST_F(RouterSessionTest, WithoutAcknowledgedSnapshotARankIsNotResumed) {
  Change({}, Range(1, 100));
  Begin(7);
  Write(1 << 20, /*ack=*/false);
  session_.OnStreamEnd();
  Begin(8, {});  // the router thinks it has the rank, or lets it wait for its turn
  Write();
  EXPECT_EQ(model_.ranks[0].snapshots, 1);
  now_ += absl::Seconds(5);
  Write();
  ExpectEqual();
  EXPECT_EQ(model_.ranks[0].snapshots, 2);
  EXPECT_EQ(session_.counts().resumed, 0U);
}

TEST_F(RouterSessionTest, Fault35_ARouterThatStartsAnewGetsASnapshot) {
  Change({}, Range(1, 100));
  Begin(7);
  Write();
  Change({}, {500});
  session_.OnStreamEnd();
  Change({1}, {});
  model_ = RouterModel();
  Begin(8, {0});
  Write();
  ExpectEqual();
  EXPECT_EQ(model_.ranks[0].snapshots, 1);
}

TEST_F(RouterSessionTest, AnotherRoutingBlockMeansAnotherState) {
  Change({}, {1});
  Begin(7);
  Write();
  session_.OnStreamEnd();
  session_.OnStreamStart(now_);
  v1::WorkerUpdate update;
  session_.Next(now_, &update);
  v1::RouterUpdate registered = Registered(8, {});
  registered.mutable_registered()->set_routing_block_size(128);
  ASSERT_THAT(session_.OnMessage(registered, now_), IsOk());
  EXPECT_EQ(session_.routing_block(), 128U);
  EXPECT_EQ(session_.SnapshotWanted(now_), 0U);
}

TEST_F(RouterSessionTest, NothingOfAnotherSessionIsKeptBack) {
  Begin(7);
  Write();
  session_.OnStreamEnd();
  v1::WorkerUpdate update;
  EXPECT_FALSE(session_.Next(now_, &update)) << "no stream";
  EXPECT_EQ(session_.SnapshotWanted(now_), std::nullopt);
  EXPECT_FALSE(session_.registered());
}

}  // namespace
}  // namespace warmpath
