#include "tests/fakes/engine/openai_request.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine/tokenizer.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

const Models& TestModels() {
  static const Models* const models = new Models{.base = "base", .loras = {"sql", "law"}};
  return *models;
}

absl::StatusOr<GenerateRequest> Completion(std::string_view body) {
  return ParseGenerateRequest(body, RequestKind::kCompletion, TestModels());
}
absl::StatusOr<GenerateRequest> Chat(std::string_view body) {
  return ParseGenerateRequest(body, RequestKind::kChat, TestModels());
}

std::vector<TokenId> Ids(std::string_view text) {
  std::vector<TokenId> ids;
  Tokenize(text, &ids);
  return ids;
}

TEST(OpenaiRequestTest, ReadsEveryFormOfPrompt) {
  EXPECT_THAT(Completion(R"({"prompt":[1,2,4294967295]})")->prompt, ElementsAre(1, 2, 4294967295));
  EXPECT_THAT(Completion(R"({"prompt":[[5,6]]})")->prompt, ElementsAre(5, 6));
  EXPECT_EQ(Completion(R"({"prompt":"a b"})")->prompt, Ids("a b"));
  EXPECT_EQ(Completion(R"({"prompt":["a b"]})")->prompt, Ids("a b"));
}

TEST(OpenaiRequestTest, ReadsTheOptions) {
  const auto plain = Completion(R"({"prompt":[1]})");
  ASSERT_THAT(plain, IsOk());
  EXPECT_EQ(plain->model, "base");
  EXPECT_EQ(plain->max_tokens, 16u);
  EXPECT_FALSE(plain->stream || plain->include_usage || plain->return_token_ids);
  EXPECT_EQ(plain->lora_name, std::nullopt);

  const auto full = Completion(
      R"({"model":"law","prompt":[1],"max_tokens":7,"stream":true,"ignore_eos":true,
          "stream_options":{"include_usage":true},"return_token_ids":true,"cache_salt":"s",
          "temperature":0.5,"vllm_xargs":{"output_token_ids":[300,301]}})");
  ASSERT_THAT(full, IsOk());
  EXPECT_EQ(full->max_tokens, 7u);
  EXPECT_TRUE(full->stream && full->include_usage && full->return_token_ids);
  EXPECT_THAT(full->lora_name, Optional(std::string("law")));
  EXPECT_THAT(full->lora_id, Optional(2u));
  EXPECT_THAT(full->cache_salt, Optional(std::string("s")));
  EXPECT_THAT(full->output, ElementsAre(300, 301));
}

TEST(OpenaiRequestTest, RendersChats) {
  const auto chat = Chat(
      R"({"messages":[{"role":"system","content":"Be brief."},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}],
          "tools":[{"type":"function"}],"max_completion_tokens":9})");
  ASSERT_THAT(chat, IsOk());
  EXPECT_EQ(chat->prompt,
            Ids("<|im_start|>system\n# Tools\n[{\"type\":\"function\"}]<|im_end|>\n"
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
                "<|im_start|>assistant\n\n[{\"id\":\"1\"}]<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_EQ(chat->max_tokens, 9u);
}

TEST(OpenaiRequestTest, TokenizeTakesPromptsAndMessages) {
  EXPECT_EQ(*ParseTokenizeRequest(R"({"prompt":"x y"})", TestModels()), Ids("x y"));
  EXPECT_EQ(*ParseTokenizeRequest(
                R"({"messages":[{"role":"user","content":"x"}],"add_generation_prompt":false})",
                TestModels()),
            Ids("<|im_start|>user\nx<|im_end|>\n"));
}

TEST(OpenaiRequestTest, RefusalsNameTheField) {
  const auto invalid = [](const char* part) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part));
  };
  EXPECT_THAT(Completion(""), invalid("body"));
  EXPECT_THAT(Completion("[]"), invalid("body"));
  EXPECT_THAT(Completion(R"({"prompt":"\ud800"})"), invalid("body"));
  EXPECT_THAT(Completion("{}"), invalid("prompt"));
  EXPECT_THAT(Completion(R"({"prompt":[]})"), invalid("prompt"));
  EXPECT_THAT(Completion(R"({"prompt":""})"), invalid("prompt"));
  EXPECT_THAT(Completion(R"({"prompt":{}})"), invalid("prompt"));
  EXPECT_THAT(Completion(R"({"prompt":[-1]})"), invalid("token ids"));
  EXPECT_THAT(Completion(R"({"prompt":[1.5]})"), invalid("token ids"));
  EXPECT_THAT(Completion(R"({"prompt":[4294967296]})"), invalid("token ids"));
  EXPECT_THAT(Completion(R"({"prompt":[1,"a"]})"), invalid("token ids"));
  EXPECT_THAT(Completion(R"({"prompt":["a","b"]})"), invalid("one prompt"));
  EXPECT_THAT(Completion(R"({"prompt":[1],"max_tokens":0})"), invalid("max_tokens"));
  EXPECT_THAT(Completion(R"({"prompt":[1],"max_tokens":1000001})"), invalid("max_tokens"));
  EXPECT_THAT(Completion(R"({"prompt":[1],"stream":1})"), invalid("stream"));
  EXPECT_THAT(Completion(R"({"prompt":[1],"n":2})"), invalid("n: only 1"));
  EXPECT_THAT(Completion(R"({"prompt":[1],"cache_salt":""})"), invalid("cache_salt"));
  EXPECT_THAT(Completion(R"({"prompt":[1],"stream_options":3})"), invalid("stream_options"));
  EXPECT_THAT(Completion(R"({"prompt":[1],"vllm_xargs":[]})"), invalid("vllm_xargs"));
  EXPECT_THAT(Chat(R"({"prompt":[1]})"), invalid("messages"));
  EXPECT_THAT(Chat(R"({"messages":[]})"), invalid("messages"));
  EXPECT_THAT(Chat(R"({"messages":[1]})"), invalid("messages"));
  EXPECT_THAT(Chat(R"({"messages":[{"content":"x"}]})"), invalid("messages.role"));
  EXPECT_THAT(Chat(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})"),
              invalid("only text parts"));
  EXPECT_THAT(Completion(R"({"model":"nope","prompt":[1]})"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("`nope`")));
  std::string deep = R"({"prompt":)";
  deep += std::string(100'000, '[');
  EXPECT_THAT(Completion(deep), invalid("body"));
}

}  // namespace
}  // namespace warmpath::engine
