#include "client/agent/engine/load_scraper.h"

#include <map>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;
using ::testing::HasSubstr;
using testing::StatusIs;

// As vLLM writes it, cut down.
constexpr char kPage[] = R"(# HELP process_start_time_seconds Start time of the process.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.76408262355e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="org/model"} 3.0
vllm:num_requests_waiting{engine="0",model_name="org/model"} 12.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="org/model",reason="capacity"} 11.0
vllm:kv_cache_usage_perc{engine="0",model_name="org/model"} 0.4375
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",num_cpu_blocks="None",num_gpu_blocks="27304",sliding_window="None"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="org/model"} 0.0
)";

TEST(EngineMetricsTest, ReadsAVllmPage) {
  const EngineMetrics metrics = ParseEngineMetrics(kPage);
  EXPECT_EQ(metrics.process_start, 1764082623.55);
  ASSERT_EQ(metrics.ranks.size(), 1U);
  EXPECT_EQ(
      metrics.ForRank(0, 1),
      (RankMetrics{
          .running = 3, .waiting = 12, .kv_usage = 0.4375, .block_size = 16, .num_blocks = 27304}));
}

TEST(EngineMetricsTest, KeepsDataParallelRanksApart) {
  const EngineMetrics metrics = ParseEngineMetrics(
      "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 2\n"
      "vllm:kv_cache_usage_perc{engine=\"1\"} 0.5\n");
  EXPECT_EQ(metrics.ForRank(0, 2).running, 1U);
  EXPECT_EQ(metrics.ForRank(1, 2).running, 2U);
  EXPECT_EQ(metrics.ForRank(0, 2).kv_usage, std::nullopt);
  EXPECT_EQ(metrics.ForRank(2, 3), RankMetrics());
}

TEST(EngineMetricsTest, OneRankBehindAnOutsideBalancerKeepsItsGlobalLabel) {
  const EngineMetrics metrics = ParseEngineMetrics("vllm:num_requests_running{engine=\"5\"} 7\n");
  EXPECT_EQ(metrics.ForRank(0, 1).running, 7U);
}

TEST(EngineMetricsTest, SeriesOfSeveralModelNamesAddUp) {
  const EngineMetrics metrics = ParseEngineMetrics(
      "vllm:num_requests_waiting{engine=\"0\",model_name=\"a\"} 2\n"
      "vllm:num_requests_waiting{engine=\"0\",model_name=\"b\"} 3\n"
      "vllm:gpu_cache_usage_perc{engine=\"0\"} 0.25\n");
  EXPECT_EQ(metrics.ForRank(0, 1).waiting, 5U);
  EXPECT_EQ(metrics.ForRank(0, 1).kv_usage, 0.25);  // the name before 2025-11
}

TEST(EngineMetricsTest, LeavesOutWhatItCanNotRead) {
  using std::string_literals::operator""s;  // there is a zero byte in it
  const EngineMetrics metrics = ParseEngineMetrics(
      "vllm:num_requests_running{engine=\"0\" 1\n"         // no closing brace
      "vllm:num_requests_running{engine=\"zero\"} 1\n"     // no rank
      "vllm:num_requests_running{engine=\"0\",x=y} 1\n"    // label without quotes
      "vllm:num_requests_running{engine=\"0\",x=\"y} 1\n"  // label without its end
      "vllm:num_requests_running\n"                        // no value
      "vllm:num_requests_running one\n"                    // no number
      "vllm:num_requests_waiting -4\n"                     // nonsense
      "vllm:kv_cache_usage_perc NaN\n"                     // idle engines of old do that
      "vllm:cache_config_info{block_size=\"None\",num_gpu_blocks=\"None\"} 1\n"
      "process_start_time_seconds +Inf\n"
      "\xff\xfe\0{{{{ \"\"\" \\\n"
      "vllm:num_requests_running{a=\"q\\\"uote\\\\ \\n\",engine=\"0\",} 4 1700000000000\r\n"s);
  EXPECT_EQ(metrics.process_start, std::nullopt);
  EXPECT_EQ(metrics.ForRank(0, 1), (RankMetrics{.running = 4}));
}

TEST(EngineMetricsTest, AnEndlessNumberOfRanksIsBounded) {
  std::string page;
  for (int i = 0; i < 5000; ++i) {
    page += "vllm:num_requests_running{engine=\"" + std::to_string(i) + "\"} 1\n";
  }
  EXPECT_EQ(ParseEngineMetrics(page).ranks.size(), 1024U);
}

TEST(ServedModelsTest, TellsBaseModelsFromAdapters) {
  const auto models = ParseServedModels(
      R"({"object":"list","data":[{"id":"org/model","parent":null,"root":"org/model"},
          {"id":"short-name","root":"org/model","parent":null},
          {"id":"sql","root":"/l/sql","parent":"org/model"}, {"noid":1}, 7]})");
  ASSERT_TRUE(models.ok()) << models.status();
  EXPECT_THAT(models->base, ElementsAre("org/model", "short-name"));
  EXPECT_THAT(models->loras, ElementsAre("sql"));
}

TEST(ServedModelsTest, RefusesWhatIsNoList) {
  for (const char* text : {"", "{", "[]", R"({"data":{}})", R"({"data":[]})", "\xff\xff"}) {
    EXPECT_THAT(ParseServedModels(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--model")))
        << text;
  }
}

TEST(ServedModelsTest, Version) {
  EXPECT_EQ(ParseVersion(R"({"version":"0.26.0"})"), "0.26.0");
  EXPECT_EQ(ParseVersion("nothing"), "");
}

class FakeHttp final : public HttpGetter {
 public:
  absl::StatusOr<HttpReply> Get(const std::string& url) override {
    ++asked[url];
    if (!down.ok()) return down;
    const auto it = pages.find(url);
    if (it == pages.end()) return HttpReply{.status = 404, .body = ""};
    return it->second;
  }
  absl::Status down;
  std::map<std::string, HttpReply> pages = {
      {"http://e/health", {200, ""}},
      {"http://e/metrics", {200, kPage}},
      {"http://e/v1/models", {200, R"({"data":[{"id":"m"}]})"}},
      {"http://e/version", {200, R"({"version":"1"})"}},
  };
  std::map<std::string, int> asked;
};

class LoadScraperTest : public ::testing::Test {
 protected:
  FakeHttp http_;
  FakeClock clock_;
  LoadScraper scraper_{ScraperOptions{.base_url = "http://e"}, &http_, clock_};
};

TEST_F(LoadScraperTest, AGoodRoundTellsAll) {
  const EngineReport report = scraper_.Round();
  EXPECT_TRUE(report.status.ok()) << report.status;
  EXPECT_TRUE(report.reachable);
  EXPECT_EQ(report.asked, clock_.Now());
  EXPECT_EQ(report.metrics.ForRank(0, 1).running, 3U);
  ASSERT_TRUE(report.models.has_value());
  EXPECT_THAT(report.models->base, ElementsAre("m"));
  EXPECT_EQ(report.engine_version, "1");
}

TEST_F(LoadScraperTest, ThreeFailuresInARowMakeItUnreachable) {
  EXPECT_TRUE(scraper_.Round().reachable);
  http_.down = absl::DeadlineExceededError("slow");
  EXPECT_TRUE(scraper_.Round().reachable);
  EXPECT_TRUE(scraper_.Round().reachable);
  const EngineReport third = scraper_.Round();
  EXPECT_FALSE(third.reachable);
  EXPECT_FALSE(third.refused);
  EXPECT_EQ(third.failures, 3U);
  http_.down = absl::OkStatus();
  EXPECT_TRUE(scraper_.Round().reachable);
  http_.down = absl::UnavailableError("nobody");
  const EngineReport refused = scraper_.Round();
  EXPECT_TRUE(refused.reachable);
  EXPECT_TRUE(refused.refused);
}

TEST_F(LoadScraperTest, AnEngineNeverReachedIsUnreachableAtOnce) {
  http_.down = absl::UnavailableError("nobody");
  EXPECT_FALSE(scraper_.Round().reachable);
}

TEST_F(LoadScraperTest, HealthRules) {
  http_.pages["http://e/health"].status = 503;
  const EngineReport report = scraper_.Round();
  EXPECT_THAT(report.status, StatusIs(absl::StatusCode::kInternal, HasSubstr("/health answered")));
  http_.pages.erase("http://e/health");  // an engine without it
  EXPECT_TRUE(scraper_.Round().status.ok());
  http_.pages["http://e/metrics"].status = 500;
  EXPECT_FALSE(scraper_.Round().status.ok());
}

TEST_F(LoadScraperTest, ModelsAreReadNowAndThen) {
  const auto asked = [this] { return http_.asked["http://e/v1/models"]; };
  scraper_.Round();
  scraper_.Round();
  EXPECT_EQ(asked(), 1);
  clock_.Advance(absl::Seconds(31));
  scraper_.Round();
  EXPECT_EQ(asked(), 2);
  // Another process may serve others.
  http_.pages["http://e/metrics"].body = "process_start_time_seconds 5\n";
  http_.pages["http://e/v1/models"].body = R"({"data":[{"id":"n"}]})";
  EXPECT_THAT(scraper_.Round().models->base, ElementsAre("n"));
  EXPECT_EQ(asked(), 3);
  // Without an answer the old list stands, and is asked for again.
  clock_.Advance(absl::Seconds(31));
  http_.pages["http://e/v1/models"].status = 401;
  EXPECT_THAT(scraper_.Round().models->base, ElementsAre("n"));
  scraper_.Round();
  EXPECT_EQ(asked(), 5);
}

}  // namespace
}  // namespace warmpath
