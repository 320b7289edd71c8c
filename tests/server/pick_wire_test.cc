// Picks and outcomes over real connections: what callers send and get.
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/status_convert.h"
#include "tests/server/test_router.h"
#include "tests/testing/fake_clock.h"

namespace warmpath::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

MATCHER_P2(IsStatus, code, message, "") {
  *result_listener << arg.error_code() << " " << arg.error_message();
  return arg.error_code() == code &&
         ::testing::ExplainMatchResult(message, arg.error_message(), result_listener);
}

constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;

// A worker whose engine has moved most of a prompt to host memory: its events say so, and the pick
// charges the copy.
TEST(PickWireTest, BlocksInHostMemoryCountAtTheTimeOfTheirCopy) {
  TestRouter router;
  TestWorker cold(router, {.id = "cold", .address = "10.0.0.1:1"});
  cold.Join();
  TestWorker warm(router,
                  {.id = "warm", .address = "10.0.0.2:1", .host_copy_tokens_per_s = 100'000});
  const std::vector<std::uint64_t> chain = ChainOf(1000, 6'400, 64);
  warm.Join(chain);
  const std::vector<std::uint64_t> tail(chain.begin() + 20, chain.end());
  warm.SendDelta(tail, {}, v1::TIER_HOST);
  warm.SendDelta({}, tail);
  v1::PickResponse response;
  ASSERT_TRUE(Eventually([&] {
    response.Clear();
    return router.Explain(TokenPick(1000, 6'500), &response).ok() &&
           response.explanation().candidates(0).copied_tokens() > 0;
  }));
  EXPECT_EQ(response.endpoint().target().worker_id(), "warm");
  EXPECT_EQ(response.predicted_cached_tokens(), 6'400u);
  EXPECT_EQ(response.freshness(), v1::FRESHNESS_EXACT);
  const v1::CandidateTerms& terms = response.explanation().candidates(0);
  EXPECT_EQ(terms.cached_tokens(), 6'400u);
  EXPECT_EQ(terms.uncached_tokens(), 100u);
  EXPECT_EQ(terms.copied_tokens(), 80u * 64);
  EXPECT_NEAR(terms.copy_ms(), 80 * 64 / 80.0, 1e-9);  // four fifths of the registered rate
  EXPECT_NEAR(response.predicted_ttft_ms(), terms.copy_ms() + terms.prefill_ms(), 1e-9);
  EXPECT_NEAR(terms.cost_ms(), terms.copy_ms() + terms.prefill_ms(), 1e-9);
  // Gone from host memory, too: what the GPU has is left.
  warm.SendDelta({}, tail, v1::TIER_HOST);
  ASSERT_TRUE(Eventually([&] {
    response.Clear();
    return router.Explain(TokenPick(1000, 6'500), &response).ok() &&
           response.predicted_cached_tokens() == 20u * 64;
  }));
  EXPECT_EQ(response.explanation().candidates(0).copy_ms(), 0);
}

TEST(PickWireTest, TokensFindTheWorkerThatHoldsTheirPrefix) {
  TestRouter router;
  TestWorker cold(router, {.id = "cold", .address = "10.0.0.1:1"});
  cold.Join();
  TestWorker warm(router, {.id = "warm", .address = "10.0.0.2:1"});
  warm.Join(ChainOf(1000, 640, 64));
  EXPECT_EQ(warm.registered().routing_block_size(), 64u);

  v1::PickRequest request = TokenPick(1000, 700);
  request.set_explain(true);
  v1::PickResponse response;
  const grpc::Status status = router.Pick(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.endpoint().target().worker_id(), "warm");
  EXPECT_EQ(response.endpoint().address(), "10.0.0.2:1");
  EXPECT_EQ(response.predicted_cached_tokens(), 640u);
  EXPECT_EQ(response.prompt_tokens(), 700u);
  EXPECT_EQ(response.freshness(), v1::FRESHNESS_EXACT);
  EXPECT_EQ(response.candidates_exact(), 2u);
  EXPECT_EQ(response.policy(), "marginal_cost");
  EXPECT_EQ(response.pool(), "m");
  EXPECT_NE(response.reservation_id(), 0u);
  EXPECT_FALSE(response.request_id().empty());
  EXPECT_EQ(response.explanation().candidates_size(), 2);
  router.FinishRequest(response.reservation_id());

  // The same prompt as chain hashes, as JSON of an OpenAI body, and as Explain.
  v1::PickRequest chain;
  chain.set_model("m");
  for (const std::uint64_t hash : ChainOf(1000, 700, 64)) chain.mutable_chain()->add_hashes(hash);
  chain.mutable_chain()->set_block_size(64);
  chain.mutable_chain()->set_prompt_tokens(700);
  v1::PickResponse by_chain;
  ASSERT_TRUE(router.Pick(chain, &by_chain).ok());
  EXPECT_EQ(by_chain.predicted_cached_tokens(), 640u);

  v1::PickRequest body;
  body.mutable_openai()->set_path("/v1/completions");
  std::string json = R"({"model":"m","prompt":[)";
  for (int i = 0; i < 700; ++i) absl::StrAppend(&json, i > 0 ? "," : "", 1000 + i);
  body.mutable_openai()->set_json(json + "]}");
  v1::PickResponse by_body;
  const grpc::Status body_status = router.Pick(body, &by_body);
  ASSERT_TRUE(body_status.ok()) << body_status.error_message();
  EXPECT_EQ(by_body.predicted_cached_tokens(), 640u);
  EXPECT_EQ(by_body.prompt_tokens(), 700u);

  const std::uint64_t open = router.PoolStats("m").open_reservations();
  EXPECT_EQ(open, 2u);
  v1::PickResponse explained;
  ASSERT_TRUE(router.Explain(TokenPick(1000, 700), &explained).ok());
  EXPECT_EQ(explained.explanation().candidates_size(), 2);
  EXPECT_EQ(explained.reservation_id(), 0u);
  EXPECT_EQ(router.PoolStats("m").open_reservations(), open) << "Explain reserves nothing";
}

TEST(PickWireTest, SaltAndLoraAreOtherPrefixes) {
  TestRouter router;
  TestWorker worker(router, {.loras = {"adapter"}});
  worker.Join(ChainOf(0, 640, 64));
  v1::PickResponse response;
  ASSERT_TRUE(router.Pick(TokenPick(0, 700), &response).ok());
  EXPECT_EQ(response.predicted_cached_tokens(), 640u);
  v1::PickRequest salted = TokenPick(0, 700);
  salted.set_cache_salt("s");
  v1::PickResponse by_salt;
  ASSERT_TRUE(router.Pick(salted, &by_salt).ok());
  EXPECT_EQ(by_salt.predicted_cached_tokens(), 0u);
  v1::PickRequest adapter = TokenPick(0, 700);
  adapter.set_model("adapter");
  v1::PickResponse by_lora;
  const grpc::Status status = router.Pick(adapter, &by_lora);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(by_lora.pool(), "m");
  EXPECT_EQ(by_lora.predicted_cached_tokens(), 0u);
  adapter.set_lora("another");
  EXPECT_THAT(router.Pick(adapter, &by_lora), IsStatus(kInvalid, HasSubstr("lora")));
}

TEST(PickWireTest, OnlyAWorkerThatRegisteredTheAdapterServesIt) {
  TestRouter router;
  TestWorker with(router, {.id = "with", .loras = {"adapter"}});
  TestWorker without(router, {.id = "without", .address = "10.0.0.2:8000"});
  with.Join({});
  without.Join({});
  v1::PickRequest request = TokenPick(0, 700);
  request.set_lora("adapter");
  for (int i = 0; i < 4; ++i) {
    v1::PickResponse response;
    ASSERT_TRUE(router.Pick(request, &response).ok());
    EXPECT_EQ(response.endpoint().target().worker_id(), "with");
  }
  request.set_lora("nobody-has-it");
  v1::PickResponse response;
  EXPECT_THAT(router.Pick(request, &response),
              IsStatus(grpc::StatusCode::UNAVAILABLE, HasSubstr("nobody-has-it")));
}

TEST(PickWireTest, TextIsRoutedByPredictionAndSaysSo) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join();
  v1::PickRequest request;
  request.set_model("m");
  request.set_text(std::string(1001, 'x'));
  request.set_explain(true);
  v1::PickResponse response;
  const grpc::Status status = router.Pick(request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.prompt_tokens(), 0u) << "unknown without a tokenizer";
  EXPECT_EQ(response.freshness(), v1::FRESHNESS_NONE) << "events say nothing about text";
  EXPECT_EQ(response.candidates_none(), 1u);
  EXPECT_EQ(response.predicted_cached_tokens(), 0u);
  ASSERT_GE(response.explanation().notes_size(), 1);
  EXPECT_THAT(response.explanation().notes(), ::testing::Contains(HasSubstr("no tokenizer")));
  router.FinishRequest(response.reservation_id());

  // The same prompt in another dress is known now.
  v1::PickRequest body;
  body.mutable_openai()->set_path("/v1/completions");
  body.mutable_openai()->set_json(
      absl::StrCat(R"({"temperature":1,"model":"m","prompt":")", std::string(1200, 'x'), "\"}"));
  ASSERT_TRUE(router.Pick(body, &response).ok());
  EXPECT_EQ(response.predicted_cached_tokens(), 3u * 64) << "three full chunks of the first 1,002";
  EXPECT_EQ(response.freshness(), v1::FRESHNESS_NONE);
  EXPECT_EQ(router.TargetOf("w0").freshness(), v1::FRESHNESS_EXACT);
  // In another hash domain it is not.
  body.set_cache_salt("s");
  ASSERT_TRUE(router.Pick(body, &response).ok());
  EXPECT_EQ(response.predicted_cached_tokens(), 0u);
}

TEST(PickWireTest, PrefixAwareCutsItsKeyFromTextAndChat) {
  TestRouter router;
  std::vector<std::unique_ptr<TestWorker>> workers;
  for (int i = 0; i < 4; ++i) {
    workers.push_back(std::make_unique<TestWorker>(
        router, TestWorker::Options{.id = "w" + std::to_string(i),
                                    .address = "10.0.0.1:" + std::to_string(i + 1)}));
    workers.back()->Join();
  }
  v1::PickRequest request;
  request.set_policy("PREFIX_AWARE");
  request.mutable_openai()->set_path("/v1/chat/completions");
  request.mutable_openai()->set_json(
      R"({"model":"m","messages":[{"role":"user","content":"hello"}]})");
  v1::PickResponse first;
  ASSERT_TRUE(router.Pick(request, &first).ok());
  EXPECT_EQ(first.policy(), "prefix_aware");
  for (int i = 0; i < 8; ++i) {
    v1::PickResponse again;
    ASSERT_TRUE(router.Pick(request, &again).ok());
    EXPECT_EQ(again.endpoint().address(), first.endpoint().address());
  }
  v1::PickRequest chain;
  chain.set_model("m");
  chain.set_policy("prefix_aware");
  chain.mutable_chain()->set_block_size(64);
  chain.mutable_chain()->add_hashes(5);
  v1::PickResponse response;
  EXPECT_THAT(router.Pick(chain, &response), IsStatus(kInvalid, HasSubstr("prefix_aware")));
}

TEST(PickWireTest, ErrorsNameTheFieldAndTheRemedy) {
  RouterConfig config;
  config.server.max_prompt_tokens = 4096;
  config.fleet.pools.emplace_back();
  config.fleet.pools[0].name = "empty";
  TestRouter router(std::move(config));
  v1::PickResponse response;

  EXPECT_THAT(router.Pick({}, &response), IsStatus(kInvalid, HasSubstr("model: is empty")));
  v1::PickRequest request = TokenPick(0, 10);
  EXPECT_THAT(router.Pick(request, &response),
              IsStatus(grpc::StatusCode::NOT_FOUND, HasSubstr("'m'")));
  request.set_model("empty");
  EXPECT_THAT(router.Pick(request, &response),
              IsStatus(grpc::StatusCode::UNAVAILABLE, HasSubstr("no ready worker")));

  TestWorker worker(router, {});
  worker.Join();
  EXPECT_THAT(router.Pick(TokenPick(0, 4097), &response),
              IsStatus(kInvalid, AllOf(HasSubstr("tokens.ids: has 4097"),
                                       HasSubstr("server.max_prompt_tokens"))));
  request = TokenPick(0, 10);
  request.set_policy("fastest");
  EXPECT_THAT(router.Pick(request, &response), IsStatus(kInvalid, HasSubstr("fastest")));
  request = TokenPick(0, 10);
  request.set_reservation_lease_ms(3'600'001);
  EXPECT_THAT(router.Pick(request, &response),
              IsStatus(kInvalid, HasSubstr("reservation_lease_ms")));
  request = TokenPick(0, 10);
  v1::MultimodalItem* item = request.add_multimodal();
  item->set_start(5);
  item->set_length(6);
  EXPECT_THAT(router.Pick(request, &response), IsStatus(kInvalid, HasSubstr("multimodal")));
  // What would be hashed for seconds on the threads that serve everybody.
  item->set_start(0);
  item->set_length(10);
  item->set_id(std::string(1025, 'x'));
  EXPECT_THAT(router.Pick(request, &response),
              IsStatus(kInvalid, AllOf(HasSubstr("1025 bytes"), HasSubstr("1024"))));
  item->set_id("x");
  for (int i = 1; i < 8; ++i) *request.add_multimodal() = request.multimodal(0);
  EXPECT_TRUE(router.Explain(request, &response).ok());
  *request.add_multimodal() = request.multimodal(0);
  EXPECT_THAT(router.Pick(request, &response), IsStatus(kInvalid, HasSubstr("8 times")));
  request.clear_multimodal();

  v1::PickRequest chain;
  chain.set_model("m");
  chain.mutable_chain()->add_hashes(1);
  chain.mutable_chain()->set_block_size(32);
  EXPECT_THAT(
      router.Pick(chain, &response),
      IsStatus(kInvalid, AllOf(HasSubstr("chain.block_size: is 32"), HasSubstr("blocks of 64"))));
  chain.mutable_chain()->set_block_size(64);
  chain.mutable_chain()->set_prompt_tokens(63);
  EXPECT_THAT(router.Pick(chain, &response), IsStatus(kInvalid, HasSubstr("prompt_tokens")));

  v1::PickRequest body;
  body.mutable_openai()->set_path("/v1/chat/completions");
  body.mutable_openai()->set_json("{\"messages\": [{\"content\": 5}]}");
  EXPECT_THAT(router.Pick(body, &response), IsStatus(kInvalid, HasSubstr("messages[0].content")));

  v1::OutcomeRequest outcome;
  outcome.set_reservation_id(12345);
  outcome.set_kind(v1::OUTCOME_KIND_FINISHED);
  EXPECT_THAT(router.Report(outcome), IsStatus(grpc::StatusCode::NOT_FOUND, HasSubstr("12345")));
  // Larger than every KV cache.
  TestRouter small;
  TestWorker tiny(small, {.capacity_tokens = 1000});
  tiny.Join();
  EXPECT_THAT(
      small.Pick(TokenPick(0, 2000), &response),
      IsStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, AllOf(HasSubstr("2000"), HasSubstr("1000"))));
  EXPECT_EQ(router.PoolStats("m").open_reservations(), 0u) << "a refused pick reserves nothing";
}

TEST(PickWireTest, SoonAfterAStartAnUnknownModelIsToBeAskedForAgain) {
  RouterConfig config;
  config.fleet.warm_up = absl::Minutes(30);
  TestRouter router(std::move(config));
  v1::PickResponse response;
  const grpc::Status status = router.Pick(TokenPick(0, 10), &response);
  EXPECT_THAT(status, IsStatus(grpc::StatusCode::UNAVAILABLE,
                               AllOf(HasSubstr("'m'"), HasSubstr("may still be on their way"))));
  EXPECT_EQ(RetryAfterOf(status), absl::Seconds(1));
}

TEST(PickWireTest, OverloadCarriesRetryInfo) {
  TestRouter router;
  TestWorker worker(router, {.capacity_tokens = 0});
  worker.Join();
  v1::PickRequest request = TokenPick(0, 60'000);
  v1::PickResponse response;
  ASSERT_TRUE(router.Pick(request, &response).ok());
  request = TokenPick(1'000'000, 100);
  request.set_max_wait_ms(10);
  const grpc::Status status = router.Pick(request, &response);
  EXPECT_THAT(status, IsStatus(grpc::StatusCode::RESOURCE_EXHAUSTED, ::testing::_));
  EXPECT_GT(RetryAfterOf(status), absl::ZeroDuration());
}

TEST(PickWireTest, Fault18_LoadIsChargedAtThePickOnEveryPath) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join();
  v1::PickResponse light;
  ASSERT_TRUE(router.Pick(TokenPick(0, 100), &light).ok());
  EXPECT_EQ(router.TargetOf("w0").inflight(), 1u);
  v1::PickRequest text;
  text.set_model("m");
  text.set_text("hello");
  v1::PickResponse heavy;
  ASSERT_TRUE(router.Pick(text, &heavy).ok());
  EXPECT_EQ(router.TargetOf("w0").inflight(), 2u);

  grpc::ClientContext context;
  auto stream = router.router().PickStream(&context);
  v1::PickStreamRequest message;
  *message.mutable_pick() = TokenPick(0, 100);
  ASSERT_TRUE(stream->Write(message));
  v1::PickStreamResponse answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(router.TargetOf("w0").inflight(), 3u);

  router.FinishRequest(light.reservation_id());
  router.FinishRequest(heavy.reservation_id());
  EXPECT_EQ(router.TargetOf("w0").inflight(), 1u);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(Eventually([&] { return router.TargetOf("w0").inflight() == 0; }));
}

TEST(PickWireTest, Fault19_WhatAVanishedStreamHeldIsReleased) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join();
  {
    grpc::ClientContext context;
    auto stream = router.router().PickStream(&context);
    for (std::uint64_t tag = 1; tag <= 50; ++tag) {
      v1::PickStreamRequest message;
      message.set_tag(tag);
      *message.mutable_pick() = TokenPick(0, 100);
      ASSERT_TRUE(stream->Write(message));
      v1::PickStreamResponse answer;
      ASSERT_TRUE(stream->Read(&answer));
      ASSERT_EQ(answer.tag(), tag);
      ASSERT_EQ(answer.status_code(), 0) << answer.status_message();
    }
    EXPECT_EQ(router.PoolStats("m").open_reservations(), 50u);
    context.TryCancel();
    stream->Finish();
  }
  EXPECT_TRUE(Eventually([&] { return router.PoolStats("m").open_reservations() == 0; }));
  EXPECT_EQ(router.TargetOf("w0").inflight(), 0u);
}

TEST(PickWireTest, AReconnectingProxyAdoptsItsReservations) {
  TestRouter router;
  TestWorker worker(router, {});
  worker.Join();
  v1::PickStreamRequest hello;
  hello.mutable_hello()->set_client_instance(std::string(16, 'p'));
  std::uint64_t reservation = 0;
  {
    grpc::ClientContext context;
    auto stream = router.router().PickStream(&context);
    v1::PickStreamResponse answer;
    ASSERT_TRUE(stream->Write(hello) && stream->Read(&answer));
    EXPECT_EQ(answer.hello().adopted_reservations(), 0u);
    v1::PickStreamRequest message;
    *message.mutable_pick() = TokenPick(0, 100);
    ASSERT_TRUE(stream->Write(message) && stream->Read(&answer));
    reservation = answer.pick().reservation_id();
    context.TryCancel();
    stream->Finish();
  }
  // The old stream's end reaches the router some time after the new stream's start.
  std::uint32_t adopted = 0;
  grpc::ClientContext last;
  std::unique_ptr<grpc::ClientReaderWriter<v1::PickStreamRequest, v1::PickStreamResponse>> stream;
  ASSERT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    auto probe = router.router().PickStream(&context);
    v1::PickStreamResponse answer;
    if (!probe->Write(hello) || !probe->Read(&answer)) return false;
    adopted = answer.hello().adopted_reservations();
    probe->WritesDone();
    probe->Finish();
    return adopted == 1;
  }));
  EXPECT_EQ(router.PoolStats("m").open_reservations(), 1u);
  router.FinishRequest(reservation);
  EXPECT_EQ(router.PoolStats("m").open_reservations(), 0u);
}

TEST(PickWireTest, TwoHundredConcurrentPicksSpreadOverAnIdleFleetAndAllClose) {
  // The burst happens at one instant: queues drain with the clock, and on a slow machine the first
  // picks would be far enough apart to be answered differently.
  FakeClock clock;
  TestRouter router({}, &clock);
  std::vector<std::unique_ptr<TestWorker>> workers;
  for (int i = 0; i < 8; ++i) {
    workers.push_back(std::make_unique<TestWorker>(
        router, TestWorker::Options{.id = "w" + std::to_string(i),
                                    .address = "10.0.0." + std::to_string(i + 1) + ":1",
                                    .capacity_tokens = 350'000}));
    workers.back()->Join();
  }
  const v1::PickRequest request = TokenPick(0, 8192);
  std::vector<v1::PickResponse> responses(200);
  std::vector<std::thread> threads;
  for (int t = 0; t < 20; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const grpc::Status status = router.Pick(request, &responses[t * 10 + i]);
        EXPECT_TRUE(status.ok()) << status.error_message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<std::string, int> picks;
  for (const v1::PickResponse& response : responses) ++picks[response.endpoint().address()];
  EXPECT_EQ(picks.size(), 8u);
  for (const auto& [address, count] : picks) {
    EXPECT_GE(count, 15) << address;
    EXPECT_LE(count, 35) << address;
  }
  EXPECT_EQ(router.PoolStats("m").open_reservations(), 200u);
  for (const v1::PickResponse& response : responses) {
    router.FinishRequest(response.reservation_id());
  }
  EXPECT_EQ(router.PoolStats("m").open_reservations(), 0u);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(router.TargetOf("w" + std::to_string(i)).inflight(), 0u);
  }
}

}  // namespace
}  // namespace warmpath::testing
