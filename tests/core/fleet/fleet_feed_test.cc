// One stream's updates: deltas, holes, audit, reports.
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/feed_fixture.h"
#include "tests/core/fleet/fleet_harness.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- Deltas

TEST_F(FeedTest, DeltasRemoveThenStore) {
  Start({1, 2, 3});
  ASSERT_THAT(agent_.Delta({2, 3}, {3, 4}, 11), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1, 3, 4));
  ASSERT_THAT(agent_.Delta({}, {7}, 12, Tier::kHost), IsOk());
  EXPECT_THAT(fleet_.Dump("w", Tier::kHost), ElementsAre(7));
  DumpHeader header;
  EXPECT_THAT(fleet_.Dump("w", Tier::kGpu, 0, &header), ElementsAre(1, 3, 4));
  EXPECT_EQ(header.engine_seq, 12u);
  EXPECT_EQ(header.freshness, Freshness::kExact);
  EXPECT_EQ(header.epoch, 100u);
  EXPECT_EQ(header.routing_block_size, 64u);
  const TargetView view = *fleet_.View("w");
  EXPECT_THAT(view.blocks, ElementsAre(3, 1, 0, 0));
  EXPECT_EQ(view.engine_seq, 12u);
  const FleetCounters counters = fleet_->Counters();
  EXPECT_EQ(counters.deltas_applied, 2u);
  EXPECT_EQ(counters.blocks_stored, 3u);
  EXPECT_EQ(counters.blocks_removed, 2u);
  EXPECT_EQ(counters.removed_missing, 0u);
}

TEST_F(FeedTest, RemovalsOfWhatIsNotThereAreCounted) {
  Start({1});
  ASSERT_THAT(agent_.Delta({8, 9}, {}, 11), IsOk());
  EXPECT_EQ(fleet_->Counters().removed_missing, 2u);
  EXPECT_EQ(fleet_.Look("w"), kExact);
}

TEST_F(FeedTest, AHashThatComesTwiceInOneMessageIsHeldOnce) {
  Start({});
  ASSERT_THAT(agent_.Delta({}, {5, 5, 6}, 11), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(5, 6));
  ASSERT_THAT(agent_.Heartbeat({5, 6}), IsOk());
  ASSERT_THAT(agent_.Delta({5, 5}, {}, 12), IsOk());
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(6));
  ASSERT_THAT(agent_.Heartbeat({6}), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
}

TEST_F(FeedTest, MessagesThatAreTooLargeOrMisaddressedEndTheStream) {
  Start({1});
  const Hashes half(2049, 7);
  EXPECT_THAT(agent_.Delta(half, Hashes(2048, 8)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("delta.removed and delta.stored: 4097 hashes"),
                             HasSubstr("at most 4096"))));
  EXPECT_THAT(agent_.Chunk(Hashes(4097, 7)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("snapshot_chunk.hashes: 4097 hashes")));
  EXPECT_THAT(agent_.Delta({}, {1}, 11, Tier::kGpu, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("delta.rank: 2 is not registered; worker 'w' has ranks 0..1")));
  EXPECT_THAT(agent_.Delta({}, {1}, 11, static_cast<Tier>(4)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("delta.tier: 4")));
  EXPECT_THAT(agent_.Send(HeartbeatUpdate{.delta_seq = 0,
                                          .digests = std::vector<HeartbeatUpdate::Digest>(9)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("heartbeat.digests: 9")));
  EXPECT_THAT(agent_.Send(LoadUpdate{.rank = 9}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("load.rank: 9")));
}

TEST_F(FeedTest, UpdatesOfAnotherSessionAreDroppedAndCounted) {
  Start({1});
  ASSERT_THAT(agent_.SendAs(agent_.session() + 1, CacheDeltaUpdate{.delta_seq = agent_.seq() + 1}),
              IsOk());
  ASSERT_THAT(agent_.SendAs(0, RankStateUpdate{.rank = 0, .engine_reachable = false}), IsOk());
  EXPECT_EQ(fleet_->Counters().updates_wrong_session, 2u);
  ASSERT_THAT(agent_.Delta({}, {2}, 11), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact) << "they made no hole";
}

TEST_F(FeedTest, ARepeatedDeltaSeqIsDroppedAndCounted) {
  Start({1});
  ASSERT_THAT(agent_.Delta({}, {2}, 11), IsOk());
  const Hashes removed = {1, 2};
  ASSERT_THAT(agent_.Send(CacheDeltaUpdate{
                  .delta_seq = agent_.seq(), .removed = removed, .engine_seq = 12}),
              IsOk());
  EXPECT_EQ(fleet_->Counters().updates_duplicate, 1u);
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1, 2));
  EXPECT_EQ(fleet_.Look("w"), kExact);
}

TEST_F(FeedTest, AcksAfter64MessagesOr100Milliseconds) {
  Start({});  // 6 messages
  for (int i = 0; i < 57; ++i) ASSERT_THAT(agent_.Delta({}, {}, 11), IsOk());
  EXPECT_THAT(agent_.sink().All<AckReply>(), IsEmpty());
  ASSERT_THAT(agent_.Delta({}, {}, 11), IsOk());
  ASSERT_EQ(agent_.sink().All<AckReply>().size(), 1u);
  EXPECT_EQ(agent_.sink().All<AckReply>()[0].delta_seq, 64u);
  ASSERT_THAT(agent_.Delta({}, {}, 11), IsOk());
  fleet_.Pass(absl::Milliseconds(100));
  ASSERT_EQ(agent_.sink().All<AckReply>().size(), 2u);
  EXPECT_EQ(agent_.sink().All<AckReply>()[1].delta_seq, 65u);
  ASSERT_THAT(agent_.Delta({}, {}, 11), IsOk());
  fleet_.Pass(absl::Milliseconds(99));
  EXPECT_EQ(agent_.sink().All<AckReply>().size(), 2u);
  fleet_.Pass(absl::Milliseconds(1));
  EXPECT_EQ(agent_.sink().All<AckReply>().size(), 3u);
  fleet_.Pass(absl::Seconds(1));
  EXPECT_EQ(agent_.sink().All<AckReply>().size(), 3u) << "nothing to acknowledge";
}

TEST_F(FeedTest, AStateBetweenTwoEngineSequencesClaimsNone) {
  Start({1}, 10);
  EXPECT_EQ(DumpedSeq(), 10u);
  // One engine batch in three messages: only the last names the sequence.
  ASSERT_THAT(agent_.Delta({}, {2}, 10), IsOk());
  EXPECT_EQ(DumpedSeq(), std::nullopt);
  ASSERT_THAT(agent_.Delta({}, {3}), IsOk());
  EXPECT_EQ(DumpedSeq(), std::nullopt);
  EXPECT_EQ(fleet_.View("w")->engine_seq, 10u);
  ASSERT_THAT(agent_.Delta({}, {4}, 11), IsOk());
  EXPECT_EQ(DumpedSeq(), 11u);
  // A heartbeat tells of events that changed nothing.
  ASSERT_THAT(agent_.Heartbeat({1, 2, 3, 4}, 17), IsOk());
  EXPECT_EQ(DumpedSeq(), 17u);
}

// ---- Holes

TEST_F(FeedTest, Fault02_AHoleIsNoticedAndHealedByASnapshot) {
  Start({1, 2});
  agent_.Skip();
  ASSERT_THAT(agent_.Delta({}, {3}, 12), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kResyncing);
  EXPECT_EQ(fleet_.Look("w", 1), kResyncing) << "whose message it was is not known";
  EXPECT_THAT(agent_.sink().TakeResyncs(), ElementsAre("gap@0", "gap@1"));
  // Until then the old slot serves on and takes what comes; a second hole asks no second time.
  agent_.Skip();
  ASSERT_THAT(agent_.Delta({}, {4}, 13), IsOk());
  EXPECT_THAT(agent_.sink().TakeResyncs(), IsEmpty());
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1, 2, 3, 4));
  ASSERT_THAT(agent_.Snapshot({2, 4}, 13), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(2, 4));
  EXPECT_EQ(fleet_.Look("w", 1), kResyncing);
}

TEST_F(FeedTest, AHeartbeatShowsThatTheLastMessageIsMissing) {
  Start({1});
  agent_.Skip();
  ASSERT_THAT(agent_.Heartbeat({1}), IsOk());
  EXPECT_THAT(agent_.sink().TakeResyncs(), ElementsAre("gap@0", "gap@1"));
  EXPECT_EQ(fleet_.Look("w"), kResyncing);
  ASSERT_THAT(agent_.Snapshot({1, 2}, 11), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
}

TEST_F(FeedTest, AHoleInsideASnapshotVoidsIt) {
  Start({1});
  ASSERT_THAT(agent_.Begin(), IsOk());
  agent_.Skip();
  ASSERT_THAT(agent_.Chunk({2}), IsOk());
  EXPECT_THAT(agent_.sink().TakeResyncs(), ElementsAre("gap@0", "gap@1"));
  ASSERT_THAT(agent_.End(1, 2, 11), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kResyncing);
  EXPECT_THAT(fleet_.Dump("w"), ElementsAre(1));
  EXPECT_EQ(fleet_->Counters().snapshots_failed, 1u);
}

// ---- Audit

TEST_F(FeedTest, AnAuditMismatchIsCountedAndHealed) {
  Start({1, 2});
  ASSERT_THAT(agent_.Heartbeat({1, 2}, 10), IsOk());
  EXPECT_EQ(fleet_->Counters().audit_failures, 0u);
  ASSERT_THAT(agent_.Heartbeat({1, 2, 3}, 10), IsOk());
  EXPECT_EQ(fleet_->Counters().audit_failures, 1u);
  EXPECT_EQ(fleet_->ListPools("llama")[0].audit_failures, 1u);
  EXPECT_THAT(agent_.sink().TakeResyncs(), ElementsAre("audit@0"));
  EXPECT_EQ(fleet_.Look("w"), kResyncing);
  EXPECT_EQ(fleet_.Look("w", 1), kExact) << "a rank that the heartbeat does not mention";
  // While it is being healed nothing is compared.
  ASSERT_THAT(agent_.Heartbeat({1, 2, 3}, 10), IsOk());
  EXPECT_EQ(fleet_->Counters().audit_failures, 1u);
  ASSERT_THAT(agent_.Snapshot({1, 2, 3}, 10), IsOk());
  ASSERT_THAT(agent_.Heartbeat({1, 2, 3}, 10), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
}

TEST_F(FeedTest, TheAuditComparesXorAndTiersThatAreNotMentioned) {
  Start({1, 2});
  ASSERT_THAT(agent_.Heartbeat({4, 8}), IsOk());
  EXPECT_EQ(fleet_->Counters().audit_failures, 1u) << "same count, other xor";
  ASSERT_THAT(agent_.Snapshot({1, 2}, 10), IsOk());
  ASSERT_THAT(agent_.Delta({}, {9}, 11, Tier::kDisk), IsOk());
  ASSERT_THAT(agent_.Heartbeat({1, 2}), IsOk());
  EXPECT_EQ(fleet_->Counters().audit_failures, 2u) << "the agent holds nothing on disk";
}

TEST_F(FeedTest, AHeartbeatOfAnEarlierStateIsNotCompared) {
  Start({1});
  const std::uint64_t before = agent_.seq();
  ASSERT_THAT(agent_.Delta({}, {2}, 11), IsOk());
  HeartbeatUpdate late{.delta_seq = before, .digests = {{.rank = 0, .count = 1}}};
  ASSERT_THAT(agent_.Send(late), IsOk());
  EXPECT_EQ(fleet_->Counters().audit_failures, 0u);
  EXPECT_EQ(fleet_.Look("w"), kExact);
}

// ---- Reports

TEST_F(FeedTest, CausesOfTheAgentAndOfTheRouterAddUp) {
  Start({1});
  CauseSet causes;
  causes.Set(FreshnessCause::kGap);
  causes.Set(FreshnessCause::kIndexFull);  // not the agent's to say
  causes.Set(FreshnessCause::kAgentGone);
  ASSERT_THAT(agent_.State(causes), IsOk());
  EXPECT_EQ(fleet_.Look("w"), (Glance{Lifecycle::kReady, Freshness::kDegraded, "gap"}));
  ASSERT_THAT(agent_.Begin(), IsOk());
  EXPECT_EQ(fleet_.Look("w"), (Glance{Lifecycle::kReady, Freshness::kDegraded, "resync,gap"}));
  ASSERT_THAT(agent_.End(0, 0, 12), IsOk());
  EXPECT_EQ(fleet_.Look("w"), (Glance{Lifecycle::kReady, Freshness::kDegraded, "gap"}));
  ASSERT_THAT(agent_.State({}), IsOk());
  EXPECT_EQ(fleet_.Look("w"), kExact);
  // Across a reconnect they stand until the agent speaks again; a new process starts without.
  ASSERT_THAT(agent_.State(causes), IsOk());
  ASSERT_THAT(agent_.Register(), IsOk());
  ASSERT_THAT(agent_.Snapshot({}, 12), IsOk());
  EXPECT_EQ(fleet_.Look("w").causes, "gap");
  ASSERT_THAT(agent_.NewEpoch(200), IsOk());
  EXPECT_EQ(fleet_.Look("w").causes, "resync");
}

TEST_F(FeedTest, LoadReportsReachTheLedger) {
  ASSERT_THAT(
      agent_.Send(LoadUpdate{
          .rank = 1, .running = 5, .waiting = 2, .kv_usage = 1.5, .age = absl::Milliseconds(30)}),
      IsOk());
  const TargetView view = *fleet_.View("w", 1);
  ASSERT_TRUE(view.load.has_value());
  EXPECT_EQ(view.load->running, 5u);
  EXPECT_EQ(view.load->waiting, 2u);
  EXPECT_EQ(view.load->kv_usage, 1.0);
  EXPECT_EQ(view.load->as_of, fleet_.clock().Now() - absl::Milliseconds(30));
  EXPECT_EQ(view.external_inflight, 7u);
  EXPECT_FALSE(fleet_.View("w", 0)->load.has_value());
  EXPECT_THAT(agent_.Send(LoadUpdate{.kv_usage = std::numeric_limits<double>::quiet_NaN()}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("load.kv_usage")));
}

TEST_F(FeedTest, CountsOfAgentsAreSummedAndNeverGoDown) {
  const auto report = [this](std::uint64_t stored, std::uint64_t bad, Rank rank = 0) {
    return agent_.Send(RankStateUpdate{.rank = rank,
                                       .event_lag_s = 0.25,
                                       .skipped = {{"bad", bad}},
                                       .events = {{"stored", stored}}});
  };
  ASSERT_THAT(report(10, 1), IsOk());
  ASSERT_THAT(report(25, 1), IsOk());
  ASSERT_THAT(report(5, 2, 1), IsOk());
  ASSERT_THAT(report(3, 0), IsOk()) << "the agent started again";
  using Counts = std::vector<std::pair<std::string, std::uint64_t>>;
  EXPECT_EQ(fleet_->Counters().events_by_kind, (Counts{{"stored", 33}}));
  EXPECT_EQ(fleet_->Counters().skipped_by_cause, (Counts{{"bad", 3}}));
  EXPECT_EQ(fleet_.View("w")->event_lag_s, 0.25);
  // Names come from outside.
  RankStateUpdate flood{.rank = 0};
  for (int i = 0; i < 1000; ++i) flood.events.emplace_back(absl::StrCat("k", i), 1);
  flood.events.emplace_back(std::string(1000, 'x'), 1);
  ASSERT_THAT(agent_.Send(flood), IsOk());
  const Counts sums = fleet_->Counters().events_by_kind;
  EXPECT_LE(sums.size(), 65u);
  std::uint64_t total = 0;
  for (const auto& [name, count] : sums) total += count;
  EXPECT_EQ(total, 33u + 1001u);
}

}  // namespace
}  // namespace warmpath::testing
