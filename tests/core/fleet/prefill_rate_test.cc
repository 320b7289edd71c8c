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

TEST(LearnedRateTest, SaysNothingBeforeSixteenSamples) {
  LearnedRate rate;
  for (int i = 0; i < 15; ++i) rate.Observe(10'000, 1);
  EXPECT_EQ(rate.tokens_per_s(), 0);
  rate.Observe(10'000, 1);
  EXPECT_EQ(rate.tokens_per_s(), 10'000);
}

TEST(LearnedRateTest, TakesTheLowerMedianOfTheLast32) {
  LearnedRate rate;
  for (int r = 11; r <= 26; ++r) rate.Observe(r * 1000, 1);
  EXPECT_EQ(rate.tokens_per_s(), 18'000);
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

TEST(LearnedCopyRateTest, IsForgottenWithoutSamplesAndNotBefore) {
  constexpr absl::Duration kMemory = LearnedCopyRate::kMemory;
  LearnedCopyRate rate;
  absl::Time now = absl::UnixEpoch();
  EXPECT_EQ(rate.tokens_per_s(now), 0);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(rate.tokens_per_s(now), 0);
    rate.Observe(30'000, 1, now);
    now += kMemory;  // seldom is often enough
  }
  EXPECT_EQ(rate.tokens_per_s(now), 30'000);
  // What is too small to be a sample keeps nothing alive.
  rate.Observe(100, 1, now);
  EXPECT_EQ(rate.tokens_per_s(now + absl::Nanoseconds(1)), 0);
  // All samples are gone, not only their median.
  now += absl::Seconds(1);
  rate.Observe(90'000, 1, now);
  EXPECT_EQ(rate.samples(), 1u);
  EXPECT_EQ(rate.tokens_per_s(now), 0);
  for (int i = 0; i < 15; ++i) rate.Observe(90'000, 1, now);
  EXPECT_EQ(rate.tokens_per_s(now), 90'000);
  rate.Reset();
  EXPECT_EQ(rate.tokens_per_s(now), 0);
}

TEST(RateInUseTest, LearnedThenHintThenPeersThenTheFallback) {
  LearnedRate learned;
  for (int i = 0; i < 16; ++i) learned.Observe(12'000, 1);
  const PeerRates peers{.median = 40'000, .share_of_hint = 0.25};
  EXPECT_DOUBLE_EQ(RateInUse(learned, 0, peers), 12'000);
  EXPECT_DOUBLE_EQ(RateInUse(LearnedRate(), 50'000, {}), 40'000);
  // A peer whose hint was four times too high: so is this one's, most likely.
  EXPECT_DOUBLE_EQ(RateInUse(LearnedRate(), 50'000, peers), 50'000 * 0.25);
  EXPECT_DOUBLE_EQ(RateInUse(LearnedRate(), 0, peers), 36'000);
  EXPECT_DOUBLE_EQ(RateInUse(LearnedRate(), 0, {}), 8'000);
  learned.Reset();
  EXPECT_DOUBLE_EQ(RateInUse(learned, 0, {}), 8'000);
}

TEST(RateInUseTest, SmallDifferencesFromThePeersAreNone) {
  LearnedRate learned;
  for (int i = 0; i < 16; ++i) learned.Observe(12'000, 1);
  // Eight tenths of the hint: as the peers.
  EXPECT_DOUBLE_EQ(RateInUse(learned, 15'000, {.median = 1, .share_of_hint = 0.8}), 12'000);
  EXPECT_DOUBLE_EQ(RateInUse(learned, 16'000, {.median = 1, .share_of_hint = 0.9}), 14'400);
  EXPECT_DOUBLE_EQ(RateInUse(learned, 10'000, {.median = 1, .share_of_hint = 0.95}), 9'500);
  // A third slower or faster than they let expect: by itself.
  EXPECT_DOUBLE_EQ(RateInUse(learned, 16'000, {.median = 1, .share_of_hint = 1}), 12'000);
  EXPECT_DOUBLE_EQ(RateInUse(learned, 9'000, {.median = 1, .share_of_hint = 1}), 12'000);
  // Without a hint the peers' rates themselves are what is expected.
  EXPECT_DOUBLE_EQ(RateInUse(learned, 0, {.median = 13'000}), 13'000);
  EXPECT_DOUBLE_EQ(RateInUse(learned, 0, {.median = 30'000}), 12'000);
  EXPECT_DOUBLE_EQ(RateInUse(learned, 0, {}), 12'000);
}

}  // namespace
}  // namespace warmpath
