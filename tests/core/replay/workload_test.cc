#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "core/replay/trace.h"
#include "core/replay/workload_generator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::warmpath::testing::StatusIs;

// Distinct blocks counted the slow way: by the tokens themselves.
std::uint64_t CountBlocks(const Workload& workload, std::uint32_t block) {
  std::set<std::vector<TokenId>> prefixes;
  for (const ReplayRequest& request : workload.requests) {
    std::vector<TokenId> tokens = MaterialisePrompt(request, {});
    for (std::uint32_t i = 0; i < request.output_tokens; ++i) {
      tokens.push_back(ContentToken(request.output_content, i));
    }
    for (std::size_t end = block; end <= tokens.size(); end += block) {
      prefixes.emplace(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  return prefixes.size();
}

GeneratorOptions Small() {
  GeneratorOptions options;
  options.system_prompts = 3;
  options.system_tokens = 40;
  options.chats = 6;
  options.turns = 3;
  options.user = {5, 9};
  options.answer = {3, 20};
  options.agent_loops = 2;
  options.siblings = 3;
  options.agent_steps = 2;
  options.agent_context = {30, 40};
  options.tool_result = {10, 20};
  return options;
}

TEST(WorkloadTest, DistinctBlocksAreThoseOfTheTokens) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    GeneratorOptions options = Small();
    options.seed = seed;
    const auto workload = GenerateWorkload(options);
    ASSERT_TRUE(workload.ok()) << workload.status();
    EXPECT_EQ(workload->distinct_blocks, CountBlocks(*workload, 16)) << "seed " << seed;
  }
}

TEST(WorkloadTest, TheSameSeedMakesTheSameWorkload) {
  const auto a = GenerateWorkload(Small());
  const auto b = GenerateWorkload(Small());
  GeneratorOptions other = Small();
  other.seed = 2;
  const auto c = GenerateWorkload(other);
  ASSERT_EQ(a->requests.size(), 6u * 3 + 2 * 3 * 2);
  ASSERT_EQ(b->requests.size(), a->requests.size());
  for (std::size_t i = 0; i < a->requests.size(); ++i) {
    EXPECT_EQ(MaterialisePrompt(a->requests[i], {}), MaterialisePrompt(b->requests[i], {}));
    EXPECT_EQ(a->requests[i].arrival_s, b->requests[i].arrival_s);
  }
  EXPECT_NE(a->prompt_tokens, c->prompt_tokens);
}

TEST(WorkloadTest, ATurnRepeatsItsHistoryAndFollowsTheTurnBefore) {
  const auto workload = GenerateWorkload(Small());
  std::size_t followers = 0;
  double last = 0;
  for (const ReplayRequest& request : workload->requests) {
    EXPECT_GE(request.arrival_s, last);
    last = request.arrival_s;
    if (request.after == kNoRequest) continue;
    ++followers;
    const ReplayRequest& before = workload->requests[static_cast<std::size_t>(request.after)];
    std::vector<TokenId> history = MaterialisePrompt(before, {});
    for (std::uint32_t i = 0; i < before.output_tokens; ++i) {
      history.push_back(ContentToken(before.output_content, i));
    }
    const std::vector<TokenId> prompt = MaterialisePrompt(request, {});
    ASSERT_GT(prompt.size(), history.size());
    EXPECT_TRUE(std::equal(history.begin(), history.end(), prompt.begin()));
    // An answer of another length takes its place.
    std::vector<std::vector<TokenId>> answers(workload->requests.size());
    answers[static_cast<std::size_t>(request.after)] = {7, 8};
    EXPECT_EQ(MaterialisePrompt(request, answers).size(), prompt.size() - before.output_tokens + 2);
  }
  EXPECT_EQ(followers, 6u * 2 + 2 * 3 * 1);
}

TEST(WorkloadTest, ArrivalsSpanTheTimeThatTheUtilisationAsksFor) {
  GeneratorOptions options;
  options.cold_utilisation = 0.5;
  options.speed_factor = 2;
  const auto workload = GenerateWorkload(options);
  // The sum was made in another order of requests: equal but for rounding.
  const double expected = ColdPrefillSeconds(*workload, options.profile) / 2 / 4 / 0.5;
  EXPECT_NEAR(workload->duration_s, expected, 1e-9 * expected);
  EXPECT_GT(workload->requests.back().arrival_s, 0.9 * workload->duration_s);
  EXPECT_LT(workload->requests.back().arrival_s, 1.1 * workload->duration_s);
}

TEST(WorkloadTest, SystemPromptsFollowZipf) {
  GeneratorOptions options;
  options.chats = 20'000;
  options.turns = 1;
  options.agent_loops = 0;
  const auto workload = GenerateWorkload(options);
  std::map<std::uint64_t, int> count;
  for (const ReplayRequest& request : workload->requests) ++count[request.prompt[0].content];
  ASSERT_EQ(count.size(), 16u);
  const double harmonic = 3.380729;  // H(16)
  EXPECT_NEAR(count.begin()->second / 20'000.0, 1 / harmonic, 0.01);
  EXPECT_NEAR(std::prev(count.end())->second / 20'000.0, 1 / harmonic / 16, 0.005);
}

TEST(WorkloadTest, BadOptionsAreNamed) {
  GeneratorOptions options = Small();
  options.user = {9, 5};
  EXPECT_THAT(GenerateWorkload(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("user")));
  options = Small();
  options.cold_utilisation = 0;
  EXPECT_THAT(GenerateWorkload(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cold_utilisation")));
}

class TraceTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& content) {
    const std::string path = ::testing::TempDir() + "/trace_test.jsonl";
    std::ofstream(path) << content;
    return path;
  }
};

constexpr char kRow[] =
    R"({"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [0, 5]})";

TEST_F(TraceTest, BlocksBecomeContentAndTheLastOneIsCut) {
  const auto rows = ReadTrace(Write(std::string(kRow) + "\n\n" + kRow + "\n" + kRow + "\n"), 2);
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_THAT((*rows)[0].hash_ids, ElementsAre(0, 5));
  const auto workload = WorkloadFromTrace(*rows, {.seed = 3, .requests_per_s = 10});
  ASSERT_EQ(workload->requests.size(), 2u);
  const ReplayRequest& request = workload->requests[0];
  EXPECT_EQ(request.prompt[0].tokens, 512u);
  EXPECT_EQ(request.prompt[1].content, 5u);
  EXPECT_EQ(request.prompt[1].tokens, 88u);
  EXPECT_EQ(request.output_tokens, 7u);
  // Prompts are equal, answers are not: 37 full blocks of 16 and 512 + 88 + 7 = 607 tokens each.
  EXPECT_EQ(workload->distinct_blocks, 37u);
  EXPECT_EQ(workload->distinct_blocks, CountBlocks(*workload, 16));
  EXPECT_DOUBLE_EQ(workload->duration_s, 0.2);
}

TraceRow Row(std::uint32_t input, std::uint32_t output, std::vector<std::uint64_t> ids) {
  return {.timestamp_ms = 0, .input_length = input, .output_length = output, .hash_ids = ids};
}

TEST(NextTurnsTest, ANextTurnBeginsWhereThePromptsFullBlocksEnd) {
  const std::vector<TraceRow> rows = {
      Row(1100, 500, {0, 1, 2}),            // 2 full blocks
      Row(1024, 10, {0, 1}),                // the same two, and it is later
      Row(2000, 5, {0, 1, 3, 4}),           // next turn of the later one
      Row(1599, 5, {0, 1, 5, 6}),           // too short to hold 1100 + 500
      Row(1600, 5, {0, 1, 7, 8}),           // next turn of the first
      Row(3000, 5, {0, 1, 9, 10, 11, 12}),  // both have theirs
      Row(1600, 5, {0, 1, 7, 8}),           // nothing new in it
  };
  EXPECT_THAT(NextTurns(rows),
              ElementsAre(kNoRequest, kNoRequest, 1, kNoRequest, 0, kNoRequest, kNoRequest));
}

TEST(NextTurnsTest, AnswersAreTheBlocksThatTheNextTurnShows) {
  // 600 + 1000 tokens: one full block of prompt, two blocks inside prompt + answer.
  const std::vector<TraceRow> rows = {Row(600, 1000, {0, 1}), Row(2100, 5, {0, 2, 3, 4, 5})};
  const auto workload = WorkloadFromTrace(rows, {.bucket_s = 0, .block_size = 512});
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_EQ(workload->requests[1].previous_turn, 0);
  const std::vector<BlockKey> turn = BlockKeys(workload->requests[0], 512);
  const std::vector<BlockKey> next = BlockKeys(workload->requests[1], 512);
  ASSERT_EQ(turn.size(), 3u);
  EXPECT_TRUE(std::equal(turn.begin(), turn.end(), next.begin()));
  EXPECT_EQ(workload->distinct_blocks, 4u);
  const auto without =
      WorkloadFromTrace(rows, {.bucket_s = 0, .block_size = 512, .next_turns = false});
  EXPECT_EQ(without->requests[1].previous_turn, kNoRequest);
  EXPECT_NE(BlockKeys(without->requests[0], 512)[1], BlockKeys(without->requests[1], 512)[1]);
}

TEST(NextTurnsTest, CopiesShareNothing) {
  const std::vector<TraceRow> rows = {Row(600, 1000, {0, 1}), Row(2100, 5, {0, 2, 3, 4, 5})};
  const auto workload =
      WorkloadFromTrace(rows, {.bucket_s = 0, .block_size = 512, .copies = 3, .copy_shift_s = 10});
  ASSERT_EQ(workload->requests.size(), 6u);
  EXPECT_EQ(workload->distinct_blocks, 12u);
  EXPECT_EQ(workload->requests[5].previous_turn, 4);
  EXPECT_DOUBLE_EQ(workload->requests[5].arrival_s, 20);
}

TEST_F(TraceTest, AnErrorNamesTheLineAndTheField) {
  EXPECT_THAT(ReadTrace(Write(std::string(kRow) + "\nnot json\n"), 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("line 2: this is no JSON")));
  EXPECT_THAT(
      ReadTrace(
          Write(R"({"timestamp": 1, "input_length": 600, "output_length": 7, "hash_ids": [0]})"),
          0),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("hash_ids has 1 ids")));
  EXPECT_THAT(ReadTrace(Write(R"({"timestamp": 1, "input_length": -6})"), 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("input_length")));
  EXPECT_THAT(ReadTrace("/nonexistent/x", 0), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ReadTrace(Write(""), 0), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace warmpath
