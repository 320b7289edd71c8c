#include "core/index/epoch.h"

#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath::index_internal {
namespace {

TEST(EpochTest, APinHoldsBackWhatItMayHaveSeen) {
  EpochDomain domain;
  EXPECT_TRUE(domain.AllLeft(domain.Advance()));
  auto early = std::make_unique<EpochDomain::Pin>(&domain);
  const EpochNumber unlinked = domain.Advance();
  EXPECT_FALSE(domain.AllLeft(unlinked));
  // A later pin does not matter to what was unlinked before it.
  const EpochDomain::Pin late(&domain);
  EXPECT_FALSE(domain.AllLeft(unlinked));
  early.reset();
  EXPECT_TRUE(domain.AllLeft(unlinked));
  EXPECT_FALSE(domain.AllLeft(domain.Advance()));
}

TEST(EpochTest, PinsNestAndComeFromManyThreads) {
  EpochDomain domain;
  std::vector<std::unique_ptr<EpochDomain::Pin>> pins;
  for (std::size_t i = 0; i < EpochDomain::kRecords - 1; ++i) {
    pins.push_back(std::make_unique<EpochDomain::Pin>(&domain));
  }
  const EpochNumber unlinked = domain.Advance();
  std::thread([&] { const EpochDomain::Pin pin(&domain); }).join();
  pins.resize(1);
  EXPECT_FALSE(domain.AllLeft(unlinked));
  pins.clear();
  EXPECT_TRUE(domain.AllLeft(unlinked));
}

}  // namespace
}  // namespace warmpath::index_internal
