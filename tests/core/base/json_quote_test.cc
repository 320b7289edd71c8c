#include "core/base/json_quote.h"

#include <string_view>

#include "gtest/gtest.h"

namespace warmpath {
namespace {

TEST(JsonQuoteTest, EscapesWhatMustBe) {
  EXPECT_EQ(JsonQuoted(""), "\"\"");
  EXPECT_EQ(JsonQuoted("a\"b\\c/\n\t"), R"("a\"b\\c/\u000a\u0009")");
  EXPECT_EQ(JsonQuoted(std::string_view("\0\x1f\x20\x7f", 4)), "\"\\u0000\\u001f \x7f\"");
  EXPECT_EQ(JsonQuoted("h\xc3\xa9\xff"), "\"h\xc3\xa9\xff\"");
}

TEST(JsonQuoteTest, Appends) {
  std::string out = "{";
  AppendJsonQuoted("k", &out);
  EXPECT_EQ(out, "{\"k\"");
}

}  // namespace
}  // namespace warmpath
