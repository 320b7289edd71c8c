#include <vector>

#include "core/replay/competitors/competitor.h"
#include "core/replay/sim_books.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::warmpath::testing::StatusIs;

// Two idle workers that know nothing; tests change what they are about.
std::vector<WorkerSight> Workers(std::size_t count = 2) {
  std::vector<WorkerSight> workers(count);
  for (std::size_t i = 0; i < count; ++i) {
    workers[i].worker = i;
    workers[i].prefill_s = 1;
    workers[i].kv_capacity_tokens = 100'000;
    workers[i].new_blocks = 20;
  }
  return workers;
}

RequestSight Request() { return {.prompt_tokens = 1'280, .block_size = 64, .decode_s = 0.1}; }

std::size_t Choose(std::string_view name, const RequestSight& request,
                   const std::vector<WorkerSight>& workers) {
  auto competitor = MakeCompetitor(name);
  EXPECT_TRUE(competitor.ok()) << competitor.status();
  Random random(1);
  return (*competitor)->Choose(request, workers, random);
}

TEST(CompetitorsTest, EveryNameMakesOneThatChooses) {
  for (const auto& names : {CompetitorNames(), AblationNames(), TenantRuleNames()}) {
    for (const std::string_view name : names) {
      EXPECT_LT(Choose(name, Request(), Workers(3)), 3u) << name;
      EXPECT_EQ(Choose(name, Request(), Workers(1)), 0u) << name;
    }
  }
  EXPECT_THAT(MakeCompetitor("nobody"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(CompetitorsTest, SmgFollowsAMatchOfOverThirtyPercentUntilLoadsPartBy64) {
  std::vector<WorkerSight> workers = Workers();
  workers[1].inflight = 60;
  workers[1].cached_tokens = 384;  // 30 %: not over
  EXPECT_EQ(Choose("smg_cache_aware", Request(), workers), 0u);
  workers[1].cached_tokens = 448;
  EXPECT_EQ(Choose("smg_cache_aware", Request(), workers), 1u);
  workers[1].inflight = 65;
  EXPECT_EQ(Choose("smg_cache_aware", Request(), workers), 0u);
  workers[0].inflight = 200;  // 265 is not over 1.5 times as much
  workers[1].inflight = 265;
  EXPECT_EQ(Choose("smg_cache_aware", Request(), workers), 1u);
}

TEST(CompetitorsTest, GaieWeighsPrefixThreeAgainstQueueTwoAndKvTwo) {
  std::vector<WorkerSight> workers = Workers();
  workers[1].cached_tokens = 64;
  workers[1].reported_waiting = 1;
  EXPECT_EQ(Choose("gaie_weighted", Request(), workers), 1u);  // 3 > 2
  workers[1].reported_kv_usage = 0.1;
  EXPECT_EQ(Choose("gaie_weighted", Request(), workers), 0u);  // 3 < 2 + 2
}

TEST(CompetitorsTest, LlmdStaysWithHoldersForEighteenSeconds) {
  std::vector<WorkerSight> workers = Workers();
  workers[1].cached_tokens = 1'024;  // 80 %
  workers[1].prompt_tokens = 50'000;
  workers[1].wait_s = 17;
  EXPECT_EQ(Choose("llmd_affinity", Request(), workers), 1u);
  workers[1].wait_s = 18.5;
  EXPECT_EQ(Choose("llmd_affinity", Request(), workers), 0u);
  workers[1].wait_s = 0;
  workers[1].cached_tokens = 960;
  EXPECT_EQ(Choose("llmd_affinity", Request(), workers), 0u);
}

TEST(CompetitorsTest, DynamoAddsBlocksToPrefillAndToDecode) {
  std::vector<WorkerSight> workers = Workers();
  // 20 blocks to prefill and 20 new ones at worker 0: 40. At worker 1: 20 + 10 - 5 and 12 + 20.
  workers[1].pending_uncached_tokens = 640;
  workers[1].cached_tokens = 320;
  workers[1].active_blocks = 12;
  EXPECT_EQ(Choose("dynamo", Request(), workers), 0u);
  workers[1].new_blocks = 2;  // 25 + 14
  EXPECT_EQ(Choose("dynamo", Request(), workers), 1u);
}

TEST(CompetitorsTest, LMetricMultipliesUncachedTokensByRequests) {
  std::vector<WorkerSight> workers = Workers();
  workers[0].inflight = 1;  // 1280 * 2
  workers[1].inflight = 3;  // (200 + 1280 - 840) * 4 = 2560
  workers[1].pending_uncached_tokens = 200;
  workers[1].cached_tokens = 841;
  EXPECT_EQ(Choose("lmetric", Request(), workers), 1u);
  workers[1].cached_tokens = 839;
  EXPECT_EQ(Choose("lmetric", Request(), workers), 0u);
}

TEST(CompetitorsTest, SMetricKeepsLaterTurnsAtTheBestHitWhileTheObjectiveHolds) {
  std::vector<WorkerSight> workers = Workers();
  workers[1].cached_tokens = 128;
  workers[1].inflight = 5;
  RequestSight request = Request();
  EXPECT_EQ(Choose("smetric", request, workers), 0u);
  request.follow_up = true;
  EXPECT_EQ(Choose("smetric", request, workers), 1u);
  workers[1].wait_s = 1.1;  // + 1 s of prefill
  EXPECT_EQ(Choose("smetric", request, workers), 0u);
}

TEST(CompetitorsTest, PrebleExploitsWhenMoreIsHeldThanMissing) {
  auto preble = MakeCompetitor("preble_e2");
  Random random(1);
  std::vector<WorkerSight> workers = Workers();
  workers[0].prefill_s = 0.9;
  EXPECT_EQ((*preble)->Choose(Request(), workers, random), 0u);  // now 1 s of load there
  workers[0].cached_tokens = 640;                                // half: explore
  EXPECT_EQ((*preble)->Choose(Request(), workers, random), 1u);
  workers[0].cached_tokens = 704;
  workers[0].prefill_s = 5;
  EXPECT_EQ((*preble)->Choose(Request(), workers, random), 0u);
  RequestSight later = Request();
  later.now_s = 181;  // the load of then is forgotten
  workers[0].cached_tokens = 0;
  workers[0].prefill_s = 0.99;
  EXPECT_EQ((*preble)->Choose(later, workers, random), 0u);
  // 0.99 s of prefill there weigh more than two answers of 0.1 s on the other; once the window has
  // passed, one answer weighs more than nothing.
  workers[1].inflight = 2;
  workers[0].prefill_s = 1;
  EXPECT_EQ((*preble)->Choose(later, workers, random), 1u);
  later.now_s = 362;
  workers[1].inflight = 1;
  EXPECT_EQ((*preble)->Choose(later, workers, random), 0u);
}

TEST(CompetitorsTest, BoundedHashPassesOnWhenAWorkerIsAtTheBound) {
  RequestSight request = Request();
  std::vector<WorkerSight> workers = Workers(4);
  std::vector<int> chosen(4);
  for (request.head_key = 0; request.head_key < 400; ++request.head_key) {
    ++chosen[Choose("bounded_hash", request, workers)];
  }
  for (const int count : chosen) EXPECT_GT(count, 60);
  request.head_key = 7;
  const std::size_t home = Choose("bounded_hash", request, workers);
  EXPECT_EQ(Choose("bounded_hash", request, workers), home);
  workers[home].inflight = 1;  // ceil(1.25 * 2 / 4) = 1
  EXPECT_NE(Choose("bounded_hash", request, workers), home);
}

TEST(CompetitorsTest, AnAblationIgnoresOneTerm) {
  const std::pair<std::string_view, double WorkerSight::*> terms[] = {
      {"without_price", &WorkerSight::pool_price_s},
      {"without_stall", &WorkerSight::decode_stall_s},
      {"without_pressure", &WorkerSight::kv_pressure_s},
      {"without_kv_wait", &WorkerSight::kv_wait_s}};
  for (const auto& [name, left_out] : terms) {
    for (const auto& [other, term] : terms) {
      std::vector<WorkerSight> workers = Workers();
      workers[0].wait_s = 1;
      workers[1].*term = 5;
      EXPECT_EQ(Choose(name, Request(), workers), name == other ? 1u : 0u) << name << other;
    }
  }
}

TEST(SimBooksTest, CountsDistinctBlocksAndPendingTokens) {
  SimBooks books(2);
  const std::vector<ChainHash> a = {1, 2, 3};
  const std::vector<ChainHash> b = {1, 2, 4, 5};
  books.Open(1, 7, a, 200, 200);
  EXPECT_EQ(books.NewBlocks(1, b), 2u);
  EXPECT_EQ(books.NewBlocks(0, b), 4u);
  books.Open(1, 9, b, 300, 100);
  EXPECT_EQ(books.Of(1).blocks.size(), 5u);
  EXPECT_EQ(books.Of(1).pending_uncached_tokens, 300u);
  EXPECT_EQ(books.Of(1).prompt_tokens, 500u);
  EXPECT_EQ(books.Of(1, 7).pending, 1u);
  books.FirstToken(1, 7, 200);
  EXPECT_EQ(books.Of(1, 7).pending, 0u);
  EXPECT_EQ(books.Of(1, 7).inflight, 1u);
  books.Close(1, 7, a, 200);
  EXPECT_EQ(books.Of(1, 7).inflight, 0u);
  EXPECT_EQ(books.Of(1, 9).inflight, 1u);
  EXPECT_EQ(books.Of(0, 9).inflight, 0u);
  EXPECT_EQ(books.Of(1).blocks.size(), 4u);
  EXPECT_EQ(books.Of(1).pending_uncached_tokens, 100u);
  EXPECT_EQ(books.Of(1).prompt_tokens, 300u);
}

}  // namespace
}  // namespace warmpath
