#include "core/base/flag_names.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

TEST(FlagNamesTest, OnlyNamesChangeAndOnlyBeforeTheBareDashes) {
  std::vector<std::string> arguments = {
      "program-name", "--speed-factor=1-2", "--a-b-c", "some-value", "-x-y", "--", "--d-e"};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  AcceptDashesInFlagNames(static_cast<int>(argv.size()), argv.data());
  EXPECT_THAT(arguments, ::testing::ElementsAre("program-name", "--speed_factor=1-2", "--a_b_c",
                                                "some-value", "-x-y", "--", "--d-e"));
}

}  // namespace
}  // namespace warmpath
