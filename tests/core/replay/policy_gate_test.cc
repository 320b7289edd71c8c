// The gate against changes that make routing worse: the default policy on a generated workload of
// chats and agent loops. Deterministic: a bound that breaks was broken by the change at hand.
#include <string>

#include "core/replay/sim_report.h"
#include "core/replay/simulator.h"
#include "core/replay/workload_generator.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

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
  const auto workload = GenerateWorkload(options);
  ASSERT_TRUE(workload.ok());
  const SimSummary chosen = RunPolicy(*workload, "marginal_cost");
  const SimSummary min_ttft = RunPolicy(*workload, "min_ttft");
  const SimSummary round_robin = RunPolicy(*workload, "round_robin");
  RecordProperty("ttft_mean_ms", static_cast<int>(chosen.ttft_mean_s * 1e3));
  EXPECT_LT(chosen.ttft_mean_s, 1.05 * min_ttft.ttft_mean_s);
  EXPECT_LT(chosen.ttft_mean_s, 0.80 * round_robin.ttft_mean_s);
  EXPECT_GT(chosen.token_hit_rate, round_robin.token_hit_rate + 0.10);
  EXPECT_GE(chosen.goodput, min_ttft.goodput - 0.01);
  // Of four workers none gets more than 1.4 times its share.
  EXPECT_LT(chosen.busiest_share, 0.35);
}

}  // namespace
}  // namespace warmpath
