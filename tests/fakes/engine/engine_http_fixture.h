// The whole engine in this process, over its real sockets.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_ENGINE_HTTP_FIXTURE_H_
#define WARMPATH_TESTS_FAKES_ENGINE_ENGINE_HTTP_FIXTURE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
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

inline std::string Ids(std::uint64_t seed, std::size_t count) {
  Random random(seed);
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(1'000 + random.Below(100'000));
  return absl::StrJoin(ids, ",");
}

inline std::string Completion(const std::string& ids, int max_tokens,
                              const std::string& more = "") {
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
    ASSERT_THAT(engine, ::warmpath::testing::IsOk());
    engine_ = *std::move(engine);
    auto http = HttpApi::Start(engine_.get());
    ASSERT_THAT(http, ::warmpath::testing::IsOk());
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

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_ENGINE_HTTP_FIXTURE_H_
