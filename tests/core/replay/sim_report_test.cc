#include "core/replay/sim_report.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SimRequestResult Result(std::uint32_t worker, double ttft_s, double tpot_s) {
  return {.worker = worker,
          .ttft_s = ttft_s,
          .tpot_s = tpot_s,
          .prompt_tokens = 100,
          .output_tokens = 10,
          .cached_tokens = 40,
          .predicted_tokens = 50};
}

TEST(SimReportTest, ASummaryCountsWhatMetTheObjective) {
  SimResult result;
  result.requests = {Result(0, 1, 0.010), Result(0, 1.9, 0.060), Result(0, 2.1, 0.010),
                     Result(1, 3, 0.020)};
  SimRequestResult refused;
  refused.refused = true;
  result.requests.push_back(refused);
  const SimSummary summary = Summarise(result, 2, SimObjective());
  EXPECT_EQ(summary.requests, 5u);
  EXPECT_EQ(summary.refused, 1u);
  EXPECT_DOUBLE_EQ(summary.goodput, 0.2);
  EXPECT_DOUBLE_EQ(summary.ttft_mean_s, 2.0);
  EXPECT_DOUBLE_EQ(summary.ttft_p50_s, 1.9);
  EXPECT_DOUBLE_EQ(summary.ttft_p90_s, 3.0);
  EXPECT_DOUBLE_EQ(summary.tpot_mean_ms, 25);
  EXPECT_DOUBLE_EQ(summary.token_hit_rate, 0.4);
  EXPECT_DOUBLE_EQ(summary.busiest_share, 0.75);
  EXPECT_DOUBLE_EQ(summary.prediction_error, 0.1);
}

TEST(SimReportTest, PlotsLeaveOutWhatWasRefused) {
  SimResult result;
  for (int i = 1; i <= 200; ++i) result.requests.push_back(Result(i <= 150 ? 0 : 2, i, 0.010));
  result.requests.push_back({.refused = true});
  result.samples.push_back({.time_s = 7, .running = 3});
  const SimPlots plots = PlotsOf(result, 3);
  EXPECT_EQ(plots.worker_shares, (std::vector<double>{0.75, 0, 0.25}));
  ASSERT_EQ(plots.ttft_s.size(), 201u);
  EXPECT_EQ(plots.ttft_s.front(), 1);
  EXPECT_EQ(plots.ttft_s[100], 100);
  EXPECT_EQ(plots.ttft_s.back(), 200);
  ASSERT_EQ(plots.load.size(), 1u);
  EXPECT_EQ(plots.load[0].running, 3u);
  EXPECT_TRUE(PlotsOf({}, 2).ttft_s.empty());
}

TEST(SimReportTest, DifferencesArePairedBySeed) {
  SimCell a{.workers = 8, .load = 0.7, .rate_rps = 3.5, .policy = "marginal_cost"};
  SimCell b = a;
  b.policy = "dynamo";
  for (const double noise : {0.0, 1.0, 5.0}) {
    a.seeds.push_back({.goodput = noise});
    b.seeds.push_back({.goodput = noise - 0.25});
  }
  EXPECT_DOUBLE_EQ(OverSeeds(a, &SimSummary::goodput).mean, 2);
  EXPECT_DOUBLE_EQ(OverSeeds(a, &SimSummary::goodput).error, std::sqrt(7.0 / 3));
  const MeanError difference = PairedDifference(a, b, &SimSummary::goodput);
  EXPECT_DOUBLE_EQ(difference.mean, 0.25);
  EXPECT_NEAR(difference.error, 0, 1e-12);

  const std::string json = SimCellsJson({a, b});
  EXPECT_THAT(json, HasSubstr("{\"workers\": 8, \"load\": 0.7, \"rate_rps\": 3.5, \"policy\": "
                              "\"dynamo\", \"seeds\": 3,"));
  EXPECT_THAT(json, HasSubstr("\"minus_marginal_cost\""));
  EXPECT_THAT(SimCellsJson({b}), Not(HasSubstr("minus_marginal_cost")));
  const std::string table = SimTable({a, b});
  EXPECT_THAT(table, HasSubstr("8 workers, load 0.70, 3.500 requests/s, 3 seeds"));
  EXPECT_THAT(table, HasSubstr("dynamo"));
}

TEST(SimReportTest, ComparisonsSayWhatIsNoChance) {
  SimCell a{.workers = 8, .load = 0.7, .rate_rps = 3.5, .policy = "marginal_cost"};
  SimCell b = a;
  b.policy = "dynamo";
  for (const double noise : {-1.0, 0.0, 1.0}) {
    a.seeds.push_back({.ttft_mean_s = 2, .ttft_p50_s = 1});
    // +10 % +- 4.303 * 1 % / sqrt(3); +1 % +- 4.303 * 1 % / sqrt(3).
    b.seeds.push_back({.ttft_mean_s = 2.2 + 0.02 * noise, .ttft_p50_s = 1.01 + 0.01 * noise});
  }
  const std::string text = SimComparison({a, b}, "marginal_cost");
  EXPECT_THAT(text, HasSubstr("8 workers, load 0.70, against marginal_cost, 3 seeds, 95 %"));
  EXPECT_THAT(text, HasSubstr("+10.0 +-  2.5* "));
  EXPECT_THAT(text, HasSubstr("+1.0 +-  2.5  "));
  EXPECT_THAT(text, Not(HasSubstr("marginal_cost     ")));
  EXPECT_EQ(SimComparison({a, b}, "lmetric"), "");
  a.seeds.resize(1);
  b.seeds.resize(1);
  EXPECT_EQ(SimComparison({a, b}, "marginal_cost"), "");
}

}  // namespace
}  // namespace warmpath
