// Picks, outcomes, events, joins, leaves, streams that end and ticks, all at once on one pool. What
// is checked at the end is that nothing was lost or counted twice; run it under ThreadSanitizer.
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "core/index/index.h"
#include "core/routing/picker.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pools_only.h"
#include "tests/testing/fake_clock.h"

namespace warmpath {
namespace {

constexpr std::uint32_t kBlock = 16;
constexpr int kPickers = 4;
constexpr int kWriters = 4;
constexpr int kPicksEach = 1500;

std::vector<ChainHash> AnyChain(Random& random) {
  std::vector<ChainHash> chain(1 + random.Below(40));
  ChainHash hash = 1 + random.Below(4);
  for (ChainHash& block : chain) {
    block = hash;
    hash = hash * 0x9e3779b97f4a7c15ULL + random.Below(2);
  }
  return chain;
}

class Stress {
 public:
  Stress() : pool_(std::make_shared<Pool>(Config(), CreateIndex({}), 1, 1u << 20, 0)) {
    fleet_.Add(pool_);
    absl::MutexLock lock(&pool_->mu());
    pool_->FixBlockSize(kBlock);
  }

  void Join(const std::string& worker, bool has_events) {
    TargetState state;
    state.worker_id = worker;
    state.spec.address = absl::StrCat(worker, ":8000");
    state.spec.kv_capacity_tokens = 100'000;
    state.spec.has_events = has_events;
    state.lifecycle = Lifecycle::kReady;
    state.had_snapshot = has_events;
    if (has_events) state.slot = pool_->index().OpenSlot().value();
    absl::MutexLock lock(&pool_->mu());
    pool_->AddTarget(std::move(state));
  }

  // A worker leaves with all that is open there, and comes back as another process.
  void Churn() {
    for (int round = 0; !done_.load() && round < 100'000; ++round) {
      const std::string worker = absl::StrCat("w", round % 2);
      Slot slot = kNoSlot;
      {
        absl::MutexLock lock(&pool_->mu());
        for (TargetId t = 0; t < pool_->targets().size(); ++t) {
          if (!pool_->targets()[t].in_use || pool_->targets()[t].worker_id != worker) continue;
          slot = pool_->targets()[t].slot;
          pool_->RemoveTarget(t, clock_.Now());
        }
      }
      if (slot != kNoSlot) pool_->index().CloseSlot(slot);
      Join(worker, round % 3 != 0);
      std::this_thread::yield();
    }
  }

  void WriteEvents(int writer) {
    Random random(100 + static_cast<std::uint64_t>(writer));
    const Slot slot = pool_->index().OpenSlot().value();
    for (int i = 0; !done_.load() && i < 1'000'000; ++i) {
      const std::vector<ChainHash> chain = AnyChain(random);
      // A hash at most once per message.
      const std::set<ChainHash> distinct(chain.begin(), chain.end());
      const std::vector<ChainHash> hashes(distinct.begin(), distinct.end());
      if (random.Below(2) == 0) {
        pool_->index().Apply(slot, Tier::kGpu, {}, hashes);
      } else {
        pool_->index().Apply(slot, Tier::kGpu, hashes, {});
      }
    }
    pool_->index().CloseSlot(slot);
  }

  void PickAndReport(int picker) {
    Random random(static_cast<std::uint64_t>(picker) + 1);
    const HolderId holder = static_cast<HolderId>(picker % 2 == 0 ? 0 : picker);
    const std::vector<std::string_view> policies = PolicyNames();
    std::vector<ReservationId> mine;
    for (int i = 0; i < kPicksEach; ++i) {
      const std::vector<ChainHash> chain = AnyChain(random);
      Query query;
      query.chain = chain;
      query.prompt_tokens = chain.size() * kBlock + random.Below(kBlock);
      query.raw_text = "text";
      query.policy = policies[random.Below(policies.size())];
      query.holder = holder;
      query.explain = random.Below(16) == 0;
      const std::string request = absl::StrCat("r", random.Below(200));
      if (random.Below(4) == 0) query.request_id = request;
      const absl::StatusOr<Decision> decision = picker_.Pick(*pool_, query);
      if (decision.ok()) {
        mine.push_back(decision->reservation_id);
        picked_.fetch_add(1);
      }
      while (mine.size() > 20) {
        const std::size_t k = random.Below(mine.size());
        Outcome outcome{.reservation_id = mine[k]};
        if (random.Below(2) == 0) {
          outcome.kind = OutcomeKind::kFirstToken;
          picker_.ReportOutcome(fleet_, outcome).IgnoreError();
        }
        outcome.kind = random.Below(8) == 0 ? OutcomeKind::kFailed : OutcomeKind::kFinished;
        outcome.actual_cached_tokens = random.Below(600);
        outcome.output_tokens = random.Below(100);
        if (random.Below(8) == 0) outcome.served_by = "w3:8000";
        picker_.ReportOutcome(fleet_, outcome).IgnoreError();
        mine[k] = mine.back();
        mine.pop_back();
      }
      if (holder != 0 && random.Below(300) == 0) {
        picker_.ReleaseHolder(fleet_, holder, "client");
        picker_.AdoptHolder(fleet_, "client", holder);
      }
      clock_.Advance(absl::Milliseconds(1));
    }
    if (holder != 0) picker_.ReleaseHolder(fleet_, holder, "");
  }

  void Tick() {
    for (int i = 0; !done_.load() && i < 10'000'000; ++i) {
      {
        absl::MutexLock lock(&pool_->mu());
        pool_->ledger().Tick(clock_.Now());
        for (TargetId t = 0; t < pool_->targets().size(); ++t) {
          pool_->ledger().OnEngineLoad(
              t, {.running = 1, .waiting = 0, .kv_usage = 0, .as_of = clock_.Now()}, clock_.Now());
        }
      }
      pool_->index().Maintain(1000);
      TrafficOf(fleet_);
      PickCountsOf(fleet_);
      picker_.LockHold();
      std::this_thread::yield();
    }
  }

  void Run() {
    for (int i = 0; i < 5; ++i) Join(absl::StrCat("w", i), i % 2 == 0);
    std::vector<std::thread> background;
    background.emplace_back([this] { Churn(); });
    background.emplace_back([this] { Tick(); });
    for (int i = 0; i < kWriters; ++i) background.emplace_back([this, i] { WriteEvents(i); });
    std::vector<std::thread> pickers;
    for (int i = 0; i < kPickers; ++i) pickers.emplace_back([this, i] { PickAndReport(i); });
    for (std::thread& thread : pickers) thread.join();
    done_.store(true);
    for (std::thread& thread : background) thread.join();

    EXPECT_EQ(picked_.load(), static_cast<std::uint64_t>(kPickers) * kPicksEach);
    CheckPaired();
    // What is still open is held by leases; they end, and so does what lingers.
    clock_.Advance(absl::Seconds(121));
    {
      absl::MutexLock lock(&pool_->mu());
      while (pool_->ledger().Tick(clock_.Now())) {
      }
      clock_.Advance(absl::Seconds(1));
      while (pool_->ledger().Tick(clock_.Now())) {
      }
      EXPECT_EQ(pool_->ledger().open(), 0u);
      EXPECT_EQ(pool_->ledger().InFlightBlocks(), 0u);
      EXPECT_EQ(pool_->pick_state().not_finite, 0u);
      for (TargetId t = 0; t < pool_->targets().size(); ++t) {
        const TargetLoad load = pool_->ledger().Load(t, clock_.Now());
        EXPECT_EQ(load.own_inflight, 0u);
      }
    }
    CheckPaired();
  }

 private:
  static PoolConfig Config() {
    PoolConfig config;
    config.name = "m";
    return config;
  }
  void CheckPaired() {
    absl::MutexLock lock(&pool_->mu());
    const auto closed = pool_->ledger().closed();
    EXPECT_EQ(pool_->ledger().opened(), picked_.load());
    EXPECT_EQ(
        pool_->ledger().opened() - std::accumulate(closed.begin(), closed.end(), std::uint64_t{0}),
        pool_->ledger().open());
  }

  testing::FakeClock clock_;
  std::shared_ptr<Pool> pool_;
  testing::PoolsOnly fleet_;
  Picker picker_{&clock_};
  std::atomic<bool> done_{false};
  std::atomic<std::uint64_t> picked_{0};
};

TEST(PickerStressTest, Fault19_NothingLeaksWhileWorkersFlap) {
  Stress stress;
  stress.Run();
}

// One authority per pool: picks that come at the same moment see each other.
TEST(PickerStressTest, Fault21_ConcurrentPicksDoNotHerd) {
  testing::FakeClock clock;
  PoolConfig config;
  config.name = "m";
  const auto pool = std::make_shared<Pool>(config, CreateIndex({}), 1, 1u << 20, 0);
  {
    absl::MutexLock lock(&pool->mu());
    pool->FixBlockSize(kBlock);
    for (int i = 0; i < 8; ++i) {
      TargetState state;
      state.worker_id = absl::StrCat("w", i);
      state.spec.prefill_tokens_per_s = 20'000;
      state.spec.kv_capacity_tokens = 350'000;
      state.lifecycle = Lifecycle::kReady;
      pool->AddTarget(std::move(state));
    }
  }
  Picker picker(&clock);
  std::vector<ChainHash> chain(512);
  std::iota(chain.begin(), chain.end(), ChainHash{1});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        Query query;
        query.chain = chain;
        query.prompt_tokens = chain.size() * kBlock;
        EXPECT_TRUE(picker.Pick(*pool, query).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  absl::MutexLock lock(&pool->mu());
  EXPECT_EQ(pool->ledger().open(), 200u);
  for (TargetId t = 0; t < 8; ++t) {
    const std::uint32_t inflight = pool->ledger().Load(t, clock.Now()).inflight;
    EXPECT_GE(inflight, 15u);
    EXPECT_LE(inflight, 35u);
  }
}

}  // namespace
}  // namespace warmpath
