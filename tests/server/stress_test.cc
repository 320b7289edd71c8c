// Everything at once, without gRPC in between: workers join, stream and leave, picks and outcomes
// run, streams end, time passes, operators look. tests/core/fleet/fleet_stress_test.cc does the
// like under ThreadSanitizer.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/base/random.h"
#include "core/fleet/fleet.h"
#include "core/routing/picker.h"
#include "gtest/gtest.h"
#include "server/ext_proc/stats.h"
#include "server/metrics.h"
#include "server/pick_handler.h"
#include "server/status_page.h"
#include "tests/server/test_router.h"

namespace warmpath::testing {
namespace {

constexpr int kWriters = 4;
constexpr int kPickers = 3;
constexpr int kJoins = 30;
constexpr int kPicks = 400;

class SessionSink final : public FeedSink {
 public:
  void Send(FeedReply reply) override {
    absl::MutexLock lock(&mu_);
    if (const auto* registered = std::get_if<RegisteredReply>(&reply)) {
      session_ = registered->session;
    }
  }
  void Close(absl::Status) override {}
  SessionId session() const {
    absl::MutexLock lock(&mu_);
    return session_;
  }

 private:
  mutable absl::Mutex mu_;
  SessionId session_ ABSL_GUARDED_BY(mu_) = 0;
};

Registration WorkerNamed(int writer, Epoch epoch) {
  Registration r;
  r.agent_instance = std::string(16, static_cast<char>('a' + writer));
  r.worker_id = absl::StrCat("worker-", writer);
  r.model = std::string("m-") + "1";
  r.ranks = {{.rank = 0,
              .address = absl::StrCat("10.0.0.1:", 8000 + writer),
              .epoch = epoch,
              .engine_block_size = 64,
              .kv_capacity_tokens = 1'000'000,
              .has_events = true}};
  return r;
}

// One life of one worker: register, snapshot, deltas, go.
void LiveOnce(Fleet& fleet, int writer, int life) {
  const Epoch epoch = 1 + static_cast<Epoch>(life) / 2;  // every other life is the same engine
  auto sink = std::make_shared<SessionSink>();
  auto feed = fleet.Register(WorkerNamed(writer, epoch), "stress", sink);
  ASSERT_TRUE(feed.ok()) << feed.status();
  const SessionId session = sink->session();
  std::uint64_t seq = 0;
  const std::vector<std::uint64_t> chain = ChainOf(0, 64 * 20, 64);
  std::uint64_t all = 0;
  for (const std::uint64_t hash : chain) all ^= hash;
  ASSERT_TRUE(
      (*feed)->OnUpdate(session, SnapshotBeginUpdate{.delta_seq = ++seq, .epoch = epoch}).ok());
  ASSERT_TRUE(
      (*feed)->OnUpdate(session, SnapshotChunkUpdate{.delta_seq = ++seq, .hashes = chain}).ok());
  ASSERT_TRUE((*feed)
                  ->OnUpdate(session, SnapshotEndUpdate{.delta_seq = ++seq,
                                                        .engine_seq = 1,
                                                        .count = chain.size(),
                                                        .xor_of_hashes = all})
                  .ok());
  for (int i = 0; i < 20; ++i) {
    const std::vector<ChainHash> one = {chain[static_cast<std::size_t>(i) % chain.size()]};
    CacheDeltaUpdate delta{.delta_seq = ++seq, .engine_seq = seq};
    (i % 2 == 0 ? delta.removed : delta.stored) = one;
    ASSERT_TRUE((*feed)->OnUpdate(session, delta).ok());
    ASSERT_TRUE((*feed)->OnUpdate(session, LoadUpdate{.running = 1, .kv_usage = 0.1}).ok());
  }
  (*feed)->OnClosed();
}

void PickMany(PickHandler& handler, int picker, std::atomic<int>& answered) {
  const HolderId holder = static_cast<HolderId>(picker) + 1;
  Random random(static_cast<std::uint64_t>(picker));
  // On, beyond the count, until anybody was answered: threads may start late.
  for (int i = 0; i < kPicks || (answered == 0 && i < 10'000'000); ++i) {
    v1::PickRequest request = TokenPick(0, 64 + random.Below(1280));
    request.set_model(std::string("m-") + "1");
    v1::PickResponse response;
    const PickResult result = handler.Pick(request, i % 2 == 0 ? holder : 0, true, &response);
    if (!result.status.ok()) continue;  // e.g. nobody is ready at this moment
    ++answered;
    v1::OutcomeRequest outcome;
    outcome.set_reservation_id(response.reservation_id());
    outcome.set_kind(v1::OUTCOME_KIND_FIRST_TOKEN);
    (void)handler.Report(outcome);
    outcome.set_kind(v1::OUTCOME_KIND_FINISHED);
    outcome.set_actual_cached_tokens(64);
    if (i % 4 != 0) (void)handler.Report(outcome);
    if (i % 50 == 0) handler.ReleaseHolder(holder, i % 100 == 0 ? "0123456789abcdef" : "");
    if (i % 100 == 99) handler.AdoptHolder("0123456789abcdef", holder);
  }
  handler.ReleaseHolder(holder, "");
}

TEST(StressTest, PicksEventsJoinsLeavesAndOperators) {
  FleetConfig config;
  config.worker_lease = absl::Milliseconds(100);
  auto fleet = Fleet::Create(config, &SystemClock(), 3);
  ASSERT_TRUE(fleet.ok()) << fleet.status();
  Picker picker(&SystemClock());
  PickHandler handler(fleet->get(), &picker, &SystemClock(), {}, 4);
  const ExtProcStats ext_proc;
  RouterMetrics metrics({.fleet = fleet->get(),
                         .pick_seconds = [&] { return handler.PickSeconds(); },
                         .lock_hold_seconds = [&] { return picker.LockHold(); },
                         .worker_streams = [] { return std::size_t{0}; },
                         .pick_streams = [] { return std::size_t{0}; },
                         .ext_proc_streams = [] { return std::size_t{0}; },
                         .ext_proc = &ext_proc,
                         .heavy_queue = [] { return std::size_t{0}; }});
  std::atomic<bool> stop{false};
  std::atomic<int> answered{0};
  std::thread ticker([&] {
    while (!stop) {
      (*fleet)->Tick();
      (*fleet)->MaintainIndexes(1000);
      std::this_thread::yield();
    }
  });
  std::thread operators([&] {
    while (!stop) {
      (void)metrics.Collect();
      (void)StatusPage((*fleet)->ListPools(""), (*fleet)->ListWorkers(""), (*fleet)->Ready(), 100);
      std::vector<ChainHash> hashes;
      (void)(*fleet)->Dump("worker-0", 0, Tier::kGpu, KnowledgeSource::kEvents, &hashes);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      for (int life = 0; life < kJoins || (answered == 0 && life < 100'000); ++life) {
        LiveOnce(**fleet, writer, life);
      }
    });
  }
  for (int i = 0; i < kPickers; ++i) {
    threads.emplace_back([&, i] { PickMany(handler, i, answered); });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  ticker.join();
  operators.join();
  EXPECT_GT(answered, 0);
  for (const PoolTraffic& traffic : TrafficOf(**fleet)) {
    std::uint64_t closed = 0;
    for (const auto& [cause, count] : traffic.closed_by_cause) closed += count;
    EXPECT_EQ(traffic.reservations_opened, closed + traffic.reservations_open);
    EXPECT_EQ(traffic.not_finite, 0u);
  }
}

}  // namespace
}  // namespace warmpath::testing
