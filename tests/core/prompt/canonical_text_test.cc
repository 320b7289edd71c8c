#include "core/prompt/canonical_text.h"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/random.h"
#include "core/hashing/chain_hash.h"
#include "core/prompt/openai_request.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::Each;
using ::testing::StartsWith;
using ::warmpath::testing::IsOk;

std::string TextOf(std::string_view json, std::string_view path = "/v1/chat/completions") {
  const auto request = ParseOpenAiRequest(path, json, {});
  EXPECT_THAT(request, IsOk()) << json;
  return request.ok() ? request->canonical_text : "";
}

std::string ChatOf(const std::vector<std::string>& messages, std::string_view more = "") {
  return absl::StrCat("{\"model\":\"m\",\"messages\":[", absl::StrJoin(messages, ","), "]",
                      std::string(more), "}");
}

constexpr char kSystem[] = R"({"role":"system","content":"Be brief."})";
constexpr char kUser[] = R"({"role":"user","content":"What is the time?"})";
constexpr char kCall[] =
    R"({"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",)"
    R"("function":{"name":"clock","arguments":"{\"zone\":\"UTC\"}"}}]})";
constexpr char kResult[] = R"({"role":"tool","tool_call_id":"c1","content":"12:00"})";
constexpr char kImage[] =
    R"({"role":"user","content":[{"type":"text","text":"And this?"},)"
    R"({"type":"image_url","image_url":{"url":"https://x/a.png","detail":"low"}}]})";
constexpr char kTools[] =
    R"(,"tools":[{"type":"function","function":{"name":"clock","parameters":{"type":"object"}}}])";

// --- What must not matter.

TEST(CanonicalTextTest, KeyOrderWhiteSpaceAndHowItIsSampledDoNotMatter) {
  const std::string text = TextOf(ChatOf({kSystem, kUser, kCall, kResult, kImage}, kTools));
  EXPECT_EQ(text, TextOf(R"( { "temperature" : 0.7, "stream": true, "user":"u", "seed":1,
    "top_p":0.1, "n":2, "max_tokens":5, "stop":["x"], "session_id":"s", "logit_bias":{"1":2},
    "stream_options":{"include_usage":true}, "metadata":{"a":"b"}, "response_format":null,
    "tools": [ { "function" : { "parameters": {"type" : "object"}, "name":"clock"},
                 "type":"function" } ],
    "messages" : [ {"content":"Be brief.","role":"system"},
      { "content" : "What is the time?", "role":"user", "name":null},
      {"tool_calls":[{"function":{"arguments":"{\"zone\":\"UTC\"}","name":"clock"},
        "type":"function","id":"c1"}],"role":"assistant","refusal":null,"annotations":[]},
      {"content":"12:00","role":"tool","tool_call_id":"c1"},
      {"role":"user","content":[{"text":"And this?","type":"text"},
        {"image_url":{"detail":"low","url":"https:\/\/x\/a.png"},"type":"image_url"}]}],
    "model":"another alias of the same pool" } )"));
}

TEST(CanonicalTextTest, AStringIsTheSameAsOnePartOfText) {
  EXPECT_EQ(TextOf(ChatOf({R"({"role":"user","content":"x\u00e9"})"})),
            TextOf(ChatOf(
                {"{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\xc3\xa9\"}]}"})));
  EXPECT_EQ(TextOf(ChatOf({R"({"role":"assistant","content":""})"})),
            TextOf(ChatOf({R"({"role":"assistant","content":null})"})));
}

// --- What must matter.

TEST(CanonicalTextTest, Fault23_EveryMessageRolePartAndToolCounts) {
  const std::string base = ChatOf({kSystem, kUser, kCall, kResult, kImage}, kTools);
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"Be brief.", "Be long."},
      {"\"system\"", "\"developer\""},
      {"What is the time?", "What is the date?"},
      {"\"name\":\"clock\",\"arguments\"", "\"name\":\"watch\",\"arguments\""},
      {"UTC", "CET"},
      {"12:00", "12:01"},
      {"\"tool_call_id\":\"c1\"", "\"tool_call_id\":\"c2\""},
      {"And this?", "And that?"},
      {"a.png", "b.png"},
      {"\"detail\":\"low\"", "\"detail\":\"high\""},
      {"image_url\",\"image_url", "video_url\",\"video_url"},
      {"\"parameters\":{\"type\":\"object\"}", "\"parameters\":{\"type\":\"string\"}"},
      {"\"role\":\"tool\"", "\"role\":\"user\""},
      {"{\"role\":\"user\",\"content\":\"What",
       "{\"role\":\"user\",\"name\":\"bob\",\"content\":\"What"},
      {"]}],\"tools\"", "]}],\"documents\":[{\"text\":\"d\"}],\"tools\""},
      {"]}],\"tools\"", "]}],\"chat_template_kwargs\":{\"thinking\":true},\"tools\""},
  };
  const std::string text = TextOf(base);
  for (const auto& [from, to] : changes) {
    std::string changed = base;
    const std::size_t at = changed.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    changed.replace(at, from.size(), to);
    EXPECT_NE(TextOf(changed), text) << from << " -> " << to;
  }
}

TEST(CanonicalTextTest, ContentCanNotImitateStructure) {
  // The same characters in another division.
  EXPECT_NE(
      TextOf(ChatOf({R"({"role":"user","content":"a"})", R"({"role":"user","content":"b"})"})),
      TextOf(ChatOf({R"({"role":"user","content":"ab"})"})));
  EXPECT_NE(TextOf(ChatOf({R"({"role":"user","content":["a","b"]})"})),
            TextOf(ChatOf({R"({"role":"user","content":["ab"]})"})));
  EXPECT_NE(TextOf(ChatOf({R"({"role":"usera","content":"b"})"})),
            TextOf(ChatOf({R"({"role":"user","content":"ab"})"})));
  EXPECT_NE(TextOf(R"({"prompt":"x"})", "/v1/completions"),
            TextOf(ChatOf({R"({"role":"user","content":"x"})"})));
  // 1 then 2 is not 12.
  EXPECT_NE(TextOf(ChatOf({R"({"role":"user","x":[1,2]})"})),
            TextOf(ChatOf({R"({"role":"user","x":[12]})"})));
  EXPECT_NE(TextOf(ChatOf({R"({"role":"user","x":"1"})"})),
            TextOf(ChatOf({R"({"role":"user","x":1})"})));
}

TEST(CanonicalTextTest, AnImageInTheBodyCountsByItsContentNotByItsSize) {
  const auto body = [](char pixel) {
    return ChatOf({absl::StrCat(
        R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,)",
        std::string(300'000, pixel), R"("}}]})")});
  };
  EXPECT_NE(TextOf(body('A')), TextOf(body('B')));
  EXPECT_LT(TextOf(body('A')).size(), 200u);
}

// --- Beginnings.

TEST(CanonicalTextTest, AGrowingConversationKeepsItsTextAsAPrefix) {
  const std::vector<std::string> all = {kSystem, kUser, kCall, kResult, kImage, kUser};
  std::string before = TextOf(ChatOf({}, kTools));
  for (std::size_t n = 1; n <= all.size(); ++n) {
    const std::string now =
        TextOf(ChatOf({all.begin(), all.begin() + static_cast<int>(n)}, kTools));
    EXPECT_THAT(now, StartsWith(before)) << n;
    EXPECT_GT(now.size(), before.size());
    before = now;
  }
}

TEST(CanonicalTextTest, BeginningsAreSharedInsideAMessageAndAPrompt) {
  const std::string document(1000, 'd');
  const auto ask = [&](const char* question) {
    return TextOf(
        ChatOf({absl::StrCat(R"({"role":"user","content":")", document, question, "\"}")}));
  };
  const std::string a = ask("Who?");
  const std::string b = ask("What?");
  EXPECT_GE(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin(), 1000);
  const std::string shorter = TextOf(R"({"prompt":"abc"})", "/v1/completions");
  EXPECT_THAT(TextOf(R"({"prompt":"abcdef"})", "/v1/completions"), StartsWith(shorter));
}

TEST(CanonicalTextTest, ResponsesAreChats) {
  constexpr char kPath[] = "/v1/responses";
  EXPECT_EQ(TextOf(R"({"input":"hi"})", kPath),
            TextOf(R"({"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]}]})",
                   kPath));
  EXPECT_NE(TextOf(R"({"input":"hi","instructions":"x"})", kPath),
            TextOf(R"({"input":"hi"})", kPath));
}

// Any body of random shape: the text survives shuffling of keys, and each appended message extends
// it.
std::string RandomJson(Random& random, int depth, bool shuffle, Random& order) {
  const auto kind = random.Below(depth > 0 ? 6 : 4);
  if (kind == 0) return absl::StrCat(random.Below(1000));
  if (kind == 1) return random.Below(2) == 0 ? "true" : "null";
  if (kind < 4) return absl::StrCat("\"s", random.Below(50), "\"");
  const auto count = random.Below(4);
  std::vector<std::string> items;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string item = RandomJson(random, depth - 1, shuffle, order);
    items.push_back(kind == 4 ? item : absl::StrCat("\"k", i, "\":", item));
  }
  if (kind == 5 && shuffle) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[order.Below(i)]);
  }
  const std::string list = absl::StrJoin(items, shuffle ? " ,\n" : ",");
  return kind == 4 ? absl::StrCat("[", list, "]") : absl::StrCat("{", list, "}");
}

TEST(CanonicalTextTest, RandomBodiesKeepTheRules) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::vector<std::string> plain;
    std::vector<std::string> shuffled;
    Random order(seed + 1000);
    std::string before;
    for (int i = 0; i < 6; ++i) {
      for (const bool shuffle : {false, true}) {
        Random random(seed * 100 + static_cast<std::uint64_t>(i));
        const std::string role = absl::StrCat("\"role\":\"r", random.Below(3), "\"");
        const std::string content = absl::StrCat("\"content\":\"c", random.Below(9), "\"");
        const std::string extra = absl::StrCat("\"x\":", RandomJson(random, 3, shuffle, order));
        (shuffle ? shuffled : plain)
            .push_back(shuffle ? absl::StrCat("{", extra, ", ", content, ",", role, "}")
                               : absl::StrCat("{", role, ",", content, ",", extra, "}"));
      }
      const std::string text = TextOf(ChatOf(plain));
      ASSERT_EQ(text, TextOf(ChatOf(shuffled))) << seed;
      ASSERT_THAT(text, StartsWith(before)) << seed;
      before = text;
    }
  }
}

// --- Chains.

std::vector<ChainHash> ChainOf(std::string_view text, std::size_t chunk = 64,
                               std::uint64_t seed = TextDomainSeed("m", {}, {})) {
  std::vector<ChainHash> chain;
  AppendTextChain(seed, chunk, text, &chain);
  return chain;
}

TEST(TextChainTest, EachFullChunkExtendsTheChain) {
  const std::string text(200, 'x');
  const std::vector<ChainHash> chain = ChainOf(text);
  ASSERT_EQ(chain.size(), 3u);
  EXPECT_EQ(ChainOf(text.substr(0, 128)), std::vector(chain.begin(), chain.begin() + 2));
  EXPECT_NE(chain[1], chain[0]) << "equal chunks at other places are others";
  EXPECT_EQ(ChainOf("short"), std::vector<ChainHash>());
  std::string changed = text;
  changed[70] = 'y';
  EXPECT_EQ(ChainOf(changed)[0], chain[0]);
  EXPECT_NE(ChainOf(changed)[1], chain[1]);
  EXPECT_NE(ChainOf(changed)[2], chain[2]);
}

TEST(TextChainTest, DomainsAreApartFromEachOtherAndFromTokens) {
  const std::string text(64, 'x');
  const std::vector<std::uint64_t> seeds = {
      TextDomainSeed("m", {}, {}),  TextDomainSeed("n", {}, {}),  TextDomainSeed("m", "", {}),
      TextDomainSeed("m", "a", {}), TextDomainSeed("m", {}, "a"), TextDomainSeed("m", {}, ""),
      TextDomainSeed("ma", {}, {}), DomainSeed({}, {}),           DomainSeed("m", {}),
      DomainSeed({}, "a"),          DomainSeed("a", {}),          DomainSeed("m", "a")};
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      EXPECT_NE(ChainOf(text, 64, seeds[i]), ChainOf(text, 64, seeds[k])) << i << " " << k;
    }
  }
  // The same 64 bytes as 16 token ids.
  std::vector<TokenId> tokens(16, 0x78787878);
  std::vector<ChainHash> chain;
  AppendChain(DomainSeed({}, {}), 16, tokens, {}, &chain);
  EXPECT_NE(chain, ChainOf(text));
}

}  // namespace
}  // namespace warmpath
