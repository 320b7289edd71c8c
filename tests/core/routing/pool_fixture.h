// One pool with targets that a test describes, and a picker on it: no streams, no fleet logic.
#ifndef WARMPATH_TESTS_CORE_ROUTING_POOL_FIXTURE_H_
#define WARMPATH_TESTS_CORE_ROUTING_POOL_FIXTURE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/fleet/pool.h"
#include "core/index/index.h"
#include "core/routing/picker.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pools_only.h"
#include "tests/testing/fake_clock.h"

namespace warmpath::testing {

struct TargetOptions {
  std::string worker_id;  // empty: "w<number>"
  std::string address;    // empty: "10.0.0.<number>:8000"
  Rank rank = 0;
  std::uint64_t kv_capacity_tokens = 350'000;
  bool has_events = true;
  double hint = 20'000;  // 16,000 tokens/s in use
  std::vector<std::string> loras;
  Lifecycle lifecycle = Lifecycle::kReady;
};

class PoolFixture : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlock = 64;

  explicit PoolFixture(PoolConfig config = DefaultConfig(), std::uint64_t seed = 1)
      : picker_(&clock_) {
    Rebuild(std::move(config), seed, CreateReferenceIndex({}));
  }
  ~PoolFixture() override {
    absl::MutexLock lock(&pool_->mu());
    const auto closed = pool_->ledger().closed();
    EXPECT_EQ(
        pool_->ledger().opened() - std::accumulate(closed.begin(), closed.end(), std::uint64_t{0}),
        pool_->ledger().open());
    EXPECT_EQ(pool_->pick_state().not_finite, 0u);
  }

  static PoolConfig DefaultConfig() {
    PoolConfig config;
    config.name = "m";
    return config;
  }

  // A fresh pool; the old one, its targets and reservations are gone.
  void Rebuild(PoolConfig config, std::uint64_t seed, std::unique_ptr<Index> index) {
    pool_ = std::make_shared<Pool>(std::move(config), std::move(index), seed, 1u << 20, 0);
    fleet_ = std::make_unique<PoolsOnly>();
    fleet_->Add(pool_);
    next_target_ = 0;
    absl::MutexLock lock(&pool_->mu());
    pool_->FixBlockSize(kBlock);
  }

  TargetId AddTarget(const TargetOptions& options = {}) {
    TargetState state;
    state.worker_id =
        options.worker_id.empty() ? absl::StrCat("w", next_target_) : options.worker_id;
    state.spec.address =
        options.address.empty() ? absl::StrCat("10.0.0.", next_target_, ":8000") : options.address;
    ++next_target_;
    state.spec.rank = options.rank;
    state.spec.epoch = 1;
    state.spec.kv_capacity_tokens = options.kv_capacity_tokens;
    state.spec.has_events = options.has_events;
    state.spec.prefill_tokens_per_s = options.hint;
    state.loras = options.loras;
    state.lifecycle = options.lifecycle;
    if (options.lifecycle != Lifecycle::kJoining && options.has_events) {
      state.had_snapshot = true;
      state.slot = pool_->index().OpenSlot().value();
    }
    absl::MutexLock lock(&pool_->mu());
    return pool_->AddTarget(std::move(state));
  }
  void AddTargets(int n, const TargetOptions& options = {}) {
    for (int i = 0; i < n; ++i) AddTarget(options);
  }

  template <typename F>
  void EditTarget(TargetId target, F edit) {
    absl::MutexLock lock(&pool_->mu());
    pool_->Edit(target, edit);
  }

  // The target's engine says that it holds these blocks.
  void Store(TargetId target, const std::vector<ChainHash>& hashes, Tier tier = Tier::kGpu) {
    pool_->index().Apply(SlotOf(target), tier, {}, hashes);
  }
  void Evict(TargetId target, const std::vector<ChainHash>& hashes) {
    pool_->index().Apply(SlotOf(target), Tier::kGpu, hashes, {});
  }
  Slot SlotOf(TargetId target) {
    absl::MutexLock lock(&pool_->mu());
    return pool_->targets()[target].slot;
  }
  Freshness FreshnessOf(TargetId target) {
    absl::MutexLock lock(&pool_->mu());
    return pool_->targets()[target].freshness();
  }
  TargetLoad LoadOf(TargetId target) {
    absl::MutexLock lock(&pool_->mu());
    return pool_->ledger().Load(target, clock_.Now());
  }
  void Tick() {
    absl::MutexLock lock(&pool_->mu());
    while (pool_->ledger().Tick(clock_.Now())) {
    }
  }

  // Load that no pick made: a reservation with this wait and these tokens in the KV cache.
  ReservationId Occupy(TargetId target, double prefill_s, const std::vector<ChainHash>& chain = {},
                       std::uint64_t tokens = 0) {
    Reservation r;
    r.target = target;
    r.prefill_s = prefill_s;
    r.prompt_tokens = tokens > 0 ? tokens : chain.size() * kBlock;
    absl::MutexLock lock(&pool_->mu());
    return pool_->ledger().Open(std::move(r), chain, clock_.Now());
  }

  // Blocks `first`, `first` + 1, ...: enough like chain hashes for one prompt each.
  static std::vector<ChainHash> Chain(ChainHash first, std::size_t blocks) {
    std::vector<ChainHash> chain(blocks);
    std::iota(chain.begin(), chain.end(), first);
    return chain;
  }
  // Queries borrow their chains: these live as long as the test.
  Query Ask(std::vector<ChainHash> chain, std::uint64_t tokens = 0) {
    Query query;
    query.chain = chains_.emplace_back(std::move(chain));
    query.prompt_tokens = tokens > 0 ? tokens : query.chain.size() * kBlock;
    return query;
  }
  absl::StatusOr<Decision> Pick(const Query& query, absl::Duration* retry_after = nullptr) {
    return picker_.Pick(*pool_, query, retry_after);
  }
  // Where a pick goes, by worker id; its reservation stays open.
  std::string Where(const Query& query) {
    absl::StatusOr<Decision> decision = Pick(query);
    return decision.ok() ? decision->endpoint.worker_id : std::string(decision.status().message());
  }
  absl::Status Report(const Outcome& outcome) { return picker_.ReportOutcome(*fleet_, outcome); }

  FakeClock clock_;
  Picker picker_;
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<PoolsOnly> fleet_;
  int next_target_ = 0;
  std::deque<std::vector<ChainHash>> chains_;
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CORE_ROUTING_POOL_FIXTURE_H_
