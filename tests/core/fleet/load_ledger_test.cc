#include "core/fleet/load_ledger.h"

#include <cmath>
#include <limits>
#include <optional>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/ledger_fixture.h"

namespace warmpath {
namespace {

using testing::At;
using testing::Chain;
using testing::kBlock;
using testing::LedgerFixture;

class LoadLedgerTest : public LedgerFixture {};

TEST_F(LoadLedgerTest, Fault18_ChargedAtTheMomentOfThePick) {
  Open(Request(0, 130, 1.5, {1, 2}), At(0));
  const TargetLoad load = ledger_->Load(0, At(0));
  EXPECT_DOUBLE_EQ(load.wait_s, 1.5);
  EXPECT_EQ(load.inflight, 1u);
  EXPECT_EQ(load.own_inflight, 1u);
  // Two blocks, two loose tokens, and the 256 output tokens of a cold pool.
  EXPECT_EQ(load.kv_tokens, 2 * 64 + 2 + 256u);
  EXPECT_EQ(ledger_->Load(1, At(0)).inflight, 0u);
}

TEST_F(LoadLedgerTest, TheHeadDrainsWithTheClockAndNothingBehindIt) {
  Open(Request(0, 10, 2), At(0));
  Open(Request(0, 10, 3), At(0.5));
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(0.5)).wait_s, 4.5);
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(2)).wait_s, 3);
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(9)).wait_s, 3);
}

TEST_F(LoadLedgerTest, EachFirstTokenReanchors) {
  const ReservationId first = Open(Request(0, 10, 2), At(0));
  const ReservationId second = Open(Request(0, 10, 3), At(0));
  const ReservationId third = Open(Request(0, 10, 4), At(0));
  ledger_->FirstToken(first, At(1));
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(1)).wait_s, 7);
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(2)).wait_s, 6);
  // The third overtakes: the second begins anew.
  ledger_->FirstToken(third, At(2));
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(2)).wait_s, 3);
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(3)).wait_s, 2);
  ledger_->FirstToken(second, At(4));
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(4)).wait_s, 0);
  EXPECT_EQ(ledger_->Load(0, At(4)).inflight, 3u);
}

TEST_F(LoadLedgerTest, TheNextBeginsWhenTheHeadIsClosed) {
  const ReservationId head = Open(Request(0, 10, 2), At(0));
  Open(Request(0, 10, 3), At(0));
  ledger_->Close(head, CloseCause::kFailed, At(1), {});
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(1)).wait_s, 3);
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(2)).wait_s, 2);
}

TEST_F(LoadLedgerTest, SenselessPrefillTimesCountAsNothing) {
  Open(Request(0, 10, -1), At(0));
  Open(Request(0, 10, std::numeric_limits<double>::quiet_NaN()), At(0));
  EXPECT_EQ(ledger_->Load(0, At(0)).wait_s, 0);
  Open(Request(0, 10, std::numeric_limits<double>::infinity()), At(0));
  EXPECT_TRUE(std::isfinite(ledger_->Load(0, At(0)).wait_s));
}

TEST_F(LoadLedgerTest, ColdOutputsAreThoseAnnouncedThenThoseLearned) {
  Asked announced = Request(0, 0, 0);
  announced.expected_output = 40;
  Open(announced, At(0));
  Open(Request(0, 0, 0), At(0));
  EXPECT_EQ(ledger_->Load(0, At(0)).kv_tokens, 40 + 256u);
  for (int i = 0; i < 20; ++i) Finish(Open(Request(1, 0, 0), At(0)), 1);
  EXPECT_EQ(ledger_->Load(0, At(1)).kv_tokens, 20u);  // o = 10
}

TEST_F(LoadLedgerTest, ClosedExactlyOnce) {
  const ReservationId id = Open(Request(0, 10, 1), At(0));
  EXPECT_EQ(PoolNumberOf(id), 3u);
  EXPECT_EQ(ledger_->Find(id)->prompt_tokens, 10u);
  EXPECT_TRUE(ledger_->Close(id, CloseCause::kFailed, At(1), {}).has_value());
  EXPECT_FALSE(ledger_->Close(id, CloseCause::kFinished, At(1), 5).has_value());
  EXPECT_EQ(ledger_->Find(id), nullptr);
  EXPECT_EQ(ledger_->FirstToken(id, At(1)), std::nullopt);
  ledger_->RenewLease(id, At(1));
  ledger_->Move(id, 1, At(1));
  EXPECT_EQ(Closed(CloseCause::kFailed), 1u);
  EXPECT_EQ(Closed(CloseCause::kFinished), 0u);
  EXPECT_EQ(ledger_->open(), 0u);
}

TEST_F(LoadLedgerTest, ASecondPickOfOneRequestSupersedesTheFirst) {
  Asked r = Request(0, 10, 1);
  r.request_id = "chat-1";
  const ReservationId first = Open(r, At(0));
  r.target = 1;
  const ReservationId second = Open(r, At(1));
  EXPECT_EQ(ledger_->Find(first), nullptr);
  EXPECT_NE(ledger_->Find(second), nullptr);
  EXPECT_EQ(Closed(CloseCause::kSuperseded), 1u);
  EXPECT_EQ(ledger_->Load(0, At(1)).inflight, 0u);
  // Once it is over the id is free.
  Finish(second, 2);
  Open(r, At(3));
  EXPECT_EQ(Closed(CloseCause::kSuperseded), 1u);
}

TEST_F(LoadLedgerTest, LeasesEndUnlessRenewed) {
  Asked r = Request(0, 10, 1);
  r.lease = absl::Seconds(10);
  const ReservationId renewed = Open(r, At(0));
  const ReservationId left = Open(r, At(0));
  const ReservationId standard = Open(Request(0, 10, 1), At(0));
  r.lease = absl::Hours(100);
  const ReservationId longest = Open(r, At(0));
  ledger_->RenewLease(renewed, At(8));
  EXPECT_FALSE(ledger_->Tick(At(9.999)));
  EXPECT_EQ(ledger_->open(), 4u);
  ledger_->Tick(At(10));
  EXPECT_EQ(ledger_->Find(left), nullptr);
  EXPECT_EQ(Closed(CloseCause::kLeaseExpired), 1u);
  ledger_->Tick(At(18));
  EXPECT_EQ(ledger_->Find(renewed), nullptr);
  EXPECT_NE(ledger_->Find(standard), nullptr);
  ledger_->Tick(At(120));
  EXPECT_EQ(ledger_->Find(standard), nullptr);
  ledger_->Tick(At(3599));
  EXPECT_NE(ledger_->Find(longest), nullptr);
  ledger_->Tick(At(3600));
  EXPECT_EQ(ledger_->Find(longest), nullptr);
  // Expiry teaches nothing.
  EXPECT_EQ(ledger_->Averages().finished, 0u);
}

TEST_F(LoadLedgerTest, AStreamsReservationsHaveNoLease) {
  Asked r = Request(0, 10, 1);
  r.holder = 77;
  r.lease = absl::Seconds(1);
  const ReservationId id = Open(r, At(0));
  ledger_->RenewLease(id, At(0));
  ledger_->Tick(At(100'000));
  EXPECT_NE(ledger_->Find(id), nullptr);
}

TEST_F(LoadLedgerTest, Fault19_AVanishedClientLeaksNothing) {
  Asked r = Request(0, 10, 1);
  r.holder = 77;
  Open(r, At(0));
  Open(r, At(0));
  r.holder = 78;
  const ReservationId other = Open(r, At(0));
  ledger_->ReleaseHolder(77, "", At(1));
  EXPECT_EQ(Closed(CloseCause::kStreamEnded), 2u);
  EXPECT_EQ(ledger_->Load(0, At(1)).inflight, 1u);
  EXPECT_NE(ledger_->Find(other), nullptr);
  ledger_->ReleaseHolder(77, "", At(1));
  ledger_->ReleaseHolder(0, "", At(1));
  EXPECT_EQ(ledger_->open(), 1u);
}

TEST_F(LoadLedgerTest, Fault19_AFlappingWorkerLeaksNothing) {
  for (int flap = 0; flap < 5; ++flap) {
    const ReservationId id = Open(Request(0, 70, 1, {1}), At(flap));
    ledger_->FirstToken(Open(Request(0, 70, 1, {2}), At(flap)), At(flap));
    ledger_->ClearTarget(0, CloseCause::kTargetLost, At(flap + 0.5));
    EXPECT_FALSE(ledger_->Close(id, CloseCause::kFinished, At(flap + 0.6), 1).has_value());
    const TargetLoad load = ledger_->Load(0, At(flap + 0.6));
    EXPECT_EQ(load.inflight, 0u);
    EXPECT_EQ(load.wait_s, 0);
    EXPECT_EQ(load.kv_tokens, 0u);
  }
  EXPECT_EQ(Closed(CloseCause::kTargetLost), 10u);
  EXPECT_EQ(ledger_->InFlightBlocks(), 0u);
}

TEST_F(LoadLedgerTest, AReconnectingClientAdoptsWhatItHeld) {
  Asked r = Request(0, 10, 1);
  r.holder = 77;
  const ReservationId id = Open(r, At(0));
  ledger_->ReleaseHolder(77, "proxy-a", At(1));
  EXPECT_EQ(ledger_->AdoptHolder("proxy-b", 80, At(2)), 0u);
  EXPECT_EQ(ledger_->AdoptHolder("proxy-a", 80, At(5.9)), 1u);
  ledger_->Tick(At(50));
  EXPECT_EQ(ledger_->Find(id)->holder, 80u);
  ledger_->ReleaseHolder(80, "proxy-a", At(60));
  ledger_->Tick(At(64.9));
  EXPECT_NE(ledger_->Find(id), nullptr);
  // Too late.
  EXPECT_EQ(ledger_->AdoptHolder("proxy-a", 81, At(65)), 0u);
  ledger_->Tick(At(65));
  EXPECT_EQ(ledger_->Find(id), nullptr);
  EXPECT_EQ(Closed(CloseCause::kStreamEnded), 1u);
}

TEST_F(LoadLedgerTest, FullMeansNoReservation) {
  LoadLedger::Options options;
  options.block_size = kBlock;
  options.max_reservations = 2;
  ledger_ = LoadLedger::Create(options);
  ledger_->AddTarget(0, true, 10);
  EXPECT_NE(Open(Request(0, 10, 1), At(0)), 0u);
  EXPECT_NE(Open(Request(0, 10, 1), At(0)), 0u);
  EXPECT_EQ(Open(Request(0, 10, 1), At(0)), 0u);
  EXPECT_EQ(ledger_->opened(), 2u);
}

TEST_F(LoadLedgerTest, ATickIsBoundedAndSaysWhenMoreIsDue) {
  for (int i = 0; i < 1000; ++i) Open(Request(0, 10, 1), At(0));
  int ticks = 1;
  while (ledger_->Tick(At(120))) {
    ++ticks;
    ASSERT_LT(ticks, 20);
  }
  EXPECT_EQ(ledger_->open(), 0u);
  EXPECT_GE(ticks, 3);
}

}  // namespace
}  // namespace warmpath
