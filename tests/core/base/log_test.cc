#include "core/base/log.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::warmpath::testing::StatusIs;

class LogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    SetLogSink([this](LogLevel, std::string_view line) { lines_.emplace_back(line); });
  }
  void TearDown() override {
    SetLogSink(nullptr);
    SetMinLogLevel(LogLevel::kInfo);
  }
  std::vector<std::string> lines_;
};

TEST_F(LogTest, FieldsFollowTheMessage) {
  Log(LogLevel::kWarn, "pick failed", {{"model", "m"}, {"tokens", 12}, {"shed", true}});
  EXPECT_THAT(lines_, ElementsAre(EndsWith(" WARN pick failed model=m tokens=12 shed=true")));
}

TEST_F(LogTest, ANetworkValueCanNotForgeALine) {
  Log(LogLevel::kInfo, "x", {{"worker", "a\nERROR b=\"c\""}});
  EXPECT_THAT(lines_, ElementsAre(EndsWith(R"( INFO x worker="a\nERROR b=\"c\"")")));
}

TEST_F(LogTest, ALongValueIsCut) {
  Log(LogLevel::kInfo, "x", {{"worker", std::string(1025, 'w')}, {"n", 1}});
  EXPECT_THAT(lines_, ElementsAre(EndsWith(" INFO x worker=" + std::string(1024, 'w') +
                                           "[and 1 bytes more] n=1")));
}

TEST_F(LogTest, LinesBelowTheLevelAreDropped) {
  SetMinLogLevel(LogLevel::kError);
  Log(LogLevel::kWarn, "quiet");
  Log(LogLevel::kError, "loud");
  EXPECT_THAT(lines_, ElementsAre(HasSubstr("ERROR loud")));
}

TEST_F(LogTest, LogEveryCountsWhatItSuppressed) {
  LogEvery every(absl::Hours(1));
  EXPECT_TRUE(every.Due());
  EXPECT_FALSE(every.Due());
  EXPECT_FALSE(every.Due());
  LogEvery always(absl::ZeroDuration());
  EXPECT_TRUE(always.Due());
  EXPECT_TRUE(always.Due());
}

TEST(ParseLogLevelTest, NamesTheChoices) {
  EXPECT_EQ(*ParseLogLevel("warn"), LogLevel::kWarn);
  EXPECT_THAT(ParseLogLevel("loud"), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr("debug, info, warn or error")));
}

}  // namespace
}  // namespace warmpath
