// The packed pass over all targets against the plain rules, applied to each target's full state.
#include "core/routing/candidates.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/fleet/prefill_rate.h"
#include "core/routing/candidate_table.h"
#include "core/routing/cost.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pool_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::IsOk;
using testing::TargetOptions;

TEST(CandidateTableTest, ScoresThatAreNoNumbersAreDroppedWithTheirRows) {
  CandidateTable table;
  {
    CandidateTable::Filler filler(&table, 5);
    for (TargetId t = 0; t < 5; ++t)
      filler.Add({.target = t, .blocks = t * 10, .inflight = 1.0 * t});
  }
  const double inf = std::numeric_limits<double>::infinity();
  const double scores[] = {1, inf, 2, std::numeric_limits<double>::quiet_NaN(), -inf};
  std::copy(std::begin(scores), std::end(scores), table.scores().begin());
  EXPECT_EQ(table.MostBlocks(), 40u);
  EXPECT_EQ(table.DropNotFinite(), 3u);
  ASSERT_EQ(table.size(), 2u);
  EXPECT_EQ(table.target(1), 2u);
  EXPECT_EQ(table.inflight(1), 2);
  EXPECT_EQ(table.scores()[1], 2);
  EXPECT_EQ(table.MostBlocks(), 20u);
  EXPECT_EQ(table.DropNotFinite(), 0u);
  CandidateTable::Filler(&table, 2);
  EXPECT_TRUE(table.empty());
}

class CandidatesTest : public testing::PoolFixture {
 protected:
  // What docs/policy.md says of one target, by the full state and the ledger's own numbers.
  // Nothing when it is no candidate.
  std::optional<CostTerms> Plain(TargetId target, const Query& query) {
    absl::MutexLock lock(&pool_->mu());
    const TargetState& state = pool_->targets()[target];
    const TargetLoad load = pool_->ledger().Load(target, clock_.Now());
    const auto named = [&](const std::vector<std::string_view>& names) {
      return std::any_of(names.begin(), names.end(), [&](std::string_view name) {
        return name == state.spec.address || name == state.worker_id ||
               name == HostOf(state.spec.address);
      });
    };
    if (!state.eligible()) return std::nullopt;
    if (query.subset_present && !named(query.subset)) return std::nullopt;
    if (query.lora.has_value() &&
        std::find(state.loras.begin(), state.loras.end(), *query.lora) == state.loras.end()) {
      return std::nullopt;
    }
    if (named(query.exclude)) return std::nullopt;
    const std::uint64_t capacity = state.spec.kv_capacity_tokens;
    if (capacity > 0 && query.prompt_tokens > capacity) return std::nullopt;
    if (query.max_wait > absl::ZeroDuration() &&
        load.wait_s > absl::ToDoubleSeconds(query.max_wait)) {
      return std::nullopt;
    }
    std::vector<std::uint32_t> written(pool_->targets().size(), 0);
    pool_->ledger().KnownDepths(ChainKind::kTokens, query.chain, written);
    std::uint64_t blocks = written[target];
    while (state.slot != kNoSlot && blocks < query.chain.size() &&
           pool_->index().Holds(state.slot, Tier::kGpu, query.chain[blocks])) {
      ++blocks;
    }
    std::vector<std::uint64_t> capacities;
    for (const TargetState& other : pool_->targets()) {
      if (other.spec.kv_capacity_tokens > 0) capacities.push_back(other.spec.kv_capacity_tokens);
    }
    std::sort(capacities.begin(), capacities.end());
    const std::uint64_t median = capacities.empty() ? 0 : capacities[capacities.size() / 2];
    const PoolAverages averages = pool_->ledger().Averages();
    return MarginalCost(
        {.prompt_tokens = query.prompt_tokens,
         .cached_tokens =
             query.prompt_tokens == 0 ? 0 : std::min(blocks * kBlock, query.prompt_tokens - 1),
         .output_tokens = averages.output_tokens,
         .residence_s = averages.residence_s,
         .rho = averages.rho,
         .pool_rate = pool_->mean_rate(),
         .unequal = pool_->unequal(),
         .rate = RateInUse(state.rate, state.spec.prefill_tokens_per_s, pool_->peer_rates()),
         .ctx_half = kDefaultCtxHalf,
         .wait_s = load.wait_s,
         .inflight = load.inflight,
         .kv_tokens = load.kv_tokens,
         .kv_capacity = capacity > 0 ? capacity : median});
  }
};

// Random fleets, loads and requests: who is a candidate, each one's terms, and the score, bit for
// bit. Chains are held by index or overlay only without holes: what a match may say too much is
// corrected for the winner alone.
TEST_F(CandidatesTest, EachTargetsTermsAreThoseOfThePlainRules) {
  const std::vector<std::string> loras = {"a", "b"};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Rebuild(DefaultConfig(), seed, CreateReferenceIndex({}));
    const auto targets = static_cast<TargetId>(1 + random.Below(12));
    for (TargetId t = 0; t < targets; ++t) {
      TargetOptions options;
      options.kv_capacity_tokens = random.Below(3) * (2000 + random.Below(20'000));
      options.has_events = random.Below(3) > 0;
      options.hint = static_cast<double>(random.Below(2) * (1000 + random.Below(30'000)));
      if (random.Below(2) == 0) options.loras = loras;
      options.lifecycle = static_cast<Lifecycle>(random.Below(10) < 8 ? 1 : random.Below(5));
      AddTarget(options);
    }
    const std::vector<ChainHash> prompt = Chain(1000 * seed, 40);
    for (int step = 0; step < 60; ++step) {
      clock_.Advance(absl::Milliseconds(random.Below(800)));
      const auto target = static_cast<TargetId>(random.Below(targets));
      const std::vector<ChainHash> head(
          prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(random.Below(41)));
      switch (random.Below(6)) {
        case 0:
          Occupy(target, static_cast<double>(random.Below(3000)) / 1000, head,
                 head.size() * kBlock + random.Below(kBlock));
          break;
        case 1:
          if (SlotOf(target) != kNoSlot) Store(target, head);
          break;
        case 2:
          EditTarget(target, [&](TargetState& state) {
            state.draining = random.Below(8) == 0;
            state.engine_reachable = random.Below(8) > 0;
          });
          break;
        case 3:
          for (int i = 0; i < 5; ++i) {
            absl::MutexLock lock(&pool_->mu());
            pool_->ObservePrefill(target, 2000, 0.1 + 0.01 * static_cast<double>(random.Below(50)));
          }
          break;
        default: {
          const absl::StatusOr<Decision> decision = Pick(Ask(head));
          if (!decision.ok() || random.Below(3) == 0) break;
          ASSERT_THAT(Report({.reservation_id = decision->reservation_id,
                              .output_tokens = random.Below(900)}),
                      IsOk());
          break;
        }
      }
      Query query = Ask(prompt, 1 + random.Below(4000));
      query.explain = true;
      query.reserve = false;
      if (random.Below(4) == 0) query.lora = loras[random.Below(2)];
      if (random.Below(4) == 0) query.max_wait = absl::Milliseconds(1 + random.Below(3000));
      const std::string excluded = absl::StrCat("10.0.0.", random.Below(targets), ":8000");
      if (random.Below(4) == 0) query.exclude = {excluded};
      const std::string allowed = absl::StrCat("10.0.0.", random.Below(targets));
      if (random.Below(6) == 0) {
        query.subset_present = true;
        query.subset = {allowed, "10.0.0.0:8000"};
      }
      const absl::StatusOr<Decision> decision = Pick(query);
      std::map<std::string, CandidateTerms> told;
      if (decision.ok()) {
        for (const CandidateTerms& terms : decision->explanation) {
          ASSERT_TRUE(told.emplace(terms.endpoint.worker_id, terms).second)
              << terms.endpoint.worker_id << " is told of twice";
        }
      }
      for (TargetId t = 0; t < targets; ++t) {
        SCOPED_TRACE(absl::StrCat("step ", step, " target ", t));
        const std::optional<CostTerms> plain = Plain(t, query);
        if (!decision.ok()) {
          ASSERT_FALSE(plain.has_value()) << decision.status();
          continue;
        }
        ASSERT_EQ(told.count(absl::StrCat("w", t)), 1u);
        const CandidateTerms& terms = told[absl::StrCat("w", t)];
        ASSERT_EQ(terms.excluded.empty(), plain.has_value()) << terms.excluded;
        if (!plain.has_value()) continue;
        ASSERT_EQ(terms.cost_s, plain->Sum());
        ASSERT_EQ(terms.wait_s, plain->wait_s);
        ASSERT_EQ(terms.prefill_s, plain->prefill_s);
        ASSERT_EQ(terms.kv_wait_s, plain->kv_wait_s);
        ASSERT_LE(decision->explanation.front().cost_s, terms.cost_s);
      }
    }
  }
}

}  // namespace
}  // namespace warmpath
