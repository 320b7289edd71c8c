#include "client/replay/completion_stream.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

constexpr char kAnswer[] =
    "data: {\"choices\":[{\"index\":0,\"text\":\"a b\",\"token_ids\":[5,6]}]}\r\n\r\n"
    ": a comment\n\n"
    "data: {\"choices\":[{\"index\":0,\"text\":\"c\",\"token_ids\":[7]}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":3,"
    "\"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\n"
    "data: [DONE]\n\n";

TEST(CompletionReaderTest, AnAnswerMayBeCutAnywhere) {
  const std::string answer = kAnswer;
  for (std::size_t cut = 0; cut <= answer.size(); ++cut) {
    CompletionReader reader;
    ASSERT_THAT(reader.Feed(std::string_view(answer).substr(0, cut)), IsOk());
    ASSERT_THAT(reader.Feed(std::string_view(answer).substr(cut)), IsOk());
    EXPECT_TRUE(reader.done());
    EXPECT_EQ(reader.output_tokens(), 3u);
    EXPECT_THAT(reader.output(), ElementsAre(5, 6, 7));
    EXPECT_EQ(reader.prompt_tokens(), 100u);
    EXPECT_EQ(reader.cached_tokens(), 64u);
  }
}

TEST(CompletionReaderTest, TextCountsWhereTheEngineGivesNoIds) {
  CompletionReader reader;
  ASSERT_THAT(reader.Feed("data: {\"choices\":[{\"text\":\"a\"}]}\n"), IsOk());
  ASSERT_THAT(reader.Feed("data: {\"choices\":[{\"text\":\"\"}]}\n"), IsOk());
  EXPECT_EQ(reader.output_tokens(), 1u);
  EXPECT_FALSE(reader.done());
}

TEST(CompletionReaderTest, AnErrorEventAndNonsenseEndTheStream) {
  CompletionReader reader;
  EXPECT_THAT(reader.Feed("data: {\"error\":{\"message\":\"out of cache\"}}\n"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("out of cache")));
  EXPECT_THAT(reader.Feed("data: {nonsense\n"), StatusIs(absl::StatusCode::kInternal));
}

TEST(CompletionReaderTest, ALineWithoutEndIsBounded) {
  CompletionReader reader;
  const std::string piece(1 << 19, 'x');
  ASSERT_THAT(reader.Feed(piece), IsOk());
  ASSERT_THAT(reader.Feed(piece), IsOk());
  EXPECT_THAT(reader.Feed(piece), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST(CompletionBodyTest, CarriesTokenIdsAndAsksForUsage) {
  EXPECT_EQ(
      CompletionBody("m", std::vector<TokenId>{1, 4294967295}, 9),
      "{\"model\":\"m\",\"max_tokens\":9,\"stream\":true,\"stream_options\":{\"include_usage\":"
      "true},\"return_token_ids\":true,\"ignore_eos\":true,\"prompt\":[1,4294967295]}");
}

TEST(CompletionBodyTest, EscapesTheModelsName) {
  const std::string body = CompletionBody("a\"b\\c\n", std::vector<TokenId>{}, 1);
  EXPECT_TRUE(body.starts_with("{\"model\":\"a\\\"b\\\\c\\u000a\",\"max")) << body;
}

}  // namespace
}  // namespace warmpath::replay
