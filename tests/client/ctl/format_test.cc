#include "client/ctl/format.h"

#include "gtest/gtest.h"

namespace warmpath::ctl {
namespace {

TEST(TableTest, NumbersAreRightAlignedAndNamesLeft) {
  Table table({"NAME", "COUNT", "ADDRESS"});
  table.AddRow({"a", "5", "127.0.0.1:80"});
  table.AddRow({"bär", "1234567", "[::1]:9"});
  EXPECT_EQ(table.Render(),
            "NAME    COUNT  ADDRESS\n"
            "a           5  127.0.0.1:80\n"
            "bär   1234567  [::1]:9\n");
}

TEST(FormatTest, Values) {
  EXPECT_EQ(HumanBytes(512), "512 B");
  EXPECT_EQ(HumanBytes(3ull << 29), "1.50 GiB");
  EXPECT_EQ(Hex64(0xab), "00000000000000ab");
}

}  // namespace
}  // namespace warmpath::ctl
