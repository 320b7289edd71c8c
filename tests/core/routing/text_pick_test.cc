// Picks by text, without a tokenizer: what they know, what they say, and what they must not touch.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/hashing/chain_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pool_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::IsOk;

class TextPickTest : public testing::PoolFixture {
 protected:
  Query AskText(std::string_view text) {
    std::vector<ChainHash> chain;
    AppendTextChain(TextDomainSeed("m", {}, {}), kBlock * 4, text, &chain);
    Query query = Ask(std::move(chain), text.size() / 4);
    query.chain_kind = ChainKind::kText;
    query.length_is_estimate = true;
    query.raw_text = text;
    return query;
  }

  void Finish(ReservationId id, std::optional<std::uint64_t> cached = std::nullopt) {
    EXPECT_THAT(Report({.reservation_id = id,
                        .kind = OutcomeKind::kFinished,
                        .actual_cached_tokens = cached,
                        .output_tokens = 10}),
                IsOk());
  }
};

TEST_F(TextPickTest, AConversationStaysOnItsWorkerForTargetsWithAndWithoutEvents) {
  for (const bool has_events : {true, false}) {
    Rebuild(DefaultConfig(), 1, CreateReferenceIndex({}));
    AddTargets(6, {.has_events = has_events});
    std::vector<std::string> conversations;
    std::vector<std::string> homes;
    for (int c = 0; c < 12; ++c) {
      conversations.push_back(absl::StrCat("conversation ", c, std::string(8'000, 'x')));
      const auto first = Pick(AskText(conversations.back()));
      ASSERT_THAT(first, IsOk());
      EXPECT_EQ(first->predicted_cached_tokens, 0u);
      homes.push_back(first->endpoint.worker_id);
      Finish(first->reservation_id);
      clock_.Advance(absl::Seconds(1));
    }
    for (int turn = 0; turn < 5; ++turn) {
      for (std::size_t c = 0; c < conversations.size(); ++c) {
        const std::string before = conversations[c];
        conversations[c] += absl::StrCat("turn ", turn, std::string(2'000, 'y'));
        const auto next = Pick(AskText(conversations[c]));
        ASSERT_THAT(next, IsOk());
        EXPECT_EQ(next->endpoint.worker_id, homes[c]) << "turn " << turn;
        EXPECT_EQ(next->predicted_cached_tokens, before.size() / 256 * 64);
        EXPECT_EQ(next->reason, "prefix");
        Finish(next->reservation_id);
        clock_.Advance(absl::Minutes(1));
        Tick();
      }
    }
  }
}

TEST_F(TextPickTest, SaysNothingOfEvents) {
  AddTargets(3);
  Query query = AskText(std::string(4'000, 'x'));
  query.explain = true;
  const auto decision = Pick(query);
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(FreshnessOf(0), Freshness::kExact);
  EXPECT_EQ(decision->freshness, Freshness::kNone);
  EXPECT_EQ(decision->candidates_exact, 0u);
  EXPECT_EQ(decision->candidates_none, 3u);
  for (const CandidateTerms& terms : decision->explanation) {
    EXPECT_EQ(terms.freshness, Freshness::kNone);
  }
  EditTarget(0, [](TargetState& state) { state.causes.Set(FreshnessCause::kGap); });
  EditTarget(1, [](TargetState& state) { state.causes.Set(FreshnessCause::kGap); });
  EditTarget(2, [](TargetState& state) { state.causes.Set(FreshnessCause::kGap); });
  const auto degraded = Pick(query);
  ASSERT_THAT(degraded, IsOk());
  EXPECT_EQ(degraded->freshness, Freshness::kNone);
  EXPECT_TRUE(degraded->causes.empty());
}

TEST_F(TextPickTest, TheIndexDoesNotAnswerForTextEvenIfHashesWereEqual) {
  AddTargets(2);
  const Query query = AskText(std::string(4'000, 'x'));
  Store(1, {query.chain.begin(), query.chain.end()});
  for (int i = 0; i < 8; ++i) {
    Query only = query;
    only.reserve = false;
    EXPECT_EQ(Pick(only)->predicted_cached_tokens, 0u);
  }
}

TEST_F(TextPickTest, OutcomesOfTextTeachNeitherDriftNorTokens) {
  AddTargets(1);
  const std::string text(25'600, 'x');
  Finish(Pick(AskText(text))->reservation_id);
  for (int i = 0; i < 50; ++i) {
    const auto decision = Pick(AskText(text));
    ASSERT_THAT(decision, IsOk());
    EXPECT_EQ(decision->predicted_cached_tokens, 6'399u);
    Finish(decision->reservation_id, 0);  // the engine counts otherwise
  }
  EXPECT_EQ(FreshnessOf(0), Freshness::kExact);
  const auto more = Pick(AskText("another" + text));
  Finish(more->reservation_id, 6'400);
  {
    absl::MutexLock lock(&pool_->mu());
    std::vector<std::uint32_t> depth(1, 0);
    pool_->ledger().KnownDepths(ChainKind::kTokens, AskText("another" + text).chain, depth);
    EXPECT_EQ(depth[0], 0u);
  }
  // And the other way round: that tokens fell short leaves the text alone.
  const auto tokens = Pick(Ask(Chain(1, 100)));
  Store(0, Chain(1, 100));
  Finish(tokens->reservation_id, 0);
  EXPECT_EQ(Pick(AskText(text))->predicted_cached_tokens, 6'399u);
}

TEST_F(TextPickTest, Fault20_ThePickItselfIsRememberedAtOnce) {
  AddTargets(8);
  const std::string document(40'000, 'd');
  const std::string home = Where(AskText(document));
  const std::string sibling = absl::StrCat(document, "?");
  Query query = AskText(sibling);
  query.explain = true;
  query.reserve = false;
  const auto decision = Pick(query);
  ASSERT_THAT(decision, IsOk());
  for (const CandidateTerms& terms : decision->explanation) {
    EXPECT_EQ(terms.cached_tokens, terms.endpoint.worker_id == home ? 156u * 64 : 0u);
  }
}

}  // namespace
}  // namespace warmpath
