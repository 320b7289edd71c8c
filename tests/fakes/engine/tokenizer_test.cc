#include "tests/fakes/engine/tokenizer.h"

#include <string>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<TokenId> Ids(std::string_view text) {
  std::vector<TokenId> ids;
  Tokenize(text, &ids);
  return ids;
}

TEST(TokenizerTest, BytesSpecialsAndGeneratedWordsHaveFixedIds) {
  EXPECT_THAT(Ids("\n<|im_start|>t256 t151642<|im_end|><|endoftext|>.<"),
              ElementsAre(10, kMessageStart, 256, 151'642, kMessageEnd, kEndOfText, '.', '<'));
}

TEST(TokenizerTest, OnlyTheShortestSpellingOfAnOrdinaryIdIsAGeneratedWord) {
  EXPECT_EQ(Ids("t500"), Ids(" t500"));
  for (const char* text : {"t0500", "t255", "t151643", "t9999999", "t", "t5x0"}) {
    const std::vector<TokenId> ids = Ids(text);
    ASSERT_THAT(ids, SizeIs(1)) << text;
    EXPECT_NE(Ids(text), Ids(std::string(" ") + text)) << "an ordinary word keeps its space";
  }
}

TEST(TokenizerTest, WordsAreStableAndInRange) {
  EXPECT_THAT(Ids("hello world"), SizeIs(2));
  EXPECT_EQ(Ids("hello world"), Ids("hello world"));
  EXPECT_NE(Ids("hello"), Ids(" hello"));
  // Two spaces: one stands alone, one belongs to the word.
  EXPECT_THAT(Ids("a  b"), ElementsAre(Ids("a")[0], ' ', Ids(" b")[0]));
  for (const TokenId id : Ids("The quick brown fox_1 jumps \xc3\xa9t\xc3\xa9")) {
    EXPECT_GE(id, kFirstWordId);
    EXPECT_LT(id, kEndOfWords);
  }
  EXPECT_THAT(Ids(std::string(100, 'x')), SizeIs(4));  // 32 bytes per token, at most.
}

TEST(TokenizerTest, GeneratedTextTokenizesToItself) {
  Random random(1);
  std::vector<TokenId> generated;
  for (int i = 0; i < 2'000; ++i) {
    generated.push_back(static_cast<TokenId>(256 + random.Below(kEndOfWords - 256)));
  }
  std::string whole, pieces;
  AppendGeneratedText(generated, 0, generated.size(), &whole);
  EXPECT_EQ(Ids(whole), generated);
  for (std::size_t from = 0; from < generated.size(); from += 7) {
    AppendGeneratedText(generated, from, std::min(from + 7, generated.size()), &pieces);
  }
  EXPECT_EQ(pieces, whole);
}

TEST(TokenizerTest, WhatFollowsASpecialTokenOrALineBreakDoesNotChangeWhatIsBefore) {
  const std::string turn = "<|im_start|>user\nWhat is up?<|im_end|>\n<|im_start|>assistant\n";
  const std::vector<TokenId> before = Ids(turn);
  const std::vector<TokenId> after = Ids(turn + "t700 t800<|im_end|>\n<|im_start|>user\nand?");
  ASSERT_GT(after.size(), before.size());
  EXPECT_EQ(std::vector(after.begin(), after.begin() + before.size()), before);
  EXPECT_EQ(after[before.size()], 700u);
  EXPECT_EQ(after[before.size() + 1], 800u);
}

}  // namespace
}  // namespace warmpath::engine
