#include "core/routing/policy.h"

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/routing/picker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pool_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

TEST(PolicyNamesTest, CanonicalNamesAndAliases) {
  EXPECT_THAT(PolicyNames(),
              ElementsAre("marginal_cost", "min_ttft", "round_robin", "random", "least_outstanding",
                          "power_of_two", "prefix_aware", "session"));
  const std::map<std::string, std::string> aliases = {
      {"prefixaware", "prefix_aware"},
      {"kvaware", "marginal_cost"},
      {"session", "session"},
      {"roundrobin", "round_robin"},
      {"RANDOM", "random"},
      {"LEAST_OUTSTANDING_REQUESTS", "least_outstanding"},
      {"PREFIX_AWARE", "prefix_aware"},
      {"marginal_cost", "marginal_cost"}};
  for (const auto& [alias, canonical] : aliases) {
    ASSERT_THAT(CanonicalPolicyName(alias), IsOk());
    EXPECT_EQ(*CanonicalPolicyName(alias), canonical);
  }
  EXPECT_THAT(CanonicalPolicyName(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(CanonicalPolicyName("Round_Robin"), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(PolicyNamesTest, EveryReasonHasANameOfItsOwn) {
  std::map<std::string, int> names;
  for (std::size_t i = 0; i < kPickReasonCount; ++i) {
    ++names[std::string(PickReasonName(static_cast<PickReason>(i)))];
  }
  EXPECT_EQ(names.size(), kPickReasonCount);
  EXPECT_EQ(names.count("unknown"), 0u);
}

class PolicyTest : public testing::PoolFixture {
 protected:
  Query With(std::string_view policy) const {
    Query query;
    query.prompt_tokens = 100;
    query.policy = policy;
    return query;
  }
};

TEST_F(PolicyTest, RoundRobinTakesTurnsAndSkipsWhoMayNot) {
  AddTargets(4);
  EditTarget(2, [](TargetState& t) { t.draining = true; });
  std::vector<std::string> order;
  for (int i = 0; i < 6; ++i) order.push_back(Where(With("round_robin")));
  EXPECT_THAT(order, ElementsAre("w0", "w1", "w3", "w0", "w1", "w3"));
  EditTarget(2, [](TargetState& t) { t.draining = false; });
  order.clear();
  for (int i = 0; i < 4; ++i) order.push_back(Where(With("round_robin")));
  EXPECT_THAT(order, ElementsAre("w0", "w1", "w2", "w3"));
}

TEST_F(PolicyTest, ExplainingTakesNoTurn) {
  AddTargets(3);
  Query query = With("round_robin");
  EXPECT_EQ(Where(query), "w0");
  query.reserve = false;
  EXPECT_EQ(Where(query), "w1");
  EXPECT_EQ(Where(query), "w1");
}

TEST_F(PolicyTest, RandomIsUniform) {
  AddTargets(4);
  std::map<std::string, int> counts;
  Query query = With("random");
  query.reserve = false;
  for (int i = 0; i < 4000; ++i) ++counts[Where(query)];
  for (const auto& [worker, count] : counts) EXPECT_NEAR(count, 1000, 120) << worker;
}

TEST_F(PolicyTest, LeastOutstandingCountsRequests) {
  AddTargets(3);
  Occupy(0, 0.001);
  Occupy(0, 0.001);
  Occupy(1, 100);
  Occupy(2, 0);
  Occupy(2, 0);
  EXPECT_EQ(Where(With("least_outstanding")), "w1");
  EXPECT_EQ(LoadOf(1).inflight, 2u);
}

TEST_F(PolicyTest, PowerOfTwoTakesTheLessLoadedOfTwo) {
  AddTargets(3);
  for (int i = 0; i < 9; ++i) Occupy(0, 0);
  for (int i = 0; i < 5; ++i) Occupy(1, 0);
  Query query = With("power_of_two");
  query.reserve = false;
  std::map<std::string, int> counts;
  for (int i = 0; i < 3000; ++i) ++counts[Where(query)];
  // w2 is in two of three pairs and wins both; w1 wins the third; w0 none.
  EXPECT_EQ(counts["w0"], 0);
  EXPECT_NEAR(counts["w1"], 1000, 120);
  EXPECT_NEAR(counts["w2"], 2000, 120);
}

TEST_F(PolicyTest, PowerOfTwoOfOneIsThatOne) {
  AddTargets(1);
  EXPECT_EQ(Where(With("power_of_two")), "w0");
}

TEST_F(PolicyTest, MinTtftIgnoresWhatAChoiceCostsOthers) {
  AddTargets(2);
  Occupy(1, 0.02);
  Query query = With("min_ttft");
  query.prompt_tokens = 8'000;
  // w0 holds nearly its whole cache: zeta * (X / C)^2 is over a second.
  for (int i = 0; i < 10; ++i) {
    absl::MutexLock lock(&pool_->mu());
    Reservation r;
    r.target = 0;
    r.prompt_tokens = 30'000;
    pool_->ledger().Open(r, {}, clock_.Now());
  }
  query.reserve = false;
  EXPECT_EQ(Where(query), "w0");
  query.policy = "marginal_cost";
  EXPECT_EQ(Where(query), "w1");
}

class StickyTest : public PolicyTest {
 protected:
  Query Session(std::string_view key) const {
    Query query = With("session");
    query.session_key = key;
    query.reserve = false;
    return query;
  }
  std::map<std::string, std::string> Homes(int keys) {
    std::map<std::string, std::string> homes;
    for (int i = 0; i < keys; ++i) {
      const std::string key = absl::StrCat("session-", i);
      homes[key] = Where(Session(key));
    }
    return homes;
  }
};

TEST_F(StickyTest, ASessionStaysWhereItIs) {
  AddTargets(5);
  const std::string home = Where(Session("alice"));
  for (TargetId t = 0; t < 5; ++t) {
    if (absl::StrCat("w", t) == home) Occupy(t, 50);  // whatever its load
  }
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Where(Session("alice")), home);
  EXPECT_EQ(Pick(Session("alice"))->reason, "session");
}

TEST_F(StickyTest, AJoinAndALeaveMoveTheirShareOnly) {
  AddTargets(5);
  const auto before = Homes(600);
  AddTarget();
  const auto joined = Homes(600);
  int moved = 0;
  for (const auto& [key, home] : before) {
    if (joined.at(key) == home) continue;
    ++moved;
    EXPECT_EQ(joined.at(key), "w5") << key;
  }
  EXPECT_NEAR(moved, 100, 35);
  EditTarget(1, [](TargetState& t) { t.lifecycle = Lifecycle::kLost; });
  const auto left = Homes(600);
  for (const auto& [key, home] : joined) {
    if (home == "w1") continue;
    EXPECT_EQ(left.at(key), home) << key;
  }
}

TEST_F(StickyTest, KeysAreSpreadEvenlyAlsoOverRanks) {
  for (Rank rank = 0; rank < 4; ++rank) {
    AddTarget({.worker_id = "big", .address = absl::StrCat("10.1.0.1:800", rank), .rank = rank});
  }
  std::map<Rank, int> counts;
  for (int i = 0; i < 2000; ++i) {
    const std::string key = absl::StrCat("k", i);
    ++counts[Pick(Session(key))->endpoint.rank];
  }
  ASSERT_EQ(counts.size(), 4u);
  for (const auto& [rank, count] : counts) EXPECT_NEAR(count, 500, 90) << rank;
}

TEST_F(StickyTest, AJoiningTargetTakesNoKeysYet) {
  AddTargets(3);
  const auto before = Homes(200);
  AddTarget({.lifecycle = Lifecycle::kJoining});
  EXPECT_EQ(Homes(200), before);
}

TEST_F(StickyTest, FallbacksAreWhereTheKeyWouldMove) {
  AddTargets(4);
  const absl::StatusOr<Decision> decision = Pick(Session("bob"));
  ASSERT_THAT(decision, IsOk());
  ASSERT_EQ(decision->fallbacks.size(), 3u);
  Query without = Session("bob");
  without.exclude = {decision->endpoint.worker_id};
  EXPECT_EQ(Where(without), decision->fallbacks[0].worker_id);
}

TEST_F(StickyTest, WithoutAKeyByCostAndSaysSo) {
  AddTargets(2);
  Occupy(0, 1);
  Query query = Session("");
  query.explain = true;
  const absl::StatusOr<Decision> decision = Pick(query);
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w1");
  EXPECT_EQ(decision->reason, "no_session_key");
  EXPECT_EQ(decision->policy, "session");
  ASSERT_EQ(decision->notes.size(), 1u);
  EXPECT_THAT(decision->notes[0], HasSubstr("session_key"));
}

class PrefixAwareTest : public PolicyTest {
 protected:
  static PoolConfig Config() {
    PoolConfig config = DefaultConfig();
    config.policy = "PREFIX_AWARE";
    config.prefix_aware = {.prefix_length = 1024, .concurrency_threshold = 3};
    return config;
  }
  PrefixAwareTest() { Rebuild(Config(), 1, CreateReferenceIndex({})); }

  Query Text(std::string text) {
    Query query;
    query.raw_text = texts_.emplace_back(std::move(text));
    query.prompt_tokens = query.raw_text.size() / 4;
    return query;
  }

  std::deque<std::string> texts_;
};

TEST_F(PrefixAwareTest, EqualHeadsGoToOneTargetUpToTheThreshold) {
  AddTargets(4);
  const std::string head(1024, 'x');
  const absl::StatusOr<Decision> first = Pick(Text(head + "one"));
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(first->policy, "prefix_aware");
  EXPECT_EQ(first->reason, "prefix_key");
  EXPECT_EQ(Where(Text(head + "two")), first->endpoint.worker_id);
  EXPECT_EQ(Where(Text(head + "three")), first->endpoint.worker_id);
  // Three in flight there: the threshold is reached, the next goes to the least loaded other.
  for (TargetId t = 0; t < 4; ++t) {
    if (absl::StrCat("w", t) != first->endpoint.worker_id && t != 3) Occupy(t, 0);
  }
  const absl::StatusOr<Decision> overflow = Pick(Text(head + "four"));
  ASSERT_THAT(overflow, IsOk());
  EXPECT_EQ(overflow->reason, "overflow");
  // A target at its threshold is no fallback either.
  for (const EndpointRef& fallback : overflow->fallbacks) {
    EXPECT_NE(fallback.worker_id, first->endpoint.worker_id);
  }
  EXPECT_EQ(overflow->fallbacks.size(), 2u);
  EXPECT_NE(overflow->endpoint.worker_id, first->endpoint.worker_id);
  if (first->endpoint.worker_id != "w3") {
    EXPECT_EQ(overflow->endpoint.worker_id, "w3");
  }
}

TEST_F(PrefixAwareTest, OverflowTiesAreBrokenAtRandom) {
  AddTargets(4);
  const std::string head(1024, 'y');
  Query query = Text(head);
  const std::string home = Where(query);
  Where(query);
  Where(query);
  query.reserve = false;
  std::map<std::string, int> counts;
  for (int i = 0; i < 3000; ++i) ++counts[Where(query)];
  EXPECT_EQ(counts.count(home), 0u);
  ASSERT_EQ(counts.size(), 3u);
  for (const auto& [worker, count] : counts) EXPECT_NEAR(count, 1000, 120) << worker;
}

TEST_F(PrefixAwareTest, WhenAllAreAtTheThresholdTheLeastOutstanding) {
  AddTargets(3);
  for (int i = 0; i < 5; ++i) Occupy(0, 0);
  for (int i = 0; i < 3; ++i) Occupy(1, 0);
  for (int i = 0; i < 4; ++i) Occupy(2, 0);
  for (char c = 'a'; c < 'f'; ++c) {
    Query query = Text(std::string(1024, c));
    query.reserve = false;
    const absl::StatusOr<Decision> decision = Pick(query);
    ASSERT_THAT(decision, IsOk());
    EXPECT_EQ(decision->endpoint.worker_id, "w1");
    EXPECT_EQ(decision->reason, "all_at_threshold");
  }
}

TEST_F(PrefixAwareTest, ChainHashesAloneAreRefused) {
  AddTargets(2);
  const std::vector<ChainHash> chain = Chain(1, 10);
  EXPECT_THAT(Pick(Ask(chain)), StatusIs(absl::StatusCode::kInvalidArgument,
                                         AllOf(HasSubstr("prompt"), HasSubstr("tokens"))));
  Query query = Ask(chain);
  query.raw_text = "some text";
  EXPECT_THAT(Pick(query), IsOk());
}

TEST_F(PrefixAwareTest, TheUnitIsInTheExplanation) {
  AddTargets(2);
  Query query = Text("hello");
  query.explain = true;
  EXPECT_THAT(
      Pick(query)->notes,
      ElementsAre("prefix_aware: key of the first 5 bytes of the text (PrefixLength 1024)"));
}

}  // namespace
}  // namespace warmpath
