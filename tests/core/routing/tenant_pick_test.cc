// Picks of several tenants: docs/policy.md.
#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pool_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::IsOk;

class TenantPickTest : public testing::PoolFixture {
 protected:
  static PoolConfig Config(bool fairness) {
    PoolConfig config = DefaultConfig();
    config.tenant_fairness = fairness;
    return config;
  }
  void Start(bool fairness, int targets) {
    Rebuild(Config(fairness), 1, CreateReferenceIndex({}));
    AddTargets(targets);
  }
  // 6,400 tokens that nobody has; the chain begins with the block `first`.
  Query AskOf(std::string_view tenant, ChainHash first) {
    Query query = Ask(Chain(first, 100));
    query.tenant = tenant;
    return query;
  }
  std::vector<CandidateTerms> Explain(Query query) {
    query.explain = true;
    query.reserve = false;
    const absl::StatusOr<Decision> decision = Pick(query);
    EXPECT_THAT(decision, IsOk());
    return decision->explanation;
  }
};

// P = 6,400 / 16,000 * (1 + 3,200 / 30,000)
constexpr double kPrefill = 0.4 * (1 + 3'200.0 / 30'000);

TEST_F(TenantPickTest, ATenantOverItsSharePaysForOthersRequests) {
  Start(true, 3);
  EXPECT_THAT(Pick(AskOf("heavy", 1'000)), IsOk());
  EXPECT_THAT(Pick(AskOf("heavy", 2'000)), IsOk());
  const std::string light = Where(AskOf("light", 3'000));  // the third of three idle targets
  // Two of three equal prefills, where its share is one of two: u = 4 / 3.
  for (const CandidateTerms& terms : Explain(AskOf("heavy", 4'000))) {
    EXPECT_EQ(terms.inflight, 1u);
    const double others = terms.endpoint.worker_id == light ? 1 : 0;
    EXPECT_NEAR(terms.tenant_s, others * 0.05 / 3 * kPrefill, 1e-12);
    EXPECT_NEAR(terms.cost_s,
                terms.wait_s + terms.prefill_s + terms.pool_price_s + terms.decode_stall_s +
                    terms.kv_pressure_s + terms.kv_wait_s + terms.tenant_s,
                1e-9);
  }
  for (const std::string_view tenant : {"light", "new", ""}) {
    for (const CandidateTerms& terms : Explain(AskOf(tenant, 4'000))) EXPECT_EQ(terms.tenant_s, 0);
  }
}

TEST_F(TenantPickTest, TheChargeEndsWithTheRequests) {
  Start(true, 1);
  EXPECT_THAT(Pick(AskOf("heavy", 1'000)), IsOk());
  const absl::StatusOr<Decision> light = Pick(AskOf("light", 2'000));
  ASSERT_THAT(light, IsOk());
  EXPECT_THAT(Pick(AskOf("heavy", 3'000)), IsOk());
  EXPECT_NEAR(Explain(AskOf("heavy", 4'000))[0].tenant_s, 0.05 / 3 * kPrefill, 1e-12);
  EXPECT_THAT(Report({.reservation_id = light->reservation_id, .kind = OutcomeKind::kFinished}),
              IsOk());
  EXPECT_EQ(Explain(AskOf("heavy", 4'000))[0].tenant_s, 0);
}

TEST_F(TenantPickTest, TheFirstPickAfterAMinuteOfSilencePays) {
  Start(true, 1);
  for (const ChainHash first : {1'000, 2'000, 3'000}) {
    const absl::StatusOr<Decision> heavy = Pick(AskOf("heavy", first));
    ASSERT_THAT(heavy, IsOk());
    EXPECT_THAT(Report({.reservation_id = heavy->reservation_id, .kind = OutcomeKind::kFinished}),
                IsOk());
  }
  clock_.Advance(absl::Seconds(61));
  Query light = Ask(Chain(4'000, 1));
  light.tenant = "light";
  EXPECT_THAT(Pick(light), IsOk());
  // What it used is mostly forgotten, and yet nearly all that is remembered.
  const double heavy_s = 3 * kPrefill * std::exp(-61.0 / 30);
  const double light_s = 64 / 16'000.0 * (1 + 32 / 30'000.0);
  const double over = 2 * heavy_s / (heavy_s + light_s);
  EXPECT_GT(over, 1.9);
  EXPECT_NEAR(Explain(AskOf("heavy", 5'000))[0].tenant_s, 0.05 * (over - 1) * kPrefill, 1e-12);
}

// With the setting off, with one tenant, and without any: the same scores, bit for bit.
TEST_F(TenantPickTest, ChangesNothingForOneTenant) {
  std::vector<double> reference;
  for (const auto& [fairness, tenant] :
       {std::pair(false, ""), std::pair(false, "a"), std::pair(true, ""), std::pair(true, "a")}) {
    Start(fairness, 4);
    std::vector<double> costs;
    for (ChainHash i = 1; i <= 40; ++i) {
      // Half of them share a prefix with an earlier one.
      Query query = AskOf(tenant, i % 2 == 0 ? i * 1'000 : 500);
      for (const CandidateTerms& terms : Explain(query)) costs.push_back(terms.cost_s);
      EXPECT_THAT(Pick(query), IsOk());
    }
    if (reference.empty()) reference = costs;
    EXPECT_EQ(costs, reference);
  }
}

}  // namespace
}  // namespace warmpath
