// The whole engine in this process, over its real sockets.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine/engine.h"
#include "tests/fakes/engine/engine_test_client.h"
#include "tests/fakes/engine/http_api.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

std::string Ids(std::uint64_t seed, std::size_t count) {
  Random random(seed);
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(1'000 + random.Below(100'000));
  return absl::StrJoin(ids, ",");
}

std::string Completion(const std::string& ids, int max_tokens, const std::string& more = "") {
  return absl::StrCat("{\"prompt\":[", ids, "],\"max_tokens\":", max_tokens, more, "}");
}

class EngineHttpTest : public ::testing::Test {
 protected:
  static EngineOptions Options() {
    EngineOptions options;
    options.models = {.base = "base", .loras = {"sql"}};
    options.rank.model.block_size = 16;
    options.rank.model.blocks = 1'000;
    options.rank.model.duplicates = BlockCache::Duplicates::kKeep;
    options.rank.speed_factor = 200;
    options.rank.hash_seed = 99;
    options.events.endpoint = "tcp://127.0.0.1:0";
    options.events.replay_endpoint = "tcp://127.0.0.1:0";
    options.events.replay_hwm = 0;
    return options;
  }

  void Start(const EngineOptions& options) {
    client_.reset();
    http_.reset();
    engine_.reset();
    auto engine = Engine::Create(options);
    ASSERT_THAT(engine, IsOk());
    engine_ = *std::move(engine);
    auto http = HttpApi::Start(engine_.get());
    ASSERT_THAT(http, IsOk());
    http_ = *std::move(http);
    client_ = std::make_unique<EngineTestClient>(http_->port());
  }

  template <typename F>
  static bool Eventually(F&& condition) {
    for (int i = 0; i < 5'000; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  bool AtRest() const {
    for (std::size_t r = 0; r < engine_->rank_count(); ++r) {
      const RankStats stats = engine_->rank(r).Stats();
      if (stats.running + stats.waiting > 0 || stats.unpublished) return false;
    }
    return true;
  }

  // /debug/cache says the same as the mirror of the events up to that sequence.
  void ExpectTruth(EngineTestClient& client, std::size_t rank, const EventMirror& mirror) {
    const JsonReply reply =
        client.Get(absl::StrCat("/debug/cache?rank=", rank, "&at_seq=", mirror.next_seq() - 1));
    ASSERT_EQ(reply.status, 200) << reply.text;
    std::size_t blocks = 0;
    for (const simdjson::dom::element block :
         reply.json.at_pointer("/ranks/0/blocks").get_array()) {
      ++blocks;
      const auto it = mirror.blocks().find(std::uint64_t(block["hash"]));
      ASSERT_NE(it, mirror.blocks().end()) << "the events lack a block at " << mirror.next_seq();
      const simdjson::dom::element parent = block["parent"];
      ASSERT_EQ(parent.is_null(), !it->second.parent.has_value());
      if (!parent.is_null()) {
        ASSERT_EQ(std::uint64_t(parent), *it->second.parent);
      }
      std::vector<TokenId> tokens;
      for (const auto id : block["token_ids"].get_array()) {
        tokens.push_back(static_cast<TokenId>(std::uint64_t(id)));
      }
      ASSERT_EQ(tokens, it->second.tokens);
    }
    ASSERT_EQ(blocks, mirror.blocks().size()) << "the events keep blocks too long";
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<HttpApi> http_;
  std::unique_ptr<EngineTestClient> client_;
};

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

// The events of a busy engine, applied one by one, give what the engine says it held: over
// evictions, duplicate copies, LoRA, salts, both wire forms, both replay shapes and two ranks.
class EngineTruthTest : public EngineHttpTest,
                        public ::testing::WithParamInterface<std::pair<EventFormat, ReplayShape>> {
};

TEST_P(EngineTruthTest, EventsAndDebugCacheAgreeAtEverySampledSequence) {
  EngineOptions options = Options();
  options.ranks = 2;
  options.rank.model.blocks = 300;
  // Small, so that prompts are cut into chunks and concurrent ones duplicate each other's blocks.
  options.rank.model.step_token_budget = 100;
  options.rank.event_format = GetParam().first;
  options.events.replay_shape = GetParam().second;
  Start(options);
  zmq::context_t context;
  const auto mirror_of = [&](std::size_t r) {
    return std::make_unique<EventMirror>(context, engine_->publisher(r)->replay_endpoint());
  };
  std::atomic<int> failures{0};
  std::atomic<int> running{6};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([this, t, &failures, &running] {
      EngineTestClient client(http_->port());
      Random random(t + 1);
      for (int i = 0; i < 40; ++i) {
        // A few shared heads, own tails; at times no tail, which computes the head's last block
        // once more.
        std::string prompt = Ids(random.Below(4), 160);
        if (i % 4 != 0) {
          absl::StrAppend(&prompt, ",", Ids(1'000 + random(), 1 + random.Below(400)));
        }
        const char* more = i % 5 == 0   ? R"(,"model":"sql")"
                           : i % 5 == 1 ? R"(,"model":"sql","cache_salt":"pepper")"
                           : i % 5 == 2 ? R"(,"cache_salt":"pepper")"
                                        : "";
        const JsonReply reply = client.Post(
            "/v1/completions", Completion(prompt, static_cast<int>(1 + random.Below(40)), more));
        if (reply.status != 200) ++failures;
      }
      --running;
    });
  }
  // While it runs: always the newest batch, which requests race with.
  std::vector<std::unique_ptr<EventMirror>> live;
  for (std::size_t r = 0; r < 2; ++r) live.push_back(mirror_of(r));
  while (running > 0) {
    for (std::size_t r = 0; r < 2; ++r) {
      const std::optional<std::uint64_t> last = engine_->rank(r).Stats().last_seq;
      if (!last || *last < live[r]->next_seq()) continue;
      live[r]->Advance(*last);
      ASSERT_NO_FATAL_FAILURE(ExpectTruth(*client_, r, *live[r]));
    }
  }
  EXPECT_EQ(failures, 0);
  ASSERT_TRUE(Eventually([this] { return AtRest(); }));
  // Afterwards: the whole history, in strides.
  Random random(5);
  for (std::size_t r = 0; r < 2; ++r) {
    const std::uint64_t last = *engine_->rank(r).Stats().last_seq;
    const std::unique_ptr<EventMirror> mirror = mirror_of(r);
    for (std::uint64_t seq = 0; seq <= last;
         seq = std::max(seq + 1, std::min(seq + 1 + random.Below(last / 20), last))) {
      mirror->Advance(seq);
      ASSERT_NO_FATAL_FAILURE(ExpectTruth(*client_, r, *mirror));
    }
    EXPECT_EQ(mirror->next_seq(), last + 1);
    EXPECT_GT(mirror->removals(), 100);
    EXPECT_GT(mirror->most_copies(), 1u);
    EXPECT_THAT(mirror->extra_keys(), UnorderedElementsAre("sql", "pepper"));
    EXPECT_EQ(engine_->rank(r).Stats().free_blocks, 300u);
  }
}

INSTANTIATE_TEST_SUITE_P(Eras, EngineTruthTest,
                         ::testing::Values(std::pair(EventFormat::kMap, ReplayShape::kNew),
                                           std::pair(EventFormat::kPositional, ReplayShape::kOld)));

TEST_F(EngineHttpTest, AnIdleEngineAnnouncesAResetAtOnce) {
  Start(Options());
  zmq::context_t context;
  EventMirror mirror(context, engine_->publisher(0)->replay_endpoint());
  client_->Post("/v1/completions", Completion(Ids(1, 100), 1));
  ASSERT_TRUE(Eventually([this] { return AtRest(); }));
  const std::uint64_t before = *engine_->rank(0).Stats().last_seq;
  EXPECT_EQ(client_->Post("/reset_prefix_cache", "").status, 200);
  ASSERT_TRUE(Eventually([&] { return *engine_->rank(0).Stats().last_seq == before + 1; }));
  mirror.Advance(before + 1);
  EXPECT_EQ(mirror.clears(), 1);
  EXPECT_THAT(mirror.blocks(), IsEmpty());
  ExpectTruth(*client_, 0, mirror);
  const JsonReply old = client_->Get(absl::StrCat("/debug/cache?at_seq=", before));
  EXPECT_THAT(old.text, HasSubstr("token_ids"));
  const JsonReply reply = client_->Post("/v1/completions", Completion(Ids(1, 100), 1));
  EXPECT_EQ(reply.Uint("/usage/prompt_tokens_details/cached_tokens"), 0u);
}

TEST_F(EngineHttpTest, ABusyEngineRefusesAReset) {
  EngineOptions options = Options();
  options.rank.speed_factor = 1;
  Start(options);
  std::jthread busy([this] {
    EngineTestClient client(http_->port());
    client.Post("/v1/completions", Completion(Ids(1, 3'000), 100));
  });
  ASSERT_TRUE(Eventually([this] { return engine_->rank(0).Stats().running == 1; }));
  const JsonReply reply = client_->Post("/reset_prefix_cache", "");
  EXPECT_EQ(reply.status, 409);
  EXPECT_THAT(reply.text, HasSubstr("194 blocks are in use"));
  busy.join();
}

TEST_F(EngineHttpTest, HistoryThatIsGoneIsSaidToBeGone) {
  EngineOptions options = Options();
  options.rank.history_batches = 2;
  Start(options);
  for (int i = 0; i < 5; ++i) client_->Post("/v1/completions", Completion(Ids(i, 20), 1));
  ASSERT_TRUE(Eventually([this] { return AtRest(); }));
  EXPECT_EQ(client_->Get("/debug/cache?at_seq=0").status, 410);
  EXPECT_EQ(client_->Get("/debug/cache?at_seq=4").status, 200);
  EXPECT_EQ(client_->Get("/debug/cache?at_seq=99").status, 404);
  EXPECT_EQ(client_->Get("/debug/cache?at_seq=x").status, 400);
  EXPECT_EQ(client_->Get("/debug/cache?rank=1").status, 400);
  const JsonReply latest = client_->Get("/debug/cache");
  EXPECT_EQ(latest.Uint("/ranks/0/seq"), 4u);
  EXPECT_EQ(latest.Uint("/ranks/0/last_seq"), 4u);
  EXPECT_EQ(latest.Uint("/block_size"), 16u);
  EXPECT_EQ(client_->Get("/debug/state").Uint("/ranks/0/cached_blocks"), 5u);
}

TEST_F(EngineHttpTest, ALostMessageIsCountedAndReplayable) {
  Start(Options());
  EXPECT_EQ(client_->Post("/debug/drop?next=1", "").status, 200);
  client_->Post("/v1/completions", Completion(Ids(1, 20), 1));
  ASSERT_TRUE(Eventually([this] { return AtRest(); }));
  EXPECT_EQ(client_->Get("/debug/state").Uint("/ranks/0/dropped_seqs/0"), 0u);
  zmq::context_t context;
  EventMirror mirror(context, engine_->publisher(0)->replay_endpoint());
  mirror.Advance(0);
  ExpectTruth(*client_, 0, mirror);
  EXPECT_EQ(client_->Post("/debug/drop?rate=2", "").status, 400);
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
