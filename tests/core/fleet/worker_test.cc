#include "core/fleet/worker.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CauseSetTest, KeepsCausesInTheOrderOfTheEnum) {
  CauseSet causes;
  EXPECT_TRUE(causes.empty());
  EXPECT_THAT(causes.ToVector(), IsEmpty());
  causes.Set(FreshnessCause::kDrift);
  causes.Set(FreshnessCause::kGap);
  causes.Set(FreshnessCause::kGap);
  EXPECT_TRUE(causes.Has(FreshnessCause::kGap));
  EXPECT_FALSE(causes.Has(FreshnessCause::kResync));
  EXPECT_EQ(causes.First(), FreshnessCause::kGap);
  EXPECT_THAT(causes.ToVector(), ElementsAre(FreshnessCause::kGap, FreshnessCause::kDrift));
  causes.Set(FreshnessCause::kGap, false);
  causes.Set(FreshnessCause::kDrift, false);
  EXPECT_EQ(causes, CauseSet());
}

TEST(WorkerNamesTest, EveryCauseHasANameAndARemedyOfOneSentence) {
  std::set<std::string_view> names;
  std::set<std::string_view> remedies;
  for (std::size_t i = 0; i < kFreshnessCauseCount; ++i) {
    const auto cause = static_cast<FreshnessCause>(i);
    names.insert(FreshnessCauseName(cause));
    const std::string_view remedy = FreshnessCauseRemedy(cause);
    remedies.insert(remedy);
    EXPECT_EQ(remedy.find(". "), std::string_view::npos) << remedy;
    EXPECT_TRUE(remedy.ends_with(".")) << remedy;
  }
  EXPECT_EQ(names.size(), kFreshnessCauseCount);
  EXPECT_EQ(remedies.size(), kFreshnessCauseCount);
  EXPECT_FALSE(names.contains("unknown"));
}

}  // namespace
}  // namespace warmpath
