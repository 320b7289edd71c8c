#include "core/fleet/pool_averages.h"

#include <cmath>
#include <optional>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(PoolAveragesTest, ColdUntilTwentyHaveFinished) {
  AveragesKeeper keeper;
  keeper.SetBusy(4, 4, kStart);
  for (int i = 0; i < 19; ++i) keeper.OnFinish(100, 2);
  keeper.SetBusy(4, 4, kStart + absl::Seconds(3000));
  PoolAverages averages = keeper.Get();
  EXPECT_TRUE(averages.cold());
  EXPECT_EQ(averages.output_tokens, 256);
  EXPECT_EQ(averages.residence_s, 10);
  EXPECT_EQ(averages.rho, 0);
  keeper.OnFinish(100, 2);
  averages = keeper.Get();
  EXPECT_FALSE(averages.cold());
  EXPECT_DOUBLE_EQ(averages.output_tokens, 100);
  EXPECT_DOUBLE_EQ(averages.residence_s, 2);
  EXPECT_DOUBLE_EQ(averages.rho, 1);
}

TEST(PoolAveragesTest, APlainMeanThatTurnsIntoAnEwma) {
  AveragesKeeper keeper;
  // n = 1 .. 500: weight 1/n for o, so a plain mean of 1 .. 500.
  for (std::uint64_t i = 1; i <= 500; ++i) keeper.OnFinish(i, 1);
  EXPECT_NEAR(keeper.Get().output_tokens, 250.5, 1e-9);
  // The 501st weighs 0.002.
  keeper.OnFinish(10'000, 1);
  EXPECT_NEAR(keeper.Get().output_tokens, 250.5 + 0.002 * (10'000 - 250.5), 1e-9);
  // R: from the 200th on a weight of 0.005.
  EXPECT_NEAR(keeper.Get().residence_s, 1, 1e-12);
  keeper.OnFinish(std::nullopt, 11);
  EXPECT_NEAR(keeper.Get().residence_s, 1 + 0.005 * 10, 1e-12);
}

TEST(PoolAveragesTest, AnOutputThatNobodyCanHaveWrittenCountsAsALongOne) {
  AveragesKeeper keeper;
  for (int i = 0; i < 1000; ++i) keeper.OnFinish(200, 1);
  keeper.OnFinish(4'294'967'295, 1);  // -1 in the wrong type
  EXPECT_NEAR(keeper.Get().output_tokens, 200 + 0.002 * (131'072 - 200), 1e-9);
}

TEST(PoolAveragesTest, UnknownOutputsLeaveTheColdValue) {
  AveragesKeeper keeper;
  for (int i = 0; i < 30; ++i) keeper.OnFinish(std::nullopt, 4);
  EXPECT_EQ(keeper.Get().output_tokens, 256);
  EXPECT_DOUBLE_EQ(keeper.Get().residence_s, 4);
}

TEST(PoolAveragesTest, RhoFollowsTheShareOfBusyTargetsOverThirtySeconds) {
  AveragesKeeper keeper;
  for (int i = 0; i < 20; ++i) keeper.OnFinish(1, 1);
  keeper.SetBusy(0, 8, kStart);
  keeper.SetBusy(6, 8, kStart + absl::Seconds(100));
  EXPECT_DOUBLE_EQ(keeper.Get().rho, 0);
  keeper.SetBusy(6, 8, kStart + absl::Seconds(130));
  EXPECT_NEAR(keeper.Get().rho, 0.75 * (1 - std::exp(-1)), 1e-12);
  // In one step or in many: the same.
  for (int i = 1; i <= 300; ++i) {
    keeper.SetBusy(6, 8, kStart + absl::Seconds(130) + absl::Milliseconds(100 * i));
  }
  EXPECT_NEAR(keeper.Get().rho, 0.75 * (1 - std::exp(-2)), 1e-9);
  keeper.SetBusy(0, 0, kStart + absl::Seconds(200));  // the last target left: no division
  keeper.SetBusy(0, 0, kStart + absl::Seconds(2000));
  EXPECT_NEAR(keeper.Get().rho, 0, 1e-9);
}

TEST(PoolAveragesTest, AClockThatStandsOrGoesBackChangesNothing) {
  AveragesKeeper keeper;
  for (int i = 0; i < 20; ++i) keeper.OnFinish(1, -5);
  EXPECT_EQ(keeper.Get().residence_s, 0);
  keeper.SetBusy(1, 1, kStart);
  keeper.SetBusy(1, 1, kStart - absl::Seconds(5));
  EXPECT_EQ(keeper.Get().rho, 0);
}

}  // namespace
}  // namespace warmpath
