#include "core/routing/cost.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

// By hand, for L = 8000, h = 2000, rate 16,000 and ctx_half 30,000:
//   P = 6000 / 16000 * (1 + (2000 + 8000) / 2 / 30000) = 0.375 * 7/6 = 0.4375
CostInput Example() {
  return CostInput{.prompt_tokens = 8000,
                   .cached_tokens = 2000,
                   .output_tokens = 400,
                   .residence_s = 12,
                   .rho = 0.5,
                   .rate = 16'000,
                   .ctx_half = 30'000,
                   .wait_s = 1.25,
                   .inflight = 10,
                   .kv_tokens = 70'000,
                   .kv_capacity = 350'000};
}

TEST(CostTest, EachTermByHand) {
  const CostTerms terms = MarginalCost(Example());
  EXPECT_DOUBLE_EQ(terms.wait_s, 1.25);
  EXPECT_NEAR(terms.prefill_s, 0.4375, 1e-12);
  EXPECT_NEAR(terms.pool_price_s, 0.4375, 1e-12);     // a = 0.5 / 0.5 = 1
  EXPECT_NEAR(terms.decode_stall_s, 0.09625, 1e-12);  // 0.02 * 10 * (1 + 10 / 100) * P
  EXPECT_NEAR(terms.kv_pressure_s, 0.056, 1e-12);     // 1.4 * (70 / 350)^2
  EXPECT_EQ(terms.kv_wait_s, 0);                      // 78,400 < 350,000
  EXPECT_NEAR(terms.Sum(), 1.25 + 0.4375 * 2 + 0.09625 + 0.056, 1e-12);
  EXPECT_NEAR(terms.TimeToFirstToken(), 1.6875, 1e-12);
}

TEST(CostTest, ASlowTargetsSecondCostsOthersLess) {
  CostInput input = Example();
  input.pool_rate = 32'000;  // half the time on the mean target
  const CostTerms terms = MarginalCost(input);
  EXPECT_NEAR(terms.prefill_s, 0.4375, 1e-12);
  EXPECT_NEAR(terms.pool_price_s, 0.4375 / 2, 1e-12);
}

TEST(CostTest, AmongUnequalTargetsAStallWeighsMoreWhereDecodingIsFast) {
  CostInput input = Example();
  input.unequal = true;
  EXPECT_NEAR(MarginalCost(input).decode_stall_s, 0.09625, 1e-12);  // nobody to compare with
  input.pool_rate = 32'000;                                         // s = 1/2
  CostTerms terms = MarginalCost(input);
  EXPECT_NEAR(terms.decode_stall_s, 0.09625 / 8 * 0.70710678118654752, 1e-12);  // s^3.5
  EXPECT_NEAR(terms.kv_pressure_s, 0.056 * 4, 1e-12);                           // s^-2
  EXPECT_NEAR(terms.prefill_s, 0.4375, 1e-12);
  EXPECT_NEAR(terms.pool_price_s, 0.4375 / 2, 1e-12);
  input.pool_rate = 10'000;  // s = 1.6
  terms = MarginalCost(input);
  EXPECT_NEAR(terms.decode_stall_s, 0.09625 * 4.096 * 1.2649110640673518, 1e-12);
  EXPECT_NEAR(terms.kv_pressure_s, 0.056 / 2.56, 1e-12);
  // Both ends are bounded: s = 0.4 and 2.
  input.pool_rate = 1e9;
  EXPECT_NEAR(MarginalCost(input).kv_pressure_s, 0.056 * 6.25, 1e-12);
  input.pool_rate = 1;
  EXPECT_NEAR(MarginalCost(input).kv_pressure_s, 0.056 / 4, 1e-12);
  input.unequal = false;
  EXPECT_EQ(MarginalCost(input).decode_stall_s, MarginalCost(Example()).decode_stall_s);
  EXPECT_EQ(MarginalCost(input).kv_pressure_s, MarginalCost(Example()).kv_pressure_s);
}

TEST(CostTest, WaitForSpaceInAFullCache) {
  CostInput input = Example();
  input.kv_tokens = 348'000;
  // 12 * (348,000 + 8,400 - 350,000) / 348,000
  EXPECT_NEAR(MarginalCost(input).kv_wait_s, 12 * 6400.0 / 348'000, 1e-12);
  // Nothing else there and still too large: the request itself is what must go.
  input.kv_tokens = 0;
  input.kv_capacity = 4'200;
  EXPECT_NEAR(MarginalCost(input).kv_wait_s, 12 * 4200.0 / 8400, 1e-12);
}

TEST(CostTest, ThePriceOfABusyPool) {
  EXPECT_EQ(PoolPrice(0), 0);
  EXPECT_DOUBLE_EQ(PoolPrice(0.2), 0.25);
  EXPECT_DOUBLE_EQ(PoolPrice(0.5), 1);
  EXPECT_NEAR(PoolPrice(0.7499999), 3, 1e-5);
  EXPECT_EQ(PoolPrice(0.75), 3);
  EXPECT_EQ(PoolPrice(0.9), 3);
  EXPECT_EQ(PoolPrice(1), 3);
}

TEST(CostTest, UnknownCapacityLeavesOutTheTermsThatNeedIt) {
  CostInput input = Example();
  input.kv_capacity = 0;
  const CostTerms terms = MarginalCost(input);
  EXPECT_EQ(terms.kv_pressure_s, 0);
  EXPECT_EQ(terms.kv_wait_s, 0);
  EXPECT_NEAR(terms.prefill_s, 0.4375, 1e-12);
}

TEST(CostTest, AHitSavesItsShareAndItsAttention) {
  CostInput input = Example();
  input.cached_tokens = 7999;
  EXPECT_NEAR(MarginalCost(input).prefill_s, 1.0 / 16'000 * (1 + 15'999.0 / 60'000), 1e-15);
  input.cached_tokens = 0;
  EXPECT_NEAR(MarginalCost(input).prefill_s, 0.5 * (1 + 4.0 / 30), 1e-12);
}

TEST(CostTest, IsFiniteAtEveryEdge) {
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{8000}, std::uint64_t{1} << 32}) {
    for (const std::uint64_t cached : {std::uint64_t{0}, length > 0 ? length - 1 : 0, length}) {
      for (const std::uint64_t held : {std::uint64_t{0}, std::uint64_t{350'000}}) {
        for (const std::uint64_t capacity :
             {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{350'000}}) {
          for (const double output : {0.0, 256.0}) {
            for (const double rho : {0.0, 0.75, 1.0}) {
              const CostTerms terms = MarginalCost({.prompt_tokens = length,
                                                    .cached_tokens = cached,
                                                    .output_tokens = output,
                                                    .residence_s = 0,
                                                    .rho = rho,
                                                    .rate = 8000,
                                                    .ctx_half = 30'000,
                                                    .wait_s = 0,
                                                    .inflight = 0,
                                                    .kv_tokens = held,
                                                    .kv_capacity = capacity});
              EXPECT_TRUE(std::isfinite(terms.Sum()))
                  << length << " " << cached << " " << held << " " << capacity;
              EXPECT_GE(terms.Sum(), 0);
            }
          }
        }
      }
    }
  }
}

// The column form gives the very numbers of the plain one: a target must not win or lose by how it
// was computed.
TEST(CostTest, ColumnsAgreeBitForBit) {
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    const CostShared shared{.prompt_tokens = random.Below(3) * random.Below(200'000),
                            .output_tokens = random.Unit() * static_cast<double>(random.Below(900)),
                            .residence_s = random.Unit() * 60,
                            .rho = random.Unit(),
                            .pool_rate = static_cast<double>(random.Below(2) * 12'345),
                            .unequal = random.Below(2) == 1,
                            .ctx_half = 30'000};
    constexpr std::size_t kCount = 33;
    std::vector<CostInput> inputs(kCount);
    std::vector<double> cached(kCount), rate(kCount), start(kCount), inflight(kCount), held(kCount),
        capacity(kCount), cost(kCount), ttft(kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      CostInput& input = inputs[i];
      input = {.prompt_tokens = shared.prompt_tokens,
               .cached_tokens = random.Below(shared.prompt_tokens + 1),
               .output_tokens = shared.output_tokens,
               .residence_s = shared.residence_s,
               .rho = shared.rho,
               .pool_rate = shared.pool_rate,
               .unequal = shared.unequal,
               .rate = 100 + random.Unit() * 50'000,
               .ctx_half = shared.ctx_half,
               .wait_s = random.Unit() * 10,
               .copy_s = static_cast<double>(random.Below(2)) * random.Unit(),
               .inflight = static_cast<std::uint32_t>(random.Below(300)),
               .kv_tokens = random.Below(2) * random.Below(1'000'000),
               .kv_capacity = random.Below(3) * (1 + random.Below(500'000))};
      cached[i] = static_cast<double>(input.cached_tokens);
      rate[i] = input.rate;
      start[i] = input.wait_s + input.copy_s;
      inflight[i] = input.inflight;
      held[i] = static_cast<double>(input.kv_tokens);
      capacity[i] = input.kv_capacity > 0 ? static_cast<double>(input.kv_capacity)
                                          : std::numeric_limits<double>::infinity();
    }
    const CostColumns columns{.cached_tokens = cached.data(),
                              .rate = rate.data(),
                              .start_s = start.data(),
                              .inflight = inflight.data(),
                              .kv_tokens = held.data(),
                              .kv_capacity = capacity.data()};
    MarginalCosts(shared, columns, 0, kCount, cost.data());
    TimesToFirstToken(shared, columns, 0, kCount, ttft.data());
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(cost[i], MarginalCost(inputs[i]).Sum()) << "round " << round << ", " << i;
      ASSERT_EQ(ttft[i], MarginalCost(inputs[i]).TimeToFirstToken());
    }
    // One by itself, as after a correction.
    cost[5] = 0;
    MarginalCosts(shared, columns, 5, 6, cost.data());
    ASSERT_EQ(cost[5], MarginalCost(inputs[5]).Sum());
  }
}

}  // namespace
}  // namespace warmpath
