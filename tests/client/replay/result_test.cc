#include "client/replay/result.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath::replay {
namespace {

using ::testing::HasSubstr;

RequestResult Done(const char* worker, std::uint64_t prompt, std::uint64_t predicted,
                   std::uint64_t actual, double ttft_s) {
  return {.finished = true,
          .worker = worker,
          .prompt_tokens = prompt,
          .output_tokens = 11,
          .predicted_cached_tokens = predicted,
          .actual_cached_tokens = actual,
          .ttft_s = ttft_s,
          .total_s = ttft_s + 0.1};
}

TEST(SummariseTest, CountsOnlyWhatFinished) {
  RequestResult failed{.finished = false, .error = "HTTP 500", .prompt_tokens = 1000};
  const Summary s = Summarise({Done("a/0", 100, 60, 50, 0.1), Done("b/0", 300, 100, 110, 0.2),
                               Done("b/0", 100, 0, 0, 0.6), failed},
                              12.5);
  EXPECT_EQ(s.requests, 3u);
  EXPECT_EQ(s.errors, 1u);
  EXPECT_EQ(s.first_error, "HTTP 500");
  EXPECT_DOUBLE_EQ(s.token_hit_rate, 160.0 / 500);
  EXPECT_NEAR(s.ttft_mean_ms, 300, 1e-9);
  EXPECT_NEAR(s.ttft_p50_ms, 200, 1e-9);
  EXPECT_NEAR(s.ttft_p99_ms, 600, 1e-9);
  EXPECT_NEAR(s.tpot_mean_ms, 10, 1e-9);
  EXPECT_DOUBLE_EQ(s.busiest_worker_share, 0.8);
  EXPECT_EQ(s.predicted_cached_tokens, 160u);
  EXPECT_EQ(s.actual_cached_tokens, 160u);
  EXPECT_NEAR(s.prediction_mae_tokens, 20.0 / 3, 1e-9);
  EXPECT_THAT(SummaryJson(s),
              HasSubstr("\"requests\": 3, \"errors\": 1, \"token_hit_rate\": 0.32"));
}

TEST(SummariseTest, NothingFinishedIsNoDivisionByZero) {
  const Summary s = Summarise({}, 0);
  EXPECT_EQ(s.requests, 0u);
  EXPECT_EQ(s.token_hit_rate, 0);
  EXPECT_EQ(s.ttft_p99_ms, 0);
}

}  // namespace
}  // namespace warmpath::replay
