// What the engine answers over HTTP: completions, streams, ranks, refusals; callers that leave.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine/engine.h"
#include "tests/fakes/engine/engine_http_fixture.h"
#include "tests/fakes/engine/engine_test_client.h"
#include "tests/fakes/engine/http_api.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

TEST_F(EngineHttpTest, CachedTokensAreWhatTheCacheHeld) {
  Start(Options());
  const std::string prompt = Ids(1, 100);
  JsonReply reply = client_->Post("/v1/completions", Completion(prompt, 4));
  ASSERT_EQ(reply.status, 200) << reply.text;
  EXPECT_EQ(reply.Uint("/usage/prompt_tokens"), 100u);
  EXPECT_EQ(reply.Uint("/usage/completion_tokens"), 4u);
  EXPECT_EQ(reply.Uint("/usage/prompt_tokens_details/cached_tokens"), 0u);
  reply = client_->Post("/v1/completions", Completion(prompt, 4));
  EXPECT_EQ(reply.Uint("/usage/prompt_tokens_details/cached_tokens"), 96u);
  // 80 tokens are five whole blocks, of which the last is computed again.
  reply = client_->Post("/v1/completions", Completion(Ids(1, 80), 4));
  EXPECT_EQ(reply.Uint("/usage/prompt_tokens_details/cached_tokens"), 64u);
  // LoRA and salt are worlds of their own.
  for (const char* more : {R"(,"model":"sql")", R"(,"cache_salt":"s")"}) {
    reply = client_->Post("/v1/completions", Completion(prompt, 4, more));
    EXPECT_EQ(reply.Uint("/usage/prompt_tokens_details/cached_tokens"), 0u) << more;
    reply = client_->Post("/v1/completions", Completion(prompt, 4, more));
    EXPECT_EQ(reply.Uint("/usage/prompt_tokens_details/cached_tokens"), 96u) << more;
  }
}

TEST_F(EngineHttpTest, AChatsNextTurnReusesTheAnswer) {
  Start(Options());
  std::string messages = R"({"role":"user","content":"Tell me about rivers."})";
  JsonReply reply = client_->Post(
      "/v1/chat/completions",
      absl::StrCat("{\"messages\":[", messages, "],\"max_tokens\":100,\"return_token_ids\":true}"));
  ASSERT_EQ(reply.status, 200) << reply.text;
  const std::vector<TokenId> prompt = reply.Ids("/prompt_token_ids");
  const std::vector<TokenId> output = reply.Ids("/choices/0/token_ids");
  ASSERT_THAT(output, SizeIs(100));
  absl::StrAppend(&messages, R"(,{"role":"assistant","content":")",
                  reply.Str("/choices/0/message/content"),
                  R"("},{"role":"user","content":"And lakes?"})");
  reply = client_->Post(
      "/v1/chat/completions",
      absl::StrCat("{\"messages\":[", messages, "],\"max_tokens\":5,\"return_token_ids\":true}"));
  std::vector<TokenId> both = prompt;
  both.insert(both.end(), output.begin(), output.end());
  std::vector<TokenId> next = reply.Ids("/prompt_token_ids");
  ASSERT_GT(next.size(), both.size());
  next.resize(both.size());
  EXPECT_EQ(next, both);
  // All whole blocks of prompt and answer, whose last token was never computed.
  EXPECT_EQ(reply.Uint("/usage/prompt_tokens_details/cached_tokens"), (both.size() - 1) / 16 * 16);
}

TEST_F(EngineHttpTest, StreamsAddUpToTheWholeResponse) {
  for (const int interval : {1, 7}) {
    EngineOptions options = Options();
    options.stream_interval = interval;
    Start(options);
    const JsonReply whole =
        client_->Post("/v1/completions", Completion(Ids(2, 20), 30, R"(,"return_token_ids":true)"));
    const std::vector<std::string> events = client_->Stream(
        "/v1/completions",
        Completion(
            Ids(2, 20), 30,
            R"(,"stream":true,"return_token_ids":true,"stream_options":{"include_usage":true})"));
    ASSERT_GE(events.size(), 3u);
    if (interval == 7) {
      EXPECT_LE(events.size(), 1u + 5u + 2u);  // 1, at least 7 at a time, usage, end.
    }
    EXPECT_EQ(events.back(), "[DONE]");
    std::string text;
    std::vector<TokenId> ids;
    std::string finish;
    for (std::size_t i = 0; i + 2 < events.size(); ++i) {
      simdjson::dom::parser parser;
      const simdjson::dom::element event = parser.parse(events[i]);
      const simdjson::dom::element choice = event.at_pointer("/choices/0");
      text += std::string_view(choice["text"]);
      for (const auto id : choice["token_ids"].get_array()) {
        ids.push_back(static_cast<TokenId>(std::uint64_t(id)));
      }
      EXPECT_EQ(choice["prompt_token_ids"].error() == simdjson::SUCCESS, i == 0);
      if (!choice["finish_reason"].is_null()) finish += std::string_view(choice["finish_reason"]);
    }
    EXPECT_EQ(finish, "length");
    EXPECT_EQ(text, whole.Str("/choices/0/text"));
    EXPECT_EQ(ids, whole.Ids("/choices/0/token_ids"));
    simdjson::dom::parser parser;
    const simdjson::dom::element usage = parser.parse(events[events.size() - 2]);
    EXPECT_EQ(std::uint64_t(usage.at_pointer("/usage/prompt_tokens_details/cached_tokens")), 16u);
    EXPECT_EQ(std::uint64_t(usage.at_pointer("/usage/completion_tokens")), 30u);
  }
}

TEST_F(EngineHttpTest, ChatStreamsStartWithTheRole) {
  Start(Options());
  const std::vector<std::string> events = client_->Stream(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"x"}],"max_tokens":2,"stream":true})");
  // Two tokens, in one chunk or, mostly, two: a slow reader gets several at once.
  ASSERT_GE(events.size(), 3u);
  EXPECT_THAT(events[0], HasSubstr(R"("delta":{"role":"assistant","content":""})"));
  EXPECT_THAT(events[1], HasSubstr(R"("delta":{"content":"t)"));
  EXPECT_THAT(events[events.size() - 2], HasSubstr(R"("finish_reason":"length")"));
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(EngineHttpTest, TheFirstTokenComesNoEarlierThanTheModelSays) {
  EngineOptions options = Options();
  options.rank.speed_factor = 10;
  Start(options);
  const auto start = std::chrono::steady_clock::now();
  client_->Post("/v1/completions", Completion(Ids(3, 8'000), 1));
  const std::chrono::duration<double> cold = std::chrono::steady_clock::now() - start;
  // 20 ms + 8,000/16k * (1 + 4,000/31k), ten times as fast.
  EXPECT_GE(cold.count(), (0.020 + 0.5 * (1 + 4.0 / 31)) / 10);
  EXPECT_EQ(engine_->rank(0).Stats().steps, 1u);
}

TEST_F(EngineHttpTest, AClientThatLeavesFreesItsBlocks) {
  EngineOptions options = Options();
  options.rank.speed_factor = 1;
  Start(options);
  {
    httplib::Request request;
    request.method = "POST";
    request.path = "/v1/completions";
    request.body = Completion(Ids(1, 100), 10'000, R"(,"stream":true)");
    request.content_receiver = [](const char*, std::size_t, std::uint64_t, std::uint64_t) {
      return false;  // Hangs up after the first chunk.
    };
    client_->http().send(request);
    client_->http().stop();
  }
  EXPECT_TRUE(Eventually([this] { return AtRest(); }));
  EXPECT_EQ(engine_->rank(0).Stats().free_blocks, 1'000u);
}

TEST_F(EngineHttpTest, AClientThatLeavesBeforeItsFirstTokenIsNoticed) {
  EngineOptions options = Options();
  options.rank.speed_factor = 0.001;  // The first token takes 20 s.
  Start(options);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(http_->port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  const std::string body = Completion("1,2,3", 5, R"(,"stream":true)");
  const std::string request =
      absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n",
                   "Content-Length: ", body.size(), "\r\n\r\n", body);
  ASSERT_EQ(send(fd, request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  ASSERT_TRUE(Eventually([this] { return engine_->rank(0).Stats().running == 1; }));
  close(fd);
  EXPECT_TRUE(Eventually([this] { return AtRest(); }));
}

TEST_F(EngineHttpTest, RanksAreChosenByHeaderAndByLoad) {
  EngineOptions options = Options();
  options.ranks = 2;
  Start(options);
  for (const char* rank : {"1", "0", "1"}) {
    const JsonReply reply = client_->Post("/v1/completions", Completion(Ids(1, 20), 1),
                                          {{"X-data-parallel-rank", rank}});
    EXPECT_EQ(reply.headers.find("X-data-parallel-rank")->second, rank);
  }
  EXPECT_EQ(engine_->rank(1).Stats().finished, 2u);
  for (const char* rank : {"2", "-1", "x"}) {
    EXPECT_EQ(
        client_
            ->Post("/v1/completions", Completion(Ids(1, 20), 1), {{"X-data-parallel-rank", rank}})
            .status,
        400);
  }
  // Ranks hash differently, as processes of a real engine do.
  const JsonReply cache = client_->Get("/debug/cache");
  EXPECT_NE(cache.Uint("/ranks/0/blocks/0/hash"), cache.Uint("/ranks/1/blocks/0/hash"));
  EXPECT_EQ(cache.Ids("/ranks/0/blocks/0/token_ids"), cache.Ids("/ranks/1/blocks/0/token_ids"));
}

TEST_F(EngineHttpTest, OtherEndpointsAnswerLikeVllm) {
  Start(Options());
  EXPECT_EQ(client_->http().Get("/health")->status, 200);
  EXPECT_THAT(client_->Get("/version").Str("/version"), HasSubstr("0."));
  const JsonReply models = client_->Get("/v1/models");
  EXPECT_EQ(models.Str("/data/0/id"), "base");
  EXPECT_EQ(models.Uint("/data/0/max_model_len"), 16'000u);
  EXPECT_EQ(models.Str("/data/1/parent"), "base");
  EXPECT_EQ(client_->Post("/tokenize", R"({"prompt":"t300 t301"})").Ids("/tokens"),
            std::vector<TokenId>({300, 301}));
  EXPECT_EQ(client_->Post("/v1/completions/render", R"({"prompt":[1,2]})").Ids("/0/token_ids"),
            std::vector<TokenId>({1, 2}));
  EXPECT_THAT(
      client_
          ->Post("/v1/chat/completions/render", R"({"messages":[{"role":"user","content":"x"}]})")
          .Ids("/token_ids"),
      ::testing::Contains(151'644u));

  client_->Post("/v1/completions", Completion(Ids(1, 100), 3));
  client_->Post("/v1/completions", Completion(Ids(1, 100), 3));
  ASSERT_TRUE(Eventually([this] { return AtRest(); }));
  const std::string metrics = client_->http().Get("/metrics")->body;
  for (const char* line :
       {"vllm:num_requests_running{engine=\"0\",model_name=\"base\"} 0\n",
        "vllm:num_requests_waiting{engine=\"0\",model_name=\"base\"} 0\n",
        "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"base\"} 0\n",
        "vllm:prefix_cache_queries_total{engine=\"0\",model_name=\"base\"} 200\n",
        "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"base\"} 96\n",
        "vllm:generation_tokens_total{engine=\"0\",model_name=\"base\"} 6\n",
        "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\",engine=\"0\","
        "num_gpu_blocks=\"1000\"} 1\n",
        "process_start_time_seconds "}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
}

TEST_F(EngineHttpTest, RefusalsAreJsonWithTheRightStatus) {
  EngineOptions options = Options();
  options.max_body_bytes = 10'000;
  Start(options);
  const auto refused = [this](const char* path, const std::string& body) {
    const JsonReply reply = client_->Post(path, body);
    EXPECT_EQ(reply.Uint("/error/code"), static_cast<std::uint64_t>(reply.status));
    return std::pair(reply.status, reply.Str("/error/message"));
  };
  using ::testing::Pair;
  EXPECT_THAT(refused("/v1/completions", "{"), Pair(400, HasSubstr("body")));
  EXPECT_THAT(refused("/v1/completions", R"({"model":"x","prompt":[1]})"),
              Pair(404, HasSubstr("`x`")));
  EXPECT_THAT(refused("/v1/completions", Completion("1", 20'000)),
              Pair(400, HasSubstr("16000 tokens")));
  EXPECT_THAT(refused("/v1/nothing", "{}"), Pair(404, HasSubstr("POST /v1/nothing")));
  EXPECT_THAT(refused("/v1/completions", std::string(10'001, ' ')), Pair(413, HasSubstr("size")));
}

TEST_F(EngineHttpTest, OptionsAreCheckedAndPortsAreNamed) {
  EngineOptions options = Options();
  options.ranks = 0;
  EXPECT_THAT(Engine::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("ranks")));
  options = Options();
  options.events.endpoint = "ipc:///tmp/x";
  EXPECT_THAT(Engine::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tcp://HOST:PORT")));
  options = Options();
  options.events.endpoint.clear();
  EXPECT_THAT(Engine::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("replay_endpoint")));
  options.events.replay_endpoint.clear();
  Start(options);  // No events: still an engine.
  EXPECT_EQ(client_->Post("/v1/completions", Completion(Ids(1, 40), 1)).status, 200);
  ASSERT_TRUE(Eventually([this] { return AtRest(); }));
  EXPECT_EQ(client_->Get("/debug/cache").Uint("/ranks/0/blocks/0/hash") != 0, true);

  options.port = http_->port();
  auto second = Engine::Create(options);
  ASSERT_THAT(second, IsOk());
  EXPECT_THAT(HttpApi::Start(second->get()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(absl::StrCat(options.port))));
}

TEST_F(EngineHttpTest, StoppingEndsWhatIsOpen) {
  EngineOptions options = Options();
  options.rank.speed_factor = 0.001;  // A step takes 20 s and more.
  Start(options);
  std::vector<std::jthread> threads;
  std::atomic<int> ended{0};
  for (const char* more : {"", R"(,"stream":true)"}) {
    threads.emplace_back([this, more, &ended] {
      httplib::Client client("127.0.0.1", http_->port());
      client.set_read_timeout(30);
      client.Post("/v1/completions", Completion(Ids(1, 20), 3, more), "application/json");
      ++ended;
    });
  }
  ASSERT_TRUE(Eventually([this] {
    const RankStats stats = engine_->rank(0).Stats();
    return stats.running + stats.waiting == 2;
  }));
  ASSERT_EQ(client_->http().Get("/health")->status, 200);  // Leaves an idle connection.
  const auto start = std::chrono::steady_clock::now();
  http_.reset();
  engine_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  for (std::jthread& thread : threads) thread.join();
  EXPECT_EQ(ended, 2);
}

}  // namespace
}  // namespace warmpath::engine
