// Worker streams, operators, health and shutdown over real connections.
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/grpc_server.h"
#include "server/http/http_server.h"
#include "tests/server/test_router.h"

namespace warmpath::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

MATCHER_P2(IsStatus, code, message, "") {
  *result_listener << arg.error_code() << " " << arg.error_message();
  return arg.error_code() == code &&
         ::testing::ExplainMatchResult(message, arg.error_message(), result_listener);
}

grpc::Status Refusal(TestWorker& worker) {
  v1::RouterUpdate update;
  EXPECT_FALSE(worker.Read(&update)) << update.ShortDebugString();
  return worker.Finish();
}

TEST(WorkerWireTest, WhatTheAgentSaysOfHolesIsShown) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join();
  // An agent that knows nothing of holes.
  EXPECT_TRUE(router.TargetOf("w0").may_have_holes());
  EXPECT_EQ(router.PoolStats("m").slots_with_holes(), 1u);
  v1::WorkerUpdate update;
  update.mutable_delta()->set_delta_seq(worker.NextSeq());
  update.mutable_delta()->add_stored(7);
  update.mutable_delta()->set_no_holes(true);
  ASSERT_TRUE(worker.Send(std::move(update)));
  EXPECT_TRUE(Eventually([&] { return !router.TargetOf("w0").may_have_holes(); }));
  EXPECT_EQ(router.PoolStats("m").slots_with_holes(), 0u);
  worker.SendDelta({8});
  EXPECT_TRUE(Eventually([&] { return router.TargetOf("w0").may_have_holes(); }));
}

TEST(WorkerWireTest, DeltasChangeWhatPicksKnow) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join();
  const std::vector<std::uint64_t> chain = ChainOf(0, 640, 64);
  const auto predicted = [&] {
    v1::PickResponse explained;
    EXPECT_TRUE(router.Explain(TokenPick(0, 700), &explained).ok());
    return explained.predicted_cached_tokens();
  };
  EXPECT_EQ(predicted(), 0u);
  worker.SendDelta(chain);
  EXPECT_TRUE(Eventually([&] { return predicted() == 640; }));
  worker.SendDelta({}, {chain[5]});
  EXPECT_TRUE(Eventually([&] { return predicted() == 320; }));
  // Cumulative acks come on their own.
  v1::RouterUpdate update;
  std::uint64_t acked = 0;
  while (acked < worker.last_seq() && worker.Read(&update)) {
    if (update.has_ack()) acked = update.ack().delta_seq();
  }
  v1::WorkerUpdate cleared;
  cleared.mutable_cleared()->set_delta_seq(worker.NextSeq());
  cleared.mutable_cleared()->set_tier(v1::TIER_GPU);
  ASSERT_TRUE(worker.Send(std::move(cleared)));
  EXPECT_TRUE(Eventually([&] { return predicted() == 0; }));
}

TEST(WorkerWireTest, RefusalsCarryTheStatusAndTheRemedy) {
  TestRouter router;
  TestWorker first(router, {.epoch = 10});
  first.Join();

  TestWorker duplicate(router, {.epoch = 10, .agent_instance = std::string(16, 'b')});
  EXPECT_THAT(Refusal(duplicate),
              IsStatus(grpc::StatusCode::ALREADY_EXISTS, HasSubstr("127.0.0.1")));
  TestWorker stale(router, {.epoch = 9});
  EXPECT_THAT(Refusal(stale),
              IsStatus(grpc::StatusCode::FAILED_PRECONDITION, HasSubstr("stale epoch")));
  TestWorker block(router, {.id = "w1", .block_size = 48});
  EXPECT_THAT(Refusal(block),
              IsStatus(grpc::StatusCode::FAILED_PRECONDITION,
                       AllOf(HasSubstr("48"), HasSubstr("64"), HasSubstr("routing_block_size"))));
  TestWorker name(router, {.id = "w 1"});
  EXPECT_THAT(Refusal(name), IsStatus(grpc::StatusCode::INVALID_ARGUMENT, HasSubstr("worker_id")));
  // The first one never noticed.
  first.SendDelta({1, 2, 3});
  EXPECT_TRUE(Eventually([&] { return router.PoolStats("m").blocks() == 3; }));
}

TEST(WorkerWireTest, TheSameAgentTakesOver) {
  TestRouter router;
  TestWorker first(router, {});
  first.Join({1, 2});
  TestWorker second(router, {});
  second.Join({3});
  EXPECT_THAT(first.Finish(), IsStatus(grpc::StatusCode::ABORTED, HasSubstr("superseded by")));
  // The old state serves, as READY, until the new snapshot is whole.
  EXPECT_TRUE(Eventually([&] { return router.TargetOf("w0").blocks(0).blocks() == 1; }));
}

TEST(WorkerWireTest, ALostAgentIsShownWithItsRemedyAndComesBack) {
  TestRouter router;
  {
    TestWorker worker(router, {});
    worker.Join({1});
    worker.Vanish();
    EXPECT_TRUE(Eventually([&] {
      const v1::TargetInfo target = router.TargetOf("w0");
      return target.causes_size() == 1 &&
             target.causes(0).cause() == v1::FRESHNESS_CAUSE_AGENT_GONE &&
             !target.causes(0).remedy().empty();
    }));
    v1::PickResponse response;
    ASSERT_TRUE(router.Pick(TokenPick(0, 10), &response).ok()) << "still a candidate";
    EXPECT_EQ(response.freshness(), v1::FRESHNESS_DEGRADED);
    EXPECT_EQ(response.freshness_cause(), v1::FRESHNESS_CAUSE_AGENT_GONE);
  }
  TestWorker again(router, {});
  again.Join({1});
  EXPECT_TRUE(Eventually([&] { return router.TargetOf("w0").freshness() == v1::FRESHNESS_EXACT; }));
}

TEST(AdminWireTest, DrainListDumpStatsConfig) {
  TestRouter router;
  TestWorker worker(router, {});
  std::vector<std::uint64_t> hashes(10'000);
  for (std::size_t i = 0; i < hashes.size(); ++i) hashes[i] = i * 7 + 1;
  worker.Join(hashes);

  grpc::ClientContext dump_context;
  v1::DumpIndexRequest dump;
  dump.mutable_target()->set_worker_id("w0");
  dump.set_tier(v1::TIER_GPU);
  auto stream = router.admin().DumpIndex(&dump_context, dump);
  v1::DumpIndexResponse chunk;
  std::vector<std::uint64_t> dumped;
  int chunks = 0;
  while (stream->Read(&chunk)) {
    if (chunks++ == 0) {
      EXPECT_EQ(chunk.freshness(), v1::FRESHNESS_EXACT);
      EXPECT_EQ(chunk.routing_block_size(), 64u);
      EXPECT_TRUE(chunk.engine_seq_valid());
      EXPECT_EQ(chunk.engine_seq(), 1u);
      EXPECT_EQ(chunk.epoch(), 1u);
    }
    EXPECT_LE(chunk.hashes_size(), 4096);
    dumped.insert(dumped.end(), chunk.hashes().begin(), chunk.hashes().end());
  }
  ASSERT_TRUE(stream->Finish().ok());
  EXPECT_EQ(chunks, 3);
  std::sort(dumped.begin(), dumped.end());
  EXPECT_EQ(dumped, hashes);
  EXPECT_EQ(router.PoolStats("m").pairs(), 10'000u);

  dump.mutable_target()->set_worker_id("nobody");
  grpc::ClientContext unknown_context;
  auto unknown = router.admin().DumpIndex(&unknown_context, dump);
  EXPECT_FALSE(unknown->Read(&chunk));
  EXPECT_THAT(unknown->Finish(), IsStatus(grpc::StatusCode::NOT_FOUND, HasSubstr("nobody")));

  v1::DrainWorkerRequest drain;
  drain.set_worker_id("w0");
  v1::DrainWorkerResponse drained;
  grpc::ClientContext drain_context;
  ASSERT_TRUE(router.admin().DrainWorker(&drain_context, drain, &drained).ok());
  v1::PickResponse response;
  EXPECT_THAT(router.Pick(TokenPick(0, 10), &response),
              IsStatus(grpc::StatusCode::UNAVAILABLE, HasSubstr("no ready worker")));
  EXPECT_EQ(router.TargetOf("w0").lifecycle(), v1::LIFECYCLE_DRAINING);
  v1::RouterUpdate update;
  while (worker.Read(&update) && !update.has_drain()) {
  }
  EXPECT_TRUE(update.drain().on());
  drain.set_undo(true);
  grpc::ClientContext undo_context;
  ASSERT_TRUE(router.admin().DrainWorker(&undo_context, drain, &drained).ok());
  EXPECT_TRUE(router.Pick(TokenPick(0, 10), &response).ok());

  grpc::ClientContext config_context;
  v1::GetConfigResponse config;
  ASSERT_TRUE(router.admin().GetConfig(&config_context, {}, &config).ok());
  EXPECT_THAT(config.yaml(), HasSubstr("grpc_address: \"127.0.0.1:0\""));
  EXPECT_THAT(config.policies(), ::testing::Contains("marginal_cost"));
  EXPECT_FALSE(config.version().empty());
}

class Health {
 public:
  explicit Health(TestRouter& router) : router_(router) {}
  // -1: not a known name.
  int Of(const std::string& name) {
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(name);
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = router_.health().Check(&context, request, &response);
    if (status.error_code() == grpc::StatusCode::NOT_FOUND) return -1;
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.status();
  }

 private:
  TestRouter& router_;
};

TEST(HealthWireTest, NamesAndLifecycle) {
  constexpr int kServing = 1;
  constexpr int kNotServing = 2;
  const std::vector<std::string> readiness = {"", "readiness", "inference-extension",
                                              "envoy.service.ext_proc.v3.ExternalProcessor"};
  TestRouter router;
  Health health(router);
  EXPECT_EQ(health.Of("unknown"), -1);
  EXPECT_EQ(health.Of("liveness"), kServing);
  for (const std::string& name : readiness) EXPECT_EQ(health.Of(name), kNotServing) << name;
  TestWorker worker(router, {});
  worker.Join();
  for (const std::string& name : readiness) {
    EXPECT_TRUE(Eventually([&] { return health.Of(name) == kServing; })) << name;
  }
  std::thread drain([&] { router.app().Drain(absl::Milliseconds(500), absl::Seconds(5)); });
  EXPECT_TRUE(Eventually([&] { return health.Of("") == kNotServing; }));
  EXPECT_EQ(health.Of("liveness"), kServing) << "a draining router is alive";
  v1::PickResponse response;
  EXPECT_TRUE(router.Pick(TokenPick(0, 10), &response).ok()) << "and still answers";
  drain.join();
}

TEST(ShutdownWireTest, OpenStreamsEndWithUnavailableAndAWatchDoesNotBlock) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join();
  grpc::ClientContext watch_context;
  auto watch = router.health().Watch(&watch_context, {});
  grpc::health::v1::HealthCheckResponse seen;
  ASSERT_TRUE(watch->Read(&seen));
  grpc::ClientContext pick_context;
  auto picks = router.router().PickStream(&pick_context);
  v1::PickStreamRequest message;
  *message.mutable_pick() = TokenPick(0, 10);
  v1::PickStreamResponse answer;
  ASSERT_TRUE(picks->Write(message) && picks->Read(&answer));

  const absl::Time start = SystemClock().Now();
  router.app().Drain(absl::ZeroDuration(), absl::Milliseconds(300));
  EXPECT_LT(SystemClock().Now() - start, absl::Seconds(5));
  EXPECT_FALSE(picks->Read(&answer));
  EXPECT_THAT(picks->Finish(), IsStatus(grpc::StatusCode::UNAVAILABLE, HasSubstr("shuts down")));
  EXPECT_THAT(worker.Finish(), IsStatus(grpc::StatusCode::UNAVAILABLE, HasSubstr("shuts down")));
  while (watch->Read(&seen)) {
  }
  EXPECT_FALSE(watch->Finish().ok());
  router.app().Drain(absl::ZeroDuration(), absl::ZeroDuration());  // a second one is harmless
}

TEST(ListenWireTest, APortHasOneOwner) {
  TestRouter router;
  const std::string grpc_address = "127.0.0.1:" + std::to_string(router.app().grpc_port());
  const auto grpc_server = GrpcServer::Start({.address = grpc_address}, {});
  ASSERT_FALSE(grpc_server.ok());
  EXPECT_THAT(std::string(grpc_server.status().message()),
              AllOf(HasSubstr(grpc_address), HasSubstr("server.grpc_address")));
  const std::string http_address = "127.0.0.1:" + std::to_string(router.app().http_port());
  const auto http_server = HttpServer::Start({.address = http_address}, {});
  ASSERT_FALSE(http_server.ok());
  EXPECT_THAT(std::string(http_server.status().message()),
              AllOf(HasSubstr(http_address), HasSubstr("server.http_address")));
}

// gRPC's reflection protocol is not packaged: its one request here is field 7 ("list_services"),
// and the names stand in the answer as they are.
TEST(ListenWireTest, ReflectionListsTheServices) {
  TestRouter router;
  grpc::GenericStub stub(router.NewChannel());
  grpc::ClientContext context;
  SetDeadline(context);
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return ok;
  };
  call->StartCall(nullptr);
  ASSERT_TRUE(wait());
  grpc::Slice bytes(std::string("\x3a\x00", 2));
  grpc::ByteBuffer request(&bytes, 1);
  call->Write(request, nullptr);
  ASSERT_TRUE(wait());
  grpc::ByteBuffer response;
  call->Read(&response, nullptr);
  ASSERT_TRUE(wait());
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(response.Dump(&slices).ok());
  std::string text;
  for (const grpc::Slice& slice : slices) {
    text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  EXPECT_THAT(text, AllOf(HasSubstr("warmpath.v1.Router"), HasSubstr("warmpath.v1.WorkerEvents"),
                          HasSubstr("warmpath.v1.Admin"), HasSubstr("grpc.health.v1.Health")));
  call->WritesDone(nullptr);
  wait();
  grpc::Status status;
  call->Finish(&status, nullptr);
  wait();
  queue.Shutdown();
}

TEST(AdminWireTest, ListsOfAnUnknownPoolNameTheKnownOnes) {
  RouterConfig config;
  for (int i = 10; i < 22; ++i) {
    config.fleet.pools.push_back(config.fleet.defaults);
    config.fleet.pools.back().name = absl::StrCat("pool-", i);
  }
  TestRouter router(config);
  const auto message =
      AllOf(HasSubstr("pool: 'nobody'"), HasSubstr("pool-10, "), HasSubstr("pool-19 and 2 more"));
  v1::ListWorkersRequest workers;
  v1::ListWorkersResponse listed;
  v1::IndexStatsRequest stats;
  v1::IndexStatsResponse counted;
  for (const char* pool : {"", "pool-21"}) {
    grpc::ClientContext first;
    grpc::ClientContext second;
    workers.set_pool(pool);
    stats.set_pool(pool);
    EXPECT_TRUE(router.admin().ListWorkers(&first, workers, &listed).ok()) << pool;
    EXPECT_TRUE(router.admin().IndexStats(&second, stats, &counted).ok()) << pool;
  }
  workers.set_pool("nobody");
  stats.set_pool("nobody");
  grpc::ClientContext first;
  grpc::ClientContext second;
  EXPECT_THAT(router.admin().ListWorkers(&first, workers, &listed),
              IsStatus(grpc::StatusCode::NOT_FOUND, message));
  EXPECT_THAT(router.admin().IndexStats(&second, stats, &counted),
              IsStatus(grpc::StatusCode::NOT_FOUND, message));
}

}  // namespace
}  // namespace warmpath::testing
