#include "core/fleet/prefill_rate.h"

#include <limits>

#include "gtest/gtest.h"

namespace warmpath {
namespace {

TEST(PrefillWorkTest, CountsAttentionOverTheWholeContext) {
  EXPECT_DOUBLE_EQ(PrefillWork(8000, 0, 32'000), 8000 * 1.125);
  EXPECT_DOUBLE_EQ(PrefillWork(8000, 4000, 30'000), 4000 * 1.2);
  EXPECT_DOUBLE_EQ(PrefillWork(0, 0, 30'000), 0);
  // More cached than there is: nothing to do, never less than nothing.
  EXPECT_DOUBLE_EQ(PrefillWork(100, 200, 30'000), 0);
}

TEST(LearnedRateTest, SaysNothingBeforeFiveSamples) {
  LearnedRate rate;
  for (int i = 0; i < 4; ++i) rate.Observe(10'000, 1);
  EXPECT_EQ(rate.tokens_per_s(), 0);
  rate.Observe(10'000, 1);
  EXPECT_EQ(rate.tokens_per_s(), 10'000);
}

TEST(LearnedRateTest, TakesTheLowerMedianOfTheLast32) {
  LearnedRate rate;
  for (const double r : {16'000.0, 15'000.0, 14'000.0, 13'000.0, 12'000.0, 11'000.0}) {
    rate.Observe(r, 1);
  }
  EXPECT_EQ(rate.tokens_per_s(), 13'000);
  for (int i = 0; i < 32; ++i) rate.Observe(20'000, 1);
  EXPECT_EQ(rate.tokens_per_s(), 20'000);
}

TEST(LearnedRateTest, PrefillsThatWaitedForSpaceDoNotDragItDown) {
  LearnedRate rate;
  for (int i = 0; i < 20; ++i) rate.Observe(16'000, i % 3 == 0 ? 10.0 : 1.0);
  EXPECT_EQ(rate.tokens_per_s(), 16'000);
}

TEST(LearnedRateTest, IgnoresSmallAndSenselessSamples) {
  LearnedRate rate;
  for (int i = 0; i < 10; ++i) {
    rate.Observe(100, 1);
    rate.Observe(10'000, 0);
    rate.Observe(10'000, -1);
    rate.Observe(std::numeric_limits<double>::quiet_NaN(), 1);
    rate.Observe(10'000, std::numeric_limits<double>::quiet_NaN());
    rate.Observe(std::numeric_limits<double>::infinity(), 1);
  }
  EXPECT_EQ(rate.samples(), 0u);
  EXPECT_EQ(rate.tokens_per_s(), 0);
}

TEST(RateInUseTest, LearnedThenHintThenPeersThenTheFallback) {
  LearnedRate learned;
  for (int i = 0; i < 5; ++i) learned.Observe(12'000, 1);
  EXPECT_DOUBLE_EQ(RateInUse(learned, 50'000, 40'000), 12'000);
  EXPECT_DOUBLE_EQ(RateInUse(LearnedRate(), 50'000, 40'000), 40'000);
  EXPECT_DOUBLE_EQ(RateInUse(LearnedRate(), 0, 40'000), 36'000);
  EXPECT_DOUBLE_EQ(RateInUse(LearnedRate(), 0, 0), 8'000);
  learned.Reset();
  EXPECT_DOUBLE_EQ(RateInUse(learned, 0, 0), 8'000);
}

}  // namespace
}  // namespace warmpath
