#include "core/routing/prefix_key.h"

#include <numeric>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

std::uint64_t KeyOf(const Query& query, std::uint32_t prefix_length = 1024) {
  const absl::StatusOr<PrefixKey> key = MakePrefixKey(query, prefix_length);
  EXPECT_THAT(key, IsOk());
  return key.ok() ? key->hash : 0;
}

Query Raw(std::string_view text) {
  Query query;
  query.raw_text = text;
  return query;
}
Query Chat(std::string_view text) {
  Query query;
  query.chat_text = text;
  return query;
}

TEST(PrefixKeyTest, RawTextIsCutInBytes) {
  const std::string head(1024, 'x');
  EXPECT_EQ(KeyOf(Raw(head)), KeyOf(Raw(head + "anything")));
  EXPECT_NE(KeyOf(Raw(head)), KeyOf(Raw(head.substr(1))));
  const std::string umlauts = [] {
    std::string s;
    for (int i = 0; i < 1024; ++i) s += "\xC3\xA4";
    return s;
  }();
  EXPECT_EQ(KeyOf(Raw(umlauts)), KeyOf(Raw(umlauts.substr(0, 1024))));
}

TEST(PrefixKeyTest, ChatTextIsCutInCodePoints) {
  std::string umlauts;
  for (int i = 0; i < 1024; ++i) umlauts += "\xC3\xA4";
  EXPECT_EQ(KeyOf(Chat(umlauts)), KeyOf(Chat(umlauts + "tail")));
  EXPECT_NE(KeyOf(Chat(umlauts)), KeyOf(Chat(umlauts.substr(0, 1024))));
  EXPECT_THAT(MakePrefixKey(Chat(umlauts + "tail"), 1024)->note,
              HasSubstr("1024 code points of the messages"));
  // Not UTF-8: still a key, and no read past the end.
  const std::string broken(3000, '\xBF');
  EXPECT_EQ(KeyOf(Chat(broken)), KeyOf(Chat(broken)));
}

TEST(PrefixKeyTest, TokensCountFourUnits) {
  std::vector<TokenId> tokens(300);
  std::iota(tokens.begin(), tokens.end(), 0u);
  Query all;
  all.tokens = tokens;
  Query cut;
  cut.tokens = std::span(tokens).first(256);
  Query shorter;
  shorter.tokens = std::span(tokens).first(255);
  EXPECT_EQ(KeyOf(all), KeyOf(cut));
  EXPECT_NE(KeyOf(all), KeyOf(shorter));
  // Tokens come before text.
  all.raw_text = "text";
  EXPECT_EQ(KeyOf(all), KeyOf(cut));
}

TEST(PrefixKeyTest, TheIdSeparatesApplications) {
  Query a = Raw("prompt");
  a.prefix_aware_id = "app-a";
  Query b = Raw("prompt");
  b.prefix_aware_id = "app-b";
  EXPECT_NE(KeyOf(a), KeyOf(b));
  EXPECT_NE(KeyOf(a), KeyOf(Raw("prompt")));
  // ("ab", "c") and ("a", "bc") are two keys.
  Query ab = Raw("c");
  ab.prefix_aware_id = "ab";
  Query bc = Raw("bc");
  bc.prefix_aware_id = "a";
  EXPECT_NE(KeyOf(ab), KeyOf(bc));
}

TEST(PrefixKeyTest, IdsOutOfBoundsAreRefused) {
  for (const std::string& id : {std::string(65, 'a'), std::string(" a"), std::string("a\tb"),
                                std::string("a\x7F"), std::string("a\0b", 3)}) {
    Query query = Raw("prompt");
    query.prefix_aware_id = id;
    EXPECT_THAT(MakePrefixKey(query, 1024),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prefix_aware_id")))
        << id;
  }
  Query query = Raw("prompt");
  std::string longest;
  for (int i = 0; i < 64; ++i) longest += "\xC3\xA4";  // 64 characters, 128 bytes
  query.prefix_aware_id = longest;
  EXPECT_THAT(MakePrefixKey(query, 1024), IsOk());
}

TEST(PrefixKeyTest, AnEmptyPromptHasAKeyAndChainsAloneHaveNone) {
  EXPECT_THAT(MakePrefixKey(Query{}, 1024), IsOk());
  const std::vector<ChainHash> chain = {1, 2};
  Query query;
  query.chain = chain;
  EXPECT_THAT(MakePrefixKey(query, 1024),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chain hashes")));
}

}  // namespace
}  // namespace warmpath
