#include "core/replay/engine_model.h"

#include <cstdint>
#include <map>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

// Names of `count` blocks that start with `base`.
std::vector<BlockKey> Keys(BlockKey base, std::size_t count) {
  std::vector<BlockKey> keys;
  for (std::size_t i = 0; i < count; ++i) keys.push_back(base + i);
  return keys;
}

MATCHER_P3(Stored, id, first, count, "stores these blocks") {
  return arg.kind == CacheEvent::Kind::kStored && arg.request_id == std::uint64_t(id) &&
         arg.first_block == std::uint32_t(first) && arg.block_count == std::uint32_t(count);
}
MATCHER_P(EvictedKey, key, "evicts this block") {
  return arg.kind == CacheEvent::Kind::kEvicted && arg.key == BlockKey(key);
}
MATCHER_P2(Admitted, id, cached, "admits this request") {
  return arg.id == std::uint64_t(id) && arg.cached_tokens == std::uint32_t(cached);
}

TEST(EngineModelTest, StepTimeOf32bIsTheFormula) {
  EngineModel model({.profile = kProfile32b, .block_size = 16});
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 3'100, .output_tokens = 3}), IsOk());
  // 20 ms + 3,100/16k s * (1 + 1,550/31k) = 20 + 193.75 * 1.05 ms.
  EXPECT_NEAR(model.Step().seconds, 0.2234375, 1e-12);
  // One decode over 3,101 tokens: 20 + 0.15 + 0.15505 ms.
  EXPECT_NEAR(model.Step().seconds, 0.02030505, 1e-12);
  EXPECT_NEAR(model.Step().seconds, 0.0203051, 1e-12);
  EXPECT_TRUE(model.idle());
  EXPECT_EQ(model.Step().seconds, 0);
}

TEST(EngineModelTest, StepTimeOf8bIsTheFormula) {
  EngineModel model({.profile = kProfile8b, .block_size = 16});
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 5'600, .output_tokens = 2}), IsOk());
  // 8 ms + 5,600/45k s * (1 + 2,800/28k).
  EXPECT_NEAR(model.Step().seconds, 0.008 + 5'600 / 45'000.0 * 1.1, 1e-12);
  EXPECT_NEAR(model.Step().seconds, 0.008 + 0.08e-3 + 0.055e-6 * 5'601, 1e-12);
}

TEST(EngineModelTest, ProfilesHaveTheirCapacityAndNames) {
  EXPECT_EQ(EngineModel({.profile = kProfile32b}).cache().capacity(), 683u);
  EXPECT_EQ(EngineModel({.profile = kProfile8b, .block_size = 16}).cache().capacity(), 31'250u);
  EXPECT_EQ(FindEngineProfile("8b-1xh100")->kv_tokens, 500'000u);
  EXPECT_THAT(FindEngineProfile("70b"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("32b-2xh100 or 8b-1xh100")));
}

TEST(EngineModelTest, APromptIsCutToTheBudgetAndDecodesComeFirst) {
  EngineModel model({.block_size = 16});
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 100, .output_tokens = 50}), IsOk());
  EXPECT_THAT(model.Step().first_token, ElementsAre(1));
  ASSERT_THAT(model.Add({.id = 2, .prompt_tokens = 10'000, .output_tokens = 2}), IsOk());
  ASSERT_THAT(model.Add({.id = 3, .prompt_tokens = 5'000, .output_tokens = 1}), IsOk());

  const StepResult& step = model.Step();
  EXPECT_EQ(step.decodes, 1u);
  EXPECT_EQ(step.prefill_tokens, 8'191u);  // The budget less one decode.
  EXPECT_THAT(step.admitted, ElementsAre(Admitted(2, 0)));
  EXPECT_THAT(step.produced, ElementsAre(1));
  const double first = 8'191 / 16'000.0 * (1 + 8'191 / 2.0 / 31'000);
  EXPECT_NEAR(step.seconds, 0.020 + first + 0.15e-3 + 101 * 0.05e-6, 1e-12);
  EXPECT_EQ(model.waiting(), 1u);

  model.Step();
  EXPECT_EQ(step.decodes, 1u);
  EXPECT_EQ(step.prefill_tokens, 1'809u + 5'000u);
  EXPECT_THAT(step.admitted, ElementsAre(Admitted(3, 0)));
  EXPECT_THAT(step.first_token, ElementsAre(2, 3));
  EXPECT_THAT(step.produced, ElementsAre(1, 2, 3));
  EXPECT_THAT(step.finished, ElementsAre(3));
  // The second chunk's attention looks back at the first.
  const double second = 1'809 / 16'000.0 * (1 + (8'191 + 10'000) / 2.0 / 31'000);
  const double third = 5'000 / 16'000.0 * (1 + 2'500 / 31'000.0);
  EXPECT_NEAR(step.seconds, 0.020 + second + third + 0.15e-3 + 102 * 0.05e-6, 1e-12);
}

TEST(EngineModelTest, AChunkedPromptYieldsToNobodyAdmittedLater) {
  EngineModel model({.block_size = 16, .step_token_budget = 64});
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 100, .output_tokens = 1}), IsOk());
  ASSERT_THAT(model.Add({.id = 2, .prompt_tokens = 30, .output_tokens = 1}), IsOk());
  EXPECT_THAT(model.Step().admitted, ElementsAre(Admitted(1, 0)));
  const StepResult& step = model.Step();
  EXPECT_EQ(step.prefill_tokens, 64u);
  EXPECT_THAT(step.finished, ElementsAre(1));
  EXPECT_EQ(model.Step().prefill_tokens, 2u);
  EXPECT_THAT(step.finished, ElementsAre(2));
}

TEST(EngineModelTest, AdmissionReservesPromptAndOutputInOrderOfArrival) {
  EngineModel model({.block_size = 16, .blocks = 10});
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 64, .output_tokens = 33}), IsOk());  // 7 blocks.
  ASSERT_THAT(model.Add({.id = 2, .prompt_tokens = 48, .output_tokens = 1}),
              IsOk());  // 4: too many.
  ASSERT_THAT(model.Add({.id = 3, .prompt_tokens = 8, .output_tokens = 1}),
              IsOk());  // 1: behind 2.
  EXPECT_THAT(model.Step().admitted, ElementsAre(Admitted(1, 0)));
  EXPECT_EQ(model.cache().pinned_blocks(), 7u);
  for (int i = 0; i < 31; ++i) EXPECT_THAT(model.Step().admitted, IsEmpty());
  const StepResult& step = model.Step();
  EXPECT_THAT(step.finished, ElementsAre(1));
  EXPECT_THAT(step.admitted, IsEmpty());  // Space is free only after the step that finished it.
  model.Step();
  EXPECT_THAT(step.admitted, ElementsAre(Admitted(2, 0), Admitted(3, 0)));
}

TEST(EngineModelTest, AtMostMaxSequencesRun) {
  EngineModel model({.block_size = 16});
  for (std::uint64_t id = 0; id < 300; ++id) {
    ASSERT_THAT(model.Add({.id = id, .prompt_tokens = 1, .output_tokens = 2}), IsOk());
  }
  const StepResult& step = model.Step();
  EXPECT_THAT(step.admitted, SizeIs(256));
  EXPECT_EQ(model.running(), 256u);
  EXPECT_EQ(model.waiting(), 44u);
  model.Step();
  EXPECT_THAT(step.finished, SizeIs(256));
  // They run until their last step is over.
  EXPECT_EQ(model.running(), 256u);
  model.EndStep();
  EXPECT_EQ(model.running(), 0u);
  EXPECT_THAT(step.admitted, IsEmpty());
  model.Step();
  EXPECT_THAT(step.admitted, SizeIs(44));
}

TEST(EngineModelTest, BlocksAreNamedWhenScheduledAndSiblingsOfOneStepHitThem) {
  EngineModel model({.block_size = 16});
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 40, .output_tokens = 1, .keys = Keys(100, 2)}),
              IsOk());
  ASSERT_THAT(model.Add({.id = 2, .prompt_tokens = 45, .output_tokens = 1, .keys = Keys(100, 2)}),
              IsOk());
  const StepResult& step = model.Step();
  EXPECT_THAT(step.admitted, ElementsAre(Admitted(1, 0), Admitted(2, 32)));
  EXPECT_EQ(step.prefill_tokens, 40u + 13u);
  EXPECT_THAT(step.events, ElementsAre(Stored(1, 0, 2)));
}

TEST(EngineModelTest, TheLastPromptTokenIsAlwaysComputed) {
  for (const auto duplicates : {BlockCache::Duplicates::kShare, BlockCache::Duplicates::kKeep}) {
    EngineModel model({.block_size = 16, .duplicates = duplicates});
    const EngineRequest request = {
        .id = 1, .prompt_tokens = 48, .output_tokens = 1, .keys = Keys(100, 3)};
    ASSERT_THAT(model.Add(request), IsOk());
    const StepResult& step = model.Step();
    EXPECT_THAT(step.events, ElementsAre(Stored(1, 0, 3)));
    ASSERT_THAT(model.Add(request), IsOk());
    model.Step();
    // Whole blocks: 47 tokens may be hits, which is two blocks.
    EXPECT_THAT(step.admitted, ElementsAre(Admitted(1, 32)));
    if (duplicates == BlockCache::Duplicates::kShare) {
      EXPECT_THAT(step.events, IsEmpty());
      EXPECT_EQ(model.cache().Copies(102), 1u);
    } else {
      EXPECT_THAT(step.events, ElementsAre(Stored(1, 2, 1)));
      EXPECT_EQ(model.cache().Copies(102), 2u);
    }
  }
}

TEST(EngineModelTest, OutputBlocksAreCachedButNotTheLastToken) {
  EngineModel model({.block_size = 16});
  // 20 prompt + 13 output tokens: the KV of 32 of them is computed, which fills block 1.
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 20, .output_tokens = 13, .keys = Keys(100, 2)}),
              IsOk());
  const StepResult& step = model.Step();
  EXPECT_THAT(step.events, ElementsAre(Stored(1, 0, 1)));
  for (int i = 0; i < 11; ++i) EXPECT_THAT(model.Step().events, IsEmpty());
  model.Step();
  EXPECT_THAT(step.events, ElementsAre(Stored(1, 1, 1)));
  EXPECT_THAT(step.finished, ElementsAre(1));
  // The next turn reuses them.
  ASSERT_THAT(model.Add({.id = 2, .prompt_tokens = 50, .output_tokens = 1, .keys = Keys(100, 3)}),
              IsOk());
  model.Step();
  EXPECT_THAT(step.admitted, ElementsAre(Admitted(2, 32)));
  EXPECT_THAT(step.events, ElementsAre(Stored(2, 2, 1)));
  // One output token fewer: block 1 stays unfinished.
  EngineModel shorter({.block_size = 16});
  ASSERT_THAT(
      shorter.Add({.id = 1, .prompt_tokens = 20, .output_tokens = 12, .keys = Keys(100, 2)}),
      IsOk());
  while (!shorter.idle()) shorter.Step();
  EXPECT_EQ(shorter.cache().cached_keys(), 1u);
}

TEST(EngineModelTest, EvictionsAreReportedBeforeTheStoresThatTookTheirPlace) {
  EngineModel model({.block_size = 16, .blocks = 4});
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 48, .output_tokens = 1, .keys = Keys(100, 3)}),
              IsOk());
  model.Step();
  ASSERT_THAT(model.Add({.id = 2, .prompt_tokens = 33, .output_tokens = 1, .keys = Keys(200, 2)}),
              IsOk());
  const StepResult& step = model.Step();
  // One block is empty (the output's), two come from the first request's tail.
  EXPECT_THAT(step.events, ElementsAre(EvictedKey(102), EvictedKey(101), Stored(2, 0, 2)));
  EXPECT_EQ(model.cache().Copies(100), 1u);
}

TEST(EngineModelTest, BlocksBeyondTheGivenKeysStayUnnamed) {
  EngineModel model({.block_size = 16});
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 64, .output_tokens = 1, .keys = Keys(100, 1)}),
              IsOk());
  EXPECT_THAT(model.Step().events, ElementsAre(Stored(1, 0, 1)));
  EXPECT_EQ(model.cache().cached_keys(), 1u);
  EXPECT_EQ(model.cache().free_blocks(), model.cache().capacity());
}

TEST(EngineModelTest, CancelFreesWhatTheRequestHeld) {
  EngineModel model({.block_size = 16, .blocks = 8});
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 64, .output_tokens = 9, .keys = Keys(100, 4)}),
              IsOk());
  ASSERT_THAT(model.Add({.id = 2, .prompt_tokens = 64, .output_tokens = 9}), IsOk());
  ASSERT_THAT(model.Add({.id = 3, .prompt_tokens = 8, .output_tokens = 1}), IsOk());
  model.Step();
  EXPECT_EQ(model.running(), 1u);
  EXPECT_FALSE(model.ClearCache());
  EXPECT_TRUE(model.Cancel(1));
  EXPECT_FALSE(model.Cancel(1));
  EXPECT_TRUE(model.Cancel(2));  // Still waiting.
  EXPECT_EQ(model.cache().free_blocks(), 8u);
  EXPECT_EQ(model.cache().cached_keys(), 4u);
  EXPECT_TRUE(model.ClearCache());
  EXPECT_EQ(model.cache().cached_keys(), 0u);
  EXPECT_THAT(model.Step().finished, ElementsAre(3));
  EXPECT_TRUE(model.idle());
}

TEST(EngineModelTest, RefusesRequestsThatCanNeverRun) {
  EngineModel model({.block_size = 16, .blocks = 4});
  EXPECT_THAT(model.Add({.id = 1, .prompt_tokens = 0, .output_tokens = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prompt_tokens")));
  EXPECT_THAT(model.Add({.id = 1, .prompt_tokens = 1, .output_tokens = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("output_tokens")));
  EXPECT_THAT(model.Add({.id = 1, .prompt_tokens = 60, .output_tokens = 5}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("65 exceeds")));
  EXPECT_THAT(model.Add({.id = 1, .prompt_tokens = ~0u, .output_tokens = ~0u}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(model.Add({.id = 1, .prompt_tokens = 60, .output_tokens = 4}), IsOk());
  EXPECT_THAT(model.Add({.id = 1, .prompt_tokens = 6, .output_tokens = 4}),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

TEST(EngineModelTest, OptionsAreChecked) {
  EXPECT_THAT(ValidateEngineModelOptions({}), IsOk());
  EXPECT_THAT(ValidateEngineModelOptions({.block_size = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("block_size")));
  EXPECT_THAT(ValidateEngineModelOptions({.block_size = 1'000'000}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("blocks")));
  EXPECT_THAT(ValidateEngineModelOptions({.step_token_budget = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step_token_budget")));
  EXPECT_THAT(ValidateEngineModelOptions({.profile = EngineProfile()}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("profile")));
}

// The events, applied in order, always give what the cache holds; every request ends; every output
// token is counted.
TEST(EngineModelTest, EventsTellTheWholeTruthUnderLoad) {
  for (const auto duplicates : {BlockCache::Duplicates::kShare, BlockCache::Duplicates::kKeep}) {
    Random random(7);
    EngineModel model({.block_size = 16,
                       .blocks = 60,
                       .step_token_budget = 200,
                       .max_sequences = 6,
                       .duplicates = duplicates});
    std::map<std::uint64_t, EngineRequest> requests;
    std::map<std::uint64_t, std::uint32_t> produced;
    std::map<BlockKey, std::uint32_t> held;
    std::size_t finished = 0;
    std::size_t hits = 0;
    std::size_t evictions = 0;
    for (std::uint64_t id = 0; id < 600 || !model.idle();) {
      if (id < 600 && random.Below(2) == 0) {
        EngineRequest request;
        request.id = id++;
        request.prompt_tokens = static_cast<std::uint32_t>(1 + random.Below(500));
        request.output_tokens = static_cast<std::uint32_t>(1 + random.Below(40));
        BlockKey chain = random.Below(4);
        const std::uint32_t blocks = (request.prompt_tokens + request.output_tokens) / 16;
        for (std::uint32_t i = 0; i < blocks; ++i) {
          chain = chain * 1'000'003 + (i < 10 ? 1 : random.Below(3));
          request.keys.push_back(chain);
        }
        requests[request.id] = request;
        ASSERT_THAT(model.Add(request), IsOk());
      }
      const StepResult& step = model.Step();
      ASSERT_LE(step.prefill_tokens + step.decodes, 200u);
      ASSERT_LE(model.running(), 6u);
      for (const auto& admission : step.admitted) hits += admission.cached_tokens;
      for (const std::uint64_t p : step.produced) ++produced[p];
      for (const std::uint64_t f : step.finished) {
        ++finished;
        ASSERT_EQ(produced[f], requests[f].output_tokens);
      }
      for (const CacheEvent& event : step.events) {
        if (event.kind == CacheEvent::Kind::kStored) {
          for (std::uint32_t i = 0; i < event.block_count; ++i) {
            ++held[requests[event.request_id].keys[event.first_block + i]];
          }
        } else {
          ++evictions;
          ASSERT_EQ(--held[event.key], event.copies_left);
          if (event.copies_left == 0) held.erase(event.key);
        }
      }
      std::map<BlockKey, std::uint32_t> truth;
      model.cache().ForEachKey([&](BlockKey key, std::uint32_t n) { truth[key] = n; });
      ASSERT_EQ(held, truth);
    }
    EXPECT_EQ(finished, 600u);
    EXPECT_GT(hits, 10'000u);
    EXPECT_GT(evictions, 1'000u);
    EXPECT_EQ(model.cache().free_blocks(), 60u);
  }
}

}  // namespace
}  // namespace warmpath
