#include "core/routing/picker.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pool_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

class PickerTest : public testing::PoolFixture {
 protected:
  // Depth in tokens that a pick believes the given target to hold.
  std::uint64_t BelievedAt(TargetId target, const Query& query) {
    Query explain = query;
    explain.explain = true;
    explain.reserve = false;
    const absl::StatusOr<Decision> decision = Pick(explain);
    EXPECT_THAT(decision, IsOk());
    for (const CandidateTerms& terms : decision->explanation) {
      if (terms.endpoint.worker_id == absl::StrCat("w", target)) return terms.cached_tokens;
    }
    ADD_FAILURE() << "no target " << target;
    return 0;
  }
};

TEST_F(PickerTest, GoesWhereThePrefixIs) {
  AddTargets(4);
  const std::vector<ChainHash> chain = Chain(1, 100);
  Store(2, chain);
  const absl::StatusOr<Decision> decision = Pick(Ask(chain, 6'500));
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w2");
  EXPECT_EQ(decision->endpoint.address, "10.0.0.2:8000");
  EXPECT_EQ(decision->prompt_tokens, 6'500u);
  EXPECT_EQ(decision->predicted_cached_tokens, 6'400u);
  // 100 tokens at 16,000 tokens/s, (6,400 + 6,500) / 2 of 30,000 more for attention.
  EXPECT_NEAR(decision->predicted_ttft_s, 100.0 / 16'000 * 1.215, 1e-9);
  EXPECT_EQ(decision->policy, "marginal_cost");
  EXPECT_EQ(decision->reason, "prefix");
  EXPECT_EQ(decision->pool, "m");
  EXPECT_EQ(decision->freshness, Freshness::kExact);
  EXPECT_EQ(decision->candidates_exact, 4u);
  EXPECT_EQ(decision->fallbacks.size(), 3u);
  EXPECT_NE(decision->reservation_id, 0u);
  EXPECT_EQ(LoadOf(2).inflight, 1u);
}

TEST_F(PickerTest, AWholePromptThatIsCachedStillComputesOneToken) {
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 10);
  Store(0, chain);
  EXPECT_EQ(BelievedAt(0, Ask(chain)), 639u);
}

TEST_F(PickerTest, KnowledgeIsAUnionBlockByBlock) {
  AddTargets(2);
  const std::vector<ChainHash> chain = Chain(1, 6);
  // The engine reports 1 and 2, lost 3, and holds 4 and 5; a request in flight brings 1 to 3.
  Store(0, {1, 2, 4, 5});
  EXPECT_EQ(BelievedAt(0, Ask(chain)), 2u * kBlock);
  Occupy(0, 0, Chain(1, 3));
  const absl::StatusOr<Decision> decision = Pick(Ask(chain));
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w0");
  EXPECT_EQ(decision->predicted_cached_tokens, 5u * kBlock);
}

TEST_F(PickerTest, PredictedCountsForTargetsWithoutEvents) {
  AddTarget({.has_events = false});
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 20);
  Query query = Ask(chain);
  query.subset_present = true;
  query.subset = {"10.0.0.0"};
  const absl::StatusOr<Decision> first = Pick(query);
  ASSERT_THAT(first, IsOk());
  EXPECT_EQ(first->freshness, Freshness::kNone);
  EXPECT_EQ(first->candidates_none, 1u);
  ASSERT_THAT(Report({.reservation_id = first->reservation_id, .kind = OutcomeKind::kFinished}),
              IsOk());
  clock_.Advance(absl::Seconds(60));
  Tick();
  EXPECT_EQ(BelievedAt(0, Ask(chain)), 20u * kBlock - 1);
  EXPECT_EQ(Where(Ask(chain)), "w0");
}

TEST_F(PickerTest, JoiningTargetsAreCandidatesByLoad) {
  AddTarget({.lifecycle = Lifecycle::kJoining});
  const absl::StatusOr<Decision> decision = Pick(Ask(Chain(1, 4)));
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->predicted_cached_tokens, 0u);
  EXPECT_EQ(decision->freshness, Freshness::kNone);
}

TEST_F(PickerTest, DegradedIsSaidAndNotPunished) {
  AddTargets(2);
  const std::vector<ChainHash> chain = Chain(1, 40);
  Store(0, chain);
  EditTarget(0, [](TargetState& t) { t.causes.Set(FreshnessCause::kGap); });
  const absl::StatusOr<Decision> decision = Pick(Ask(chain));
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w0");
  EXPECT_EQ(decision->freshness, Freshness::kDegraded);
  EXPECT_TRUE(decision->causes.Has(FreshnessCause::kGap));
  EXPECT_EQ(decision->candidates_exact, 1u);
  EXPECT_EQ(decision->candidates_degraded, 1u);
}

TEST_F(PickerTest, TiesAreBrokenUniformly) {
  AddTargets(4);
  Query query = Ask(Chain(1, 4));
  query.reserve = false;
  std::map<std::string, int> counts;
  for (int i = 0; i < 4000; ++i) ++counts[Where(query)];
  ASSERT_EQ(counts.size(), 4u);
  for (const auto& [worker, count] : counts) EXPECT_NEAR(count, 1000, 120) << worker;
}

TEST_F(PickerTest, Fault15_AUniversalHeadAttractsNobody) {
  AddTargets(4);
  const std::vector<ChainHash> head = Chain(1, 16);
  for (TargetId t = 0; t < 4; ++t) Store(t, head);
  std::map<std::string, int> counts;
  for (ChainHash i = 0; i < 400; ++i) {
    std::vector<ChainHash> chain = head;
    for (ChainHash tail = 0; tail < 8; ++tail) chain.push_back(1'000'000 * (i + 1) + tail);
    ++counts[Where(Ask(chain))];
    clock_.Advance(absl::Milliseconds(10));
  }
  ASSERT_EQ(counts.size(), 4u);
  for (const auto& [worker, count] : counts) EXPECT_NEAR(count, 100, 20) << worker;
}

TEST_F(PickerTest, Fault15_OneHolderOfTheHeadIsLeftWhenWaitingCostsMore) {
  AddTargets(2);
  const std::vector<ChainHash> chain = Chain(1, 100);
  Store(0, chain);
  EXPECT_EQ(Where(Ask(chain)), "w0");
  Occupy(0, 1.0);  // more than the 0.44 s that the hit saves
  const absl::StatusOr<Decision> decision = Pick(Ask(chain));
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w1");
  EXPECT_EQ(decision->reason, "cost");
}

TEST_F(PickerTest, Fault16_AMissGoesToTheLeastLoaded) {
  AddTargets(3);
  // The emptiest cache has the longest queue.
  Store(1, Chain(1000, 50));
  Store(2, Chain(2000, 500));
  Occupy(0, 3);
  Occupy(1, 2);
  const absl::StatusOr<Decision> decision = Pick(Ask(Chain(1, 10)));
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w2");
  EXPECT_EQ(decision->reason, "no_prefix");
}

TEST_F(PickerTest, Fault17_UnderImbalanceTheBestPrefixOfThoseNotOverloaded) {
  AddTargets(4);
  const std::vector<ChainHash> chain = Chain(1, 200);
  Store(0, chain);
  Store(1, Chain(1, 150));
  Occupy(0, 30);  // overloaded, and much more so than the rest
  Occupy(2, 0.1);
  EXPECT_EQ(Where(Ask(chain)), "w1");
}

TEST_F(PickerTest, Fault24_PromptsShorterThanABlockAreRoutedByLoad) {
  AddTargets(3);
  Occupy(0, 1);
  Occupy(2, 1);
  Query query;
  query.prompt_tokens = 5;
  const absl::StatusOr<Decision> decision = Pick(query);
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w1");
  EXPECT_EQ(decision->reason, "short_prompt");
  EXPECT_EQ(decision->policy, "marginal_cost");
}

TEST_F(PickerTest, FallbacksComeInTheOrderOfCost) {
  AddTargets(5);
  for (TargetId t = 0; t < 5; ++t) Occupy(t, 5.0 - t);
  Query query = Ask(Chain(1, 4));
  query.max_fallbacks = 2;
  const absl::StatusOr<Decision> decision = Pick(query);
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w4");
  ASSERT_EQ(decision->fallbacks.size(), 2u);
  EXPECT_EQ(decision->fallbacks[0].worker_id, "w3");
  EXPECT_EQ(decision->fallbacks[1].worker_id, "w2");
}

TEST_F(PickerTest, EqualFallbacksFollowTheChosenOne) {
  AddTargets(4);
  std::set<std::string> chosen;
  for (int i = 0; i < 100; ++i) {
    Query query = Ask(Chain(1, 4));
    query.reserve = false;
    query.max_fallbacks = 3;
    const absl::StatusOr<Decision> decision = Pick(query);
    ASSERT_THAT(decision, IsOk());
    ASSERT_EQ(decision->fallbacks.size(), 3u);
    chosen.insert(decision->endpoint.worker_id);
    const int first = decision->endpoint.worker_id.back() - '0';
    for (int k = 0; k < 3; ++k) {
      EXPECT_EQ(decision->fallbacks[static_cast<std::size_t>(k)].worker_id,
                absl::StrCat("w", (first + 1 + k) % 4));
    }
  }
  EXPECT_EQ(chosen.size(), 4u);
}

TEST_F(PickerTest, ExplainShowsEveryTargetAndReservesNothing) {
  AddTargets(3);
  const std::vector<ChainHash> chain = Chain(1, 100);
  Store(1, chain);
  Occupy(0, 1);
  EditTarget(2, [](TargetState& t) { t.draining = true; });
  Query query = Ask(chain);
  query.explain = true;
  query.reserve = false;
  const absl::StatusOr<Decision> decision = Pick(query);
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->reservation_id, 0u);
  ASSERT_EQ(decision->explanation.size(), 3u);
  const CandidateTerms& best = decision->explanation[0];
  EXPECT_EQ(best.endpoint.worker_id, "w1");
  EXPECT_EQ(best.cached_tokens, 6'399u);
  EXPECT_EQ(best.uncached_tokens, 1u);
  EXPECT_EQ(best.kv_capacity_tokens, 350'000u);
  EXPECT_EQ(best.excluded, "");
  const CandidateTerms& second = decision->explanation[1];
  EXPECT_EQ(second.endpoint.worker_id, "w0");
  EXPECT_DOUBLE_EQ(second.wait_s, 1);
  EXPECT_EQ(second.inflight, 1u);
  EXPECT_DOUBLE_EQ(second.cost_s, second.wait_s + second.prefill_s + second.pool_price_s +
                                      second.decode_stall_s + second.kv_pressure_s +
                                      second.kv_wait_s);
  EXPECT_GT(second.cost_s, best.cost_s);
  EXPECT_EQ(decision->explanation[2].endpoint.worker_id, "w2");
  EXPECT_EQ(decision->explanation[2].excluded, "draining");
  EXPECT_EQ(TrafficOf(*fleet_)[0].reservations_opened, 1u);  // the one that occupies w0
  EXPECT_THAT(PickCountsOf(*fleet_), IsEmpty());
}

TEST_F(PickerTest, UnknownCapacityTakesThePoolsMedianOrLeavesTheTermsOut) {
  AddTarget({.kv_capacity_tokens = 0});
  AddTarget({.kv_capacity_tokens = 100'000});
  AddTarget({.kv_capacity_tokens = 200'000});
  AddTarget({.kv_capacity_tokens = 300'000});
  Occupy(0, 0, {}, 50'000 - 256);
  Query query = Ask(Chain(1, 4));
  query.explain = true;
  query.reserve = false;
  absl::StatusOr<Decision> decision = Pick(query);
  ASSERT_THAT(decision, IsOk());
  for (const CandidateTerms& terms : decision->explanation) {
    if (terms.endpoint.worker_id == "w0") {
      EXPECT_DOUBLE_EQ(terms.kv_pressure_s, 1.4 * 0.25 * 0.25);
    }
  }
  Rebuild(DefaultConfig(), 1, CreateReferenceIndex({}));
  AddTargets(2, {.kv_capacity_tokens = 0});
  Occupy(0, 0, {}, 50'000);
  decision = Pick(query);
  ASSERT_THAT(decision, IsOk());
  for (const CandidateTerms& terms : decision->explanation) {
    EXPECT_EQ(terms.kv_pressure_s, 0);
    EXPECT_EQ(terms.kv_wait_s, 0);
  }
}

TEST_F(PickerTest, RatesComeFromHintsThenPeersThenTheFallback) {
  AddTarget({.hint = 20'000});
  AddTarget({.hint = 0});
  Query query;
  query.prompt_tokens = 8'000;
  query.explain = true;
  query.reserve = false;
  const auto prefill_of = [&](const std::string& worker) {
    const absl::StatusOr<Decision> decision = Pick(query);
    for (const CandidateTerms& terms : decision->explanation) {
      if (terms.endpoint.worker_id == worker) return terms.prefill_s;
    }
    return 0.0;
  };
  const double work = 8'000 * (1 + 4.0 / 30);
  EXPECT_NEAR(prefill_of("w0"), work / 16'000, 1e-9);
  EXPECT_NEAR(prefill_of("w1"), work / 8'000, 1e-9);
  {
    absl::MutexLock lock(&pool_->mu());
    for (int i = 0; i < 16; ++i) pool_->ObservePrefill(0, 30'000, 1);
  }
  EXPECT_NEAR(prefill_of("w0"), work / 30'000, 1e-9);
  EXPECT_NEAR(prefill_of("w1"), work / 27'000, 1e-9);
}

TEST_F(PickerTest, UnknownPoliciesAreRefusedWithTheNames) {
  AddTargets(1);
  Query query = Ask(Chain(1, 4));
  query.policy = "fastest";
  EXPECT_THAT(Pick(query), StatusIs(absl::StatusCode::kInvalidArgument,
                                    AllOf(HasSubstr("policy"), HasSubstr("fastest"),
                                          HasSubstr("marginal_cost"), HasSubstr("prefix_aware"))));
}

TEST_F(PickerTest, TheSameRequestAgainSupersedes) {
  AddTargets(1);
  Query query = Ask(Chain(1, 4));
  query.request_id = "r1";
  const absl::StatusOr<Decision> first = Pick(query);
  const absl::StatusOr<Decision> second = Pick(query);
  ASSERT_THAT(second, IsOk());
  EXPECT_NE(first->reservation_id, second->reservation_id);
  EXPECT_EQ(LoadOf(0).inflight, 1u);
  EXPECT_THAT(Report({.reservation_id = first->reservation_id}),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(PickerTest, PicksAreCountedByPolicyReasonAndFreshness) {
  AddTargets(2);
  const std::vector<ChainHash> chain = Chain(1, 10);
  Store(0, chain);
  for (int i = 0; i < 3; ++i) ASSERT_THAT(Pick(Ask(chain)), IsOk());
  Query query = Ask(Chain(50, 10));
  query.policy = "roundrobin";
  ASSERT_THAT(Pick(query), IsOk());
  std::map<std::string, std::uint64_t> counts;
  for (const PickCount& count : PickCountsOf(*fleet_)) {
    counts[absl::StrCat(count.pool, " ", count.policy, " ", count.reason, " ",
                        std::string(FreshnessName(count.freshness)))] = count.count;
  }
  EXPECT_EQ(counts["m marginal_cost prefix EXACT"], 3u);
  EXPECT_EQ(counts["m round_robin turn EXACT"], 1u);
  EXPECT_EQ(counts.size(), 2u);
  const PoolTraffic traffic = TrafficOf(*fleet_)[0];
  EXPECT_EQ(traffic.prompt_tokens, 4 * 640u);
  EXPECT_EQ(traffic.matched_tokens, 3 * 639u);
  EXPECT_EQ(traffic.predicted_cached_tokens, 3 * 639u);
  EXPECT_EQ(traffic.reservations_open, 4u);
  EXPECT_EQ(picker_.LockHold().Count(), 4u);
}

// An index whose match skips blocks and so may say too much, as the real one is allowed to.
class SkippingIndex final : public Index {
 public:
  explicit SkippingIndex(std::uint32_t says) : says_(says), real_(CreateReferenceIndex({})) {}

  absl::StatusOr<Slot> OpenSlot() override { return real_->OpenSlot(); }
  void CloseSlot(Slot slot) override { real_->CloseSlot(slot); }
  void SetMayHaveHoles(Slot slot, bool may) override { real_->SetMayHaveHoles(slot, may); }
  ApplyResult Apply(Slot slot, Tier tier, std::span<const ChainHash> removed,
                    std::span<const ChainHash> stored) override {
    return real_->Apply(slot, tier, removed, stored);
  }
  void Match(std::span<const ChainHash> chain, MatchResult* result) const override {
    real_->Match(chain, result);
    for (SlotMatch& match : result->slots) match.gpu_depth = says_;
    result->exact_to = 0;
  }
  bool MatchGpu(std::span<const ChainHash> chain, MatchSegments* result) const override {
    const bool gpu_only = real_->MatchGpu(chain, result);
    for (MatchSegments::Segment& segment : result->segments) segment.depth = says_;
    result->exact_to = 0;
    return gpu_only;
  }
  void MatchExact(std::span<const ChainHash> chain, MatchResult* result) const override {
    real_->MatchExact(chain, result);
  }
  std::size_t VerifiedGpuDepth(Slot slot, std::span<const ChainHash> chain, std::size_t from,
                               std::size_t limit) const override {
    return real_->VerifiedGpuDepth(slot, chain, from, limit);
  }
  SlotMatch VerifiedMatch(Slot slot, std::span<const ChainHash> chain,
                          std::size_t from) const override {
    return real_->VerifiedMatch(slot, chain, from);
  }
  bool Holds(Slot slot, Tier tier, ChainHash hash) const override {
    return real_->Holds(slot, tier, hash);
  }
  HoldingsDigest Digest(Slot slot, Tier tier) const override { return real_->Digest(slot, tier); }
  void ForEach(Slot slot, Tier tier, absl::FunctionRef<void(ChainHash)> visit) const override {
    real_->ForEach(slot, tier, visit);
  }
  IndexStats Stats() const override { return real_->Stats(); }
  bool Maintain(std::size_t budget) override { return real_->Maintain(budget); }

 private:
  const std::uint32_t says_;
  const std::unique_ptr<Index> real_;
};

TEST_F(PickerTest, AHoleInTheWinnersChainIsFoundBeforeItIsReserved) {
  Rebuild(DefaultConfig(), 1, std::make_unique<SkippingIndex>(100));
  AddTargets(3);
  const std::vector<ChainHash> chain = Chain(1, 100);
  // All three are credited with the whole chain; w0 and w1 have holes, w2 has the most.
  Store(0, Chain(1, 20));
  Store(0, Chain(30, 71));
  Store(1, Chain(1, 10));
  Store(2, Chain(1, 60));
  Occupy(2, 0.01);  // so that w2 is not chosen at first
  const absl::StatusOr<Decision> decision = Pick(Ask(chain));
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w2");
  EXPECT_EQ(decision->predicted_cached_tokens, 60u * kBlock);
}

TEST_F(PickerTest, AHoleIsCorrectedForPoliciesThatDoNotScoreTheMatch) {
  Rebuild(DefaultConfig(), 1, std::make_unique<SkippingIndex>(100));
  AddTargets(2);
  Store(0, Chain(1, 20));
  Query query = Ask(Chain(1, 100));
  query.policy = "round_robin";
  const absl::StatusOr<Decision> decision = Pick(query);
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w0");
  EXPECT_EQ(decision->predicted_cached_tokens, 20u * kBlock);
}

}  // namespace
}  // namespace warmpath
