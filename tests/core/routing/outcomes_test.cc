// What outcomes do: close, move, renew, teach, heal, and find drift.
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/routing/picker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pool_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::StatusIs;

class OutcomesTest : public testing::PoolFixture {
 protected:
  ReservationId PickId(const Query& query) {
    const absl::StatusOr<Decision> decision = Pick(query);
    EXPECT_THAT(decision, IsOk());
    return decision.ok() ? decision->reservation_id : 0;
  }
  // A pick that believes in `predicted_blocks` and whose engine says that `actual` tokens hit.
  void Serve(const std::vector<ChainHash>& chain, std::uint64_t actual) {
    const ReservationId id = PickId(Ask(chain));
    ASSERT_THAT(Report({.reservation_id = id, .actual_cached_tokens = actual}), IsOk());
    clock_.Advance(absl::Seconds(1));  // past the overlay's linger
    Tick();
  }
  std::uint64_t Predicted(TargetId target) {
    absl::MutexLock lock(&pool_->mu());
    return pool_->ledger().PredictedBlocks(target);
  }
};

TEST_F(OutcomesTest, FinishedAndFailedCloseOnce) {
  AddTargets(1);
  const ReservationId finished = PickId(Ask(Chain(1, 2)));
  const ReservationId failed = PickId(Ask(Chain(1, 2)));
  EXPECT_THAT(Report({.reservation_id = finished}), IsOk());
  EXPECT_THAT(Report({.reservation_id = failed, .kind = OutcomeKind::kFailed}), IsOk());
  EXPECT_THAT(Report({.reservation_id = finished}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("reservation_id"), HasSubstr(absl::StrCat(finished)))));
  const PoolTraffic traffic = TrafficOf(*fleet_)[0];
  EXPECT_EQ(traffic.reservations_opened, 2u);
  EXPECT_EQ(traffic.reservations_open, 0u);
  const std::map<std::string, std::uint64_t> closed(traffic.closed_by_cause.begin(),
                                                    traffic.closed_by_cause.end());
  EXPECT_EQ(closed.at("finished"), 1u);
  EXPECT_EQ(closed.at("failed"), 1u);
  EXPECT_EQ(closed.at("lease_expired"), 0u);
}

TEST_F(OutcomesTest, UnknownIdsAreNotFound) {
  AddTargets(1);
  for (const ReservationId id :
       {ReservationId{0}, ReservationId{12345}, ~ReservationId{0}, ReservationId{7} << 48}) {
    EXPECT_THAT(Report({.reservation_id = id}), StatusIs(absl::StatusCode::kNotFound));
  }
}

TEST_F(OutcomesTest, AnyOutcomeRenewsTheLease) {
  AddTargets(1);
  Query query = Ask(Chain(1, 2));
  query.lease = absl::Seconds(10);
  const ReservationId id = PickId(query);
  for (const OutcomeKind kind : {OutcomeKind::kFirstToken, OutcomeKind::kProgress}) {
    clock_.Advance(absl::Seconds(9));
    Tick();
    EXPECT_THAT(Report({.reservation_id = id, .kind = kind}), IsOk());
  }
  clock_.Advance(absl::Seconds(10));
  Tick();
  EXPECT_THAT(Report({.reservation_id = id}), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(OutcomesTest, ServedByMovesTheReservation) {
  AddTargets(2);
  const std::vector<ChainHash> chain = Chain(1, 10);
  Store(0, chain);
  const ReservationId id = PickId(Ask(chain));
  EXPECT_EQ(LoadOf(0).inflight, 1u);
  EXPECT_THAT(
      Report(
          {.reservation_id = id, .kind = OutcomeKind::kFirstToken, .served_by = "10.0.0.1:8000"}),
      IsOk());
  EXPECT_EQ(LoadOf(0).inflight, 0u);
  EXPECT_EQ(LoadOf(1).inflight, 1u);
  // An address that nobody registered leaves it where it is.
  EXPECT_THAT(
      Report({.reservation_id = id, .kind = OutcomeKind::kProgress, .served_by = "10.9.9.9:1"}),
      IsOk());
  EXPECT_EQ(LoadOf(1).inflight, 1u);
}

TEST_F(OutcomesTest, AMissWhereARequestWasMovedIsNoDrift) {
  AddTargets(2);
  const std::vector<ChainHash> chain = Chain(1, 10);
  Store(0, chain);
  for (int i = 0; i < 30; ++i) {
    const ReservationId id = PickId(Ask(chain));
    ASSERT_THAT(Report({.reservation_id = id,
                        .served_by = "10.0.0.1:8000",
                        .actual_cached_tokens = std::uint64_t{0}}),
                IsOk());
  }
  EXPECT_EQ(FreshnessOf(0), Freshness::kExact);
  EXPECT_EQ(FreshnessOf(1), Freshness::kExact);
}

TEST_F(OutcomesTest, FirstTokensTeachTheRate) {
  AddTargets(1);
  Query query;
  query.prompt_tokens = 12'000;  // work 14,400
  for (int i = 0; i < 17; ++i) {
    const ReservationId id = PickId(query);
    clock_.Advance(absl::Seconds(1.2));
    ASSERT_THAT(Report({.reservation_id = id, .kind = OutcomeKind::kFirstToken}), IsOk());
    clock_.Advance(absl::Seconds(5));
    ASSERT_THAT(Report({.reservation_id = id}), IsOk());
  }
  EditTarget(0, [](TargetState& t) { EXPECT_NEAR(t.rate.tokens_per_s(), 12'000, 0.01); });
  EXPECT_NEAR(Pick(query)->predicted_ttft_s, 1.2, 1e-6);
}

TEST_F(OutcomesTest, ATimeToFirstTokenTeachesTheRateWhenNothingWaited) {
  AddTargets(1);
  Query query;
  query.prompt_tokens = 12'000;
  for (int i = 0; i < 16; ++i) {
    const ReservationId id = PickId(query);
    ASSERT_THAT(Report({.reservation_id = id, .ttft = absl::Seconds(1.2)}), IsOk());
  }
  // Behind five seconds of others it would say little.
  Occupy(0, 5);
  for (int i = 0; i < 20; ++i) {
    const ReservationId id = PickId(query);
    ASSERT_THAT(Report({.reservation_id = id, .ttft = absl::Seconds(6.2)}), IsOk());
  }
  EditTarget(0, [](TargetState& t) {
    EXPECT_EQ(t.rate.samples(), 16u);
    EXPECT_NEAR(t.rate.tokens_per_s(), 12'000, 0.01);
  });
}

TEST_F(OutcomesTest, Fault32_PredictedAndActualAreBothMeasured) {
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 10);
  Store(0, chain);
  Serve(chain, 600);
  Serve(chain, 639);
  const PoolTraffic traffic = TrafficOf(*fleet_)[0];
  EXPECT_EQ(traffic.predicted_cached_tokens, 2 * 639u);
  EXPECT_EQ(traffic.actual_cached_tokens, 600 + 639u);
  EXPECT_EQ(traffic.prompt_tokens, 2 * 640u);
}

TEST_F(OutcomesTest, MoreHitsThanKnownHealIntoPredicted) {
  AddTargets(2);
  const std::vector<ChainHash> chain = Chain(1, 10);
  Store(0, Chain(1, 3));
  Serve(chain, 6 * kBlock + 10);
  EXPECT_EQ(Predicted(0), 6u);
  const absl::StatusOr<Decision> decision = Pick(Ask(chain));
  EXPECT_EQ(decision->endpoint.worker_id, "w0");
  EXPECT_EQ(decision->predicted_cached_tokens, 6u * kBlock);
}

TEST_F(OutcomesTest, WhatTheIndexLearntMeanwhileNeedsNoHealing) {
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 10);
  const ReservationId id = PickId(Ask(chain));
  Store(0, Chain(1, 3));
  Store(0, Chain(4, 2), Tier::kHost);
  ASSERT_THAT(Report({.reservation_id = id, .actual_cached_tokens = 5 * kBlock}), IsOk());
  EXPECT_EQ(Predicted(0), 0u);
}

TEST_F(OutcomesTest, HealedKnowledgeThatProvesWrongIsForgotten) {
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 10);
  Serve(chain, 6 * kBlock);
  EXPECT_EQ(Predicted(0), 6u);
  Serve(chain, 0);
  EXPECT_EQ(Predicted(0), 0u);
}

TEST_F(OutcomesTest, HealingIsForTheEngineProcessThatServed) {
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 10);
  const ReservationId id = PickId(Ask(chain));
  {
    absl::MutexLock lock(&pool_->mu());
    pool_->ledger().ClearTarget(0, CloseCause::kNewEpoch, clock_.Now());
    pool_->Edit(0, [](TargetState& t) { t.spec.epoch = 2; });
  }
  EXPECT_THAT(Report({.reservation_id = id, .actual_cached_tokens = 6 * kBlock}),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(Predicted(0), 0u);
}

TEST_F(OutcomesTest, TwentyShortfallsOfAHundredAreDrift) {
  AddTargets(1);
  const std::vector<ChainHash> chain = Chain(1, 10);
  Store(0, chain);
  for (int i = 0; i < 19; ++i) Serve(chain, 639 - kBlock - 1);
  EXPECT_EQ(FreshnessOf(0), Freshness::kExact);
  // Short by one block, not by more: no shortfall.
  Serve(chain, 639 - kBlock);
  EXPECT_EQ(FreshnessOf(0), Freshness::kExact);
  Serve(chain, 639 - kBlock - 1);
  EXPECT_EQ(FreshnessOf(0), Freshness::kDegraded);
  EXPECT_TRUE(Pick(Ask(chain))->causes.Has(FreshnessCause::kDrift));
  // Eighty good ones later the oldest shortfalls leave the window.
  for (int i = 0; i < 79; ++i) Serve(chain, 639);
  EXPECT_EQ(FreshnessOf(0), Freshness::kDegraded);
  Serve(chain, 639);
  EXPECT_EQ(FreshnessOf(0), Freshness::kExact);
}

TEST_F(OutcomesTest, AgentsDriftIsNotErasedByOutcomes) {
  AddTargets(1);
  EditTarget(0, [](TargetState& t) { t.causes.Set(FreshnessCause::kDrift); });
  const std::vector<ChainHash> chain = Chain(1, 10);
  for (int i = 0; i < 5; ++i) Serve(chain, 0);
  EXPECT_EQ(FreshnessOf(0), Freshness::kDegraded);
}

TEST_F(OutcomesTest, StreamsReleaseAndAdoptAcrossPools) {
  AddTargets(1);
  Query query = Ask(Chain(1, 2));
  query.holder = 42;
  const ReservationId id = PickId(query);
  picker_.ReleaseHolder(*fleet_, 42, "instance");
  EXPECT_EQ(picker_.AdoptHolder(*fleet_, "instance", 43), 1u);
  clock_.Advance(absl::Seconds(100));
  Tick();
  EXPECT_THAT(Report({.reservation_id = id, .kind = OutcomeKind::kProgress}), IsOk());
  picker_.ReleaseHolder(*fleet_, 43, "");
  EXPECT_THAT(Report({.reservation_id = id}), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace warmpath
