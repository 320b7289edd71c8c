// How long a pick holds its pool's mutex, at the size that pick_bench states: 64 targets, a million
// indexed blocks, 10,000 reservations open with chains of 125 blocks of their own, each pick
// followed by its outcome. No server: this measures core alone.
//
//   lock_hold_bench [--open=10000] [--blocks=125] [--targets=64] [--indexed=1000000]
//   [--picks=200000]
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "core/base/clock.h"
#include "core/base/random.h"
#include "core/index/index.h"
#include "core/routing/picker.h"
#include "tests/core/routing/pools_only.h"

ABSL_FLAG(std::uint32_t, open, 10'000, "reservations open throughout");
ABSL_FLAG(std::uint32_t, blocks, 125, "blocks per prompt");
ABSL_FLAG(std::uint32_t, shared, 16, "of them shared with the other prompts of one of 16 heads");
ABSL_FLAG(std::uint32_t, targets, 64, "targets of the pool");
ABSL_FLAG(std::uint32_t, indexed, 1'000'000, "blocks in the index");
ABSL_FLAG(std::uint32_t, picks, 200'000, "picks to measure");
ABSL_FLAG(bool, events, true, "targets have events; otherwise finished chains become PREDICTED");

ABSL_FLAG(bool, wall, false, "measure wall time");

namespace warmpath {
namespace {

constexpr std::uint32_t kBlockSize = 16;

class ThreadCpuClock final : public Clock {
 public:
  absl::Time Now() const override {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return absl::TimeFromTimespec(now);
  }
  absl::Time WallNow() const override { return SystemClock().WallNow(); }
};

// Prompts with a head of their own kind and a tail that nobody else has.
class Prompts {
 public:
  Prompts(std::uint32_t blocks, std::uint32_t shared) : blocks_(blocks), shared_(shared) {}

  std::vector<ChainHash> Next(Random& random) const {
    std::vector<ChainHash> chain(blocks_);
    Random head(random.Below(16) + 1);
    for (std::uint32_t i = 0; i < blocks_; ++i) chain[i] = i < shared_ ? head() : random();
    return chain;
  }

 private:
  const std::uint32_t blocks_;
  const std::uint32_t shared_;
};

int Main() {
  const std::uint32_t targets = absl::GetFlag(FLAGS_targets);
  const Prompts prompts(absl::GetFlag(FLAGS_blocks), absl::GetFlag(FLAGS_shared));
  Random random(1);
  PoolConfig config;
  config.name = "bench";
  const auto pool = std::make_shared<Pool>(config, CreateIndex({}), 1, 1u << 20, 0);
  testing::PoolsOnly fleet;
  fleet.Add(pool);
  {
    absl::MutexLock lock(&pool->mu());
    pool->FixBlockSize(kBlockSize);
  }
  std::vector<Slot> slots;
  for (std::uint32_t t = 0; t < targets; ++t) {
    TargetState state;
    state.worker_id = absl::StrCat("worker-", t, ".inference.example");
    state.spec.address = absl::StrCat("10.0.", t / 256, ".", t % 256, ":8000");
    state.spec.kv_capacity_tokens = 350'000;
    state.spec.prefill_tokens_per_s = 20'000;
    state.spec.has_events = absl::GetFlag(FLAGS_events);
    state.lifecycle = Lifecycle::kReady;
    state.had_snapshot = true;
    state.slot = pool->index().OpenSlot().value();
    slots.push_back(state.slot);
    absl::MutexLock lock(&pool->mu());
    pool->AddTarget(std::move(state));
  }
  // Prompts that engines hold; picks repeat them.
  std::vector<std::vector<ChainHash>> known;
  for (std::uint64_t blocks = 0; blocks < absl::GetFlag(FLAGS_indexed);) {
    known.push_back(prompts.Next(random));
    blocks += known.back().size();
    pool->index().Apply(slots[random.Below(slots.size())], Tier::kGpu, {}, known.back());
  }
  // Whole chains only.
  for (const Slot slot : slots) pool->index().SetMayHaveHoles(slot, false);
  const ThreadCpuClock cpu_clock;
  const Clock& clock = absl::GetFlag(FLAGS_wall) ? SystemClock() : cpu_clock;
  Picker picker(&clock);
  const auto pick = [&](const std::vector<ChainHash>& chain) {
    Query query;
    query.chain = chain;
    query.prompt_tokens = chain.size() * kBlockSize;
    query.lease = absl::Hours(1);
    const absl::StatusOr<Decision> decision = picker.Pick(*pool, query);
    return decision.ok() ? decision->reservation_id : 0;
  };
  for (std::uint32_t i = 0; i < absl::GetFlag(FLAGS_open); ++i) pick(prompts.Next(random));
  const HistogramSnapshot opening = picker.LockHold();
  Picker measured(&clock);
  const absl::Time start = clock.Now();
  const std::uint32_t picks = absl::GetFlag(FLAGS_picks);
  for (std::uint32_t i = 0; i < picks; ++i) {
    // Half of them repeat what an engine holds, half are new.
    const std::vector<ChainHash> chain =
        i % 2 == 0 ? known[random.Below(known.size())] : prompts.Next(random);
    Query query;
    query.chain = chain;
    query.prompt_tokens = chain.size() * kBlockSize;
    const absl::StatusOr<Decision> decision = measured.Pick(*pool, query);
    if (!decision.ok()) {
      std::fprintf(stderr, "%s\n", std::string(decision.status().message()).c_str());
      return 1;
    }
    if (!measured.ReportOutcome(fleet, {.reservation_id = decision->reservation_id}).ok()) return 1;
    if (i % 100 == 0) {
      absl::MutexLock lock(&pool->mu());
      pool->ledger().Tick(clock.Now());
    }
  }
  const double seconds = absl::ToDoubleSeconds(clock.Now() - start);
  const HistogramSnapshot hold = measured.LockHold();
  std::uint64_t in_flight = 0;
  {
    absl::MutexLock lock(&pool->mu());
    in_flight = pool->ledger().InFlightBlocks();
  }
  std::printf("opening: p50 <= %.1f us, p99 <= %.1f us\n", opening.Quantile(0.5) * 1e6,
              opening.Quantile(0.99) * 1e6);
  std::printf(
      "pick with its outcome: %.2f us in all; under the mutex mean %.2f us, p50 <= %.1f us, "
      "p99 <= %.1f us, p99.9 <= %.1f us; %llu overlay entries\n",
      seconds * 1e6 / picks, hold.sum * 1e6 / static_cast<double>(hold.Count()),
      hold.Quantile(0.5) * 1e6, hold.Quantile(0.99) * 1e6, hold.Quantile(0.999) * 1e6,
      static_cast<unsigned long long>(in_flight));
  return 0;
}

}  // namespace
}  // namespace warmpath

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return warmpath::Main();
}
