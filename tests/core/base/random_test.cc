#include "core/base/random.h"

#include "gtest/gtest.h"

namespace warmpath {
namespace {

TEST(RandomTest, SameSeedSameSequence) {
  Random a(7);
  Random b(7);
  Random c(8);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const auto value = a();
    EXPECT_EQ(value, b());
    differs |= value != c();
  }
  EXPECT_TRUE(differs);
}

TEST(RandomTest, BelowIsUniform) {
  Random random(1);
  int counts[10] = {};
  for (int i = 0; i < 100'000; ++i) ++counts[random.Below(10)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
}

TEST(RandomTest, UnitAndExponentialHaveTheirMeans) {
  Random random(2);
  double unit = 0;
  double exponential = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double u = random.Unit();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    unit += u;
    exponential += random.Exponential(3.0);
  }
  EXPECT_NEAR(unit / 100'000, 0.5, 0.01);
  EXPECT_NEAR(exponential / 100'000, 3.0, 0.1);
}

}  // namespace
}  // namespace warmpath
