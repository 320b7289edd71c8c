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
  EXPECT_EQ(table.OverShare(0), 0);
  EXPECT_EQ(table.size(), 0u);
}

TEST(TenantTableTest, SharesAreOfTheActiveAndOfLately) {
  TenantTable table;
  const TenantNumber a = table.Enter("a");
  EXPECT_EQ(table.Enter("a"), a);
  EXPECT_EQ(table.OverShare(a), 0);
  table.Use(a, 3, kStart);
  EXPECT_EQ(table.OverShare(a), 1);
  const TenantNumber b = table.Enter("b");
  table.Use(b, 1, kStart);
  EXPECT_DOUBLE_EQ(table.OverShare(a), 1.5);
  EXPECT_DOUBLE_EQ(table.OverShare(b), 0.5);
  table.Use(table.Enter("c"), 0.01, kStart);  // too little to count as one who shares
  EXPECT_NEAR(table.OverShare(a), 2 * 3 / 4.01, 1e-12);
  table.Use(b, 2, kStart + absl::Seconds(30));
  const double left = std::exp(-1.0);
  EXPECT_NEAR(table.OverShare(b), 2 * (left + 2) / (4.01 * left + 2), 1e-12);
  table.Use(b, std::nan(""), kStart + absl::Seconds(30));
  EXPECT_NEAR(table.OverShare(b), 2 * (left + 2) / (4.01 * left + 2), 1e-12);
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
  EXPECT_EQ(table.OverShare(seventh), 0);
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
