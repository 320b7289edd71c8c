// One engine's worker against real sockets: an engine's ZeroMQ ends and a router's gRPC end, both
// played by the test; HTTP is scripted.
#include "client/agent/engine_worker.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/agent/publish/router_channel.h"
#include "core/base/strings.h"
#include "core/hashing/chain_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/engine/fake_publisher.h"
#include "tests/client/agent/events/msgpack_events.h"
#include "tests/client/agent/publish/fake_router.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FakePublisher;
using testing::FakeRouter;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::RouterModel;
using testing::StatusIs;

// The engine's HTTP side; thread-safe, shared with the getter that the worker owns.
class FakeEngineHttp {
 public:
  std::unique_ptr<HttpGetter> Getter() { return std::make_unique<SharedGetter>(this); }
  void SetDown(absl::Status down) {
    absl::MutexLock lock(&mu_);
    down_ = std::move(down);
  }
  void SetStart(double start) {
    absl::MutexLock lock(&mu_);
    start_ = start;
  }
  void SetLoad(int running, int waiting) {
    absl::MutexLock lock(&mu_);
    running_ = running;
    waiting_ = waiting;
  }
  void SetModels(std::string json) {
    absl::MutexLock lock(&mu_);
    models_ = std::move(json);
  }
  void SetBlockSize(int tokens) {
    absl::MutexLock lock(&mu_);
    block_size_ = tokens;
  }

 private:
  class SharedGetter final : public HttpGetter {
   public:
    explicit SharedGetter(FakeEngineHttp* http) : http_(http) {}
    absl::StatusOr<HttpReply> Get(const std::string& url) override { return http_->Get(url); }

   private:
    FakeEngineHttp* const http_;
  };
  absl::StatusOr<HttpReply> Get(const std::string& url) {
    absl::MutexLock lock(&mu_);
    if (!down_.ok()) return down_;
    if (url.ends_with("/health")) return HttpReply{200, ""};
    if (url.ends_with("/v1/models")) return HttpReply{200, models_};
    if (!url.ends_with("/metrics")) return HttpReply{404, ""};
    return HttpReply{200, absl::StrCat("process_start_time_seconds ", start_,
                                       "\nvllm:num_requests_running{engine=\"0\"} ", running_,
                                       "\nvllm:num_requests_waiting{engine=\"0\"} ", waiting_,
                                       "\nvllm:cache_config_info{engine=\"0\",block_size=\"",
                                       block_size_, "\",num_gpu_blocks=\"101\"} 1\n")};
  }

  absl::Mutex mu_;
  absl::Status down_ ABSL_GUARDED_BY(mu_);
  double start_ ABSL_GUARDED_BY(mu_) = 1000;
  int running_ ABSL_GUARDED_BY(mu_) = 0;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  int block_size_ ABSL_GUARDED_BY(mu_) = 4;
  std::string models_ ABSL_GUARDED_BY(mu_) =
      R"({"data":[{"id":"m"},{"id":"n"},{"id":"sql","parent":"m"}]})";
};

class EngineWorkerTest : public ::testing::Test {
 protected:
  EngineWorkerTest() {
    config_.worker_id = "w";
    config_.http = "http://e:1";
    config_.advertise = {"10.0.0.9:8000"};
    config_.events = publisher_.events();
    config_.replay = publisher_.replay();
    config_.scrape_interval_ms = 50;
    folder_ = std::filesystem::temp_directory_path() /
              absl::StrCat("engine_worker_test_", getpid(), "_",
                           ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    for (FakeRouter* router : {&router_, &other_router_}) {
      router->AddScript([](FakeRouter::Stream& stream) {
        if (!stream.Accept(8)) return grpc::Status::OK;
        return stream.Serve();
      });
    }
  }
  ~EngineWorkerTest() override {
    worker_.reset();
    EXPECT_THAT(router_.model().breaches, IsEmpty());
    std::filesystem::remove_all(folder_);
  }

  void Start(std::vector<const FakeRouter*> routers = {}) {
    if (routers.empty()) routers = {&router_};
    std::vector<EngineWorker::Router> list;
    for (const FakeRouter* router : routers) {
      list.push_back({.address = router->address(),
                      .channel = *MakeRouterChannel({.address = router->address()})});
    }
    auto worker = EngineWorker::Create(config_, list, zmq_, SystemClock(), ++seed_, http_.Getter());
    ASSERT_THAT(worker, testing::IsOk());
    worker_ = *std::move(worker);
    worker_->Start();
  }

  // Engine block i holds the tokens 4i .. 4i+3 of prompt `prompt`; routing blocks hold two.
  static std::vector<TokenId> Tokens(TokenId prompt, std::size_t blocks) {
    std::vector<TokenId> tokens;
    for (std::size_t i = 0; i < blocks * 4; ++i) {
      tokens.push_back(prompt * 1000 + static_cast<TokenId>(i));
    }
    return tokens;
  }
  static RouterModel::Set Chain(TokenId prompt, std::size_t blocks) {
    std::vector<ChainHash> chain;
    AppendChain(DomainSeed(std::nullopt, std::nullopt), 8, Tokens(prompt, blocks), {}, &chain);
    return RouterModel::Set(chain.begin(), chain.end());
  }
  // The engine stores a whole prompt in one message; its hashes are prompt * 100 + i.
  void Store(std::uint64_t seq, TokenId prompt, std::size_t blocks) {
    publisher_.Emit(seq, testing::StoredBatch(prompt * 100, blocks, Tokens(prompt, blocks), 4));
  }

  bool AwaitHeld(FakeRouter& router, const RouterModel::Set& held, std::uint64_t seq) {
    const bool good = router.Await([&](RouterModel& model) {
      RouterModel::Rank& rank = model.ranks[0];
      return rank.whole && rank.engine_seq == seq && rank.held[v1::TIER_GPU] == held &&
             rank.causes.empty();
    });
    RouterModel model = router.model();
    if (!good) ADD_FAILURE() << Describe(router);
    return good;
  }
  // What stands where, for a failure.
  std::string Describe(const FakeRouter& router) {
    RouterModel model = router.model();
    const RouterModel::Rank& rank = model.ranks[0];
    std::string text =
        absl::StrCat("held ", model.held().size(), ", seq ", rank.engine_seq.value_or(~0ULL),
                     ", epoch ", rank.epoch, ", causes:");
    for (const v1::FreshnessCause cause : rank.causes) {
      absl::StrAppend(&text, " ", v1::FreshnessCause_Name(cause));
    }
    const WorkerView view = worker_->View();
    absl::StrAppend(&text, "; agent: held ", view.ranks[0].held[0].count, ", seq ",
                    view.ranks[0].engine_seq.value_or(~0ULL), ", bad batches ",
                    view.ranks[0].events.bad_batches, ", skipped:");
    for (std::size_t i = 0; i < kSkipCauseCount; ++i) {
      const auto cause = static_cast<SkipCause>(i);
      const std::uint64_t n = view.ranks[0].skipped.Of(cause);
      if (n != 0) absl::StrAppend(&text, " ", ToAbsl(SkipCauseName(cause)), "=", n);
    }
    for (const PublisherView& publisher : view.routers) {
      absl::StrAppend(&text, "; last error \"", publisher.last_error, "\"");
    }
    return text;
  }
  static RouterModel::Set Union(RouterModel::Set a, const RouterModel::Set& b) {
    a.insert(b.begin(), b.end());
    return a;
  }

  ZmqContext zmq_;
  FakePublisher publisher_;
  FakeRouter router_;
  FakeRouter other_router_;
  FakeEngineHttp http_;
  EngineConfig config_;
  std::filesystem::path folder_;
  std::uint64_t seed_ = 0;
  std::unique_ptr<EngineWorker> worker_;
};

TEST_F(EngineWorkerTest, FromTheEnginesEventsToTheRoutersSet) {
  Store(0, 1, 4);  // before the agent was there: replay
  Start();
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
  const v1::Register registration = router_.model().registration;
  EXPECT_EQ(registration.worker_id(), "w");
  EXPECT_EQ(registration.model(), "m");
  EXPECT_THAT(registration.aliases(), ElementsAre("n"));
  EXPECT_THAT(registration.loras(), ElementsAre("sql"));
  EXPECT_EQ(registration.agent_instance().size(), 16U);
  EXPECT_EQ(registration.ranks(0).engine_block_size(), 4U);
  EXPECT_EQ(registration.ranks(0).kv_capacity_tokens(), 400U);
  EXPECT_EQ(registration.ranks(0).address(), "10.0.0.9:8000");
  EXPECT_TRUE(registration.ranks(0).has_events());

  Store(1, 2, 2);
  ASSERT_TRUE(AwaitHeld(router_, Union(Chain(1, 4), Chain(2, 2)), 1));
  publisher_.Emit(2, testing::RemovedBatch({103}));
  ASSERT_TRUE(AwaitHeld(router_, Union(Chain(1, 2), Chain(2, 2)), 2));
  // Nothing that a routing block shows, but the sequence.
  publisher_.Emit(3, testing::RemovedBatch({102}));
  ASSERT_TRUE(AwaitHeld(router_, Union(Chain(1, 2), Chain(2, 2)), 3));
  publisher_.Emit(4, testing::ClearedBatch());
  ASSERT_TRUE(AwaitHeld(router_, {}, 4));
}

TEST_F(EngineWorkerTest, HolesAreSaid) {
  Store(0, 1, 4);
  Start();
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
  EXPECT_TRUE(router_.model().ranks[0].no_holes) << "the snapshot's end";
  EXPECT_EQ(worker_->View().ranks[0].holes, 0U);
  RouterModel::Set tail = Chain(1, 4);
  for (const ChainHash hash : Chain(1, 2)) tail.erase(hash);
  publisher_.Emit(1, testing::RemovedBatch({100}));
  ASSERT_TRUE(AwaitHeld(router_, tail, 1));
  EXPECT_FALSE(router_.model().ranks[0].no_holes);
  publisher_.Emit(2, testing::RemovedBatch({103}));
  ASSERT_TRUE(AwaitHeld(router_, {}, 2));
  EXPECT_TRUE(router_.model().ranks[0].no_holes);
}

TEST_F(EngineWorkerTest, LoadReachesTheRouter) {
  Start();
  http_.SetLoad(3, 12);
  EXPECT_TRUE(router_.Await([](RouterModel& model) {
    const auto& load = model.ranks[0].load;
    return load && load->running() == 3 && load->waiting() == 12;
  }));
}

TEST_F(EngineWorkerTest, Fault02_ALostMessageIsReplayed) {
  Start();
  Store(0, 1, 4);
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
  publisher_.Keep(1, testing::StoredBatch(200, 2, Tokens(2, 2), 4));  // never published
  Store(2, 3, 2);
  ASSERT_TRUE(AwaitHeld(router_, Union(Union(Chain(1, 4), Chain(2, 2)), Chain(3, 2)), 2));
  EXPECT_EQ(worker_->View().ranks[0].feed.losses, 0U);
}

TEST_F(EngineWorkerTest, Fault02_AGapWithoutReplayIsSaid) {
  config_.replay.clear();
  Start();
  publisher_.WaitForSubscriber();
  ASSERT_TRUE(router_.Await([](RouterModel& model) { return model.ranks[0].whole; }));
  Store(0, 1, 4);
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
  Store(2, 2, 2);
  EXPECT_TRUE(router_.Await([](RouterModel& model) {
    const auto& causes = model.ranks[0].causes;
    return model.ranks[0].engine_seq == 2 &&
           std::find(causes.begin(), causes.end(), v1::FRESHNESS_CAUSE_GAP) != causes.end();
  }));
}

TEST_F(EngineWorkerTest, Fault07_OneBadEventCostsOnlyItself) {
  Start();
  publisher_.Emit(0, testing::BatchWithBadEvents(100, 4, Tokens(1, 4), 4));
  EXPECT_TRUE(router_.Await([](RouterModel& model) {
    return model.held() == Chain(1, 4) && model.ranks[0].engine_seq == 0;
  })) << Describe(router_);
  EXPECT_TRUE(router_.Await([](RouterModel& model) { return model.skipped["malformed"] == 2; }));
}

TEST_F(EngineWorkerTest, Fault01_ARestartedEngineIsANewEpoch) {
  Start();
  for (std::uint64_t i = 0; i < 5; ++i) Store(i, static_cast<TokenId>(i + 1), 2);
  ASSERT_TRUE(router_.Await([](RouterModel& model) { return model.ranks[0].engine_seq == 4; }));
  const std::uint64_t epoch = router_.model().ranks[0].epoch;
  publisher_.Stop();
  publisher_.Forget();
  publisher_.Keep(0, testing::StoredBatch(900, 2, Tokens(9, 2), 4));
  publisher_.Restart();
  ASSERT_TRUE(AwaitHeld(router_, Chain(9, 2), 0));
  EXPECT_GT(router_.model().ranks[0].epoch, epoch);
}

TEST_F(EngineWorkerTest, Fault01_ARestartWithoutReplayIsANewEpoch) {
  config_.replay.clear();
  Start();
  publisher_.WaitForSubscriber();
  ASSERT_TRUE(router_.Await([](RouterModel& model) { return model.ranks[0].whole; }));
  Store(0, 1, 4);
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
  const std::uint64_t epoch = router_.model().ranks[0].epoch;
  publisher_.Stop();
  EXPECT_TRUE(router_.Await([&](RouterModel& model) { return model.ranks[0].epoch > epoch; }));
  publisher_.Restart();
  publisher_.WaitForSubscriber();
  Store(0, 2, 2);
  ASSERT_TRUE(AwaitHeld(router_, Chain(2, 2), 0));
}

TEST_F(EngineWorkerTest, AnUnreachableEngineIsSaidAndItsCacheStays) {
  Start();
  Store(0, 1, 4);
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
  http_.SetDown(absl::DeadlineExceededError("slow"));
  ASSERT_TRUE(router_.Await([](RouterModel& model) { return !model.ranks[0].reachable; }));
  EXPECT_EQ(router_.model().held(), Chain(1, 4));
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (worker_->View().engine_up && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_FALSE(worker_->View().engine_up);
  http_.SetDown(absl::OkStatus());
  ASSERT_TRUE(router_.Await([](RouterModel& model) { return model.ranks[0].reachable; }));
}

TEST_F(EngineWorkerTest, WaitsForAnEngineThatStartsLater) {
  http_.SetDown(absl::UnavailableError("nobody"));
  publisher_.Stop();
  Start();
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_EQ(router_.streams(), 0);
  http_.SetDown(absl::OkStatus());
  publisher_.Restart();
  Store(0, 1, 4);
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
}

TEST_F(EngineWorkerTest, Fault31_AnEngineWithoutEventsSaysSo) {
  config_.events.clear();
  config_.replay.clear();
  Start();
  http_.SetLoad(1, 0);
  ASSERT_TRUE(router_.Await([](RouterModel& model) { return model.ranks[0].load.has_value(); }));
  EXPECT_FALSE(router_.model().registration.ranks(0).has_events());
  EXPECT_EQ(router_.model().ranks[0].snapshots, 0);
  const std::uint64_t epoch = router_.model().ranks[0].epoch;
  http_.SetStart(2000);  // what was routed to the old process is gone
  EXPECT_TRUE(router_.Await([&](RouterModel& model) { return model.ranks[0].epoch > epoch; }));
}

TEST_F(EngineWorkerTest, AnAgentWithAStateFileGoesOnInItsEpoch) {
  config_.state_file = folder_ / "state";
  Start();
  for (std::uint64_t i = 0; i < 3; ++i) Store(i, static_cast<TokenId>(i + 1), 2);
  const RouterModel::Set all = Union(Union(Chain(1, 2), Chain(2, 2)), Chain(3, 2));
  ASSERT_TRUE(AwaitHeld(router_, all, 2));
  RouterModel before = router_.model();
  worker_.reset();
  // The engine's buffer is short: it has forgotten what the state file holds.
  publisher_.Forget();
  publisher_.Keep(2, testing::StoredBatch(300, 2, Tokens(3, 2), 4));
  publisher_.Keep(3, testing::StoredBatch(400, 2, Tokens(4, 2), 4));
  Start();
  ASSERT_TRUE(AwaitHeld(router_, Union(all, Chain(4, 2)), 3));
  EXPECT_EQ(router_.model().ranks[0].epoch, before.ranks[0].epoch);
  EXPECT_EQ(router_.model().registration.agent_instance(), before.registration.agent_instance());
}

TEST_F(EngineWorkerTest, AnAgentWithoutStateFileStartsFromReplay) {
  Start();
  Store(0, 1, 2);
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 2), 0));
  const std::uint64_t epoch = router_.model().ranks[0].epoch;
  worker_.reset();
  Store(1, 2, 2);
  Start();
  ASSERT_TRUE(AwaitHeld(router_, Union(Chain(1, 2), Chain(2, 2)), 1));
  EXPECT_GT(router_.model().ranks[0].epoch, epoch);
}

TEST_F(EngineWorkerTest, SeveralRoutersEachGetTheWhole) {
  Start({&router_, &other_router_});
  Store(0, 1, 4);
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
  ASSERT_TRUE(AwaitHeld(other_router_, Chain(1, 4), 0));
  router_.Stop();
  Store(1, 2, 2);
  ASSERT_TRUE(AwaitHeld(other_router_, Union(Chain(1, 4), Chain(2, 2)), 1));
  router_.Restart();
  ASSERT_TRUE(AwaitHeld(router_, Union(Chain(1, 4), Chain(2, 2)), 1));
  EXPECT_EQ(other_router_.streams(), 1);
}

TEST_F(EngineWorkerTest, RoutersMustAgreeOnTheRoutingBlock) {
  FakeRouter third;
  third.AddScript([](FakeRouter::Stream& stream) {
    if (!stream.Accept(16)) return grpc::Status::OK;
    return stream.Serve();
  });
  Start({&router_, &third});
  Store(0, 1, 4);
  // Whichever came first rules; the other is told why.
  const absl::Time deadline = absl::Now() + absl::Seconds(15);
  std::string why;
  while (why.find("differs from") == std::string::npos && absl::Now() < deadline) {
    const WorkerView view = worker_->View();
    why = view.routers[0].last_error + view.routers[1].last_error;
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_THAT(why, HasSubstr("set routing_block_size of the pool to the same value"));
}

TEST_F(EngineWorkerTest, Fault11_AnotherRoutingBlockStartsAnew) {
  config_.state_file = folder_ / "state";
  Start();
  Store(0, 1, 4);
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
  worker_.reset();
  // The state file says 8; this router says 16.
  FakeRouter third;
  third.AddScript([](FakeRouter::Stream& stream) {
    if (!stream.Accept(16)) return grpc::Status::OK;
    return stream.Serve();
  });
  Start({&third});
  std::vector<ChainHash> chain;
  AppendChain(DomainSeed(std::nullopt, std::nullopt), 16, Tokens(1, 4), {}, &chain);
  ASSERT_TRUE(AwaitHeld(third, RouterModel::Set(chain.begin(), chain.end()), 0));
  EXPECT_THAT(third.model().breaches, IsEmpty());
  worker_.reset();
}

TEST_F(EngineWorkerTest, Fault11_ABlockSizeThatDoesNotFitIsRefused) {
  http_.SetBlockSize(3);
  Start();
  const absl::Time deadline = absl::Now() + absl::Seconds(15);
  std::string why;
  while (why.empty() && absl::Now() < deadline) {
    why = worker_->View().routers[0].last_error;
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_THAT(why, HasSubstr("3"));
  EXPECT_THAT(why, HasSubstr("8"));
}

TEST_F(EngineWorkerTest, ALoraThatComesIsRegistered) {
  Start();
  Store(0, 1, 4);
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
  http_.SetModels(R"({"data":[{"id":"m"},{"id":"new","parent":"m"}]})");
  http_.SetStart(1000.1);  // the list is read again
  ASSERT_TRUE(router_.Await([](RouterModel& model) {
    return model.registration.loras_size() == 1 && model.registration.loras(0) == "new";
  }));
  ASSERT_TRUE(AwaitHeld(router_, Chain(1, 4), 0));
}

TEST_F(EngineWorkerTest, AStaleEpochIsOvercome) {
  FakeRouter third;
  for (int i = 0; i < 3; ++i) {
    third.AddScript([](FakeRouter::Stream& stream) {
      stream.Read();
      return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "stale epoch");
    });
  }
  third.AddScript([](FakeRouter::Stream& stream) {
    if (!stream.Accept(8)) return grpc::Status::OK;
    return stream.Serve();
  });
  Start({&third});
  Store(0, 1, 4);
  ASSERT_TRUE(AwaitHeld(third, Chain(1, 4), 0));
  EXPECT_THAT(third.model().breaches, IsEmpty());
  worker_.reset();
}

TEST_F(EngineWorkerTest, CreateNamesWhatIsWrong) {
  config_.events = "nonsense";
  EXPECT_THAT(EngineWorker::Create(config_, {}, zmq_, SystemClock(), 1, http_.Getter()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nonsense")));
  config_.events = publisher_.events();
  config_.state_file = "/nonexistent/folder/state";
  EXPECT_THAT(EngineWorker::Create(config_, {}, zmq_, SystemClock(), 1, http_.Getter()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/folder")));
}

}  // namespace
}  // namespace warmpath
