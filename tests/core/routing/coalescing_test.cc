// Bursts of one new prompt: they fan out over an idle pool and stay together in a busy one, both
// only because each pick sees the ones before it. Constants of a 32B model on two H100.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pool_fixture.h"

namespace warmpath {
namespace {

constexpr int kTargets = 8;
constexpr int kSeeds = 100;
constexpr std::size_t kBlocks = 128;  // 8,192 tokens

class CoalescingTest : public testing::PoolFixture {
 protected:
  void Start(std::uint64_t seed) {
    Rebuild(DefaultConfig(), seed, CreateReferenceIndex({}));
    AddTargets(kTargets, {.kv_capacity_tokens = 350'000, .hint = 20'000});
  }

  // How many of `picks` picks of one cold prompt each target gets, without time passing.
  std::vector<int> Burst(int picks) {
    const std::vector<ChainHash> chain = Chain(1'000'000, kBlocks);
    std::map<std::string, int> counts;
    for (int i = 0; i < picks; ++i) ++counts[Where(Ask(chain))];
    std::vector<int> result;
    for (const auto& [worker, count] : counts) result.push_back(count);
    return result;
  }

  // rho = 0.75, and W = 1 s and X = 150,000 tokens on every target.
  void MakeBusy() {
    // Twenty requests have finished, so that the pool's own averages count: o = 256, R = 10 s.
    std::vector<ReservationId> warm;
    for (int i = 0; i < 20; ++i) warm.push_back(Occupy(0, 0));
    clock_.Advance(absl::Seconds(10));
    for (const ReservationId id : warm) Finish(id, 256);
    // Six of eight targets busy for so long that rho is theirs.
    std::vector<ReservationId> busy;
    for (TargetId t = 0; t < 6; ++t) busy.push_back(Occupy(t, 1));
    Tick();
    clock_.Advance(absl::Seconds(1200));
    Tick();
    for (const ReservationId id : busy) {
      absl::MutexLock lock(&pool_->mu());
      pool_->ledger().Close(id, CloseCause::kFailed, clock_.Now(), {});
    }
    for (TargetId t = 0; t < kTargets; ++t) {
      Occupy(t, 1, {}, 150'000 - 256);
      EXPECT_EQ(LoadOf(t).wait_s, 1);
      EXPECT_EQ(LoadOf(t).kv_tokens, 150'000u);
    }
    absl::MutexLock lock(&pool_->mu());
    EXPECT_NEAR(pool_->ledger().Averages().rho, 0.75, 1e-9);
    EXPECT_EQ(pool_->ledger().Averages().output_tokens, 256);
  }

  void Finish(ReservationId id, std::uint64_t output) {
    absl::MutexLock lock(&pool_->mu());
    pool_->ledger().Close(id, CloseCause::kFinished, clock_.Now(), output);
  }
};

TEST_F(CoalescingTest, AnIdlePoolFansABurstOut) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Start(seed);
    const std::vector<int> counts = Burst(200);
    ASSERT_EQ(counts.size(), static_cast<std::size_t>(kTargets));
    EXPECT_GE(*std::min_element(counts.begin(), counts.end()), 15);
    EXPECT_LE(*std::max_element(counts.begin(), counts.end()), 35);
  }
}

TEST_F(CoalescingTest, Fault20_ABusyPoolKeepsABurstTogether) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Start(seed);
    MakeBusy();
    EXPECT_LE(Burst(16).size(), 2u);
    Start(seed);
    MakeBusy();
    EXPECT_LE(Burst(200).size(), 4u);
  }
}

TEST_F(CoalescingTest, Fault20_ThePickItselfIsRemembered) {
  Start(1);
  MakeBusy();
  const std::vector<ChainHash> chain = Chain(1'000'000, kBlocks);
  const absl::StatusOr<Decision> first = Pick(Ask(chain));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->reason, "no_prefix");
  EXPECT_EQ(first->predicted_cached_tokens, 0u);
  const absl::StatusOr<Decision> second = Pick(Ask(chain));
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->endpoint.worker_id, first->endpoint.worker_id);
  EXPECT_EQ(second->reason, "prefix");
  EXPECT_EQ(second->predicted_cached_tokens, 8191u);
}

}  // namespace
}  // namespace warmpath
