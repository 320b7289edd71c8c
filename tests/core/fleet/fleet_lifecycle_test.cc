// Who is a candidate when: joining, ready, draining, not ready, lost; leases on a fake clock.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/fleet_harness.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Glance kExact{Lifecycle::kReady, Freshness::kExact, ""};

TEST(LifecycleTest, JoiningTargetsAreCandidatesWithNothingCredited) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w"));
  ASSERT_THAT(agent.Register(), IsOk());
  EXPECT_EQ(fleet.Look("w").lifecycle, Lifecycle::kJoining);
  EXPECT_TRUE(fleet.Eligible("w"));
  ASSERT_THAT(agent.Begin(), IsOk());
  ASSERT_THAT(agent.Chunk({1}), IsOk());
  EXPECT_EQ(fleet.CreditedDepth("w", {1}), 0u);
  ASSERT_THAT(agent.End(1, 1), IsOk());
  EXPECT_EQ(fleet.Look("w"), kExact);
  EXPECT_EQ(fleet.CreditedDepth("w", {1}), 1u);
}

TEST(LifecycleTest, Fault31_AWorkerWithoutEventsIsVisibleAsNone) {
  FleetHarness fleet;
  Registration registration = MakeRegistration("blind");
  registration.ranks[0].has_events = false;
  registration.ranks[0].engine_block_size = 0;
  TestAgent agent(*fleet, registration);
  ASSERT_THAT(agent.Register(), IsOk());
  EXPECT_THAT(agent.registered().snapshot_ranks, IsEmpty());
  EXPECT_EQ(fleet.Look("blind"), (Glance{Lifecycle::kReady, Freshness::kNone, ""}));
  EXPECT_FALSE(fleet.View("blind")->has_events);
  EXPECT_TRUE(fleet.Eligible("blind"));
  {
    const auto pool = fleet.PoolOf();
    absl::MutexLock lock(&pool->mu());
    EXPECT_EQ(pool->targets()[0].freshness(), Freshness::kNone) << "so each pick says it too";
  }
  EXPECT_THAT(agent.Delta({}, {1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has_events")));
  EXPECT_THAT(agent.Begin(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has_events")));
  // Its engine may restart, and its agent be gone, like any other's.
  fleet.Reserve("blind");
  ASSERT_THAT(agent.NewEpoch(200), IsOk());
  EXPECT_EQ(fleet.OpenReservations(), 0u);
  EXPECT_EQ(fleet.Look("blind"), (Glance{Lifecycle::kReady, Freshness::kNone, ""}));
  agent.Close();
  EXPECT_EQ(fleet.Look("blind"), (Glance{Lifecycle::kReady, Freshness::kNone, "agent_gone"}));
  // Events are switched on.
  agent.registration().ranks[0].has_events = true;
  agent.registration().ranks[0].engine_block_size = 16;
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1}), IsOk());
  EXPECT_EQ(fleet.Look("blind"), kExact);
}

TEST(LifecycleTest, Fault14_ADeadWorkersCreditEndsWithItsLease) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w"));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1, 2}), IsOk());
  fleet.Reserve("w");
  agent.Close();
  EXPECT_EQ(fleet.Look("w"), (Glance{Lifecycle::kReady, Freshness::kDegraded, "agent_gone"}));
  fleet.Pass(absl::Milliseconds(9999));
  EXPECT_TRUE(fleet.Eligible("w"));
  EXPECT_EQ(fleet.CreditedDepth("w", {1, 2}), 2u);
  EXPECT_EQ(fleet.OpenReservations(), 1u);
  fleet.Pass(absl::Milliseconds(1));
  EXPECT_EQ(fleet.Look("w"), (Glance{Lifecycle::kLost, Freshness::kNone, "agent_gone"}));
  EXPECT_FALSE(fleet.Eligible("w"));
  EXPECT_EQ(fleet.CreditedDepth("w", {1, 2}), 0u);
  MatchResult match;
  fleet.PoolOf()->index().Match(Hashes{1, 2}, &match);
  EXPECT_THAT(match.slots, IsEmpty());
  EXPECT_EQ(fleet.OpenReservations(), 0u);
  EXPECT_EQ(fleet.ClosedBy(CloseCause::kTargetLost), 1u);
  EXPECT_EQ(fleet->ListPools("")[0].index.pairs, 0u);
}

TEST(LifecycleTest, AnOpenStreamThatFallsSilentIsNoLongerExactAndThenLost) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w"));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1, 2}), IsOk());
  const Glance gone{Lifecycle::kReady, Freshness::kDegraded, "agent_gone"};
  for (int i = 0; i < 5; ++i) {
    fleet.Pass(absl::Milliseconds(5999));  // heartbeats are due every 2 s
    EXPECT_EQ(fleet.Look("w"), kExact);
    ASSERT_THAT(agent.Heartbeat({1, 2}), IsOk());
  }
  fleet.Pass(absl::Seconds(6));
  EXPECT_EQ(fleet.Look("w"), gone);
  // It was only slow.
  ASSERT_THAT(agent.Heartbeat({1, 2}), IsOk());
  EXPECT_EQ(fleet.Look("w"), kExact);
  fleet.Pass(absl::Milliseconds(5999));
  EXPECT_EQ(fleet.Look("w"), kExact);
  fleet.Pass(absl::Milliseconds(1));
  EXPECT_EQ(fleet.Look("w"), gone);
  fleet.Reserve("w");
  fleet.Pass(absl::Milliseconds(9999));
  EXPECT_EQ(fleet.Look("w"), gone);
  EXPECT_FALSE(agent.sink().closed().has_value());
  fleet.Pass(absl::Milliseconds(1));
  EXPECT_EQ(fleet.Look("w").lifecycle, Lifecycle::kLost);
  EXPECT_EQ(fleet.OpenReservations(), 0u);
  ASSERT_TRUE(agent.sink().closed().has_value());
  EXPECT_THAT(*agent.sink().closed(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("heartbeat")));
  EXPECT_THAT(agent.Heartbeat({1, 2}), StatusIs(absl::StatusCode::kUnavailable));
  // And comes back like any other.
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({3}), IsOk());
  EXPECT_EQ(fleet.Look("w"), kExact);
  fleet.Pass(absl::Seconds(6));
  EXPECT_EQ(fleet.Look("w"), gone);
}

TEST(LifecycleTest, ARouterThatWasHaltedItselfLosesNobody) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w"));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1}), IsOk());
  fleet.Pass(absl::Minutes(5));
  fleet.Pass(absl::Milliseconds(20));
  ASSERT_THAT(agent.Heartbeat({1}), IsOk());
  EXPECT_EQ(fleet.Look("w"), kExact);
}

TEST(LifecycleTest, ALostWorkerComesBackAsJoining) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w"));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1}), IsOk());
  const TargetId target = fleet.TargetOf("w");
  agent.Close();
  fleet.Pass(absl::Seconds(10));
  ASSERT_EQ(fleet.Look("w").lifecycle, Lifecycle::kLost);
  ASSERT_THAT(agent.Register(), IsOk());
  EXPECT_EQ(fleet.Look("w"), (Glance{Lifecycle::kJoining, Freshness::kNone, "resync"}));
  EXPECT_TRUE(fleet.Eligible("w"));
  EXPECT_EQ(fleet.TargetOf("w"), target);
  ASSERT_THAT(agent.Snapshot({2}), IsOk());
  EXPECT_EQ(fleet.Look("w"), kExact);
  EXPECT_THAT(fleet.Dump("w"), ElementsAre(2));
  // A LOST worker is shown for a while, then forgotten.
  agent.Close();
  fleet.Pass(absl::Seconds(10));
  fleet.Pass(absl::Minutes(10) - absl::Milliseconds(1));
  EXPECT_TRUE(fleet.View("w").has_value());
  fleet.Pass(absl::Milliseconds(1));
  EXPECT_FALSE(fleet.View("w").has_value());
  EXPECT_EQ(fleet.TargetOf("w"), kNoTarget);
}

TEST(LifecycleTest, AReconnectWithinTheLeaseKeepsTheSlot) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w"));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1, 2}, 5), IsOk());
  fleet.Reserve("w");
  for (int i = 0; i < 3; ++i) {  // a worker that flaps
    agent.Close();
    fleet.Pass(absl::Seconds(6));
    ASSERT_THAT(agent.Register(), IsOk());
    EXPECT_EQ(fleet.Look("w"), (Glance{Lifecycle::kReady, Freshness::kDegraded, "resync"}));
    EXPECT_EQ(fleet.CreditedDepth("w", {1, 2}), 2u);
  }
  // Each loss starts a lease of its own.
  agent.Close();
  fleet.Pass(absl::Milliseconds(9999));
  EXPECT_EQ(fleet.Look("w").lifecycle, Lifecycle::kReady);
  EXPECT_EQ(fleet.OpenReservations(), 1u);
  ASSERT_THAT(agent.Register(), IsOk());
  fleet.Pass(absl::Seconds(11));
  ASSERT_THAT(agent.Snapshot({2}, 9), IsOk());
  EXPECT_EQ(fleet.Look("w"), kExact);
}

TEST(LifecycleTest, AnUnreachableEngineIsNoCandidateAndKeepsItsCache) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w"));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1}), IsOk());
  fleet.Reserve("w");
  ASSERT_THAT(agent.State({}, /*reachable=*/false), IsOk());
  EXPECT_EQ(fleet.Look("w"), (Glance{Lifecycle::kNotReady, Freshness::kExact, ""}));
  EXPECT_FALSE(fleet.Eligible("w"));
  EXPECT_THAT(fleet.Dump("w"), ElementsAre(1));
  EXPECT_EQ(fleet.OpenReservations(), 1u);
  ASSERT_THAT(agent.State({}, true), IsOk());
  EXPECT_EQ(fleet.Look("w"), kExact);
  EXPECT_TRUE(fleet.Eligible("w"));
  // The new process is reachable: its agent has met it.
  ASSERT_THAT(agent.State({}, false), IsOk());
  ASSERT_THAT(agent.NewEpoch(200), IsOk());
  EXPECT_THAT(fleet.Dump("w"), IsEmpty());
  EXPECT_TRUE(fleet.Eligible("w"));
}

TEST(LifecycleTest, ADrainedWorkerGetsNoPicksUntilUndone) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w"));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1}), IsOk());
  fleet.Reserve("w");
  fleet.Reserve("w");
  EXPECT_THAT(fleet->Drain("nobody", false),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'nobody'")));
  const auto open = fleet->Drain("w", false);
  ASSERT_THAT(open, IsOk());
  EXPECT_EQ(*open, 2u);
  EXPECT_EQ(fleet.Look("w"), (Glance{Lifecycle::kDraining, Freshness::kExact, ""}));
  EXPECT_FALSE(fleet.Eligible("w"));
  EXPECT_EQ(fleet.OpenReservations(), 2u) << "open ones run";
  ASSERT_EQ(agent.sink().All<DrainReply>().size(), 1u);
  EXPECT_TRUE(agent.sink().All<DrainReply>()[0].on);
  // It survives a reconnect, and the agent is told again.
  ASSERT_THAT(agent.Register(), IsOk());
  EXPECT_EQ(agent.sink().All<DrainReply>().size(), 1u);
  EXPECT_EQ(fleet.Look("w").lifecycle, Lifecycle::kDraining);
  ASSERT_THAT(fleet->Drain("w", true), IsOk());
  EXPECT_FALSE(agent.sink().All<DrainReply>()[1].on);
  EXPECT_EQ(fleet.Look("w").lifecycle, Lifecycle::kReady);
  EXPECT_TRUE(fleet.Eligible("w"));
}

TEST(ReadyTest, WhenEveryTargetHasItsSnapshot) {
  FleetHarness fleet;
  EXPECT_FALSE(fleet->Ready());
  TestAgent a(*fleet, MakeRegistration("a", 2));
  TestAgent b(*fleet, MakeRegistration("b"));
  ASSERT_THAT(a.Register(), IsOk());
  ASSERT_THAT(b.Register(), IsOk());
  ASSERT_THAT(a.Snapshot({1}), IsOk());
  ASSERT_THAT(b.Snapshot({1}), IsOk());
  EXPECT_FALSE(fleet->Ready());
  ASSERT_THAT(a.Snapshot({1}, 0, 1), IsOk());
  EXPECT_TRUE(fleet->Ready());
  // It stays true.
  TestAgent c(*fleet, MakeRegistration("c"));
  ASSERT_THAT(c.Register(), IsOk());
  EXPECT_TRUE(fleet->Ready());
}

TEST(ReadyTest, FiveSecondsAfterTheFirstRegister) {
  FleetHarness fleet;
  fleet.Pass(absl::Seconds(2));
  TestAgent a(*fleet, MakeRegistration("a"));
  ASSERT_THAT(a.Register(), IsOk());
  fleet.Pass(absl::Seconds(3));
  ASSERT_THAT(a.Register(), IsOk());
  fleet.Pass(absl::Milliseconds(1999));
  EXPECT_FALSE(fleet->Ready());
  fleet.clock().Advance(absl::Milliseconds(1));
  EXPECT_TRUE(fleet->Ready());
}

TEST(ReadyTest, TenSecondsAfterTheStart) {
  FleetHarness fleet;
  fleet.Pass(absl::Milliseconds(9999));
  EXPECT_FALSE(fleet->Ready());
  fleet.clock().Advance(absl::Milliseconds(1));
  EXPECT_TRUE(fleet->Ready());
}

TEST(ReadyTest, WorkersWithoutEventsOweNothing) {
  FleetHarness fleet;
  Registration registration = MakeRegistration("a");
  registration.ranks[0].has_events = false;
  TestAgent a(*fleet, registration);
  ASSERT_THAT(a.Register(), IsOk());
  EXPECT_TRUE(fleet->Ready());
}

TEST(DumpTest, NamesWhatIsNotThereAndKeepsSourcesApart) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w", 2));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1}, 3), IsOk());
  Hashes hashes;
  EXPECT_THAT(fleet->Dump("x", 0, Tier::kGpu, KnowledgeSource::kEvents, &hashes),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("worker_id: 'x'")));
  EXPECT_THAT(fleet->Dump("w", 2, Tier::kGpu, KnowledgeSource::kEvents, &hashes),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("has no rank 2, it has 0..1")));
  {
    const TargetId target = fleet.TargetOf("w");
    const auto pool = fleet.PoolOf();
    absl::MutexLock lock(&pool->mu());
    Reservation reservation;
    reservation.target = target;
    reservation.prompt_tokens = 130;
    const std::vector<ChainHash> chain = {1, 2};
    pool->ledger().Open(reservation, chain, fleet.clock().Now());
    pool->ledger().LearnPredicted(target, Hashes{1, 5});
  }
  const auto dump = [&fleet](KnowledgeSource source) {
    Hashes found;
    EXPECT_THAT(fleet->Dump("w", 0, Tier::kGpu, source, &found), IsOk());
    std::sort(found.begin(), found.end());
    return found;
  };
  EXPECT_THAT(dump(KnowledgeSource::kEvents), ElementsAre(1));
  EXPECT_THAT(dump(KnowledgeSource::kInFlight), ElementsAre(1, 2));
  EXPECT_THAT(dump(KnowledgeSource::kPredicted), ElementsAre(1, 5));
  const PoolView view = fleet->ListPools("llama")[0];
  EXPECT_EQ(view.inflight_blocks, 2u);
  EXPECT_EQ(view.predicted_blocks, 2u);
  EXPECT_EQ(view.open_reservations, 1u);
  EXPECT_EQ(view.index.pairs, 1u);
  EXPECT_EQ(fleet.View("w")->inflight, 1u);
  EXPECT_EQ(fleet.View("w")->prefill_tokens_per_s, 8000);
}

}  // namespace
}  // namespace warmpath::testing
