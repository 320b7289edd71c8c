#include "client/agent/publish/publisher.h"

#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/agent/publish/router_channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/publish/fake_router.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::FakeRouter;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RouterModel;

// The publisher with a thread that plays the engine thread.
class Driven {
 public:
  explicit Driven(const FakeRouter& router, SessionOptions session = {}, RouterOptions how = {}) {
    PublisherOptions options;
    options.router = router.address();
    options.worker = "w";
    options.session = session;
    options.first_backoff = absl::Milliseconds(5);
    options.max_backoff = absl::Milliseconds(50);
    options.refused_backoff = absl::Milliseconds(50);
    how.address = router.address();
    auto channel = MakeRouterChannel(how);
    publisher_ = std::make_unique<Publisher>(options, *channel, SystemClock(), 1, [this] {
      absl::MutexLock lock(&mu_);
      wake_ = true;
    });
    register_.set_worker_id("w");
    v1::RankInfo* info = register_.add_ranks();
    info->set_epoch(100);
    info->set_has_events(true);
    thread_ = std::thread([this] { Run(); });
  }
  ~Driven() { Stop(); }

  void Stop() {
    {
      absl::MutexLock lock(&mu_);
      stop_ = true;
      wake_ = true;
    }
    if (thread_.joinable()) thread_.join();
    publisher_.reset();
  }

  // On the engine thread; waits for it.
  void Do(std::function<void()> work) {
    absl::Notification done;
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return;
      work_ = [&] {
        work();
        done.Notify();
      };
      wake_ = true;
    }
    done.WaitForNotification();
  }
  void Announce() {
    Do([this] { publisher_->SetRegister(register_); });
  }
  void Change(std::vector<ChainHash> removed, std::vector<ChainHash> stored) {
    Do([&] {
      for (const ChainHash hash : removed) held_.erase(hash);
      for (const ChainHash hash : stored) held_.insert(hash);
      ++seq_;
      const BlockChanges changes{.removed = removed, .stored = stored};
      publisher_->Offer(0, {&changes, 1}, seq_, /*no_holes=*/false);
    });
  }
  void NewEpoch(Epoch epoch) {
    Do([&] {
      held_.clear();
      publisher_->NewEpoch(0, epoch);
    });
  }

  Publisher& publisher() { return *publisher_; }
  v1::Register& registration() { return register_; }
  const RouterModel::Set& held() const { return held_; }
  std::vector<PublisherEvent> events() {
    absl::MutexLock lock(&mu_);
    return events_;
  }
  bool AwaitEvents(std::size_t n) {
    absl::MutexLock lock(&mu_);
    const std::pair<std::vector<PublisherEvent>*, std::size_t> both(&events_, n);
    return mu_.AwaitWithTimeout(
        absl::Condition(
            +[](const std::pair<std::vector<PublisherEvent>*, std::size_t>* p) {
              return p->first->size() >= p->second;
            },
            &both),
        absl::Seconds(15));
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        absl::MutexLock lock(&mu_);
        mu_.AwaitWithTimeout(absl::Condition(&wake_), absl::Milliseconds(10));
        wake_ = false;
        work = std::exchange(work_, nullptr);
        if (stop_) return;
      }
      // Without the lock: the publisher wakes us under its own.
      if (work) work();
      publisher_->Tick();
      std::vector<PublisherEvent> events = publisher_->TakeEvents();
      {
        absl::MutexLock lock(&mu_);
        events_.insert(events_.end(), events.begin(), events.end());
      }
      if (!give_snapshots) continue;
      while (const auto rank = publisher_->SnapshotWanted()) {
        RankSnapshot snapshot{.rank = *rank, .engine_seq = seq_};
        for (const ChainHash hash : held_) {
          snapshot.held[0].push_back(hash);
          snapshot.digests[0].Insert(hash);
        }
        publisher_->GiveSnapshot(std::move(snapshot));
      }
    }
  }

 public:
  std::atomic<bool> give_snapshots = true;

 private:
  absl::Mutex mu_;
  bool wake_ = false;
  bool stop_ = false;
  std::function<void()> work_;
  std::vector<PublisherEvent> events_;
  std::unique_ptr<Publisher> publisher_;
  v1::Register register_;
  RouterModel::Set held_;  // changed in Do, read by the thread
  std::uint64_t seq_ = 0;
  std::thread thread_;
};

std::vector<ChainHash> Range(ChainHash from, std::size_t n) {
  std::vector<ChainHash> hashes(n);
  std::iota(hashes.begin(), hashes.end(), from);
  return hashes;
}

grpc::Status Serve(FakeRouter::Stream& stream) {
  if (!stream.Accept()) return grpc::Status::OK;
  return stream.Serve();
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

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// What leaves the node is encrypted, and both ends know each other.
TEST(PublisherTlsTest, RegistersOverTlsWithBothSidesVerified) {
  const std::string folder = WARMPATH_TEST_DATA "/tls/";
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_root_certs = ReadFile(folder + "ca.pem");
  tls.pem_key_cert_pairs.push_back(
      {ReadFile(folder + "router.key"), ReadFile(folder + "router.pem")});
  FakeRouter router(grpc::SslServerCredentials(tls));
  router.AddScript(&Serve);
  const RouterOptions good{.address = "",
                           .ca_file = folder + "ca.pem",
                           .cert_file = folder + "agent.pem",
                           .key_file = folder + "agent.key",
                           .server_name = ""};
  const auto last_error = [&router](const RouterOptions& how) {
    Driven driven(router, {}, how);
    driven.Announce();
    const absl::Time deadline = absl::Now() + absl::Seconds(15);
    while (driven.publisher().View().last_error.empty() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    return driven.publisher().View().last_error;
  };
  {
    Driven driven(router, {}, good);
    driven.Announce();
    driven.Change({}, {1, 2});
    ASSERT_TRUE(router.Await([&](RouterModel& model) { return model.held() == driven.held(); }));
  }
  RouterOptions named = good;
  named.server_name = "router.test";
  {
    Driven driven(router, {}, named);
    driven.Announce();
    EXPECT_TRUE(driven.AwaitEvents(1));
  }
  const int streams = router.streams();
  EXPECT_NE(last_error({}), "") << "plaintext";
  RouterOptions other_name = good;
  other_name.server_name = "somebody.else";
  EXPECT_NE(last_error(other_name), "");
  RouterOptions nobody = good;
  nobody.cert_file.clear();
  nobody.key_file.clear();
  EXPECT_NE(last_error(nobody), "") << "no certificate of the agent's own";
  EXPECT_EQ(router.streams(), streams);
}

TEST(RouterChannelTest, NamesTheFileThatCanNotBeRead) {
  EXPECT_THAT(MakeRouterChannel({.address = "a:1", .ca_file = "/nonexistent.pem"}),
              testing::StatusIs(absl::StatusCode::kNotFound, HasSubstr("router-ca")));
  EXPECT_THAT(MakeRouterChannel({.address = "a:1", .cert_file = "/x", .key_file = "/y"}),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("router-cert")));
}

}  // namespace
}  // namespace warmpath
