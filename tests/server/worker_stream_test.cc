#include "server/worker_stream.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/fake_fleet.h"
#include "tests/testing/fake_bidi_stream.h"
#include "tests/testing/fake_clock.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::warmpath::testing::FakeBidiStream;
using ::warmpath::testing::FakeClock;
using ::warmpath::testing::FakeFleet;

using Stream = FakeBidiStream<v1::WorkerUpdate, v1::RouterUpdate>;

v1::WorkerUpdate RegisterUpdate() {
  v1::WorkerUpdate update;
  v1::Register* r = update.mutable_register_();
  r->set_worker_id("w");
  r->set_model("m");
  v1::RankInfo* rank = r->add_ranks();
  rank->set_address("10.0.0.1:8000");
  rank->set_epoch(5);
  rank->set_engine_block_size(16);
  rank->set_has_events(true);
  return update;
}

v1::WorkerUpdate Delta(std::uint64_t session, std::uint64_t seq) {
  v1::WorkerUpdate update;
  update.set_session(session);
  update.mutable_delta()->set_delta_seq(seq);
  update.mutable_delta()->add_stored(seq * 10);
  return update;
}

class WorkerStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto* stream = new WorkerStream(&fleet_, &heartbeats_, "10.0.0.9:5");
    stream->Begin(&registry_);
    stream_.Bind(stream);
  }
  void Register() {
    stream_.Deliver(RegisterUpdate());
    ASSERT_TRUE(stream_.writing());
    registered_ = stream_.CompleteWrite();
  }

  FakeFleet fleet_;
  FakeClock clock_;
  HeartbeatSlots heartbeats_{absl::Seconds(2), &clock_};
  ReactorRegistry registry_{"worker", 10};
  Stream stream_;
  v1::RouterUpdate registered_;
};

TEST_F(WorkerStreamTest, RegistersAndHandsUpdatesOn) {
  EXPECT_EQ(heartbeats_.Take(), 0u) << "another agent's";
  Register();
  EXPECT_EQ(fleet_.peer, "10.0.0.9:5");
  ASSERT_EQ(fleet_.registrations.size(), 1u);
  EXPECT_EQ(fleet_.registrations[0].ranks[0].engine_block_size, 16u);
  EXPECT_EQ(registered_.registered().session(), 7u);
  EXPECT_EQ(registered_.registered().routing_block_size(), 64u);
  EXPECT_EQ(registered_.registered().heartbeat_ms(), 2000u);
  EXPECT_EQ(registered_.registered().heartbeat_in_ms(), 1000u);
  EXPECT_EQ(registered_.registered().max_hashes_per_message(), 4096u);
  stream_.Deliver(Delta(7, 1));
  stream_.Deliver(Delta(3, 2));  // the fleet judges sessions, not the stream
  EXPECT_THAT(fleet_.updates, ElementsAre(Pair(7u, 3u), Pair(3u, 3u)));
  stream_.EndReads();
  EXPECT_EQ(heartbeats_.Take(), 2u);
  stream_.RunToEnd();
  EXPECT_EQ(heartbeats_.Take(), 1u) << "given back";
  EXPECT_EQ(fleet_.closed, 1);
}

TEST_F(WorkerStreamTest, AHeartbeatsLoadReportsAreAppliedBeforeIt) {
  Register();
  v1::WorkerUpdate update;
  update.set_session(7);
  update.mutable_heartbeat()->set_delta_seq(3);
  update.mutable_heartbeat()->add_loads()->set_running(2);
  update.mutable_heartbeat()->add_loads()->set_rank(1);
  stream_.Deliver(update);
  const auto index = [](const FeedUpdate& of) { return of.index(); };
  EXPECT_THAT(fleet_.updates,
              ElementsAre(Pair(7u, index(LoadUpdate())), Pair(7u, index(LoadUpdate())),
                          Pair(7u, index(HeartbeatUpdate()))));

  update.mutable_heartbeat()->mutable_loads(1)->set_kv_usage(1.5);
  stream_.Deliver(update);
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(stream_.status().error_message(), HasSubstr("load.kv_usage"));
  stream_.RunToEnd();
}

TEST_F(WorkerStreamTest, TheFirstUpdateMustBeRegister) {
  stream_.Deliver(Delta(0, 1));
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(stream_.status().error_message(), HasSubstr("register"));
  stream_.RunToEnd();
  EXPECT_EQ(fleet_.closed, 0) << "there was no feed to close";
}

TEST_F(WorkerStreamTest, ASecondRegisterIsRefused) {
  Register();
  stream_.Deliver(RegisterUpdate());
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  stream_.RunToEnd();
  EXPECT_EQ(fleet_.closed, 1);
}

TEST_F(WorkerStreamTest, ARefusalCarriesTheFleetsStatus) {
  fleet_.register_status = absl::FailedPreconditionError("stale epoch");
  stream_.Deliver(RegisterUpdate());
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(stream_.status().error_message(), "stale epoch");
  stream_.RunToEnd();
  EXPECT_EQ(fleet_.closed, 0);
}

TEST_F(WorkerStreamTest, AnErrorOfTheFeedEndsTheStream) {
  Register();
  fleet_.update_status = absl::InvalidArgumentError("rank: unknown");
  stream_.Deliver(Delta(7, 1));
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_message(), "rank: unknown");
  stream_.RunToEnd();
}

TEST_F(WorkerStreamTest, AcksCollapseWhileAWriteIsInFlight) {
  Register();
  fleet_.sink->Send(AckReply{1});
  ASSERT_TRUE(stream_.writing());
  for (std::uint64_t seq = 2; seq <= 1000; ++seq) fleet_.sink->Send(AckReply{seq});
  EXPECT_EQ(stream_.CompleteWrite().ack().delta_seq(), 1u);
  EXPECT_EQ(stream_.CompleteWrite().ack().delta_seq(), 1000u);
  EXPECT_FALSE(stream_.writing());
  stream_.EndReads();
  stream_.RunToEnd();
}

TEST_F(WorkerStreamTest, RepliesWaitBoundedAndTheNewestOfEachKindWins) {
  Register();
  fleet_.sink->Send(AckReply{1});  // in flight
  for (int i = 0; i < 100; ++i) {
    fleet_.sink->Send(ResyncReply{.rank = 0, .reason = "gap", .backoff = absl::Milliseconds(i)});
    fleet_.sink->Send(ResyncReply{.rank = 1, .reason = "audit", .backoff = absl::ZeroDuration()});
    fleet_.sink->Send(DrainReply{.on = i % 2 == 0});
    fleet_.sink->Send(AckReply{2});
  }
  stream_.CompleteWrite();
  std::vector<v1::RouterUpdate> sent;
  while (stream_.writing()) sent.push_back(stream_.CompleteWrite());
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(sent[0].resync().reason(), "gap");
  EXPECT_EQ(sent[0].resync().backoff_ms(), 99u);
  EXPECT_EQ(sent[1].resync().rank(), 1u);
  EXPECT_FALSE(sent[2].drain().on());
  EXPECT_EQ(sent[3].ack().delta_seq(), 2u);
  stream_.EndReads();
  stream_.RunToEnd();
}

TEST_F(WorkerStreamTest, ASupersededStreamEndsAborted) {
  Register();
  fleet_.sink->Close(absl::AbortedError("superseded by 10.0.0.2:1"));
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_code(), grpc::StatusCode::ABORTED);
  stream_.RunToEnd();
  EXPECT_EQ(fleet_.closed, 1);
}

TEST_F(WorkerStreamTest, TheSinkOutlivesTheStream) {
  Register();
  stream_.Cancel();
  stream_.RunToEnd();
  fleet_.sink->Send(AckReply{5});
  fleet_.sink->Close(absl::AbortedError("late"));
  EXPECT_EQ(fleet_.closed, 1);
}

TEST_F(WorkerStreamTest, BadUpdatesNameTheField) {
  Register();
  v1::WorkerUpdate update;
  update.set_session(7);
  for (int i = 0; i < 4097; ++i) update.mutable_delta()->add_stored(static_cast<unsigned>(i));
  stream_.Deliver(update);
  ASSERT_TRUE(stream_.finished());
  EXPECT_THAT(stream_.status().error_message(), HasSubstr("4097 hashes"));
  EXPECT_TRUE(fleet_.updates.empty());
  stream_.RunToEnd();
}

// Every order of: an update arrives, the fleet replies, a write ends well or not, the client goes,
// the stream is superseded, the router drains. Whatever the order: Finish once, OnClosed once.
TEST(WorkerStreamOrderTest, EveryOrderOfEventsEndsWell) {
  std::vector<int> events = {0, 1, 2, 3, 4, 5, 6};
  int orders = 0;
  SetMinLogLevel(LogLevel::kError);
  do {
    FakeFleet fleet;
    FakeClock clock;
    HeartbeatSlots heartbeats(absl::Seconds(2), &clock);
    ReactorRegistry registry{"worker", 1};
    Stream stream;
    auto* reactor = new WorkerStream(&fleet, &heartbeats, "peer");
    reactor->Begin(&registry);
    stream.Bind(reactor);
    stream.Deliver(RegisterUpdate());
    bool cancelled = false;
    for (const int event : events) {
      if (event == 0 && stream.reading() && !stream.finished()) stream.Deliver(Delta(7, 1));
      if (event == 1) fleet.sink->Send(AckReply{1});
      if (event == 2 && stream.writing()) stream.CompleteWrite(true);
      if (event == 3 && stream.writing()) stream.CompleteWrite(false);
      if (event == 4) cancelled = true, stream.Cancel();
      if (event == 5) fleet.sink->Close(absl::AbortedError("superseded"));
      if (event == 6) registry.DrainAll(absl::UnavailableError("bye"));
    }
    ASSERT_TRUE(cancelled);
    stream.RunToEnd();
    ASSERT_EQ(fleet.closed, 1);
    ASSERT_EQ(registry.size(), 0u);
    fleet.sink->Send(AckReply{9});
    ++orders;
  } while (std::next_permutation(events.begin(), events.end()) && !::testing::Test::HasFailure());
  SetMinLogLevel(LogLevel::kInfo);
  EXPECT_EQ(orders, 5040);
}

}  // namespace
}  // namespace warmpath
