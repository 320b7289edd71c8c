// The engine's events and what it says of its cache: they agree, and history and losses are told.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine/engine.h"
#include "tests/fakes/engine/engine_http_fixture.h"
#include "tests/fakes/engine/engine_test_client.h"
#include "zmq.hpp"

namespace warmpath::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

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

}  // namespace
}  // namespace warmpath::engine
