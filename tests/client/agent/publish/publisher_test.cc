#include "client/agent/publish/publisher.h"

#include <atomic>
#include <numeric>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/publish/fake_router.h"
#include "tests/client/agent/publish/publisher_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::Driven;
using testing::FakeRouter;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RouterModel;
using testing::Serve;

std::vector<ChainHash> Range(ChainHash from, std::size_t n) {
  std::vector<ChainHash> hashes(n);
  std::iota(hashes.begin(), hashes.end(), from);
  return hashes;
}

class PublisherTest : public ::testing::Test {
 protected:
  ~PublisherTest() override { EXPECT_THAT(router_.model().breaches, IsEmpty()); }

  bool AwaitEqual(const Driven& driven) {
    return router_.Await(
        [&](RouterModel& model) { return model.ranks[0].whole && model.held() == driven.held(); });
  }

  // For the scripts, which may run until the router has stopped: so they outlive it.
  std::atomic<int> count_ = 0;
  std::atomic<bool> flag_ = false;
  FakeRouter router_;
};

TEST_F(PublisherTest, RegistersAndStreams) {
  router_.AddScript(&Serve);
  Driven driven(router_);
  EXPECT_EQ(router_.streams(), 0) << "nothing before there is a registration";
  EXPECT_EQ(driven.publisher().TickDue(), absl::InfiniteFuture());
  driven.Announce();
  driven.Change({}, Range(1, 9000));
  ASSERT_TRUE(AwaitEqual(driven));
  for (ChainHash i = 0; i < 50; ++i) driven.Change({i + 1}, {i + 20000});
  ASSERT_TRUE(AwaitEqual(driven));
  ASSERT_TRUE(router_.Await([](RouterModel& model) { return model.digests >= 8; }));
  ASSERT_TRUE(driven.AwaitEvents(1));
  EXPECT_EQ(driven.events()[0].routing_block, 16U);
  const PublisherView view = driven.publisher().View();
  EXPECT_TRUE(view.registered);
  absl::Time due = absl::InfiniteFuture();
  // While a message is being written its end goes on.
  for (int i = 0; i < 10'000 && due == absl::InfiniteFuture(); ++i) {
    absl::SleepFor(absl::Milliseconds(1));
    due = driven.publisher().TickDue();
  }
  EXPECT_LT(due - SystemClock().Now(), absl::Seconds(1)) << "the router wants one each 200 ms";
  EXPECT_EQ(router_.streams(), 1);
  EXPECT_EQ(view.counts.snapshots, 1U);
}

TEST_F(PublisherTest, ComesBackWhenTheStreamBreaks) {
  router_.AddScript([](FakeRouter::Stream& stream) {
    stream.Accept();
    for (int i = 0; i < 5; ++i) stream.Read();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken");
  });
  router_.AddScript(&Serve);
  Driven driven(router_);
  driven.Announce();
  driven.Change({}, Range(1, 30000));
  ASSERT_TRUE(router_.AwaitStreams(2));
  driven.Change({7}, {});
  ASSERT_TRUE(AwaitEqual(driven));
  EXPECT_THAT(driven.publisher().View().last_error, HasSubstr("broken"));
}

TEST_F(PublisherTest, GoesOnWithDeltasWhereTheRouterKeptTheState) {
  router_.AddScript([this](FakeRouter::Stream& stream) {
    stream.Accept();
    while (!flag_ && stream.Read()) stream.Ack();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "broken");
  });
  router_.AddScript([](FakeRouter::Stream& stream) {
    stream.Accept(16, {});
    return stream.Serve();
  });
  Driven driven(router_);
  driven.Announce();
  driven.Change({}, Range(1, 5000));
  ASSERT_TRUE(AwaitEqual(driven));
  flag_ = true;
  ASSERT_TRUE(router_.AwaitStreams(2));
  driven.Change({1}, {9999});
  ASSERT_TRUE(AwaitEqual(driven));
  EXPECT_EQ(router_.model().ranks[0].snapshots, 1);
}

TEST_F(PublisherTest, Fault35_WarmAgainAfterTheRouterStartsAnew) {
  router_.AddScript(&Serve);
  Driven driven(router_);
  driven.Announce();
  driven.Change({}, Range(1, 20000));
  ASSERT_TRUE(AwaitEqual(driven));
  router_.Restart();
  const absl::Time up = absl::Now();
  ASSERT_TRUE(AwaitEqual(driven));
  EXPECT_LT(absl::Now() - up, absl::Seconds(5));
  EXPECT_EQ(router_.model().ranks[0].snapshots, 1);
}

TEST_F(PublisherTest, WaitsForARouterThatStartsLater) {
  router_.AddScript(&Serve);
  router_.Stop();
  Driven driven(router_);
  driven.Announce();
  driven.Change({}, {1});
  while (driven.publisher().View().last_error.empty()) absl::SleepFor(absl::Milliseconds(1));
  router_.Restart();
  ASSERT_TRUE(AwaitEqual(driven));
}

TEST_F(PublisherTest, ResyncBringsASnapshot) {
  router_.AddScript([this](FakeRouter::Stream& stream) {
    stream.Accept();
    while (stream.Read()) {
      stream.Ack();
      if (stream.last().has_snapshot_end() && count_ < 2) {
        ++count_;
        v1::RouterUpdate resync;
        resync.mutable_resync()->set_reason("audit");
        resync.mutable_resync()->set_backoff_ms(10);
        stream.Write(resync);
      }
    }
    return grpc::Status::OK;
  });
  Driven driven(router_);
  driven.Announce();
  driven.Change({}, Range(1, 5000));
  ASSERT_TRUE(router_.Await([](RouterModel& model) {
    return model.ranks[0].snapshots == 3 && !model.ranks[0].building;
  }));
  ASSERT_TRUE(AwaitEqual(driven));
}

TEST_F(PublisherTest, ARefusalIsTriedAgainLater) {
  const auto refuse = [this](grpc::StatusCode code, const char* why) {
    return [this, code, why](FakeRouter::Stream& stream) {
      stream.Read();
      ++count_;
      return grpc::Status(code, why);
    };
  };
  router_.AddScript(refuse(grpc::StatusCode::ALREADY_EXISTS, "another agent holds it"));
  router_.AddScript(refuse(grpc::StatusCode::FAILED_PRECONDITION, "block size"));
  router_.AddScript([](FakeRouter::Stream& stream) {
    stream.Accept();
    stream.Read();
    return grpc::Status(grpc::StatusCode::ABORTED, "superseded by 1.2.3.4:5");
  });
  router_.AddScript(&Serve);
  Driven driven(router_);
  driven.Announce();
  driven.Change({}, {1, 2});
  ASSERT_TRUE(AwaitEqual(driven));
  EXPECT_EQ(count_, 2);
  EXPECT_EQ(driven.publisher().View().refused, 3U);
  EXPECT_THAT(driven.publisher().View().last_error, HasSubstr("superseded by 1.2.3.4:5"));
}

TEST_F(PublisherTest, AStaleEpochIsTold) {
  router_.AddScript([](FakeRouter::Stream& stream) {
    stream.Read();
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "ranks[0].epoch: stale epoch 100");
  });
  router_.AddScript(&Serve);
  Driven driven(router_);
  driven.Announce();
  ASSERT_TRUE(driven.AwaitEvents(1));
  EXPECT_EQ(driven.events()[0].kind, PublisherEvent::Kind::kStaleEpoch);
  driven.NewEpoch(200);
  ASSERT_TRUE(router_.Await([](RouterModel& model) { return model.ranks[0].epoch == 200; }));
}

TEST_F(PublisherTest, AnotherRegistrationBeginsAnotherStreamAtOnce) {
  router_.AddScript(&Serve);
  Driven driven(router_);
  driven.Announce();
  driven.Change({}, {1});
  ASSERT_TRUE(AwaitEqual(driven));
  driven.Do([&] {
    driven.registration().add_loras("sql");
    driven.publisher().SetRegister(driven.registration());
  });
  ASSERT_TRUE(
      router_.Await([](RouterModel& model) { return model.registration.loras_size() == 1; }));
  ASSERT_TRUE(AwaitEqual(driven));
  EXPECT_EQ(router_.streams(), 2);
}

TEST_F(PublisherTest, Fault13_ARouterThatDoesNotReadCostsNoMemory) {
  router_.AddScript([this](FakeRouter::Stream& stream) {
    stream.Accept();
    stream.Hold([this] { return flag_.load(); });
    return stream.Serve();
  });
  SessionOptions options;
  options.window = 16;
  options.max_pending = 50000;
  Driven driven(router_, options);
  driven.Announce();
  driven.Change({}, Range(1, 4000));
  ASSERT_TRUE(driven.AwaitEvents(1));
  // Far more than the window, HTTP/2's buffers and the bound together would take.
  for (ChainHash i = 1; i <= 150; ++i) {
    driven.Change(Range((i - 1) * 4000 + 1, 3500), Range(i * 4000 + 1, 4000));
    const PublisherView view = driven.publisher().View();
    ASSERT_LE(view.pending, 50000U);
    ASSERT_LE(view.unacked, 16U);
  }
  EXPECT_GE(driven.publisher().View().counts.overflows, 1U);
  flag_ = true;
  ASSERT_TRUE(AwaitEqual(driven));
  EXPECT_EQ(router_.streams(), 1);
}

TEST_F(PublisherTest, ARegistrationWithoutAnswerIsGivenUp) {
  router_.AddScript([](FakeRouter::Stream& stream) {
    stream.Accept(16, {0});
    return grpc::Status::OK;
  });
  // An answer that the agent can not work with ends the stream from its side.
  router_.AddScript([](FakeRouter::Stream& stream) {
    stream.Accept(0, {0});
    while (stream.Read()) {
    }
    return grpc::Status::OK;
  });
  router_.AddScript(&Serve);
  Driven driven(router_);
  driven.Announce();
  ASSERT_TRUE(AwaitEqual(driven));
  EXPECT_EQ(router_.streams(), 3);
}

TEST_F(PublisherTest, RefuseEndsTheStreamAndComesBack) {
  router_.AddScript(&Serve);
  Driven driven(router_);
  driven.Announce();
  ASSERT_TRUE(driven.AwaitEvents(1));
  driven.Do([&] {
    driven.publisher().Refuse(absl::FailedPreconditionError("routing block 16 differs"));
  });
  ASSERT_TRUE(router_.AwaitStreams(2));
  EXPECT_THAT(driven.publisher().View().last_error, HasSubstr("differs"));
}

TEST_F(PublisherTest, EndsCleanlyInAnyState) {
  router_.AddScript([](FakeRouter::Stream& stream) {
    stream.Accept();
    stream.Hold();  // never reads
    return grpc::Status::OK;
  });
  {
    Driven driven(router_);  // never announced
  }
  {
    Driven driven(router_);
    driven.Announce();  // perhaps still connecting
  }
  {
    Driven driven(router_);
    driven.Announce();
    ASSERT_TRUE(driven.AwaitEvents(1));
    for (ChainHash i = 0; i < 100; ++i) driven.Change({}, Range(i * 4000, 4000));
  }
  router_.Stop();
  {
    Driven driven(router_);  // nobody there
    driven.Announce();
  }
}

}  // namespace
}  // namespace warmpath
