// The tier in host memory by itself and inside the engine.
#include "core/replay/host_tier.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/replay/engine_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;
using Kind = CacheEvent::Kind;

MATCHER_P2(Event, kind, key, "is this event") {
  return arg.kind == kind && arg.key == BlockKey(key);
}
MATCHER_P3(Stored, id, first, count, "stores these blocks") {
  return arg.kind == Kind::kStored && arg.request_id == std::uint64_t(id) &&
         arg.first_block == std::uint32_t(first) && arg.block_count == std::uint32_t(count);
}
MATCHER_P3(Admitted, id, cached, copied, "admits this request") {
  return arg.id == std::uint64_t(id) && arg.cached_tokens == std::uint32_t(cached) &&
         arg.copied_tokens == std::uint32_t(copied);
}

// The tier as its rules say, without any structure.
class PlainTier {
 public:
  explicit PlainTier(std::size_t capacity) : capacity_(capacity) {}

  void Offload(BlockKey key) {
    if (pins_[key] > 0) return;
    if (Free(key)) {
      free_.push_back(key);
      return;
    }
    if (held_.size() == capacity_) {
      if (free_.empty()) return;
      held_.erase(free_.front());
      free_.erase(free_.begin());
    }
    held_.insert(key);
    free_.push_back(key);
  }
  void StartCopy(std::uint64_t id, std::vector<BlockKey> keys, double seconds) {
    for (const BlockKey key : keys) {
      if (pins_[key]++ == 0) Free(key);
    }
    copies_.push_back({id, seconds, std::move(keys)});
  }
  void End(std::size_t copy) {
    std::vector<BlockKey> keys = copies_[copy].keys;
    copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(copy));
    for (; !keys.empty(); keys.pop_back()) {
      if (--pins_[keys.back()] == 0) free_.push_back(keys.back());
    }
  }
  std::vector<std::uint64_t> Advance(double seconds) {
    std::vector<std::uint64_t> ended;
    while (!copies_.empty() && copies_[0].seconds <= seconds) {
      seconds -= copies_[0].seconds;
      ended.push_back(copies_[0].id);
      End(0);
    }
    if (!copies_.empty()) copies_[0].seconds -= seconds;
    return ended;
  }

  struct Copy {
    std::uint64_t id;
    double seconds;
    std::vector<BlockKey> keys;
  };
  const std::set<BlockKey>& held() const { return held_; }
  const std::vector<Copy>& copies() const { return copies_; }

 private:
  // Takes the key out of those that may go; false if it is not one.
  bool Free(BlockKey key) {
    const auto it = std::find(free_.begin(), free_.end(), key);
    if (it == free_.end()) return false;
    free_.erase(it);
    return true;
  }

  const std::size_t capacity_;
  std::set<BlockKey> held_;
  std::vector<BlockKey> free_;  // least recently used first
  std::map<BlockKey, int> pins_;
  std::vector<Copy> copies_;
};

TEST(HostTierTest, AgreesWithThePlainRules) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::size_t capacity = 1 + random.Below(12);
    std::vector<HostTier::Change> changes;
    HostTier tier(capacity, 16, 1'600, &changes);
    PlainTier plain(capacity);
    std::set<BlockKey> told;  // what the changes say
    for (std::uint64_t step = 0; step < 400; ++step) {
      switch (random.Below(5)) {
        case 0:
        case 1: {
          const BlockKey key = random.Below(20);
          tier.Offload(key);
          plain.Offload(key);
          break;
        }
        case 2: {
          std::vector<BlockKey> keys(plain.held().begin(), plain.held().end());
          std::shuffle(keys.begin(), keys.end(), random);
          keys.resize(std::min<std::size_t>(keys.size(), random.Below(5)));
          if (keys.empty() || plain.copies().size() > 3) break;
          tier.StartCopy(step, keys);
          plain.StartCopy(step, keys, 16.0 * static_cast<double>(keys.size()) / 1'600);
          break;
        }
        case 3: {
          const double seconds = static_cast<double>(random.Below(5)) / 64;
          std::vector<std::uint64_t> ended;
          tier.Advance(seconds, &ended);
          EXPECT_EQ(ended, plain.Advance(seconds));
          break;
        }
        default: {
          if (plain.copies().empty() || random.Below(3) > 0) break;
          const std::size_t copy = random.Below(plain.copies().size());
          EXPECT_TRUE(tier.CancelCopy(plain.copies()[copy].id));
          EXPECT_FALSE(tier.CancelCopy(1'000'000));
          plain.End(copy);
        }
      }
      EXPECT_EQ(tier.SecondsLeft(), plain.copies().empty() ? 0 : plain.copies()[0].seconds);
      for (const HostTier::Change& change : changes) {
        EXPECT_EQ(told.contains(change.key), !change.stored);
        if (change.stored) {
          told.insert(change.key);
        } else {
          told.erase(change.key);
        }
      }
      changes.clear();
      ASSERT_EQ(told, plain.held());
      std::set<BlockKey> held;
      tier.cache().ForEachKey([&](BlockKey key, std::uint32_t) { held.insert(key); });
      ASSERT_EQ(held, plain.held());
    }
  }
}

// Four blocks of 16 tokens in the GPU and four in host memory, copied at 0.1 ms each.
EngineModelOptions Small(double copy_rate = 160'000) {
  return {.block_size = 16, .blocks = 4, .host_blocks = 4, .host_copy_tokens_per_s = copy_rate};
}

TEST(EngineHostTierTest, WhatTheGpuEvictsComesBackAsACopy) {
  EngineModel model(Small());
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 48, .output_tokens = 1, .keys = {1, 2, 3}}),
              IsOk());
  EXPECT_THAT(model.Step().finished, ElementsAre(1));
  ASSERT_THAT(model.Add({.id = 2, .prompt_tokens = 48, .output_tokens = 1, .keys = {11, 12, 13}}),
              IsOk());
  const StepResult& step = model.Step();
  EXPECT_THAT(step.events,
              ElementsAre(Event(Kind::kEvicted, 3), Event(Kind::kHostStored, 3),
                          Event(Kind::kEvicted, 2), Event(Kind::kHostStored, 2),
                          Event(Kind::kEvicted, 1), Event(Kind::kHostStored, 1), Stored(2, 0, 3)));
  // The first again. Two blocks, as one token has to be computed. Its GPU blocks push out those of
  // the second, and these the third block, which is not being copied.
  ASSERT_THAT(model.Add({.id = 3, .prompt_tokens = 48, .output_tokens = 1, .keys = {1, 2, 3}}),
              IsOk());
  model.Step();
  EXPECT_THAT(step.admitted, ElementsAre(Admitted(3, 32, 32)));
  EXPECT_THAT(step.events,
              ElementsAre(Event(Kind::kEvicted, 13), Event(Kind::kHostStored, 13),
                          Event(Kind::kEvicted, 12), Event(Kind::kHostEvicted, 3),
                          Event(Kind::kHostStored, 12), Event(Kind::kEvicted, 11),
                          Event(Kind::kHostEvicted, 13), Event(Kind::kHostStored, 11)));
  EXPECT_EQ(step.prefill_tokens, 0u);
  EXPECT_NEAR(step.seconds, 0.0002, 1e-15);
  EXPECT_EQ(model.running(), 1u);
  EXPECT_EQ(model.cache().Copies(1), 0u) << "not there before the copy has ended";
  model.Step();
  EXPECT_THAT(step.events, ElementsAre(Stored(3, 0, 2), Stored(3, 2, 1)));
  EXPECT_EQ(step.prefill_tokens, 16u);
  EXPECT_NEAR(step.seconds, 0.020 + 16 / 16'000.0 * (1 + 40 / 31'000.0), 1e-15);
  EXPECT_THAT(step.finished, ElementsAre(3));
  EXPECT_EQ(model.host()->cache().Copies(1), 1u) << "a copy leaves the block where it was";
  EXPECT_EQ(model.host()->cache().pinned_blocks(), 0u);
}

TEST(EngineHostTierTest, ACopyThatTakesLongerThanComputingIsNotMade) {
  for (const double rate : {15'900.0, 16'100.0}) {
    EngineModel model(Small(rate));
    ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 48, .output_tokens = 1, .keys = {1, 2, 3}}),
                IsOk());
    model.Step();
    ASSERT_THAT(model.Add({.id = 2, .prompt_tokens = 48, .output_tokens = 1}), IsOk());
    model.Step();
    ASSERT_THAT(model.Add({.id = 3, .prompt_tokens = 48, .output_tokens = 1, .keys = {1, 2, 3}}),
                IsOk());
    // 32 tokens at 16,000 tokens/s with a mean context of 16: 16,000 / 1.0005 is even.
    const std::uint32_t copied = rate > 16'000 ? 32 : 0;
    EXPECT_THAT(model.Step().admitted, ElementsAre(Admitted(3, copied, copied)));
  }
}

TEST(EngineHostTierTest, CopiesRunBesideStepsAndOneAfterAnother) {
  // 80 ms for 32 tokens; computing them would take 160.
  EngineModelOptions options = Small(400);
  options.profile.prefill_tokens_per_s = 200;
  options.profile.decode_s = 0;
  options.profile.context_token_s = 0;
  options.blocks = 20;
  options.host_blocks = 40;
  EngineModel model(options);
  const auto add = [&](std::uint64_t id, std::uint32_t prompt, std::uint32_t output,
                       std::vector<BlockKey> keys) {
    ASSERT_THAT(
        model.Add(
            {.id = id, .prompt_tokens = prompt, .output_tokens = output, .keys = std::move(keys)}),
        IsOk());
  };
  add(1, 33, 1, {11, 12});
  add(2, 33, 1, {21, 22});
  model.Step();
  add(3, 319, 1, {});  // takes all blocks
  model.Step();
  add(4, 10, 100, {});
  model.Step();  // from now on a decode of 20 ms in each step
  add(5, 33, 1, {11, 12});
  add(6, 33, 1, {21, 22});
  std::vector<std::uint64_t> first_tokens;
  for (int i = 1; i <= 20; ++i) {
    const StepResult& step = model.Step();
    if (i == 1) {
      EXPECT_THAT(step.admitted, ElementsAre(Admitted(5, 32, 32), Admitted(6, 32, 32)));
    }
    EXPECT_EQ(step.decodes, 1u) << "copies stop nobody";
    for (const std::uint64_t id : step.first_token) {
      first_tokens.push_back(id);
      // The first copy ends with the fourth step. The step after that also computes a token, 5 ms,
      // and so the second copy ends within the eighth.
      EXPECT_EQ(i, id == 5 ? 5 : 9);
    }
  }
  EXPECT_THAT(first_tokens, ElementsAre(5, 6));
}

TEST(EngineHostTierTest, AStepWithNothingButCopiesLastsUntilTheFirstEnds) {
  EngineModelOptions options = Small(400);
  options.profile.prefill_tokens_per_s = 200;
  options.host_blocks = 8;
  EngineModel model(options);
  const auto run = [&](std::uint64_t id, std::vector<BlockKey> keys) {
    EXPECT_THAT(model.Add({.id = id, .prompt_tokens = 33, .output_tokens = 1, .keys = keys}),
                IsOk());
  };
  run(1, {1, 2});
  model.Step();
  run(2, {11, 12});
  while (!model.idle()) model.Step();
  ASSERT_THAT(model.Add({.id = 3, .prompt_tokens = 60, .output_tokens = 1}), IsOk());
  while (!model.idle()) model.Step();
  // 32 tokens at 400 tokens/s: 80 ms, in steps of at most 20 ms.
  run(4, {1, 2});
  std::vector<double> seconds;
  while (!model.idle()) {
    const StepResult& step = model.Step();
    seconds.push_back(step.seconds);
    EXPECT_EQ(step.first_token.empty(), seconds.size() < 5);
  }
  EXPECT_THAT(seconds,
              ElementsAre(::testing::DoubleNear(0.02, 1e-12), ::testing::DoubleNear(0.02, 1e-12),
                          ::testing::DoubleNear(0.02, 1e-12), ::testing::DoubleNear(0.02, 1e-12),
                          ::testing::DoubleNear(0.025 + 32.5 / 200 / 31'000, 1e-6)));
  // Without a base time in one step.
  options.profile.step_base_s = 0;
  EngineModel bare(options);
  ASSERT_THAT(bare.Add({.id = 1, .prompt_tokens = 33, .output_tokens = 1, .keys = {1, 2}}), IsOk());
  bare.Step();
  ASSERT_THAT(bare.Add({.id = 3, .prompt_tokens = 60, .output_tokens = 1}), IsOk());
  bare.Step();
  ASSERT_THAT(bare.Add({.id = 4, .prompt_tokens = 33, .output_tokens = 1, .keys = {1, 2}}), IsOk());
  EXPECT_NEAR(bare.Step().seconds, 0.08, 1e-12);
  EXPECT_THAT(bare.Step().finished, ElementsAre(4));
}

TEST(EngineHostTierTest, ACancelledCopyLetsGoOfBothTiers) {
  EngineModel model(Small());
  ASSERT_THAT(model.Add({.id = 1, .prompt_tokens = 48, .output_tokens = 1, .keys = {1, 2, 3}}),
              IsOk());
  model.Step();
  ASSERT_THAT(model.Add({.id = 2, .prompt_tokens = 48, .output_tokens = 1}), IsOk());
  model.Step();
  ASSERT_THAT(model.Add({.id = 3, .prompt_tokens = 48, .output_tokens = 1, .keys = {1, 2, 3}}),
              IsOk());
  model.Step();
  EXPECT_EQ(model.host()->cache().pinned_blocks(), 2u);
  EXPECT_FALSE(model.ClearCache());
  EXPECT_TRUE(model.Cancel(3));
  EXPECT_EQ(model.host()->cache().pinned_blocks(), 0u);
  EXPECT_EQ(model.cache().pinned_blocks(), 0u);
  EXPECT_TRUE(model.idle());
  EXPECT_TRUE(model.ClearCache());
  EXPECT_EQ(model.host()->cache().cached_keys(), 0u);
}

TEST(EngineHostTierTest, OptionsAreChecked) {
  EngineModelOptions options = Small(0);
  EXPECT_THAT(ValidateEngineModelOptions(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host_copy_tokens_per_s")));
  options.host_blocks = 0;
  EXPECT_THAT(ValidateEngineModelOptions(options), IsOk());
  EXPECT_EQ(EngineModel(options).host(), nullptr);
  options = Small();
  options.host_blocks = ~std::size_t{0};
  EXPECT_THAT(ValidateEngineModelOptions(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("host_blocks")));
}

// Random prompts with shared heads: what the events say is what both tiers hold, every request
// ends, a hit is never more than was held, and a tier of more blocks than there are loses none.
TEST(EngineHostTierTest, EventsTellTheWholeTruthUnderLoad) {
  for (const std::size_t host_blocks : {3u, 40u, 40'000u}) {
    SCOPED_TRACE(host_blocks);
    Random random(host_blocks);
    EngineModel model({.block_size = 16,
                       .blocks = 60,
                       .step_token_budget = 256,
                       .max_sequences = 8,
                       .host_blocks = host_blocks,
                       .host_copy_tokens_per_s = 40'000});
    std::map<std::uint64_t, std::vector<BlockKey>> keys_of;
    std::set<BlockKey> gpu, host, ever;
    std::size_t finished = 0;
    std::size_t steps = 0;
    std::uint64_t copied = 0;
    std::uint64_t id = 0;
    while (finished < 600) {
      if (id < 600 && random.Below(3) == 0) {
        EngineRequest request{.id = ++id,
                              .prompt_tokens = static_cast<std::uint32_t>(1 + random.Below(500)),
                              .output_tokens = static_cast<std::uint32_t>(1 + random.Below(40))};
        const std::uint64_t family = random.Below(6);
        const std::size_t shared = random.Below(20);
        for (std::size_t i = 0; i < (request.prompt_tokens + request.output_tokens) / 16; ++i) {
          request.keys.push_back(i < shared ? 1000 * family + i : 1'000'000 * id + i);
        }
        keys_of[id] = request.keys;
        ASSERT_THAT(model.Add(std::move(request)), IsOk());
      }
      const StepResult& step = model.Step();
      for (const CacheEvent& event : step.events) {
        switch (event.kind) {
          case Kind::kStored:
            for (std::uint32_t i = 0; i < event.block_count; ++i) {
              const BlockKey key = keys_of[event.request_id][event.first_block + i];
              EXPECT_TRUE(gpu.insert(key).second);
              ever.insert(key);
            }
            break;
          case Kind::kEvicted:
            EXPECT_EQ(gpu.erase(event.key), 1u);
            break;
          case Kind::kHostStored:
            EXPECT_TRUE(host.insert(event.key).second);
            break;
          case Kind::kHostEvicted:
            EXPECT_EQ(host.erase(event.key), 1u);
            break;
        }
      }
      for (const StepResult::Admission& admission : step.admitted) {
        copied += admission.copied_tokens;
        EXPECT_LE(admission.copied_tokens, admission.cached_tokens);
        for (std::size_t i = 0; i < admission.cached_tokens / 16; ++i) {
          EXPECT_TRUE(ever.contains(keys_of[admission.id][i]));
        }
      }
      finished += step.finished.size();
      if (++steps % 20 != 0 && finished < 600) continue;
      const auto held = [](const BlockCache& cache) {
        std::set<BlockKey> keys;
        cache.ForEachKey([&](BlockKey key, std::uint32_t) { keys.insert(key); });
        return keys;
      };
      ASSERT_EQ(held(model.cache()), gpu);
      ASSERT_EQ(held(model.host()->cache()), host);
      if (host_blocks == 40'000) {
        for (const BlockKey key : ever) ASSERT_TRUE(gpu.contains(key) || host.contains(key));
      }
      if (model.idle()) {
        EXPECT_EQ(model.host()->cache().pinned_blocks(), 0u);
      }
    }
    EXPECT_GT(copied, 0u);
    EXPECT_TRUE(model.idle());
    EXPECT_THAT(model.Step().events, IsEmpty());
  }
}

}  // namespace
}  // namespace warmpath
