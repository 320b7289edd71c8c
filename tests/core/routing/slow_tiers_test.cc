// Blocks in slower tiers than the GPU's: what they save, what their copies cost, what outcomes say.
#include "core/routing/slow_tiers.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "core/fleet/prefill_rate.h"
#include "core/index/index.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pool_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::IsOk;

constexpr std::uint32_t kBlockTokens = 64;

SlotMatch Found(std::uint32_t gpu, std::uint32_t host, std::uint32_t disk = 0) {
  return {.slot = 1,
          .gpu_depth = gpu,
          .usable_depth = gpu + host + disk,
          .by_tier = {gpu, host, disk, 0}};
}

TEST(HeldWithSlowTiersTest, ByHand) {
  const PickInputs inputs{.block_size = kBlockTokens, .prompt_tokens = 6'400};
  // 20 blocks in the GPU, 60 in host memory: 3,840 tokens at 64,000 tokens/s.
  HeldPrefix held = HeldWithSlowTiers(Found(20, 60), 0, 16'000, 64'000, inputs);
  EXPECT_EQ(held.blocks, 80u);
  EXPECT_EQ(held.cached_tokens, 5'120u);
  EXPECT_EQ(held.copied_tokens, 3'840u);
  EXPECT_DOUBLE_EQ(held.copy_s, 0.06);
  // A request in flight brings the first 50 blocks into the GPU, or all that the host has.
  held = HeldWithSlowTiers(Found(20, 60), 50, 16'000, 64'000, inputs);
  EXPECT_EQ(held.blocks, 80u);
  EXPECT_EQ(held.copied_tokens, 1'920u);
  EXPECT_DOUBLE_EQ(held.copy_s, 0.03);
  held = HeldWithSlowTiers(Found(20, 60), 90, 16'000, 64'000, inputs);
  EXPECT_EQ(held.blocks, 90u);
  EXPECT_EQ(held.copied_tokens, 0u);
  EXPECT_EQ(held.copy_s, 0);
  // Ten blocks lie on disk: each as long as four.
  held = HeldWithSlowTiers(Found(20, 50, 10), 0, 16'000, 64'000, inputs);
  EXPECT_EQ(held.copied_tokens, 3'840u);
  EXPECT_DOUBLE_EQ(held.copy_s, (3'840 + 3 * 640) / 64'000.0);
  // Five of the blocks in flight may be among those on disk; all of them, with fifteen.
  held = HeldWithSlowTiers(Found(20, 50, 10), 25, 16'000, 64'000, inputs);
  EXPECT_EQ(held.copied_tokens, 55u * 64);
  EXPECT_DOUBLE_EQ(held.copy_s, (55 + 3 * 5) * 64 / 64'000.0);
  held = HeldWithSlowTiers(Found(20, 50, 10), 35, 16'000, 64'000, inputs);
  EXPECT_EQ(held.copied_tokens, 45u * 64);
  EXPECT_DOUBLE_EQ(held.copy_s, 45 * 64 / 64'000.0);
  // The whole prompt: one token is computed all the same.
  held = HeldWithSlowTiers(Found(0, 100), 0, 16'000, 64'000, inputs);
  EXPECT_EQ(held.blocks, 100u);
  EXPECT_EQ(held.cached_tokens, 6'399u);
  EXPECT_EQ(held.copied_tokens, 6'399u);
  // Nothing left to copy: the last token alone.
  held = HeldWithSlowTiers(Found(100, 0), 0, 16'000, 64'000, inputs);
  EXPECT_EQ(held.copied_tokens, 0u);
  EXPECT_EQ(held.cached_tokens, 6'399u);
}

TEST(HeldWithSlowTiersTest, ACopyThatTakesLongerThanComputingIsNotAssumed) {
  const PickInputs inputs{.block_size = kBlockTokens, .prompt_tokens = 6'400};
  // What is saved: 3,840 tokens with contexts from 1,280 to 5,120, 0.2656 s.
  const double saved_s = 3'840 / 16'000.0 * (1 + 3'200 / 30'000.0);
  const double even = 3'840 / saved_s;
  EXPECT_EQ(HeldWithSlowTiers(Found(20, 60), 0, 16'000, even * 1.001, inputs).blocks, 80u);
  const HeldPrefix held = HeldWithSlowTiers(Found(20, 60), 0, 16'000, even * 0.999, inputs);
  EXPECT_EQ(held.blocks, 20u);
  EXPECT_EQ(held.cached_tokens, 1'280u);
  EXPECT_EQ(held.copied_tokens, 0u);
  EXPECT_EQ(held.copy_s, 0);
}

TEST(CopyRateTest, LearnedThenHintThenAMultipleOfThePrefillRate) {
  EXPECT_EQ(CopyRateInUse(0, 0, 16'000), 64'000);
  EXPECT_EQ(CopyRateInUse(0, 100'000, 16'000), 80'000);
  EXPECT_EQ(CopyRateInUse(120'000, 100'000, 16'000), 120'000);
}

class SlowTiersTest : public testing::PoolFixture {
 protected:
  Decision MustPick(const Query& query) {
    absl::StatusOr<Decision> decision = Pick(query);
    EXPECT_THAT(decision, IsOk());
    return decision.ok() ? *std::move(decision) : Decision();
  }
  static Query Explained(Query query) {
    query.explain = true;
    query.reserve = false;
    return query;
  }
  std::vector<ChainHash> Part(std::uint64_t first, std::uint64_t last) {
    return Chain(first, last - first);
  }
  void Finish(const Decision& decision, std::uint64_t cached) {
    EXPECT_THAT(Report({.reservation_id = decision.reservation_id,
                        .kind = OutcomeKind::kFinished,
                        .served_by = {},
                        .actual_cached_tokens = cached,
                        .actual_prompt_tokens = std::nullopt,
                        .output_tokens = 10,
                        .ttft = std::nullopt}),
                IsOk());
  }
  // A prompt of 100 new blocks that lie in target 0's host memory, answered as if all but its last
  // token were copied at this rate. Returns how many the pick counted on being copied.
  std::uint64_t ServeFromHost(double tokens_per_s) {
    const std::vector<ChainHash> chain = Chain(next_block_, 100);
    next_block_ += 100;
    Store(0, chain, Tier::kHost);
    const Decision told = MustPick(Explained(Ask(chain)));
    const Decision served = MustPick(Ask(chain));
    clock_.Advance(absl::Seconds(6'399 / tokens_per_s));
    FirstToken(served);
    Finish(served, served.predicted_cached_tokens);
    clock_.Advance(absl::Seconds(1));
    Tick();
    return told.explanation[0].copied_tokens;
  }
  void FirstToken(const Decision& decision) {
    EXPECT_THAT(Report({.reservation_id = decision.reservation_id,
                        .kind = OutcomeKind::kFirstToken,
                        .served_by = {},
                        .actual_cached_tokens = std::nullopt,
                        .actual_prompt_tokens = std::nullopt,
                        .output_tokens = std::nullopt,
                        .ttft = std::nullopt}),
                IsOk());
  }

  std::uint64_t next_block_ = 1;
};

TEST_F(SlowTiersTest, APickWeighsTheCopyAgainstThePrefill) {
  AddTargets(3);
  const std::vector<ChainHash> chain = Chain(1, 100);
  Store(0, Part(1, 21));
  Store(0, Part(21, 81), Tier::kHost);
  Store(1, Part(1, 61));  // less, but in its GPU
  const Decision decision = MustPick(Explained(Ask(chain)));
  EXPECT_EQ(decision.endpoint.worker_id, "w0");
  EXPECT_EQ(decision.predicted_cached_tokens, 80u * kBlock);
  ASSERT_EQ(decision.explanation.size(), 3u);
  const CandidateTerms& best = decision.explanation[0];
  EXPECT_EQ(best.cached_tokens, 5'120u);
  EXPECT_EQ(best.uncached_tokens, 1'280u);
  EXPECT_EQ(best.copied_tokens, 3'840u);
  EXPECT_DOUBLE_EQ(best.copy_s, 0.06);
  EXPECT_DOUBLE_EQ(best.prefill_s, 1'280 / 16'000.0 * (1 + 5'760 / 30'000.0));
  EXPECT_DOUBLE_EQ(best.cost_s, best.copy_s + best.prefill_s);
  EXPECT_DOUBLE_EQ(decision.predicted_ttft_s, best.copy_s + best.prefill_s);
  const CandidateTerms& second = decision.explanation[1];
  EXPECT_EQ(second.endpoint.worker_id, "w1");
  EXPECT_EQ(second.copied_tokens, 0u);
  EXPECT_EQ(second.copy_s, 0);
  EXPECT_DOUBLE_EQ(second.cost_s, 2'560 / 16'000.0 * (1 + 5'120 / 30'000.0));
  // Where that waits a little longer for its copy than the other computes, the other has it.
  EditTarget(0, [](TargetState& t) { t.spec.host_copy_tokens_per_s = 40'000; });
  EXPECT_EQ(MustPick(Explained(Ask(chain))).endpoint.worker_id, "w1");
}

TEST_F(SlowTiersTest, AnIdleTargetIsNotHeldBackByTiersOfPromptsItDoesNotKnow) {
  AddTargets(2);
  Store(0, Chain(500, 10), Tier::kHost);
  const Decision decision = MustPick(Explained(Ask(Chain(1, 10))));
  for (const CandidateTerms& terms : decision.explanation) {
    EXPECT_EQ(terms.cached_tokens, 0u);
    EXPECT_EQ(terms.copied_tokens, 0u);
  }
}

TEST_F(SlowTiersTest, PicksInFlightAreInTheGpuBeforeTheirEventsSaySo) {
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 100);
  Store(0, Part(1, 81), Tier::kHost);
  const Decision first = MustPick(Ask(chain));
  EXPECT_EQ(first.predicted_cached_tokens, 80u * kBlock);
  const Decision second = MustPick(Explained(Ask(chain)));
  EXPECT_EQ(second.explanation[0].copied_tokens, 0u);
  EXPECT_EQ(second.predicted_cached_tokens, 100u * kBlock - 1);
}

// One target has its first blocks on disk and the rest in host memory, another one the reverse;
// the first half is in flight at both.
TEST_F(SlowTiersTest, WhichTiersAreInFlightIsFoundBeforeTheWinnerIsReserved) {
  AddTargets(2);
  const std::vector<ChainHash> chain = Chain(1, 100);
  Store(0, Part(1, 41), Tier::kDisk);
  Store(0, Part(41, 81), Tier::kHost);
  Store(1, Part(1, 41), Tier::kHost);
  Store(1, Part(41, 81), Tier::kDisk);
  Occupy(0, 0.05, Part(1, 41));
  Occupy(1, 0.001, Part(1, 41));
  const Decision decision = MustPick(Explained(Ask(chain)));
  ASSERT_EQ(decision.explanation.size(), 2u);
  // What is left to copy at w0 is in host memory. w1 has the shorter queue, but copies from disk.
  EXPECT_EQ(decision.endpoint.worker_id, "w0");
  EXPECT_EQ(decision.explanation[0].copied_tokens, 40u * kBlock);
  EXPECT_DOUBLE_EQ(decision.explanation[0].copy_s, 40 * kBlock / 64'000.0);
  EXPECT_EQ(decision.explanation[1].copied_tokens, 40u * kBlock);
  EXPECT_DOUBLE_EQ(decision.explanation[1].copy_s, 4 * 40 * kBlock / 64'000.0);
}

TEST_F(SlowTiersTest, APoolCanBeToldToIgnoreThem) {
  PoolConfig config = DefaultConfig();
  config.slow_tiers = false;
  Rebuild(config, 1, CreateReferenceIndex({}));
  AddTargets(1);
  Store(0, {1, 2});
  Store(0, {3, 4}, Tier::kHost);
  const Decision decision = MustPick(Explained(Ask(Chain(1, 4))));
  EXPECT_EQ(decision.predicted_cached_tokens, 2u * kBlock);
  EXPECT_EQ(decision.explanation[0].copied_tokens, 0u);
}

// The real index, which searches all but the first block: the winner's holes are found in each
// tier.
TEST_F(SlowTiersTest, AHoleIsFoundBeforeTheWinnerIsReserved) {
  Rebuild(DefaultConfig(), 1, CreateIndex({.exact_blocks = 1}));
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 100);
  Store(0, Part(1, 31), Tier::kHost);
  Store(0, Part(40, 101), Tier::kHost);
  Decision decision = MustPick(Explained(Ask(chain)));
  EXPECT_EQ(decision.predicted_cached_tokens, 30u * kBlock);
  EXPECT_EQ(decision.explanation[0].copied_tokens, 30u * kBlock);
  // The hole is filled by the GPU: it is no hole, and copied over all the same.
  Store(0, Part(31, 40));
  decision = MustPick(Explained(Ask(chain)));
  EXPECT_EQ(decision.predicted_cached_tokens, 100u * kBlock - 1);
  EXPECT_EQ(decision.explanation[0].copied_tokens, 100u * kBlock - 1);
  // A block that the GPU has lost and the host has.
  Store(0, Part(1, 31));
  decision = MustPick(Explained(Ask(chain)));
  EXPECT_EQ(decision.explanation[0].copied_tokens, 61u * kBlock - 1);
  Evict(0, {10});
  decision = MustPick(Explained(Ask(chain)));
  EXPECT_EQ(decision.predicted_cached_tokens, 100u * kBlock - 1);
  EXPECT_EQ(decision.explanation[0].copied_tokens, 91u * kBlock - 1);
}

// Engines count hits in host memory as cached: neither drift nor anything to be healed.
TEST_F(SlowTiersTest, OutcomesThatCountCopiesAsCachedAreAsExpected) {
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 100);
  Store(0, Part(1, 21));
  Store(0, Part(21, 81), Tier::kHost);
  for (int i = 0; i < 30; ++i) {
    const Decision decision = MustPick(Ask(chain));
    EXPECT_EQ(decision.predicted_cached_tokens, 80u * kBlock);
    Finish(decision, 80u * kBlock);
    clock_.Advance(absl::Seconds(1));
    Tick();
  }
  EXPECT_EQ(FreshnessOf(0), Freshness::kExact);
  {
    absl::MutexLock lock(&pool_->mu());
    EXPECT_EQ(pool_->ledger().PredictedBlocks(0), 0u);
  }
  // An engine that copies although that takes longer: its events have said so.
  EditTarget(0, [](TargetState& t) { t.spec.host_copy_tokens_per_s = 1'000; });
  const Decision slow = MustPick(Ask(chain));
  EXPECT_EQ(slow.predicted_cached_tokens, 20u * kBlock);
  Finish(slow, 80u * kBlock);
  absl::MutexLock lock(&pool_->mu());
  EXPECT_EQ(pool_->ledger().PredictedBlocks(0), 0u);
}

TEST_F(SlowTiersTest, HowFastCopiesAreIsLearnedWhereTheyAreMostOfTheWait) {
  AddTargets(1);
  // 6,399 tokens copied at 20,000 tokens/s, one computed at 16,000.
  for (std::size_t i = 0; i < LearnedRate::kMinSamples; ++i) ServeFromHost(20'000);
  double copy_rate = 0;
  {
    absl::MutexLock lock(&pool_->mu());
    const TargetState& target = pool_->targets()[0];
    copy_rate = target.copy_rate.tokens_per_s(clock_.Now());
    EXPECT_EQ(target.rate.samples(), 0u) << "copies say nothing of the prefill";
  }
  EXPECT_NEAR(copy_rate, 20'000, 100);
  // Another process may have another link.
  absl::MutexLock lock(&pool_->mu());
  pool_->ForgetOutcomes(0);
  EXPECT_EQ(pool_->targets()[0].copy_rate.samples(), 0u);
}

// The first half lies on disk: the time of that copy is not host memory's, nor all the disk's.
TEST_F(SlowTiersTest, CopiesOverSlowerLinksTeachNothingOfHostMemory) {
  AddTargets(1);
  EditTarget(0, [](TargetState& t) { t.spec.host_copy_tokens_per_s = 200'000; });
  const std::vector<ChainHash> chain = Chain(1, 200);
  Store(0, Part(1, 101), Tier::kDisk);
  Store(0, Part(101, 201), Tier::kHost);
  const Decision decision = MustPick(Ask(chain));
  EXPECT_EQ(decision.predicted_cached_tokens, 200u * kBlock - 1);
  clock_.Advance(absl::Seconds(decision.predicted_ttft_s));
  FirstToken(decision);
  absl::MutexLock lock(&pool_->mu());
  EXPECT_EQ(pool_->targets()[0].copy_rate.samples(), 0u);
}

// A target once looked so slow that computing seemed quicker than its copies.
TEST_F(SlowTiersTest, ACopyRateLearnedTooLowIsForgottenAndLearnedAnew) {
  AddTargets(1);
  for (std::size_t i = 0; i < LearnedRate::kMinSamples; ++i) EXPECT_GT(ServeFromHost(4'000), 0u);
  // Fast again, and quicker than computing; but no pick counts on a copy, so none shows it.
  for (int i = 0; i < 20; ++i) EXPECT_EQ(ServeFromHost(60'000), 0u);
  clock_.Advance(absl::Minutes(10));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(ServeFromHost(60'000), 6'399u);
  absl::MutexLock lock(&pool_->mu());
  EXPECT_NEAR(pool_->targets()[0].copy_rate.tokens_per_s(clock_.Now()), 60'000, 100);
}

TEST_F(SlowTiersTest, ARequestThatHadToWaitTeachesNothingOfCopies) {
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 100);
  Store(0, chain, Tier::kHost);
  Occupy(0, 5);
  const Decision decision = MustPick(Ask(chain));
  clock_.Advance(absl::Seconds(5.3));
  FirstToken(decision);
  absl::MutexLock lock(&pool_->mu());
  EXPECT_EQ(pool_->targets()[0].copy_rate.samples(), 0u);
}

// Random holdings in all tiers: each candidate's terms are those of the plain rule, for the winner
// after verification and for the others as long as the match looks at each block.
TEST_F(SlowTiersTest, EachTargetsTermsAreThoseOfThePlainRule) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Rebuild(DefaultConfig(), seed, CreateIndex({}));
    const auto targets = static_cast<TargetId>(1 + random.Below(6));
    for (TargetId t = 0; t < targets; ++t) {
      AddTarget({.has_events = random.Below(5) > 0,
                 .hint = static_cast<double>(1'000 + random.Below(30'000))});
      EditTarget(t, [&](TargetState& state) {
        state.spec.host_copy_tokens_per_s =
            static_cast<double>(random.Below(2) * (1'000 + random.Below(100'000)));
      });
    }
    const std::vector<ChainHash> prompt = Chain(1000 * seed, 40);
    for (TargetId t = 0; t < targets; ++t) {
      if (SlotOf(t) != kNoSlot) {
        for (const Tier tier : kAllTiers) {
          std::vector<ChainHash> some;
          const std::uint64_t end = random.Below(41);
          for (std::uint64_t i = 0; i < end; ++i) {
            if (random.Below(12) > 0) some.push_back(prompt[i]);
          }
          Store(t, some, tier);
        }
      }
      if (random.Below(3) == 0) Occupy(t, 0.1, Chain(1000 * seed, random.Below(41)));
    }
    const Query query = Explained(Ask(prompt, 40 * kBlock + random.Below(kBlock)));
    const Decision decision = MustPick(query);
    ASSERT_EQ(decision.explanation.size(), targets);
    for (const CandidateTerms& terms : decision.explanation) {
      const auto target = static_cast<TargetId>(std::stoul(terms.endpoint.worker_id.substr(1)));
      absl::MutexLock lock(&pool_->mu());
      const TargetState& state = pool_->targets()[target];
      std::vector<std::uint32_t> written(pool_->targets().size(), 0);
      pool_->ledger().KnownDepths(ChainKind::kTokens, prompt, written);
      const auto held = [&](Tier tier, std::size_t block) {
        return state.slot != kNoSlot && pool_->index().Holds(state.slot, tier, prompt[block]);
      };
      std::uint64_t gpu = 0;
      while (gpu < 40 && held(Tier::kGpu, gpu)) ++gpu;
      const std::uint64_t events_gpu = gpu;
      // The winner's is exact: a run in the GPU that goes on behind what is in flight counts.
      const bool winner = &terms == &decision.explanation[0];
      gpu = std::max<std::uint64_t>(gpu, written[target]);
      while (winner && gpu < 40 && held(Tier::kGpu, gpu)) ++gpu;
      std::uint64_t usable = winner ? gpu : 0;
      const auto fastest = [&](std::size_t block) -> std::optional<Tier> {
        for (const Tier tier : kAllTiers) {
          if (held(tier, block)) return tier;
        }
        return std::nullopt;
      };
      std::uint64_t far_blocks = 0;
      for (; usable < 40 && fastest(usable).has_value(); ++usable) {
        if (*fastest(usable) >= Tier::kDisk) ++far_blocks;
      }
      usable = std::max(usable, gpu);
      // Of the others it is assumed that what is in flight were the far ones.
      if (!winner) far_blocks -= std::min(far_blocks, gpu - events_gpu);
      const auto tokens = [&](std::uint64_t blocks) {
        return std::min(blocks * kBlock, query.prompt_tokens - 1);
      };
      const double rate = RateInUse(state.rate, state.spec.prefill_tokens_per_s, {});
      const double copy_rate = CopyRateInUse(0, state.spec.host_copy_tokens_per_s, rate);
      const auto prefill = [&](std::uint64_t cached) {
        return PrefillWork(query.prompt_tokens, cached, kDefaultCtxHalf) / rate;
      };
      const std::uint64_t copied = tokens(usable) - tokens(gpu);
      const auto far_tokens =
          static_cast<double>(std::min<std::uint64_t>(far_blocks * kBlock, copied));
      const double copy_s = (static_cast<double>(copied) + 3 * far_tokens) / copy_rate;
      const bool copies = copied > 0 && copy_s < prefill(tokens(gpu)) - prefill(tokens(usable));
      EXPECT_EQ(terms.copied_tokens, copies ? copied : 0) << target;
      EXPECT_EQ(terms.cached_tokens, tokens(copies ? usable : gpu)) << target;
      EXPECT_EQ(terms.copy_s, copies ? copy_s : 0) << target;
      EXPECT_DOUBLE_EQ(terms.prefill_s, prefill(terms.cached_tokens));
      EXPECT_DOUBLE_EQ(terms.cost_s, terms.wait_s + terms.copy_s + terms.prefill_s +
                                         terms.pool_price_s + terms.decode_stall_s +
                                         terms.kv_pressure_s + terms.kv_wait_s);
    }
  }
}

}  // namespace
}  // namespace warmpath
