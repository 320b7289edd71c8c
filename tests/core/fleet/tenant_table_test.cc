#include "core/fleet/tenant_table.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

TEST(TenantTableTest, NobodyHasNoPlace) {
  TenantTable table;
  EXPECT_EQ(table.Enter(""), 0u);
  EXPECT_EQ(table.Find("a"), 0u);
  table.Open(0, 3);
  table.Close(0, 3);
  table.Use(0, 5, kStart);
  EXPECT_EQ(table.OpenAt(0, 3), 0u);
  EXPECT_EQ(table.OverShare(0, kStart), 0);
  EXPECT_EQ(table.size(), 0u);
}

TEST(TenantTableTest, SharesAreOfLately) {
  TenantTable table;
  const TenantNumber a = table.Enter("a");
  EXPECT_EQ(table.Enter("a"), a);
  EXPECT_EQ(table.OverShare(a, kStart), 0);
  table.Use(a, 3, kStart);
  EXPECT_EQ(table.OverShare(a, kStart), 1);
  const TenantNumber b = table.Enter("b");
  table.Use(b, 1, kStart);
  EXPECT_DOUBLE_EQ(table.OverShare(a, kStart), 1.5);
  EXPECT_DOUBLE_EQ(table.OverShare(b, kStart), 0.5);
  const absl::Time later = kStart + absl::Seconds(30);
  table.Use(b, 2, later);
  const double left = std::exp(-1.0);
  EXPECT_NEAR(table.OverShare(b, later), 2 * (left + 2) / (4 * left + 2), 1e-12);
  table.Use(b, std::nan(""), later);
  EXPECT_NEAR(table.OverShare(b, later), 2 * (left + 2) / (4 * left + 2), 1e-12);
}

TEST(TenantTableTest, AloneIsNeverOverItsShare) {
  TenantTable table;
  const TenantNumber a = table.Enter("a");
  for (int i = 0; i < 100; ++i) {
    const absl::Time now = kStart + i * absl::Seconds(0.7);
    table.Use(a, 0.1 * i, now);
    EXPECT_LE(table.OverShare(a, now), 1);
  }
}

TEST(TenantTableTest, TwoEqualOnesUseTheirShares) {
  TenantTable table;
  const TenantNumber a = table.Enter("a");
  const TenantNumber b = table.Enter("b");
  for (int i = 0; i < 100; ++i) {
    const absl::Time now = kStart + i * absl::Seconds(0.7);
    table.Use(a, 0.5, now);
    table.Use(b, 0.5, now);
    EXPECT_DOUBLE_EQ(table.OverShare(a, now), 1);
    EXPECT_DOUBLE_EQ(table.OverShare(b, now), 1);
  }
}

// None of the small ones has as much as 1 % of what the heavy one has; all that ask share.
TEST(TenantTableTest, OneHeavyAmongAHundredTinyOnesIsFarOverItsShare) {
  TenantTable table;
  const TenantNumber heavy = table.Enter("heavy");
  table.Use(heavy, 30, kStart);
  for (int i = 0; i < 100; ++i) {
    // Some computed nothing: all that they asked for was cached.
    table.Use(table.Enter(absl::StrCat("t", i)), i % 2 == 0 ? 0.01 : 0, kStart);
  }
  EXPECT_NEAR(table.OverShare(heavy, kStart), 101 * 30 / 30.5, 1e-9);
  EXPECT_NEAR(table.OverShare(table.Find("t0"), kStart), 101 * 0.01 / 30.5, 1e-9);
  EXPECT_EQ(table.OverShare(table.Find("t1"), kStart), 0);
}

TEST(TenantTableTest, WhoAsksNoMoreSharesNoMore) {
  TenantTable table;
  const TenantNumber a = table.Enter("a");
  table.Use(table.Enter("b"), 0, kStart);
  const absl::Time last = kStart + TenantTable::kActive;
  table.Use(a, 1, last);
  EXPECT_EQ(table.OverShare(a, last), 2);
  EXPECT_EQ(table.OverShare(a, last + absl::Nanoseconds(1)), 1);
}

TEST(TenantTableTest, WhoAsksAgainAfterAMinuteIsOneWhoAsks) {
  TenantTable table;
  const TenantNumber heavy = table.Enter("heavy");
  table.Use(heavy, 30, kStart);
  const absl::Time later = kStart + TenantTable::kActive + absl::Seconds(1);
  table.Use(table.Enter("light"), 0.01, later);
  const double left = 30 * std::exp(-61.0 / 30);
  EXPECT_NEAR(table.OverShare(heavy, later), 2 * left / (left + 0.01), 1e-12);
  // With its pick entered as use it is no other, but for what it used.
  table.Use(heavy, 0, later);
  EXPECT_NEAR(table.OverShare(heavy, later), 2 * left / (left + 0.01), 1e-12);
}

TEST(TenantTableTest, CountsWhereRequestsAre) {
  TenantTable table;
  const TenantNumber a = table.Enter("a");
  const TenantNumber b = table.Enter("b");
  table.Open(a, 5);
  table.Open(a, 5);
  table.Open(b, 2);
  EXPECT_EQ(table.OpenAt(a, 5), 2u);
  EXPECT_EQ(table.OpenAt(a, 2), 0u);
  EXPECT_EQ(table.OpenAt(b, 1'000), 0u);
  table.Close(a, 5);
  EXPECT_EQ(table.OpenAt(a, 5), 1u);
}

TEST(TenantTableTest, AFullTableGivesUpWhoUsedLeastAndHasNothingInFlight) {
  TenantTable table;
  for (std::size_t i = 0; i < TenantTable::kMostTenants; ++i) {
    const TenantNumber tenant = table.Enter(absl::StrCat("t", i));
    table.Use(tenant, 1 + static_cast<double>(i), kStart);
    if (i != 7 && i != 9) table.Open(tenant, 0);
  }
  const TenantNumber seventh = table.Find("t7");
  EXPECT_EQ(table.Enter("new"), seventh);
  EXPECT_EQ(table.Find("t7"), 0u);
  EXPECT_EQ(table.OverShare(seventh, kStart), 0);
  table.Open(seventh, 0);
  const TenantNumber ninth = table.Find("t9");
  EXPECT_EQ(table.Enter("newer"), ninth);
  EXPECT_EQ(table.Find("t9"), 0u);
  table.Open(ninth, 0);
  EXPECT_EQ(table.Enter("none left"), 0u);
  EXPECT_EQ(table.size(), TenantTable::kMostTenants);
  table.Close(seventh, 0);
  EXPECT_EQ(table.Enter("none left"), seventh);
}

}  // namespace
}  // namespace warmpath
