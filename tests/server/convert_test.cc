#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/convert_admin.h"
#include "server/convert_feed.h"
#include "server/convert_pick.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ConvertPickTest, QueryCarriesEveryField) {
  v1::PickRequest r;
  r.set_session_key("s");
  r.set_tenant("t");
  r.set_prefix_aware_id("caf\xc3\xa9 1");
  r.set_subset_present(true);
  r.add_subset("10.0.0.1");
  r.add_exclude("w1");
  r.set_priority(-3);
  r.set_expected_output_tokens(9);
  r.set_request_id("id");
  r.set_reservation_lease_ms(3'600'000);
  r.set_max_wait_ms(250);
  r.set_policy("random");
  r.set_explain(true);
  Query q;
  ASSERT_THAT(QueryFromProto(r, &q), IsOk());
  EXPECT_EQ(q.session_key, "s");
  EXPECT_EQ(q.tenant, "t");
  EXPECT_EQ(q.prefix_aware_id, "caf\xc3\xa9 1");
  EXPECT_TRUE(q.subset_present);
  EXPECT_THAT(q.subset, ElementsAre("10.0.0.1"));
  EXPECT_THAT(q.exclude, ElementsAre("w1"));
  EXPECT_EQ(q.priority, -3);
  EXPECT_EQ(q.expected_output_tokens, 9u);
  EXPECT_EQ(q.request_id, "id");
  EXPECT_EQ(q.lease, absl::Hours(1));
  EXPECT_EQ(q.max_wait, absl::Milliseconds(250));
  EXPECT_EQ(q.policy, "random");
  EXPECT_TRUE(q.explain);
}

TEST(ConvertPickTest, BadFieldsAreNamed) {
  const auto error = [](auto change) {
    v1::PickRequest r;
    change(r);
    Query q;
    return QueryFromProto(r, &q);
  };
  EXPECT_THAT(error([](auto& r) { r.set_reservation_lease_ms(3'600'001); }),
              StatusIs(kInvalid, HasSubstr("reservation_lease_ms: is 3600001: send at most")));
  EXPECT_THAT(error([](auto& r) { r.set_request_id(std::string(257, 'x')); }),
              StatusIs(kInvalid, HasSubstr("request_id: has 257 bytes")));
  EXPECT_THAT(error([](auto& r) { r.add_subset("a"); }),
              StatusIs(kInvalid, HasSubstr("subset_present")));
  for (const std::string& id : {std::string(65, 'a'), std::string(" a"), std::string("a\tb")}) {
    EXPECT_THAT(error([&](auto& r) { r.set_prefix_aware_id(id); }),
                StatusIs(kInvalid, HasSubstr("prefix_aware_id")));
  }
}

TEST(ConvertPickTest, OutcomeCarriesOnlyWhatWasSent) {
  v1::OutcomeRequest r;
  EXPECT_THAT(OutcomeFromProto(r), StatusIs(kInvalid, HasSubstr("reservation_id")));
  r.set_reservation_id(5);
  EXPECT_THAT(OutcomeFromProto(r), StatusIs(kInvalid, HasSubstr("kind")));
  r.set_kind(static_cast<v1::OutcomeKind>(77));
  EXPECT_THAT(OutcomeFromProto(r), StatusIs(kInvalid, HasSubstr("kind")));
  r.set_kind(v1::OUTCOME_KIND_FIRST_TOKEN);
  auto outcome = OutcomeFromProto(r);
  ASSERT_THAT(outcome, IsOk());
  EXPECT_EQ(outcome->kind, OutcomeKind::kFirstToken);
  EXPECT_FALSE(outcome->actual_cached_tokens.has_value());
  EXPECT_FALSE(outcome->ttft.has_value());
  r.set_actual_cached_tokens(0);
  r.set_ttft_ms(12.5);
  outcome = OutcomeFromProto(r);
  EXPECT_EQ(outcome->actual_cached_tokens, 0u);
  EXPECT_EQ(outcome->ttft, absl::Microseconds(12'500));
  r.set_ttft_ms(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(OutcomeFromProto(r), StatusIs(kInvalid, HasSubstr("ttft_ms")));
}

TEST(ConvertPickTest, DecisionsShowMillisecondsAndTheRankHeader) {
  Decision d;
  d.endpoint = {.worker_id = "w", .rank = 3, .address = "h:1", .needs_rank_header = true};
  d.fallbacks = {{.worker_id = "x", .rank = 0, .address = "h:2"}};
  d.reservation_id = 8;
  d.prompt_tokens = 100;
  d.predicted_ttft_s = 0.25;
  d.freshness = Freshness::kDegraded;
  d.causes.Set(FreshnessCause::kGap);
  d.explanation.push_back({.endpoint = d.endpoint, .wait_s = 0.5, .excluded = "draining"});
  d.notes = {"note"};
  v1::PickResponse r;
  DecisionToProto(d, false, true, &r);
  EXPECT_EQ(r.endpoint().headers().at("X-data-parallel-rank"), "3");
  EXPECT_EQ(r.fallbacks(0).headers_size(), 0);
  EXPECT_EQ(r.predicted_ttft_ms(), 250);
  EXPECT_EQ(r.freshness(), v1::FRESHNESS_DEGRADED);
  EXPECT_EQ(r.freshness_cause(), v1::FRESHNESS_CAUSE_GAP);
  EXPECT_EQ(r.prompt_tokens(), 100u);
  EXPECT_EQ(r.explanation().candidates(0).wait_ms(), 500);
  EXPECT_EQ(r.explanation().candidates(0).excluded(), "draining");
  EXPECT_THAT(r.explanation().notes(), ElementsAre("note"));
  v1::PickResponse estimated;
  DecisionToProto(d, true, false, &estimated);
  EXPECT_EQ(estimated.prompt_tokens(), 0u) << "an estimate is not shown as a length";
  EXPECT_FALSE(estimated.has_explanation());
}

TEST(ConvertFeedTest, EnumsOfCoreAreThoseOfTheWire) {
  EXPECT_EQ(FreshnessToProto(Freshness::kNone), v1::FRESHNESS_NONE);
  EXPECT_EQ(FreshnessToProto(Freshness::kExact), v1::FRESHNESS_EXACT);
  CauseSet drift;
  drift.Set(FreshnessCause::kDrift);
  EXPECT_EQ(CauseToProto(drift), v1::FRESHNESS_CAUSE_DRIFT);
  EXPECT_EQ(CauseToProto({}), v1::FRESHNESS_CAUSE_UNSPECIFIED);
  EXPECT_EQ(TierFromProto(v1::TIER_UNSPECIFIED, "t").value(), Tier::kGpu);
  EXPECT_EQ(TierFromProto(v1::TIER_EXTERNAL, "t").value(), Tier::kExternal);
  EXPECT_THAT(TierFromProto(static_cast<v1::Tier>(5), "t"), StatusIs(kInvalid, HasSubstr("t: 5")));
  EXPECT_THAT(TierFromProto(static_cast<v1::Tier>(-1), "t"), StatusIs(kInvalid));
}

TEST(ConvertFeedTest, DeltasAreBorrowedNotCopied) {
  v1::WorkerUpdate update;
  v1::CacheDelta* m = update.mutable_delta();
  m->set_delta_seq(4);
  m->set_rank(1);
  m->set_tier(v1::TIER_HOST);
  m->add_removed(1);
  m->add_stored(2);
  m->add_stored(3);
  m->set_engine_seq(9);
  FeedUpdate result;
  ASSERT_THAT(FeedUpdateFromProto(update, &result), IsOk());
  const auto* delta = std::get_if<CacheDeltaUpdate>(&result);
  ASSERT_NE(delta, nullptr);
  EXPECT_EQ(delta->stored.data(), m->stored().data());
  EXPECT_THAT(delta->stored, ElementsAre(2u, 3u));
  EXPECT_THAT(delta->removed, ElementsAre(1u));
  EXPECT_EQ(delta->tier, Tier::kHost);
  EXPECT_FALSE(delta->engine_seq.has_value()) << "engine_seq_valid is not set";
  m->set_engine_seq_valid(true);
  ASSERT_THAT(FeedUpdateFromProto(update, &result), IsOk());
  EXPECT_EQ(std::get<CacheDeltaUpdate>(result).engine_seq, 9u);
}

TEST(ConvertFeedTest, WhoSaysNothingOfHolesMayHaveSome) {
  v1::WorkerUpdate update;
  update.mutable_delta()->add_stored(1);
  FeedUpdate result;
  ASSERT_THAT(FeedUpdateFromProto(update, &result), IsOk());
  EXPECT_FALSE(std::get<CacheDeltaUpdate>(result).no_holes);
  update.mutable_delta()->set_no_holes(true);
  ASSERT_THAT(FeedUpdateFromProto(update, &result), IsOk());
  EXPECT_TRUE(std::get<CacheDeltaUpdate>(result).no_holes);
  update.mutable_snapshot_end()->set_count(3);
  ASSERT_THAT(FeedUpdateFromProto(update, &result), IsOk());
  EXPECT_FALSE(std::get<SnapshotEndUpdate>(result).no_holes);
  update.mutable_snapshot_end()->set_no_holes(true);
  ASSERT_THAT(FeedUpdateFromProto(update, &result), IsOk());
  EXPECT_TRUE(std::get<SnapshotEndUpdate>(result).no_holes);
}

TEST(ConvertFeedTest, RankStateKeepsPlainLabelsOnly) {
  v1::WorkerUpdate update;
  v1::RankState* m = update.mutable_rank_state();
  m->add_causes(v1::FRESHNESS_CAUSE_SILENT);
  m->set_event_lag_s(std::numeric_limits<double>::quiet_NaN());
  (*m->mutable_skipped())["unknown_parent"] = 2;
  (*m->mutable_skipped())["evil\"} 1\n"] = 3;
  (*m->mutable_skipped())[std::string(65, 'a')] = 4;
  FeedUpdate result;
  ASSERT_THAT(FeedUpdateFromProto(update, &result), IsOk());
  const auto& state = std::get<RankStateUpdate>(result);
  EXPECT_TRUE(state.causes.Has(FreshnessCause::kSilent));
  EXPECT_EQ(state.event_lag_s, 0);
  EXPECT_THAT(state.skipped, ElementsAre(Pair("unknown_parent", 2u)));
  m->add_causes(static_cast<v1::FreshnessCause>(10));
  EXPECT_THAT(FeedUpdateFromProto(update, &result), StatusIs(kInvalid, HasSubstr("causes: 10")));
}

TEST(ConvertFeedTest, BadValuesAreNamed) {
  FeedUpdate result;
  v1::WorkerUpdate update;
  EXPECT_THAT(FeedUpdateFromProto(update, &result), StatusIs(kInvalid, HasSubstr("empty")));
  update.mutable_load()->set_kv_usage(1.5);
  EXPECT_THAT(FeedUpdateFromProto(update, &result), StatusIs(kInvalid, HasSubstr("load.kv_usage")));
  update.mutable_load()->set_kv_usage(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(FeedUpdateFromProto(update, &result), StatusIs(kInvalid));
  for (int i = 0; i < 4097; ++i) update.mutable_snapshot_chunk()->add_hashes(1);
  EXPECT_THAT(FeedUpdateFromProto(update, &result), StatusIs(kInvalid, HasSubstr("4097 hashes")));
  v1::Register big;
  big.set_worker_id(std::string(300'000, 'w'));
  EXPECT_THAT(RegistrationFromProto(big), StatusIs(kInvalid, HasSubstr("register: has")));
  v1::Register hint;
  hint.add_ranks()->set_prefill_tokens_per_s(-1);
  EXPECT_THAT(RegistrationFromProto(hint),
              StatusIs(kInvalid, HasSubstr("ranks[0].prefill_tokens_per_s")));
  v1::Register copy;
  copy.add_ranks()->set_host_copy_tokens_per_s(1e12);
  EXPECT_THAT(RegistrationFromProto(copy),
              StatusIs(kInvalid, HasSubstr("ranks[0].host_copy_tokens_per_s")));
  copy.mutable_ranks(0)->set_host_copy_tokens_per_s(90'000);
  const auto registration = RegistrationFromProto(copy);
  ASSERT_THAT(registration, IsOk());
  EXPECT_EQ(registration->ranks[0].host_copy_tokens_per_s, 90'000);
}

TEST(ConvertAdminTest, WorkersShowCausesWithRemedies) {
  WorkerView worker;
  worker.worker_id = "w";
  worker.labels = {{"zone", "a"}};
  TargetView target;
  target.lifecycle = Lifecycle::kReady;
  target.freshness = Freshness::kDegraded;
  target.causes.Set(FreshnessCause::kGap);
  target.causes.Set(FreshnessCause::kDrift);
  target.engine_seq = 12;
  target.wait_s = 0.1;
  target.blocks = {10, 0, 4, 0};
  worker.targets = {target};
  v1::WorkerInfo m;
  WorkerToProto(worker, absl::UnixEpoch(), &m);
  ASSERT_EQ(m.targets_size(), 1);
  const v1::TargetInfo& t = m.targets(0);
  EXPECT_EQ(t.lifecycle(), v1::LIFECYCLE_READY);
  ASSERT_EQ(t.causes_size(), 2);
  EXPECT_EQ(t.causes(0).cause(), v1::FRESHNESS_CAUSE_GAP);
  EXPECT_FALSE(t.causes(0).remedy().empty());
  EXPECT_TRUE(t.engine_seq_valid());
  EXPECT_EQ(t.wait_ms(), 100);
  EXPECT_EQ(t.report_age_s(), -1);
  ASSERT_EQ(t.blocks_size(), 2);
  EXPECT_EQ(t.blocks(1).tier(), v1::TIER_DISK);
  EXPECT_EQ(m.labels().at("zone"), "a");
}

}  // namespace
}  // namespace warmpath
