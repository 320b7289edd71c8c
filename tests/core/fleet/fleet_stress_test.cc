// Streams that join, change, snapshot, restart and leave on several threads, beside ticks, dumps,
// scrapes, picks and drains. For ThreadSanitizer; and each agent checks that its own worker, which
// nobody else writes, is what it made it whenever it says EXACT.
#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/fleet_harness.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {
namespace {

constexpr int kWriters = 4;
constexpr int kAgentsPerWriter = 3;
constexpr int kSteps = 250;

ChainHash HashOf(std::uint64_t i) { return (i + 1) * 0x9e3779b97f4a7c15ull; }

class StressAgent {
 public:
  StressAgent(FleetHarness& fleet, std::string id, std::uint64_t seed)
      : fleet_(fleet), id_(std::move(id)), random_(seed), agent_(*fleet, MakeRegistration(id_)) {}

  std::uint64_t checked = 0;

  void Step() {
    if (!agent_.connected()) {
      if (random_.Unit() < 0.1) NewEpoch();
      ASSERT_THAT(agent_.Register(), IsOk());
      wants_snapshot_ = !agent_.registered().snapshot_ranks.empty();
      return;
    }
    if (!agent_.sink().TakeResyncs().empty()) wants_snapshot_ = true;
    const double dice = random_.Unit();
    if (dice < 0.02) {
      agent_.Close();
    } else if (dice < 0.04) {
      NewEpoch();
      ASSERT_THAT(agent_.NewEpoch(agent_.registration().ranks[0].epoch), IsOk());
    } else if (dice < 0.06) {
      held_.clear();
      ASSERT_THAT(agent_.Cleared(Tier::kGpu, ++seq_), IsOk());
    } else if (dice < 0.07) {
      agent_.Skip();
    } else if (dice < 0.2) {
      ASSERT_THAT(agent_.Heartbeat(Held(), seq_), IsOk());
      ASSERT_THAT(agent_.Send(LoadUpdate{.running = 1}), IsOk());
      ASSERT_THAT(agent_.State({}), IsOk());
    } else if (wants_snapshot_) {
      wants_snapshot_ = false;
      ASSERT_THAT(agent_.Snapshot(Held(), seq_), IsOk());
    } else {
      Change();
    }
    Check();
  }

 private:
  Hashes Held() const { return Hashes(held_.begin(), held_.end()); }

  void NewEpoch() {
    ++agent_.registration().ranks[0].epoch;
    held_.clear();
    seq_ = 0;
  }

  void Change() {
    Hashes removed;
    Hashes stored;
    const std::uint64_t first = random_.Below(500);
    for (std::uint64_t i = first; i < first + 1 + random_.Below(60); ++i) {
      const ChainHash hash = HashOf(i);
      if (held_.erase(hash) > 0) {
        removed.push_back(hash);
      } else {
        held_.insert(hash);
        stored.push_back(hash);
      }
    }
    ASSERT_THAT(agent_.Delta(removed, stored, ++seq_), IsOk());
  }

  void Check() {
    DumpHeader header;
    const Hashes dumped = fleet_.Dump(id_, Tier::kGpu, 0, &header);
    if (!agent_.connected() || header.freshness != Freshness::kExact || header.engine_seq != seq_) {
      return;
    }
    ++checked;
    ASSERT_EQ(dumped, Held()) << id_;
  }

  FleetHarness& fleet_;
  const std::string id_;
  Random random_;
  TestAgent agent_;
  std::set<ChainHash> held_;
  std::uint64_t seq_ = 0;
  bool wants_snapshot_ = false;
};

TEST(FleetStressTest, ManyStreamsBesideEverythingElse) {
  FleetConfig config;
  config.max_concurrent_snapshots = 3;
  config.worker_lease = absl::Milliseconds(400);
  config.heartbeat = absl::Minutes(1);  // agents send none; time flies
  FleetHarness fleet(config);
  {
    // The pool is there before picks ask for it.
    TestAgent first(*fleet, MakeRegistration("first"));
    ASSERT_THAT(first.Register(), IsOk());
    ASSERT_THAT(first.Snapshot({}), IsOk());
    first.Close();
  }
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> checked{0};
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w) {
    writers.emplace_back([&fleet, &checked, w] {
      std::vector<std::unique_ptr<StressAgent>> agents;
      for (int a = 0; a < kAgentsPerWriter; ++a) {
        agents.push_back(std::make_unique<StressAgent>(fleet, absl::StrCat("w", w, "-", a),
                                                       static_cast<std::uint64_t>(w * 100 + a)));
      }
      for (int step = 0; step < kSteps; ++step) {
        for (const auto& agent : agents) {
          agent->Step();
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
      for (const auto& agent : agents) checked += agent->checked;
    });
  }
  std::vector<std::thread> others;
  others.emplace_back([&fleet, &stop] {
    while (!stop) {
      fleet.Pass(absl::Milliseconds(20));
      fleet->MaintainIndexes(2000);
    }
  });
  others.emplace_back([&fleet, &stop] {
    Random random(7);
    while (!stop) {
      fleet->ListWorkers("");
      fleet->ListPools("");
      fleet->Counters();
      fleet->Ready();
      fleet->Resolve("llama").IgnoreError();
      const std::string id = absl::StrCat("w", random.Below(kWriters), "-0");
      fleet->Drain(id, random.Below(2) == 0).IgnoreError();
      Hashes hashes;
      fleet->Dump(id, 0, Tier::kGpu, KnowledgeSource::kInFlight, &hashes).IgnoreError();
    }
  });
  others.emplace_back([&fleet, &stop] {
    Hashes chain;
    for (std::uint64_t i = 0; i < 40; ++i) chain.push_back(HashOf(i));
    const std::shared_ptr<Pool> pool = fleet.PoolOf();
    MatchResult match;
    while (!stop) {
      pool->index().Match(chain, &match);
      absl::MutexLock lock(&pool->mu());
      for (TargetId id = 0; id < pool->targets().size(); ++id) {
        const TargetState& target = pool->targets()[id];
        if (!target.eligible() || target.slot == kNoSlot) continue;
        pool->index().VerifiedGpuDepth(target.slot, chain, 0, chain.size());
        Reservation reservation;
        reservation.target = id;
        reservation.prompt_tokens = 40 * 64;
        const ReservationId opened = pool->ledger().Open(reservation, chain, fleet.clock().Now());
        if (id % 2 == 0) {
          pool->ledger().Close(opened, CloseCause::kFinished, fleet.clock().Now(), 10);
        }
      }
    }
  });
  for (std::thread& writer : writers) writer.join();
  stop = true;
  for (std::thread& other : others) other.join();
  EXPECT_GT(checked.load(), 200u) << "the faults must leave something to compare";
  const std::shared_ptr<Pool> pool = fleet.PoolOf();
  absl::MutexLock lock(&pool->mu());
  std::uint64_t closed = 0;
  for (const std::uint64_t count : pool->ledger().closed()) closed += count;
  EXPECT_EQ(pool->ledger().open(), pool->ledger().opened() - closed);
}

}  // namespace
}  // namespace warmpath::testing
