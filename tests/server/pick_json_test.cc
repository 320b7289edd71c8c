#include "server/pick_json.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(PickJsonTest, ReadsEveryField) {
  v1::PickRequest r;
  ASSERT_THAT(PickRequestFromJson(R"({
      "model":"m","tokens":[1,4294967295],"multimodal":[{"id":"i","start":1,"length":2}],
      "lora":"l","cache_salt":"","session_key":"s","tenant":"t","prefix_aware_id":"p",
      "subset":["a:1","b"],
      "exclude":["w"],"priority":-2,"slo_ttft_ms":1,"slo_tpot_ms":2,"expected_output_tokens":3,
      "request_id":"r","reservation_lease_ms":4,"max_wait_ms":5,"policy":"random","explain":true})",
                                  &r),
              IsOk());
  EXPECT_EQ(r.model(), "m");
  EXPECT_THAT(r.tokens().ids(), ElementsAre(1u, 4294967295u));
  EXPECT_EQ(r.multimodal(0).length(), 2);
  EXPECT_EQ(r.lora(), "l");
  EXPECT_TRUE(r.has_cache_salt());
  EXPECT_TRUE(r.subset_present());
  EXPECT_THAT(r.subset(), ElementsAre("a:1", "b"));
  EXPECT_THAT(r.exclude(), ElementsAre("w"));
  EXPECT_EQ(r.tenant(), "t");
  EXPECT_EQ(r.priority(), -2);
  EXPECT_EQ(r.expected_output_tokens(), 3u);
  EXPECT_EQ(r.reservation_lease_ms(), 4u);
  EXPECT_EQ(r.max_wait_ms(), 5u);
  EXPECT_EQ(r.policy(), "random");
  EXPECT_TRUE(r.explain());
}

TEST(PickJsonTest, HashesAreNumbersOrText) {
  v1::PickRequest r;
  ASSERT_THAT(PickRequestFromJson(
                  R"({"chain":{"hashes":[1,"18446744073709551615","0xff"],"block_size":16}})", &r),
              IsOk());
  EXPECT_THAT(r.chain().hashes(), ElementsAre(1u, 18446744073709551615u, 255u));
  EXPECT_EQ(r.chain().block_size(), 16u);
}

TEST(PickJsonTest, TheOpenAiBodyMayBeAnObjectOrText) {
  v1::PickRequest r;
  ASSERT_THAT(PickRequestFromJson(
                  R"({"openai":{"path":"/v1/x","body":{"prompt":[1, 2],"model":"a\"b"}}})", &r),
              IsOk());
  EXPECT_EQ(r.openai().path(), "/v1/x");
  EXPECT_EQ(r.openai().json(), R"({"prompt":[1,2],"model":"a\"b"})");
  v1::PickRequest text;
  ASSERT_THAT(PickRequestFromJson(R"({"openai":{"body":"{\"a\":1}"}})", &text), IsOk());
  EXPECT_EQ(text.openai().json(), R"({"a":1})");
}

TEST(PickJsonTest, NullIsAbsent) {
  v1::PickRequest r;
  ASSERT_THAT(PickRequestFromJson(R"({"lora":null,"subset":null,"tokens":null})", &r), IsOk());
  EXPECT_FALSE(r.has_lora());
  EXPECT_FALSE(r.subset_present());
  EXPECT_EQ(r.prompt_case(), v1::PickRequest::PROMPT_NOT_SET);
}

TEST(PickJsonTest, ErrorsNameTheField) {
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"", "body: is no valid JSON"},
      {"[]", "body: must be an object"},
      {R"({"modle":"m"})", "modle: is unknown: use one of model, tokens"},
      {R"({"model":5})", "model: must be a string"},
      {R"({"tokens":5})", "tokens: must be a list"},
      {R"({"tokens":[1,-1]})", "tokens[1]: must be a whole number of 0 to 4294967295"},
      {R"({"tokens":[1.5]})", "tokens[0]: must be"},
      {R"({"chain":[]})", "chain: must be an object"},
      {R"({"chain":{"hash":1}})", "chain.hash: is unknown"},
      {R"({"chain":{"hashes":["zz"]}})", "chain.hashes[0]: must be"},
      {R"({"chain":{"hashes":["0x"]}})", "chain.hashes[0]: must be"},
      {R"({"text":"a","tokens":[1]})", "tokens: is a second prompt"},
      {R"({"multimodal":[{"id":1}]})", "multimodal[0].id: must be a string"},
      {R"({"multimodal":[1]})", "multimodal[0]: must be an object"},
      {R"({"subset":"a"})", "subset: must be a list"},
      {R"({"subset":[1]})", "subset[0]: must be a string"},
      {R"({"priority":4294967296})", "priority: must be"},
      {R"({"explain":"yes"})", "explain: must be true or false"},
      {R"({"a":)" + std::string(200, '[') + std::string(200, ']') + "}", "no valid JSON"},
  };
  for (const auto& [json, message] : cases) {
    v1::PickRequest r;
    EXPECT_THAT(PickRequestFromJson(json, &r), StatusIs(kInvalid, HasSubstr(message))) << json;
  }
}

TEST(PickJsonTest, Outcomes) {
  v1::OutcomeRequest r;
  ASSERT_THAT(OutcomeRequestFromJson(
                  R"({"reservation_id":"281474976710657","kind":"finished","served_by":"a:1",
                      "actual_cached_tokens":0,"output_tokens":7,"ttft_ms":1.5})",
                  &r),
              IsOk());
  EXPECT_EQ(r.reservation_id(), 281474976710657u);
  EXPECT_EQ(r.kind(), v1::OUTCOME_KIND_FINISHED);
  EXPECT_TRUE(r.has_actual_cached_tokens());
  EXPECT_FALSE(r.has_actual_prompt_tokens());
  EXPECT_EQ(r.ttft_ms(), 1.5);
  EXPECT_THAT(OutcomeRequestFromJson(R"({"kind":"done"})", &r),
              StatusIs(kInvalid, HasSubstr("kind: must be one of FIRST_TOKEN")));
}

TEST(PickJsonTest, ResponsesKeepNamesAndPrecision) {
  v1::PickResponse r;
  r.set_reservation_id(9007199254740993u);  // 2^53 + 1: JavaScript's numbers lose it
  r.mutable_endpoint()->set_address("h:1");
  r.set_freshness(v1::FRESHNESS_EXACT);
  EXPECT_THAT(PickResponseToJson(r),
              AllOf(HasSubstr(R"("reservation_id":"9007199254740993")"),
                    HasSubstr(R"("address":"h:1")"), HasSubstr(R"("freshness":"FRESHNESS_EXACT")"),
                    HasSubstr(R"("predicted_cached_tokens":0)")));
}

TEST(PickJsonTest, ErrorsAreValidJsonWhateverTheyQuote) {
  EXPECT_EQ(ErrorToJson(absl::NotFoundError("model \"a\\b\"\n\x01: unknown"), absl::Seconds(1)),
            R"({"error":{"code":"NOT_FOUND","message":"model \"a\\b\"\u000a\u0001: unknown",)"
            R"("retry_after_ms":1000}})");
  EXPECT_EQ(JsonQuote("h\xc3\xa9"), "\"h\xc3\xa9\"");
  EXPECT_EQ(JsonQuote("h\xff"), "\"h?\"");
}

TEST(PickJsonTest, DamagedBodiesGiveAStatus) {
  const std::string body =
      R"({"model":"m","chain":{"hashes":[1,"0x2"],"block_size":16},"subset":["a"]})";
  for (std::size_t i = 0; i < body.size(); ++i) {
    v1::PickRequest cut;
    EXPECT_THAT(PickRequestFromJson(body.substr(0, i), &cut), StatusIs(kInvalid));
    for (const int byte : {0x00, 0x22, 0x5b, 0x80, 0xff}) {
      std::string damaged = body;
      damaged[i] = static_cast<char>(byte);
      v1::PickRequest r;
      (void)PickRequestFromJson(damaged, &r);
    }
  }
}

}  // namespace
}  // namespace warmpath
