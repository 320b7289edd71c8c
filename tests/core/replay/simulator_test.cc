#include "core/replay/simulator.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/replay/competitors/competitor.h"
#include "core/replay/sim_router.h"
#include "core/replay/workload_generator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::HasSubstr;
using ::warmpath::testing::StatusIs;

ReplayRequest Request(double arrival_s, std::vector<PromptSegment> prompt,
                      std::uint32_t output_tokens, std::uint64_t output_content) {
  ReplayRequest request;
  request.arrival_s = arrival_s;
  request.prompt = std::move(prompt);
  request.output_tokens = output_tokens;
  request.output_content = output_content;
  return request;
}

Workload SmallWorkload() {
  GeneratorOptions options;
  options.chats = 20;
  options.turns = 3;
  options.agent_loops = 2;
  options.agent_steps = 3;
  options.engines = 4;
  return *GenerateWorkload(options);
}

SimOptions SmallOptions() { return {.workers = 4, .block_size = 64}; }

TEST(SimulatorTest, OneRequestTakesTheTimeOfItsSteps) {
  Workload workload;
  workload.requests = {Request(1.0, {{.content = 5, .tokens = 1'600}}, 3, 6)};
  workload.duration_s = 1;
  const auto result = Simulate(workload, {.workers = 1, .block_size = 64});
  ASSERT_TRUE(result.ok()) << result.status();
  const SimRequestResult& r = result->requests[0];
  // 20 ms + 1600 / 16000 * (1 + 800 / 31000); then two decodes of 20.15 ms + 0.05 us a token.
  EXPECT_NEAR(r.ttft_s, 0.020 + 0.1 * (1 + 800.0 / 31'000), 1e-8);
  EXPECT_NEAR(r.tpot_s, 0.02015 + 0.05e-6 * 1'601.5, 1e-8);
  EXPECT_DOUBLE_EQ(r.due_s, 1.0);
  EXPECT_EQ(r.cached_tokens, 0u);
  EXPECT_EQ(result->steps, 3u);
}

TEST(SimulatorTest, ANextTurnFindsPromptAndAnswerCachedAndThePickKnows) {
  Workload workload;
  const PromptSegment question{.content = 5, .tokens = 640};
  workload.requests = {
      Request(0, {question}, 129, 6),
      Request(10, {question, {.content = 6, .tokens = 129}, {.content = 7, .tokens = 100}}, 2, 8)};
  workload.duration_s = 10;
  const auto result = Simulate(workload, {.workers = 4, .block_size = 64});
  ASSERT_TRUE(result.ok()) << result.status();
  // 640 + 128: the answer's last token is never computed.
  EXPECT_EQ(result->requests[1].cached_tokens, 768u);
  EXPECT_EQ(result->requests[1].predicted_tokens, 768u);
  EXPECT_EQ(result->requests[1].worker, result->requests[0].worker);
}

TEST(SimulatorTest, CacheEventsAreNotKnownBeforeTheirLag) {
  Workload workload;
  const PromptSegment question{.content = 5, .tokens = 640};
  // The first is over, and out of the overlay, when the second comes; its events are not there yet.
  workload.requests = {Request(0, {question}, 1, 6), Request(3, {question}, 1, 7)};
  workload.duration_s = 3;
  SimOptions options{.workers = 1, .block_size = 64, .event_lag_s = 5};
  const auto late = Simulate(workload, options);
  EXPECT_EQ(late->requests[1].cached_tokens, 576u);
  EXPECT_EQ(late->requests[1].predicted_tokens, 0u);
  options.event_lag_s = 2;
  EXPECT_EQ(Simulate(workload, options)->requests[1].predicted_tokens, 639u);
  options.event_loss = 1;
  EXPECT_EQ(Simulate(workload, options)->requests[1].predicted_tokens, 0u);
}

TEST(SimulatorTest, SameSeedSameResultForEveryPolicy) {
  const Workload workload = SmallWorkload();
  std::vector<std::string_view> names = SimPolicyNames();
  names.push_back(kBoundPolicy);
  for (const std::string_view ablation : AblationNames()) names.push_back(ablation);
  std::set<double> means;
  for (const std::string_view name : names) {
    SimOptions options = SmallOptions();
    options.policy = std::string(name);
    const auto a = Simulate(workload, options);
    const auto b = Simulate(workload, options);
    ASSERT_TRUE(a.ok()) << name << ": " << a.status();
    ASSERT_EQ(a->requests.size(), workload.requests.size());
    double sum = 0;
    for (std::size_t i = 0; i < a->requests.size(); ++i) {
      const SimRequestResult& r = a->requests[i];
      EXPECT_EQ(r.worker, b->requests[i].worker) << name;
      EXPECT_EQ(r.ttft_s, b->requests[i].ttft_s) << name;
      EXPECT_EQ(r.tpot_s, b->requests[i].tpot_s) << name;
      EXPECT_GT(r.ttft_s, 0) << name;
      EXPECT_FALSE(r.refused) << name;
      EXPECT_LT(r.cached_tokens, r.prompt_tokens) << name;
      sum += r.ttft_s;
    }
    means.insert(sum);
  }
  EXPECT_GT(means.size(), names.size() / 2);  // they are not all the same policy
}

// One prompt, another that takes its place in the GPU, and the first again.
Workload Displaced() {
  const PromptSegment first{.content = 5, .tokens = 200'000};
  Workload workload;
  workload.requests = {Request(0, {first}, 1, 6),
                       Request(100, {{.content = 7, .tokens = 300'000}}, 1, 8),
                       Request(300, {first}, 1, 9)};
  workload.duration_s = 300;
  return workload;
}

TEST(SimulatorTest, WhatLiesInHostMemoryComesBackByACopyAndThePickKnows) {
  const Workload workload = Displaced();
  SimOptions options{.workers = 1, .block_size = 64};
  const auto none = Simulate(workload, options);
  ASSERT_TRUE(none.ok()) << none.status();
  // 350,000 tokens are 5,468 blocks; the second prompt leaves 780 of them to the first.
  EXPECT_EQ(none->requests[2].cached_tokens, 780u * 64);
  EXPECT_EQ(none->requests[2].copied_tokens, 0u);
  options.host_kv_tokens = 350'000;
  const auto result = Simulate(workload, options);
  const SimRequestResult& again = result->requests[2];
  EXPECT_EQ(again.cached_tokens, 199'936u);  // all but one block
  EXPECT_EQ(again.copied_tokens, 199'936u - 780 * 64);
  EXPECT_EQ(again.predicted_tokens, 199'999u)
      << "the router does not know of the last block's rule";
  // Steps of copying, then one of 64 tokens.
  const double copy_s = (199'936 - 780 * 64) / 80'000.0;
  EXPECT_NEAR(again.ttft_s, copy_s + 0.020 + 64 / 16'000.0 * (1 + 199'968 / 31'000.0), 1e-6);
  options.policy = kWithoutHostTier;
  const auto ignored = Simulate(workload, options);
  EXPECT_EQ(ignored->requests[2].cached_tokens, 199'936u);
  EXPECT_EQ(ignored->requests[2].predicted_tokens, 780u * 64);
}

TEST(SimulatorTest, ACompetitorSeesHostMemoryOrNot) {
  for (const bool sees : {true, false}) {
    SimOptions options{.policy = "lmetric",
                       .workers = 1,
                       .block_size = 64,
                       .host_kv_tokens = 350'000,
                       .competitors_see_host = sees};
    const auto result = Simulate(Displaced(), options);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->requests[2].predicted_tokens, sees ? 199'999u : 780u * 64);
    EXPECT_EQ(result->requests[2].cached_tokens, 199'936u);
  }
}

TEST(SimulatorTest, SameSeedSameResultWithAHostTier) {
  const Workload workload = SmallWorkload();
  for (const char* policy : {"marginal_cost", "min_ttft", kWithoutHostTier, "smetric"}) {
    SimOptions options = SmallOptions();
    options.policy = policy;
    options.profile.kv_tokens = 20'000;
    options.host_kv_tokens = 10'000;
    const auto a = Simulate(workload, options);
    const auto b = Simulate(workload, options);
    ASSERT_TRUE(a.ok()) << a.status();
    std::uint64_t copied = 0;
    for (std::size_t i = 0; i < a->requests.size(); ++i) {
      EXPECT_EQ(a->requests[i].worker, b->requests[i].worker);
      EXPECT_EQ(a->requests[i].ttft_s, b->requests[i].ttft_s);
      EXPECT_EQ(a->requests[i].copied_tokens, b->requests[i].copied_tokens);
      EXPECT_LE(a->requests[i].copied_tokens, a->requests[i].cached_tokens);
      copied += a->requests[i].copied_tokens;
    }
    EXPECT_GT(copied, 0u) << policy;
  }
}

TEST(SimulatorTest, ARequestWaitsForTheOneBeforeIt) {
  Workload workload;
  workload.requests = {Request(0, {{.content = 5, .tokens = 640}}, 100, 6),
                       Request(0.5, {{.content = 7, .tokens = 640}}, 2, 8)};
  workload.requests[1].after = 0;
  workload.duration_s = 0.5;
  const auto result = Simulate(workload, {.workers = 2, .block_size = 64});
  const SimRequestResult& first = result->requests[0];
  EXPECT_NEAR(result->requests[1].due_s, first.ttft_s + 99 * first.tpot_s, 1e-6);
}

TEST(SimulatorTest, WhatFitsNobodyIsRefusedAndFreesWhoWaits) {
  Workload workload;
  workload.requests = {Request(0, {{.content = 5, .tokens = 400'000}}, 2, 6),
                       Request(0, {{.content = 7, .tokens = 64}}, 2, 8)};
  workload.requests[1].after = 0;
  const auto result = Simulate(workload, {.workers = 2, .block_size = 64});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->requests[0].refused);
  EXPECT_FALSE(result->requests[1].refused);
}

TEST(SimulatorTest, RatesAreLearnedFromOutcomesOnUnequalWorkers) {
  GeneratorOptions generator;
  generator.chats = 120;
  generator.agent_loops = 0;
  generator.user = {2'000, 6'000};
  generator.engines = 2;
  const Workload workload = *GenerateWorkload(generator);
  SimOptions options{.workers = 3, .speeds = {1, 0.5, 0.25}, .block_size = 64, .hint_factor = 4};
  const auto result = Simulate(workload, options);
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_EQ(result->prefill_rates.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const double truth = 16'000 * options.speeds[i];
    EXPECT_LT(result->prefill_rates[i], 1.05 * truth) << i;
    // The slowest gets so few requests that their waits for its long steps weigh in.
    EXPECT_GT(result->prefill_rates[i], 0.3 * truth) << i;
  }
}

TEST(SimulatorTest, BadOptionsAreNamed) {
  const Workload workload = SmallWorkload();
  const auto error = [&](auto change) {
    SimOptions options = SmallOptions();
    change(options);
    return Simulate(workload, options).status();
  };
  EXPECT_THAT(error([](SimOptions& o) { o.workers = 0; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("workers")));
  EXPECT_THAT(error([](SimOptions& o) { o.speeds = {0}; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("speeds")));
  EXPECT_THAT(error([](SimOptions& o) { o.event_lag_s = -1; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("event_lag_s")));
  EXPECT_THAT(error([](SimOptions& o) { o.event_loss = 2; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("event_loss")));
  EXPECT_THAT(error([](SimOptions& o) { o.host_kv_tokens = 1; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host_kv_tokens")));
  EXPECT_THAT(error([](SimOptions& o) {
                o.host_kv_tokens = 1'000;
                o.host_copy_tokens_per_s = 0;
              }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host_copy_tokens_per_s")));
  EXPECT_THAT(error([](SimOptions& o) { o.policy = "best"; }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dynamo")));
}

}  // namespace
}  // namespace warmpath
