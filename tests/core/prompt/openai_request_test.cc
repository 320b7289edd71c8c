#include "core/prompt/openai_request.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

constexpr char kCompletions[] = "/v1/completions";
constexpr char kChat[] = "/v1/chat/completions";

absl::StatusOr<OpenAiRequest> Parse(std::string_view path, std::string_view json) {
  return ParseOpenAiRequest(path, json, {});
}

TEST(OpenAiRequestTest, CompletionsTextAndCommonFields) {
  const auto r = Parse(kCompletions,
                       R"({"model":"m","prompt":"h\u00e9llo","cache_salt":"s","user":"u",
                           "max_tokens":7,"temperature":0.5,"stream":true})");
  ASSERT_THAT(r, IsOk());
  EXPECT_EQ(r->model, "m");
  EXPECT_EQ(r->raw_text, "h\xc3\xa9llo");
  EXPECT_EQ(r->cache_salt, "s");
  EXPECT_EQ(r->session, "u");
  EXPECT_EQ(r->max_output_tokens, 7u);
  EXPECT_FALSE(r->has_tokens);
  EXPECT_EQ(r->prompts, 1u);
}

TEST(OpenAiRequestTest, CompletionsTokenIdsAreExact) {
  const auto r = Parse(kCompletions, R"({"prompt":[1,2,4294967295]})");
  ASSERT_THAT(r, IsOk());
  EXPECT_TRUE(r->has_tokens);
  EXPECT_THAT(r->tokens, ElementsAre(1u, 2u, 4294967295u));
  EXPECT_FALSE(r->cache_salt.has_value());
}

TEST(OpenAiRequestTest, OfABatchTheFirstPromptCounts) {
  const auto text = Parse(kCompletions, R"({"prompt":["a","b","c"]})");
  ASSERT_THAT(text, IsOk());
  EXPECT_EQ(text->raw_text, "a");
  EXPECT_EQ(text->prompts, 3u);
  const auto ids = Parse(kCompletions, R"({"prompt":[[5,6],[7]]})");
  ASSERT_THAT(ids, IsOk());
  EXPECT_THAT(ids->tokens, ElementsAre(5u, 6u));
  EXPECT_EQ(ids->prompts, 2u);
}

TEST(OpenAiRequestTest, Fault23_ChatTextCoversAllMessages) {
  const auto r = Parse(kChat, R"({"model":"m","messages":[
      {"role":"system","content":"one "},
      {"role":"user","content":[{"type":"text","text":"two "},
                                {"type":"image_url","image_url":{"url":"data:"}},
                                {"type":"input_text","text":"three "}]},
      {"role":"assistant","content":null,"tool_calls":[]},
      {"role":"assistant"},
      {"role":"tool","content":"four"}]})");
  ASSERT_THAT(r, IsOk());
  EXPECT_EQ(r->chat_text, "one two three four");
  EXPECT_EQ(r->raw_text, "");
}

TEST(OpenAiRequestTest, AnEmptySaltIsNotNoSalt) {
  const auto r = Parse(kChat, R"({"messages":[],"cache_salt":""})");
  ASSERT_THAT(r, IsOk());
  ASSERT_TRUE(r->cache_salt.has_value());
  EXPECT_EQ(*r->cache_salt, "");
  const auto absent = Parse(kChat, R"({"messages":[],"cache_salt":null})");
  ASSERT_THAT(absent, IsOk());
  EXPECT_FALSE(absent->cache_salt.has_value());
}

TEST(OpenAiRequestTest, OtherPathsAreRoutedByWhatTheyHold) {
  EXPECT_THAT(Parse("/v1/models", "{}"), IsOk());
  const auto r = Parse("/invocations", R"({"messages":[{"content":"x"}]})");
  ASSERT_THAT(r, IsOk());
  EXPECT_EQ(r->chat_text, "x");
}

struct Bad {
  const char* path;
  std::string json;
  const char* message;
};

TEST(OpenAiRequestTest, ErrorsNameTheField) {
  const std::vector<Bad> cases = {
      {kChat, "", "openai.json"},
      {kChat, "{", "no valid JSON"},
      {kChat, "[]", "openai.json: must be an object"},
      {kChat, "{} x", "no valid JSON"},
      {kChat, R"({"model":"m"})", "messages: must be given"},
      {kChat, R"({"messages":{}})", "messages: must be a list"},
      {kChat, R"({"messages":[1]})", "messages[0]: must be an object"},
      {kChat, R"({"messages":[{"content":5}]})", "messages[0].content: must be a string or"},
      {kChat, R"({"messages":[{},{"content":[5]}]})", "messages[1].content[0]: must be an object"},
      {kChat, R"({"messages":[{"content":[{"text":1}]}]})", "messages[0].content[0].text"},
      {kCompletions, R"({"model":"m"})", "prompt: must be given"},
      {kCompletions, R"({"model":1,"prompt":"x"})", "model: must be a string"},
      {kCompletions, R"({"prompt":{}})", "prompt: must be"},
      {kCompletions, R"({"prompt":[]})", "prompt: must be not empty"},
      {kCompletions, R"({"prompt":[1,-1]})", "prompt[1]: must be a token id"},
      {kCompletions, R"({"prompt":[1,4294967296]})", "prompt[1]"},
      {kCompletions, R"({"prompt":[1,1.5]})", "prompt[1]"},
      {kCompletions, R"({"prompt":[1,"a"]})", "prompt[1]"},
      {kCompletions, R"({"prompt":["a",1]})", "prompt: must be"},
      {kCompletions, R"({"prompt":[[1],"a"]})", "prompt: must be"},
      {kCompletions, R"({"prompt":[[1,true]]})", "prompt[0][1]"},
      {kCompletions, R"({"prompt":"x","max_tokens":-1})", "max_tokens: must be a whole number"},
      {kCompletions, R"({"prompt":"x","cache_salt":5})", "cache_salt: must be a string"},
      {kCompletions, "{\"prompt\":\"\xff\"}", "no valid JSON"},
      {kCompletions,
       R"({"prompt":"x","deep":)" + std::string(100, '[') + std::string(100, ']') + "}",
       "no valid JSON"},
  };
  for (const Bad& bad : cases) {
    EXPECT_THAT(Parse(bad.path, bad.json),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(bad.message)))
        << bad.json;
  }
}

TEST(OpenAiRequestTest, TooManyTokensAreRefused) {
  EXPECT_THAT(ParseOpenAiRequest(kCompletions, R"({"prompt":[1,2,3]})", {.max_tokens = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_prompt_tokens")));
  EXPECT_THAT(ParseOpenAiRequest(kCompletions, R"({"prompt":[1,2]})", {.max_tokens = 2}), IsOk());
}

// Every prefix of a valid body, and every body with one byte changed, gives a status and no crash.
TEST(OpenAiRequestTest, DamagedBodiesAreRefusedOrRead) {
  const std::string body =
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"\u00e9"}]}]})";
  for (std::size_t n = 0; n < body.size(); ++n) {
    EXPECT_THAT(Parse(kChat, body.substr(0, n)), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  for (std::size_t i = 0; i < body.size(); ++i) {
    for (const int byte : {0x00, 0x22, 0x5b, 0x7d, 0x80, 0xff}) {
      std::string damaged = body;
      damaged[i] = static_cast<char>(byte);
      (void)Parse(kChat, damaged);
    }
  }
}

}  // namespace
}  // namespace warmpath
