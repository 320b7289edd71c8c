// The gate against changes that make routing worse: the default policy on a generated workload of
// chats and agent loops. Deterministic: a bound that breaks was broken by the change at hand.
#include <cstdint>
#include <string>
#include <vector>

#include "core/replay/sim_report.h"
#include "core/replay/simulator.h"
#include "core/replay/workload_generator.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

constexpr std::uint64_t kSeeds = 8;

// Means over some seeds: one run's share of requests in time is known to a few percent only.
struct Means {
  double ttft_s = 0;
  double goodput = 0;
  double hit_rate = 0;
  double busiest_share = 0;
};

Means Over(const std::vector<SimSummary>& runs) {
  Means means;
  const auto share = 1.0 / static_cast<double>(runs.size());
  for (const SimSummary& run : runs) {
    means.ttft_s += share * run.ttft_mean_s;
    means.goodput += share * run.goodput;
    means.hit_rate += share * run.token_hit_rate;
    means.busiest_share += share * run.busiest_share;
  }
  return means;
}

SimSummary RunPolicy(const Workload& workload, const std::string& policy) {
  constexpr std::uint32_t kWorkers = 4;
  const auto result = Simulate(workload, {.policy = policy, .workers = kWorkers, .block_size = 64});
  EXPECT_TRUE(result.ok()) << result.status();
  return Summarise(*result, kWorkers, SimObjective());
}

TEST(PolicyGateTest, TheDefaultKeepsItsLeadOnChatsAndAgentLoops) {
  GeneratorOptions options;
  options.chats = 120;
  options.agent_loops = 10;
  options.engines = 4;
  options.cold_utilisation = 0.9;
  std::vector<SimSummary> runs[3];
  for (options.seed = 1; options.seed <= kSeeds; ++options.seed) {
    const auto workload = GenerateWorkload(options);
    ASSERT_TRUE(workload.ok());
    runs[0].push_back(RunPolicy(*workload, "marginal_cost"));
    runs[1].push_back(RunPolicy(*workload, "min_ttft"));
    runs[2].push_back(RunPolicy(*workload, "round_robin"));
  }
  const Means chosen = Over(runs[0]);
  const Means min_ttft = Over(runs[1]);
  const Means round_robin = Over(runs[2]);
  RecordProperty("ttft_mean_ms", static_cast<int>(chosen.ttft_s * 1e3));
  EXPECT_LT(chosen.ttft_s, 1.03 * min_ttft.ttft_s);
  EXPECT_LT(chosen.ttft_s, 0.80 * round_robin.ttft_s);
  EXPECT_GT(chosen.hit_rate, round_robin.hit_rate + 0.10);
  EXPECT_GE(chosen.goodput, min_ttft.goodput - 0.01);
  // Of four workers none gets more than 1.4 times its share.
  EXPECT_LT(chosen.busiest_share, 0.35);
}

// Bursts: eight siblings within 40 ms share a fresh context of 8k tokens and bring 1.1k of their
// own.
Workload Bursts(double utilisation, std::uint64_t seed) {
  GeneratorOptions options;
  options.seed = seed;
  options.chats = 0;
  options.agent_loops = 100;
  options.agent_steps = 1;
  options.agent_context = {8192, 8192};
  options.tool_result = {1100, 1100};
  options.engines = 8;
  options.block_size = 512;
  options.cold_utilisation = utilisation;
  return *GenerateWorkload(options);
}

Means RunBursts(double utilisation, const std::string& policy, bool overlay = true) {
  std::vector<SimSummary> runs;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const auto result =
        Simulate(Bursts(utilisation, seed),
                 {.policy = policy, .workers = 8, .block_size = 512, .overlay = overlay});
    EXPECT_TRUE(result.ok()) << result.status();
    runs.push_back(Summarise(*result, 8, SimObjective()));
  }
  return Over(runs);
}

TEST(PolicyGateTest, SiblingsStayTogetherWhenBusy) {
  EXPECT_GE(RunBursts(0.66, "marginal_cost").goodput, 0.94);
  // What a policy without the overlay's price does there, so that the bound means something.
  EXPECT_LT(RunBursts(0.66, "least_outstanding").goodput, 0.70);
}

TEST(PolicyGateTest, WithoutTheOverlayBurstsFallApart) {
  EXPECT_LT(RunBursts(0.66, "marginal_cost", false).goodput,
            RunBursts(0.66, "marginal_cost").goodput - 0.2);
}

TEST(PolicyGateTest, SiblingsFanOutWhenIdle) {
  EXPECT_LE(RunBursts(0.2, "marginal_cost").ttft_s, RunBursts(0.2, "least_outstanding").ttft_s);
}

// Fast and slow workers: the score knows that slow ones decode slowly too. Without the weights that
// make it know, 42 % are inside the objective here and the mean is 1.5 times that of lmetric.
TEST(PolicyGateTest, FastWorkersAreKeptForThoseWhoGainFromThem) {
  std::vector<SimSummary> runs[2];
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    GeneratorOptions generator;
    generator.seed = seed;
    generator.chats = 240;
    generator.agent_loops = 10;
    generator.engines = 3;  // six, of 3.5 times the speed of one in all
    generator.cold_utilisation = 1.0;
    const Workload workload = *GenerateWorkload(generator);
    for (const bool ours : {true, false}) {
      const auto result = Simulate(workload, {.policy = ours ? "marginal_cost" : "lmetric",
                                              .workers = 6,
                                              .speeds = {1, 0.5, 0.25},
                                              .block_size = 64});
      ASSERT_TRUE(result.ok()) << result.status();
      runs[ours ? 0 : 1].push_back(Summarise(*result, 6, SimObjective()));
    }
  }
  const Means chosen = Over(runs[0]);
  const Means lmetric = Over(runs[1]);
  EXPECT_LT(chosen.ttft_s, 1.2 * lmetric.ttft_s);
  EXPECT_GT(chosen.goodput, lmetric.goodput + 0.10);
}

// Mean TTFT from the 201st request on, on workers of three speeds.
double LearnedTtft(double hint_factor) {
  GeneratorOptions generator;
  generator.chats = 240;
  generator.agent_loops = 10;
  generator.engines = 3;  // six, of 3.5 times the speed of one in all
  generator.cold_utilisation = 0.4;
  auto result = Simulate(
      *GenerateWorkload(generator),
      {.workers = 6, .speeds = {1, 0.5, 0.25}, .block_size = 64, .hint_factor = hint_factor});
  EXPECT_TRUE(result.ok()) << result.status();
  result->requests.erase(result->requests.begin(), result->requests.begin() + 200);
  return Summarise(*result, 6, SimObjective()).ttft_mean_s;
}

TEST(PolicyGateTest, WrongHintsAreUnlearnedWithin200Requests) {
  const double knew = LearnedTtft(1);
  EXPECT_NEAR(LearnedTtft(4), knew, 0.05 * knew);
  EXPECT_NEAR(LearnedTtft(0.25), knew, 0.05 * knew);
}

}  // namespace
}  // namespace warmpath
