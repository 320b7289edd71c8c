// HTTP over real connections: pages, metrics, JSON picks, and what must not get through.
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/test_router.h"

namespace warmpath::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::unique_ptr<httplib::Client> HttpClient(TestRouter& router) {
  auto client = std::make_unique<httplib::Client>("127.0.0.1", router.app().http_port());
  client->set_read_timeout(10);
  return client;
}

// Sends bytes to a port and returns what comes back until the peer closes (or 2 s pass). httplib
// takes a half-closed connection for a closed one.
std::string Raw(int port, const std::string& bytes, bool half_close) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  timeval timeout{2, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (half_close) shutdown(fd, SHUT_WR);
    char buffer[4096];
    ssize_t n;
    while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
      answer.append(buffer, static_cast<std::size_t>(n));
    }
  }
  close(fd);
  return answer;
}

TEST(HttpWireTest, HealthAndReadiness) {
  TestRouter router;
  const auto http = HttpClient(router);
  EXPECT_EQ(http->Get("/healthz")->status, 200);
  EXPECT_EQ(http->Get("/readyz")->status, 503);
  TestWorker worker(router, {});
  worker.Join();
  EXPECT_TRUE(Eventually([&] { return http->Get("/readyz")->status == 200; }));
  EXPECT_EQ(http->Get("/nope")->status, 404);
  EXPECT_THAT(http->Get("/nope")->body, HasSubstr("NOT_FOUND"));
}

TEST(HttpWireTest, PicksAndOutcomesAreThoseOfGrpc) {
  TestRouter router;
  const auto http = HttpClient(router);
  constexpr char kType[] = "application/json";
  auto unknown = http->Post("/v1/pick", R"({"model":"m","tokens":[1]})", kType);
  EXPECT_EQ(unknown->status, 404);
  EXPECT_THAT(unknown->body, HasSubstr(R"("code":"NOT_FOUND")"));

  TestWorker worker(router, {});
  worker.Join();
  auto pick = http->Post("/v1/pick", R"({"model":"m","tokens":[1,2,3],"request_id":"r1"})", kType);
  ASSERT_EQ(pick->status, 200) << pick->body;
  EXPECT_THAT(pick->body,
              AllOf(HasSubstr(R"("address":"10.0.0.1:8000")"), HasSubstr(R"("request_id":"r1")"),
                    HasSubstr(R"("prompt_tokens":3)")));
  const std::size_t at = pick->body.find("\"reservation_id\":\"") + 18;
  const std::string id = pick->body.substr(at, pick->body.find('"', at) - at);
  EXPECT_EQ(router.PoolStats("m").open_reservations(), 1u);
  const std::string outcome = absl::StrCat(R"({"reservation_id":")", id, R"(","kind":"FINISHED"})");
  EXPECT_EQ(http->Post("/v1/outcome", outcome, kType)->status, 200);
  EXPECT_EQ(router.PoolStats("m").open_reservations(), 0u);
  EXPECT_EQ(http->Post("/v1/outcome", outcome, kType)->status, 404) << "closed before";

  EXPECT_EQ(http->Post("/v1/pick", "{", kType)->status, 400);
  auto policy = http->Post("/v1/pick", R"({"model":"m","policy":"x"})", kType);
  EXPECT_EQ(policy->status, 400);
  // Overload: the wait of a large prompt ahead.
  ASSERT_TRUE(router.Pick(TokenPick(0, 60'000), std::make_unique<v1::PickResponse>().get()).ok());
  auto shed = http->Post("/v1/pick", R"({"model":"m","tokens":[9],"max_wait_ms":1})", kType);
  EXPECT_EQ(shed->status, 429) << shed->body;
  EXPECT_GE(std::stoi(shed->get_header_value("Retry-After")), 1);
}

TEST(HttpWireTest, OversizedAndCompressedBodiesAreRefusedAndTheConnectionCloses) {
  RouterConfig config;
  config.server.max_message_bytes = 64 << 10;
  TestRouter router(std::move(config));
  const int port = router.app().http_port();
  const std::string large(100'000, ' ');
  EXPECT_THAT(Raw(port,
                  absl::StrCat("POST /v1/pick HTTP/1.1\r\nHost: x\r\nContent-Length: ",
                               large.size(), "\r\n\r\n", large),
                  /*half_close=*/false),
              HasSubstr("413"));
  std::string chunked = "POST /v1/pick HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 30; ++i) {
    absl::StrAppend(&chunked, "1000\r\n", std::string(4096, ' '), "\r\n");
  }
  absl::StrAppend(&chunked, "0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
  const std::string answer = Raw(port, chunked, /*half_close=*/false);
  EXPECT_THAT(answer, AllOf(HasSubstr("413"), Not(HasSubstr("200 OK"))))
      << "what is left of the body must not be read as a request";
  EXPECT_THAT(Raw(port,
                  "POST /v1/pick HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
                  "Content-Length: 3\r\n\r\nabcGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
                  /*half_close=*/false),
              AllOf(HasSubstr("415"), Not(HasSubstr("200 OK"))));
  EXPECT_EQ(HttpClient(router)->Get("/healthz")->status, 200);
}

// --- Metrics

std::string Metrics(TestRouter& router) { return HttpClient(router)->Get("/metrics")->body; }

TEST(MetricsWireTest, PromtoolAcceptsThePage) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join({1, 2});
  v1::PickResponse response;
  ASSERT_TRUE(router.Pick(TokenPick(0, 100), &response).ok());
  router.FinishRequest(response.reservation_id());
  v1::WorkerUpdate state;
  state.mutable_rank_state()->set_engine_reachable(true);
  (*state.mutable_rank_state()->mutable_events())["block_stored"] = 3;
  (*state.mutable_rank_state()->mutable_skipped())["unknown_parent"] = 2;
  worker.Send(std::move(state));
  ASSERT_TRUE(Eventually([&] { return absl::StrContains(Metrics(router), "unknown_parent"); }));
  const std::string page = Metrics(router);
  for (const char* name : {"warmpath_picks_total{",
                           "warmpath_pick_seconds_bucket{",
                           "warmpath_picks_shed_total{",
                           "warmpath_prompt_tokens_total{",
                           "warmpath_matched_tokens_total{",
                           "warmpath_predicted_cached_tokens_total{",
                           "warmpath_actual_cached_tokens_total{",
                           "warmpath_reservations_open{",
                           "warmpath_reservations_closed_total{",
                           "warmpath_worker_freshness{",
                           "warmpath_worker_event_lag_seconds{",
                           "warmpath_worker_blocks{",
                           "warmpath_worker_inflight{",
                           "warmpath_worker_wait_seconds{",
                           "warmpath_pool_saturation{",
                           "warmpath_index_bytes{",
                           "warmpath_index_bound_bytes{",
                           "warmpath_index_sets{",
                           "warmpath_index_audit_failures_total{",
                           "warmpath_events_total{kind=\"block_stored\"} 3",
                           "warmpath_events_skipped_total{cause=\"unknown_parent\"} 2"}) {
    EXPECT_THAT(page, HasSubstr(name));
  }
  const std::string fetched = std::string(WARMPATH_SOURCE_DIR) + "/.venv/bin/promtool";
  std::string promtool = access(fetched.c_str(), X_OK) == 0 ? fetched : "promtool";
  if (std::system(("command -v " + promtool + " >/dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << "no promtool: scripts/setup fetches it";
  }
  const std::string path = ::testing::TempDir() + "/warmpath_metrics.txt";
  std::ofstream(path) << page;
  EXPECT_EQ(std::system((promtool + " check metrics < " + path).c_str()), 0);
  std::remove(path.c_str());
}

TEST(MetricsWireTest, RequestsAroundTheRouterAreInFlightToo) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join();
  v1::PickResponse response;
  ASSERT_TRUE(router.Pick(TokenPick(0, 100), &response).ok());
  v1::WorkerUpdate load;
  load.mutable_load()->set_running(5);
  worker.Send(std::move(load));
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(Metrics(router),
                             "warmpath_worker_inflight{pool=\"m\",worker=\"w0\",rank=\"0\"} 5");
  })) << Metrics(router);
}

TEST(MetricsWireTest, SeriesOfWorkersAreBounded) {
  RouterConfig config;
  config.metrics.max_workers = 3;
  TestRouter router(std::move(config));
  std::vector<std::unique_ptr<TestWorker>> workers;
  for (int i = 0; i < 5; ++i) {
    workers.push_back(
        std::make_unique<TestWorker>(router, TestWorker::Options{.id = "w" + std::to_string(i)}));
    workers.back()->Join();
  }
  const std::string page = Metrics(router);
  EXPECT_THAT(page, AllOf(HasSubstr("worker=\"w2\""), Not(HasSubstr("worker=\"w3\"")),
                          HasSubstr("warmpath_workers_without_series 2"),
                          HasSubstr("warmpath_workers{pool=\"m\",lifecycle=\"ready\"} 5")));
}

TEST(MetricsWireTest, SeriesEndWithTheLease) {
  RouterConfig config;
  config.fleet.worker_lease = absl::Milliseconds(200);
  TestRouter router(std::move(config));
  {
    TestWorker worker(router, {});
    worker.Join();
    EXPECT_THAT(Metrics(router), HasSubstr("worker=\"w0\""));
  }
  EXPECT_TRUE(Eventually([&] { return !absl::StrContains(Metrics(router), "worker=\"w0\""); }));
}

TEST(MetricsWireTest, Fault31_AWorkerWithoutEventsIsVisibleEverywhere) {
  TestRouter router;
  TestWorker worker(router, {.has_events = false});
  worker.Join();
  EXPECT_THAT(Metrics(router),
              HasSubstr("warmpath_worker_freshness{pool=\"m\",worker=\"w0\",rank=\"0\","
                        "cause=\"no_events\"} 0"));
  EXPECT_THAT(
      HttpClient(router)->Get("/")->body,
      AllOf(HasSubstr("NONE"), HasSubstr("sends no cache events"), HasSubstr("enable KV events")));
  EXPECT_FALSE(router.TargetOf("w0").has_events());
  v1::PickRequest request = TokenPick(0, 100);
  request.set_explain(true);
  v1::PickResponse response;
  ASSERT_TRUE(router.Pick(request, &response).ok());
  EXPECT_EQ(response.freshness(), v1::FRESHNESS_NONE);
  EXPECT_EQ(response.candidates_none(), 1u);
  EXPECT_EQ(response.explanation().candidates(0).freshness(), v1::FRESHNESS_NONE);
  EXPECT_THAT(Metrics(router), HasSubstr("freshness=\"NONE\"} 1"));
}

TEST(MetricsWireTest, Fault32_PredictedAndActualHitsAreBothMeasured) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join(ChainOf(0, 640, 64));
  v1::PickResponse response;
  ASSERT_TRUE(router.Pick(TokenPick(0, 1000), &response).ok());
  v1::OutcomeRequest outcome;
  outcome.set_reservation_id(response.reservation_id());
  outcome.set_kind(v1::OUTCOME_KIND_FINISHED);
  outcome.set_actual_cached_tokens(624);
  ASSERT_TRUE(router.Report(outcome).ok());
  EXPECT_THAT(Metrics(router),
              AllOf(HasSubstr("warmpath_prompt_tokens_total{pool=\"m\"} 1000\n"),
                    HasSubstr("warmpath_matched_tokens_total{pool=\"m\"} 640\n"),
                    HasSubstr("warmpath_predicted_cached_tokens_total{pool=\"m\"} 640\n"),
                    HasSubstr("warmpath_actual_cached_tokens_total{pool=\"m\"} 624\n"),
                    HasSubstr("warmpath_reservations_closed_total{pool=\"m\",cause=\"finished\"} "
                              "1\n")));
}

TEST(StatusPageWireTest, ShowsCausesWithRemediesAndEscapesWhatWorkersSent) {
  TestRouter router;
  TestWorker worker(router, {.address = "10.0.0.1:<script>"});
  v1::RouterUpdate update;
  if (worker.Read(&update)) {  // the fleet may refuse such an address: as good
    EXPECT_THAT(HttpClient(router)->Get("/")->body, Not(HasSubstr("<script>")));
  }
  TestWorker gap(router, {.id = "gap"});
  gap.Join({1});
  v1::WorkerUpdate state;
  state.mutable_rank_state()->set_engine_reachable(true);
  state.mutable_rank_state()->add_causes(v1::FRESHNESS_CAUSE_GAP);
  gap.Send(std::move(state));
  EXPECT_TRUE(Eventually([&] {
    const std::string page = HttpClient(router)->Get("/")->body;
    return absl::StrContains(page, "DEGRADED") && absl::StrContains(page, "gap: ");
  }));
  EXPECT_THAT(HttpClient(router)->Get("/")->body,
              AllOf(Not(HasSubstr("http://")), Not(HasSubstr("https://"))))
      << "the page must need no network";
}

// --- Bad input on every port

TEST(BadInputWireTest, RandomBytesOnBothPortsDoNoHarm) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join();
  Random random(7);
  for (int round = 0; round < 20; ++round) {
    std::string bytes;
    if (round % 2 == 0) bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (int i = 0; i < 3000; ++i) bytes.push_back(static_cast<char>(random()));
    Raw(router.app().grpc_port(), bytes, /*half_close=*/true);
    Raw(router.app().http_port(), (round % 2 == 0 ? "POST /v1/pick HTTP/1.1\r\n" : "") + bytes,
        /*half_close=*/true);
  }
  v1::PickResponse response;
  EXPECT_TRUE(router.Pick(TokenPick(0, 10), &response).ok());
  EXPECT_EQ(HttpClient(router)->Get("/healthz")->status, 200);
}

TEST(BadInputWireTest, OversizedMessagesAreRefusedAndTheServerGoesOn) {
  RouterConfig config;
  config.server.max_message_bytes = 64 << 10;
  TestRouter router(std::move(config));
  TestWorker worker(router, {});
  worker.Join();
  v1::PickResponse response;
  EXPECT_EQ(router.Pick(TokenPick(1 << 20, 50'000), &response).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);

  grpc::ClientContext context;
  auto stream = router.router().PickStream(&context);
  v1::PickStreamRequest message;
  *message.mutable_pick() = TokenPick(0, 10);
  v1::PickStreamResponse answer;
  ASSERT_TRUE(stream->Write(message) && stream->Read(&answer));
  *message.mutable_pick() = TokenPick(1 << 20, 50'000);
  stream->Write(message);
  EXPECT_FALSE(stream->Read(&answer));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Eventually([&] { return router.PoolStats("m").open_reservations() == 0; }))
      << "what the ended stream held is released";
  EXPECT_TRUE(router.Pick(TokenPick(0, 10), &response).ok());
}

// Random bytes and cut messages as the payload of every method.
TEST(BadInputWireTest, UndecodableMessagesAreRefused) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join();
  const auto channel = router.NewChannel();
  std::string valid = TokenPick(0, 100).SerializeAsString();
  Random random(9);
  for (int round = 0; round < 60; ++round) {
    std::string bytes = valid.substr(0, random.Below(valid.size()));
    if (round % 3 == 0) {
      for (char& c : bytes) c = static_cast<char>(random());
    }
    for (const char* method :
         {"/warmpath.v1.Router/PickEndpoint", "/warmpath.v1.Router/ReportOutcome",
          "/warmpath.v1.Router/PickStream", "/warmpath.v1.WorkerEvents/Publish",
          "/warmpath.v1.Admin/ListWorkers", "/warmpath.v1.Admin/DumpIndex"}) {
      grpc::ClientContext context;
      SetDeadline(context);
      grpc::Slice slice(bytes);
      const grpc::ByteBuffer request(&slice, 1);
      const grpc::internal::RpcMethod rpc(method, grpc::internal::RpcMethod::BIDI_STREAMING);
      std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
          grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
              channel.get(), rpc, &context));
      stream->Write(request);
      stream->WritesDone();
      grpc::ByteBuffer response;
      while (stream->Read(&response)) {
      }
      const grpc::Status status = stream->Finish();
      EXPECT_NE(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << method;
    }
  }
  v1::PickResponse response;
  EXPECT_TRUE(router.Pick(TokenPick(0, 10), &response).ok());
}

}  // namespace
}  // namespace warmpath::testing
