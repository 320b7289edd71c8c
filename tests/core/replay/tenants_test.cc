#include "core/replay/tenants.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "core/replay/competitors/tenant_rules.h"
#include "core/replay/sim_report.h"
#include "core/replay/tenant_report.h"
#include "core/replay/workload_generator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::HasSubstr;
using ::warmpath::testing::StatusIs;

TEST(TenantsTest, ConversationsStayWhole) {
  Workload workload = *GenerateWorkload({.chats = 300, .agent_loops = 0});
  const Workload before = workload;
  ASSERT_TRUE(AssignTenants({.tenants = 3, .zipf = 1}, &workload).ok());
  ASSERT_EQ(workload.requests.size(), before.requests.size());
  std::vector<int> count(3);
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const ReplayRequest& request = workload.requests[i];
    EXPECT_EQ(request.arrival_s, before.requests[i].arrival_s);
    ASSERT_LT(request.tenant, 3u);
    ++count[request.tenant];
    if (request.after == kNoRequest) continue;
    EXPECT_EQ(request.tenant, workload.requests[static_cast<std::size_t>(request.after)].tenant);
  }
  // Sizes 6 : 3 : 2 of 1,800 requests.
  EXPECT_NEAR(count[0], 982, 150);
  EXPECT_NEAR(count[1], 491, 150);
  EXPECT_NEAR(count[2], 327, 150);
}

TEST(TenantsTest, TheBatchTenantTakesItsShareAndChangesNobodyElse) {
  Workload workload = *GenerateWorkload({.chats = 60, .agent_loops = 2, .engines = 8});
  const Workload before = workload;
  constexpr TenantOptions kOptions{
      .tenants = 2, .batch_share = 0.5, .batch_prompt = 15'500, .batch_burst = 4, .engines = 8};
  ASSERT_TRUE(AssignTenants(kOptions, &workload).ok());
  double batch_s = 0;
  double last = 0;
  std::vector<const ReplayRequest*> others;
  for (const ReplayRequest& request : workload.requests) {
    EXPECT_GE(request.arrival_s, last);
    last = request.arrival_s;
    if (request.tenant == 2) {
      EXPECT_EQ(request.PromptTokens(), 15'500u);
      batch_s += 15'500.0 / 16'000 * (1 + 0.25);
    } else {
      others.push_back(&request);
      if (request.after != kNoRequest) {
        EXPECT_EQ(workload.requests[static_cast<std::size_t>(request.after)].tenant,
                  request.tenant);
      }
    }
  }
  ASSERT_EQ(others.size(), before.requests.size());
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_EQ(others[i]->arrival_s, before.requests[i].arrival_s);
    EXPECT_EQ(others[i]->output_content, before.requests[i].output_content);
  }
  EXPECT_NEAR(batch_s / (8 * workload.duration_s), 0.5, 0.25);  // Poisson
  Workload again = before;
  ASSERT_TRUE(AssignTenants(kOptions, &again).ok());
  EXPECT_EQ(again.requests.size(), workload.requests.size());
}

TEST(TenantsTest, RefusesWhatMakesNoSense) {
  Workload workload = *GenerateWorkload({.chats = 2, .agent_loops = 0});
  EXPECT_THAT(AssignTenants({.tenants = 0}, &workload),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tenants")));
  EXPECT_THAT(AssignTenants({.zipf = -1}, &workload),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("zipf")));
  EXPECT_THAT(AssignTenants({.batch_share = 0.1, .batch_prompt = 0}, &workload),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch_prompt")));
  EXPECT_THAT(AssignTenants({.batch_burst = 0}, &workload),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("batch_burst")));
}

SimRequestResult Result(std::uint32_t tenant, double ttft_s, std::uint64_t tokens) {
  return {.tenant = tenant,
          .ttft_s = ttft_s,
          .tpot_s = 0.01,
          .prompt_tokens = tokens,
          .output_tokens = 10,
          .cached_tokens = tokens / 2};
}

TEST(TenantsTest, EachTenantsFiguresByHand) {
  SimResult result;
  result.requests = {Result(0, 1, 100), Result(0, 3, 100), Result(1, 1.5, 600)};
  result.requests.push_back({.refused = true, .tenant = 1});
  SimSummary summary = Summarise(result, 1, SimObjective());
  ASSERT_EQ(summary.tenants.size(), 2u);
  EXPECT_EQ(summary.tenants[0].requests, 2);
  EXPECT_EQ(summary.tenants[0].ttft_mean_s, 2);
  EXPECT_EQ(summary.tenants[0].ttft_p99_s, 3);
  EXPECT_EQ(summary.tenants[0].goodput, 0.5);
  EXPECT_EQ(summary.tenants[0].share, 0.25);
  EXPECT_EQ(summary.tenants[1].refused, 1);
  EXPECT_EQ(summary.tenants[1].ttft_mean_s, 1.5);
  EXPECT_EQ(summary.tenants[1].goodput, 0.5);
  EXPECT_EQ(summary.tenants[1].share, 0.75);
  EXPECT_EQ(summary.jain_goodput, 1);
  result.requests.resize(2);
  result.requests[0].ttft_s = 0.2;
  result.requests[1].ttft_s = 0.6;
  const SimSummary alone = Summarise(result, 1, SimObjective());
  EXPECT_TRUE(alone.tenants.empty());
  CompareWithAlone(alone, &summary);
  EXPECT_DOUBLE_EQ(summary.tenants[0].slowdown, 5);
  EXPECT_EQ(summary.tenants[1].slowdown, 0);

  const SimCell cell{.workers = 1, .load = 0.5, .rate_rps = 1, .policy = "p", .seeds = {summary}};
  EXPECT_THAT(TenantJson(cell),
              HasSubstr("{\"tenant\": 0, \"requests\": 2, \"refused\": 0, \"prefill_share\": 0.25, "
                        "\"ttft_mean_s\": 2, \"ttft_p99_s\": 3, \"goodput\": 0.5, "
                        "\"slowdown\": 5}"));
  EXPECT_THAT(SimCellsJson({cell}), HasSubstr("\"jain_goodput\": 1"));
  EXPECT_THAT(SimTenantTable({cell}), HasSubstr("1 workers, load 0.50, by tenant"));
  EXPECT_THAT(TenantHtml(&cell, 1), HasSubstr("<td>p</td><td>1</td>"));
  const SimCell single{.policy = "p", .seeds = {alone}};
  EXPECT_EQ(TenantJson(single), "");
  EXPECT_EQ(SimTenantTable({single}), "");
  EXPECT_EQ(TenantHtml(&single, 1), "");
}

// With a batch tenant the first requests are a shorter stretch than they are without it.
TEST(TenantsTest, RequestsThatAreLeftOutEndAtTheSameMoment) {
  Workload with;
  SimResult result;
  for (int i = 0; i < 8; ++i) {
    with.requests.push_back({.arrival_s = 1.0 * i});
    result.requests.push_back({.tenant = static_cast<std::uint32_t>(i % 2), .due_s = 1.0 * i});
  }
  Workload without;  // not in the order of arrivals
  SimResult alone;
  for (const int i : {0, 6, 2, 4}) {
    without.requests.push_back({.arrival_s = 1.0 * i});
    alone.requests.push_back({.due_s = 1.0 * i});
  }
  const auto due = [](const SimResult& r) {
    std::vector<double> times;
    for (const SimRequestResult& request : r.requests) times.push_back(request.due_s);
    return times;
  };
  EXPECT_EQ(LeaveOutFirst(0, with, &result), 0);
  EXPECT_EQ(result.requests.size(), 8u);
  const double from_s = LeaveOutFirst(3, with, &result);
  EXPECT_EQ(due(result), (std::vector<double>{3, 4, 5, 6, 7}));
  LeaveOutBefore(from_s, without, &alone);
  EXPECT_EQ(due(alone), (std::vector<double>{6, 4}));
  LeaveOutBefore(LeaveOutFirst(8, with, &result), without, &alone);
  EXPECT_TRUE(result.requests.empty());
  EXPECT_TRUE(alone.requests.empty());
}

TEST(TenantsTest, JainsIndex) {
  EXPECT_EQ(JainIndex({1, 1, 1, 1}), 1);
  EXPECT_EQ(JainIndex({1, 0, 0, 0}), 0.25);
  EXPECT_DOUBLE_EQ(JainIndex({1, 3}), 0.8);
  EXPECT_EQ(JainIndex({0, 0}), 1);
}

TEST(TenantsTest, UseIsForgottenAndSharedAmongThoseWhoAsk) {
  TenantUse use;
  EXPECT_EQ(use.OverShare(0, 0), 0);
  use.Add(0, 0, 3);
  EXPECT_DOUBLE_EQ(use.OverShare(0, 0), 1);
  use.Add(1, 0, 1);
  EXPECT_DOUBLE_EQ(use.OverShare(0, 0), 1.5);
  EXPECT_DOUBLE_EQ(use.OverShare(1, 0), 0.5);
  EXPECT_EQ(use.OverShare(2, 0), 0);
  use.Add(2, 0, 0);  // asks, too
  EXPECT_DOUBLE_EQ(use.OverShare(0, 0), 2.25);
  EXPECT_EQ(use.Active(0, 60), 3u);
  use.Add(1, 300, 3);
  EXPECT_EQ(use.Active(1, 300), 1u);
  EXPECT_NEAR(use.OverShare(1, 300), 1, 1e-4);  // ten time constants later
}

TEST(TenantsTest, WhoAsksAgainAfterAMinuteIsOneWhoAsks) {
  TenantUse use;
  use.Add(0, 0, 30);
  use.Add(1, 61, 0.01);
  EXPECT_EQ(use.Active(1, 61), 1u);
  EXPECT_EQ(use.Active(0, 61), 2u);
  EXPECT_EQ(use.Active(7, 61), 2u) << "one who never asked before";
  const double left = 30 * std::exp(-61.0 / 30);
  EXPECT_NEAR(use.OverShare(0, 61), 2 * left / (left + 0.01), 1e-12);
}

std::size_t ChooseTwice(TenantRule::Kind kind, std::vector<WorkerSight> workers,
                        std::uint32_t second) {
  TenantRule rule(kind);
  Random random(1);
  // Tenant 0 has used three times as much as tenant 1.
  for (const std::uint32_t tenant : {0, 1, 0, 0}) {
    rule.Choose({.tenant = tenant}, std::vector<WorkerSight>{{.prefill_s = 1}}, random);
  }
  return rule.Choose({.tenant = second}, workers, random);
}

TEST(TenantsTest, TheRulesActBeyondAShareOnly) {
  // Over its share by half: 0.05 * 0.5 * 10 requests of others * 1 s = 0.25 s.
  std::vector<WorkerSight> workers(2);
  workers[0] = {.worker = 0, .prefill_s = 1, .inflight = 10};
  workers[1] = {.worker = 1, .wait_s = 0.2, .prefill_s = 1, .inflight = 10, .tenant_inflight = 10};
  EXPECT_EQ(ChooseTwice(TenantRule::Kind::kApart, workers, 0), 1u);
  EXPECT_EQ(ChooseTwice(TenantRule::Kind::kApart, workers, 1), 0u);
  workers[1].wait_s = 0.3;
  EXPECT_EQ(ChooseTwice(TenantRule::Kind::kApart, workers, 0), 0u);

  workers[1].tenant_pending = 1;  // its one of two targets
  EXPECT_EQ(ChooseTwice(TenantRule::Kind::kCap, workers, 0), 1u);
  EXPECT_EQ(ChooseTwice(TenantRule::Kind::kCap, workers, 1), 0u);

  workers[0].pool_price_s = 0.25;
  EXPECT_EQ(ChooseTwice(TenantRule::Kind::kPrice, workers, 1), 0u);
  EXPECT_EQ(ChooseTwice(TenantRule::Kind::kPrice, workers, 0), 1u);

  for (WorkerSight& worker : workers) worker.wait_s = 2.1;
  EXPECT_EQ(ChooseTwice(TenantRule::Kind::kShedHeavy, workers, 0), kShed);
  EXPECT_NE(ChooseTwice(TenantRule::Kind::kShedHeavy, workers, 1), kShed);
  EXPECT_EQ(ChooseTwice(TenantRule::Kind::kShedAll, workers, 1), kShed);
}

}  // namespace
}  // namespace warmpath
