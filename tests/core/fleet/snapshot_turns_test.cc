#include "core/fleet/snapshot_turns.h"

#include <memory>

#include "core/fleet/worker_record.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/fleet_harness.h"

namespace warmpath::testing {
namespace {

using ::testing::SizeIs;

FleetConfig OneTurn() {
  FleetConfig config;
  config.max_concurrent_snapshots = 1;
  return config;
}

class SnapshotTurnsTest : public ::testing::Test {
 protected:
  SnapshotTurnsTest()
      : context_(OneTurn(), &clock_),
        entry_(std::make_shared<PoolEntry>(std::make_shared<Pool>(
            PoolConfig{.name = "llama", .aliases = {}}, CreateIndex({}), 1, 100, 0))) {
    absl::MutexLock lock(&entry_->pool->mu());
    entry_->pool->FixBlockSize(64);
  }
  std::shared_ptr<WorkerRecord> MakeRecord(const std::string& id) {
    return std::make_shared<WorkerRecord>(id, entry_, &context_, 1);
  }
  void Attach(WorkerRecord& record, std::size_t ranks, SessionId session) {
    absl::MutexLock lock(&record.mu);
    record.Attach(MakeRegistration(record.id(), ranks), "peer", std::make_shared<RecordingSink>(),
                  session, clock_.Now());
  }
  void Detach(WorkerRecord& record, SessionId session) {
    absl::MutexLock lock(&record.mu);
    record.Detach(session, clock_.Now());
  }

  FakeClock clock_;
  FleetContext context_;
  std::shared_ptr<PoolEntry> entry_;
};

TEST_F(SnapshotTurnsTest, AStreamThatEndsLeavesNothingBehind) {
  const auto record = MakeRecord("w");
  for (SessionId session = 1; session <= 100; ++session) {
    Attach(*record, 3, session);
    EXPECT_THAT(context_.turns.Holders(), SizeIs(1));
    EXPECT_EQ(context_.turns.waiting(), 2u);
    if (session % 2 == 0) continue;  // superseded
    Detach(*record, session);
    EXPECT_THAT(context_.turns.Holders(), SizeIs(0));
    EXPECT_EQ(context_.turns.waiting(), 0u);
  }
}

TEST_F(SnapshotTurnsTest, ATurnThatComesTooLateIsGivenBack) {
  const auto first = MakeRecord("first");
  const auto second = MakeRecord("second");
  const auto third = MakeRecord("third");
  Attach(*first, 1, 1);
  Attach(*second, 1, 2);
  Attach(*third, 1, 3);
  Detach(*first, 1);
  // The turn is on its way to the second when its stream ends.
  const std::optional<RankRef> next = context_.turns.TakeNext();
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->record, second);
  EXPECT_EQ(context_.turns.TakeNext(), std::nullopt) << "one at a time";
  Detach(*second, 2);
  {
    absl::MutexLock lock(&second->mu);
    EXPECT_FALSE(second->GrantTurn(next->rank, clock_.Now()));
  }
  context_.turns.Release(*next);
  PumpTurns(context_);
  ASSERT_THAT(context_.turns.Holders(), SizeIs(1));
  EXPECT_EQ(context_.turns.Holders()[0].record, third);
}

}  // namespace
}  // namespace warmpath::testing
