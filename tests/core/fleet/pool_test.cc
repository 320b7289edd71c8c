#include "core/fleet/pool.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/random.h"
#include "core/index/index.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

class PoolTest : public ::testing::Test {
 protected:
  PoolTest() {
    PoolConfig config;
    config.name = "m";
    pool_ = std::make_unique<Pool>(std::move(config), CreateReferenceIndex({}), 1, 1u << 20, 0);
    absl::MutexLock lock(&pool_->mu());
    pool_->FixBlockSize(16);
  }

  TargetId Add(std::uint64_t capacity, double hint) {
    TargetState state;
    state.lifecycle = Lifecycle::kReady;
    state.spec.kv_capacity_tokens = capacity;
    state.spec.prefill_tokens_per_s = hint;
    absl::MutexLock lock(&pool_->mu());
    return pool_->AddTarget(std::move(state));
  }
  PickRow Row(TargetId target) {
    absl::MutexLock lock(&pool_->mu());
    return pool_->rows()[target];
  }

  std::unique_ptr<Pool> pool_;
};

void Learn(double rate, TargetId target, Pool& pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool.mu()) {
  for (std::size_t i = 0; i < LearnedRate::kMinSamples; ++i) {
    pool.ObservePrefill(target, rate * 10, 10);
  }
}

TEST_F(PoolTest, ARowFollowsItsTarget) {
  const TargetId target = Add(350'000, 20'000);
  EXPECT_TRUE(Row(target).eligible);
  EXPECT_TRUE(Row(target).capacity_known);
  EXPECT_EQ(Row(target).kv_capacity, 350'000);
  EXPECT_EQ(Row(target).rate, 16'000);  // the hint * 0.8
  EXPECT_EQ(Row(target).freshness, Freshness::kNone);
  EXPECT_EQ(Row(target).slot, kNoSlot);
  {
    absl::MutexLock lock(&pool_->mu());
    pool_->Edit(target, [](TargetState& state) {
      state.spec.has_events = true;
      state.had_snapshot = true;
      state.slot = 7;
    });
    Learn(5000, target, *pool_);
  }
  EXPECT_EQ(Row(target).freshness, Freshness::kExact);
  EXPECT_EQ(Row(target).slot, 7u);
  EXPECT_EQ(Row(target).rate, 5000);
  {
    absl::MutexLock lock(&pool_->mu());
    pool_->Edit(target, [](TargetState& state) { state.draining = true; });
    EXPECT_FALSE(pool_->rows()[target].eligible);
    pool_->RemoveTarget(target, absl::UnixEpoch());
    EXPECT_FALSE(pool_->rows()[target].eligible);
    EXPECT_EQ(pool_->rows()[target].slot, kNoSlot);
  }
}

TEST_F(PoolTest, WhatATargetDoesNotTellComesFromItsPeers) {
  const TargetId silent = Add(0, 0);
  EXPECT_FALSE(Row(silent).capacity_known);
  EXPECT_EQ(Row(silent).kv_capacity, std::numeric_limits<double>::infinity());
  EXPECT_EQ(Row(silent).rate, kFallbackRate);
  const TargetId peer = Add(100'000, 0);
  EXPECT_FALSE(Row(silent).capacity_known);
  EXPECT_EQ(Row(silent).kv_capacity, 100'000);
  {
    absl::MutexLock lock(&pool_->mu());
    Learn(5000, peer, *pool_);
  }
  EXPECT_EQ(Row(silent).rate, 5000 * kPeerTrust);
}

TEST_F(PoolTest, IsUnequalFromAFactorOfOneAndAHalfOn) {
  absl::MutexLock lock(&pool_->mu());
  EXPECT_FALSE(pool_->unequal());
  TargetState state;
  state.spec.prefill_tokens_per_s = 10'000;
  pool_->AddTarget(state);
  EXPECT_FALSE(pool_->unequal());
  state.spec.prefill_tokens_per_s = 15'000;
  const TargetId faster = pool_->AddTarget(state);
  EXPECT_FALSE(pool_->unequal());
  pool_->Edit(faster, [](TargetState& edited) { edited.spec.prefill_tokens_per_s = 15'100; });
  EXPECT_TRUE(pool_->unequal());
  pool_->RemoveTarget(faster, absl::UnixEpoch());
  EXPECT_FALSE(pool_->unequal());
}

// Whatever happens to targets, the packed rows say what the full states say.
TEST_F(PoolTest, AnotherHintIsInTheMeanRateAtOnce) {
  absl::MutexLock lock(&pool_->mu());
  TargetState state;
  state.spec.prefill_tokens_per_s = 2000;
  const TargetId target = pool_->AddTarget(state);
  EXPECT_EQ(pool_->mean_rate(), 2000 * kHintTrust);
  pool_->Edit(target, [](TargetState& edited) { edited.spec.prefill_tokens_per_s = 20'000; });
  EXPECT_EQ(pool_->mean_rate(), 20'000 * kHintTrust);
}

TEST_F(PoolTest, RowsEqualThoseMadeAnewFromTheStates) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::vector<TargetId> targets;
    for (int step = 0; step < 400; ++step) {
      absl::MutexLock lock(&pool_->mu());
      const std::uint64_t action = random.Below(12);
      if (targets.empty() || action == 0) {
        TargetState state;
        state.lifecycle = static_cast<Lifecycle>(random.Below(5));
        state.spec.kv_capacity_tokens = random.Below(3) * 1000 * random.Below(5);
        state.spec.prefill_tokens_per_s = static_cast<double>(random.Below(2) * random.Below(9000));
        state.spec.has_events = random.Below(2) == 0;
        targets.push_back(pool_->AddTarget(std::move(state)));
      } else {
        const std::size_t place = random.Below(targets.size());
        const TargetId target = targets[place];
        if (action == 1) {
          pool_->RemoveTarget(target, absl::UnixEpoch());
          targets.erase(targets.begin() + static_cast<std::ptrdiff_t>(place));
        } else if (action == 10) {
          Learn(static_cast<double>(2000 + random.Below(9000)), target, *pool_);
        } else if (action == 11) {
          pool_->ForgetOutcomes(target);
        } else {
          pool_->Edit(target, [&](TargetState& state) {
            switch (action) {
              case 2:
                state.lifecycle = static_cast<Lifecycle>(random.Below(5));
                break;
              case 3:
                state.draining = !state.draining;
                break;
              case 4:
                state.engine_reachable = !state.engine_reachable;
                break;
              case 5:
                state.had_snapshot = !state.had_snapshot;
                state.slot = static_cast<Slot>(random.Below(100));
                break;
              case 6:
                state.drifting = !state.drifting;
                break;
              case 7:
                state.causes.Set(static_cast<FreshnessCause>(random.Below(kFreshnessCauseCount)),
                                 random.Below(2) == 0);
                break;
              case 8:
                state.spec.kv_capacity_tokens = random.Below(2) * 1000 * random.Below(5);
                break;
              case 9:
                state.spec.prefill_tokens_per_s = static_cast<double>(random.Below(9000));
                break;
            }
          });
        }
      }
      // Not after every change: what several make stale is brought up to date at once.
      if (random.Below(3) == 0) continue;
      const std::span<const PickRow> rows = pool_->rows();
      ASSERT_EQ(std::vector<PickRow>(rows.begin(), rows.end()),
                PickRowsOf(pool_->targets(), pool_->peer_rates()))
          << "step " << step;
    }
  }
}

}  // namespace
}  // namespace warmpath
