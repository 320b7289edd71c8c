#include "core/fleet/load_ledger.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/ledger_fixture.h"

namespace warmpath {
namespace {

using testing::At;
using testing::Chain;
using testing::kBlock;
using testing::LedgerFixture;

class LedgerReportsTest : public LedgerFixture {};

TEST_F(LedgerReportsTest, ExternalLoadCountsInRequestsAndInTime) {
  Finish(Open(Request(1, 10, 0.5), At(0)), 0.1);  // mean prefill 0.5 s
  Open(Request(0, 10, 0.5), At(1));
  ledger_->OnEngineLoad(0, Report(4, 1.5), At(1.6));
  const TargetLoad load = ledger_->Load(0, At(1));
  EXPECT_EQ(load.external, 3u);
  EXPECT_EQ(load.own_inflight, 1u);
  EXPECT_EQ(load.inflight, 4u);
  EXPECT_DOUBLE_EQ(load.wait_s, 0.5 + 3 * 0.5);
  EXPECT_EQ(load.kv_tokens, 10 + 4 * 256u);
}

TEST_F(LedgerReportsTest, TwoEmptyReportsCloseWhatTheEngineDoesNotHave) {
  const ReservationId old = Open(Request(0, 10, 1), At(0));
  ledger_->OnEngineLoad(0, Report(0, 2.1), At(2.1));
  EXPECT_NE(ledger_->Find(old), nullptr);
  const ReservationId young = Open(Request(0, 10, 1), At(2.1));
  ledger_->OnEngineLoad(0, Report(0, 4.2), At(4.2));
  EXPECT_EQ(ledger_->Find(old), nullptr);
  // The first of the two reports was made before this pick.
  EXPECT_NE(ledger_->Find(young), nullptr);
  EXPECT_EQ(Closed(CloseCause::kReconciled), 1u);
  EXPECT_EQ(ledger_->Averages().finished, 0u);
}

TEST_F(LedgerReportsTest, ReportsOtherwiseNeverCloseAnything) {
  const ReservationId id = Open(Request(0, 10, 1), At(0));
  ledger_->OnEngineLoad(0, Report(0, 10), At(10));
  ledger_->OnEngineLoad(0, Report(1, 12), At(12));
  ledger_->OnEngineLoad(0, Report(0, 14), At(14));
  ledger_->OnEngineLoad(0, Report(0, 14), At(14));  // the same report again
  EXPECT_NE(ledger_->Find(id), nullptr);
}

// Each prefill takes 100 ms but is believed to take a second: each first token seems to belong to
// the step before. All the same the true rate comes out.
// 20 requests ended without a word of their first tokens.
class SilentLedgerTest : public LedgerFixture {
 protected:
  void SetUp() override {
    for (int i = 0; i < 20; ++i) {
      const ReservationId id = Open(Request(0, 100, 1), At(i * 10));
      ledger_->Close(id, CloseCause::kFinished, At(i * 10 + 9), 10);
    }
  }
  double Wait(double at) const { return ledger_->Load(0, At(at)).wait_s; }
};

TEST_F(SilentLedgerTest, TheClockLetsPrefillsEndInTheirOrder) {
  const ReservationId first = Open(Request(0, 100, 1), At(1000));
  Open(Request(0, 100, 2), At(1000));
  Open(Request(0, 100, 4), At(1000));
  EXPECT_NEAR(Wait(1000), 7, 1e-9);
  EXPECT_NEAR(Wait(1002.5), 4.5, 1e-9);
  // The end of one that is long past prefill changes nothing.
  ledger_->Close(first, CloseCause::kFinished, At(1002.5), 10);
  EXPECT_NEAR(Wait(1002.5), 4.5, 1e-9);
  ledger_->Tick(At(1003.5));
  EXPECT_NEAR(Wait(1004), 3, 1e-9);
  EXPECT_NEAR(Wait(1007), 0, 1e-9);
  EXPECT_NEAR(Wait(1100), 0, 1e-9);
  // The next one begins when it comes.
  Open(Request(0, 100, 2), At(1100));
  EXPECT_NEAR(Wait(1101), 1, 1e-9);
  EXPECT_EQ(ledger_->Load(0, At(1101)).own_inflight, 3u);
}

TEST_F(SilentLedgerTest, ALateFirstTokenTeachesNothing) {
  const ReservationId first = Open(Request(0, 100, 1), At(1000));
  Open(Request(0, 100, 3), At(1000));
  ledger_->Tick(At(1002));
  EXPECT_EQ(ledger_->FirstToken(first, At(1002)), std::nullopt);
  EXPECT_NEAR(Wait(1002), 2, 1e-9);
}

TEST_F(SilentLedgerTest, PoolsThatTellAreBelieved) {
  for (int i = 0; i < 60; ++i) {
    const ReservationId id = Open(Request(0, 100, 1), At(2000 + i * 10));
    ledger_->FirstToken(id, At(2000 + i * 10 + 1));
    ledger_->Close(id, CloseCause::kFinished, At(2000 + i * 10 + 9), 10);
  }
  Open(Request(0, 100, 1), At(3000));
  Open(Request(0, 100, 2), At(3000));
  EXPECT_NEAR(Wait(3010), 2, 1e-9) << "the first has not begun to answer, whatever the clock says";
}

TEST_F(LedgerReportsTest, SpansEndAlsoWherePrefillsAreBelievedTooLong) {
  std::vector<ReservationId> ids;
  for (int i = 0; i < 20; ++i) {
    Asked request = Request(0, 1000, 1);
    request.prefill_work = 1000;
    ids.push_back(Open(std::move(request), At(0)));
  }
  int spans = 0;
  for (int i = 0; i < 20; ++i) {
    const std::optional<PrefillSpan> span = ledger_->FirstToken(ids[i], At(0.1 * (i + 1)));
    if (!span.has_value()) continue;
    ++spans;
    EXPECT_NEAR(span->work / span->seconds, 10'000, 1);
    EXPECT_NEAR(span->work, 8000, 1e-9);
  }
  EXPECT_EQ(spans, 2);
}

TEST_F(LedgerReportsTest, FirstTokensTellHowLongPrefillsTook) {
  const ReservationId a = Open(Request(0, 10, 1), At(0));
  const ReservationId b = Open(Request(0, 10, 1), At(0.2));
  const ReservationId c = Open(Request(0, 10, 2), At(0.2));
  const ReservationId d = Open(Request(0, 10, 1), At(9));
  EXPECT_EQ(ledger_->FirstToken(a, At(1)), std::nullopt);
  // b comes in the same engine step as a: one span, the work of both.
  EXPECT_EQ(ledger_->FirstToken(b, At(1.004)), std::nullopt);
  std::optional<PrefillSpan> span = ledger_->FirstToken(c, At(3));
  ASSERT_TRUE(span.has_value());
  EXPECT_NEAR(span->seconds, 1.004, 1e-9);
  EXPECT_DOUBLE_EQ(span->work, 20'000);
  // d was picked when nothing else waited: measured from its pick.
  span = ledger_->FirstToken(d, At(10));
  ASSERT_TRUE(span.has_value());
  EXPECT_NEAR(span->seconds, 1.996, 1e-9);
  EXPECT_DOUBLE_EQ(span->work, 20'000);
  EXPECT_EQ(ledger_->FirstToken(d, At(11)), std::nullopt);  // only once
  ledger_->FirstToken(Open(Request(0, 10, 1), At(20)), At(21));
  span = ledger_->FirstToken(Open(Request(0, 10, 1), At(22)), At(23));
  ASSERT_TRUE(span.has_value());
  EXPECT_NEAR(span->seconds, 1, 1e-9);
}

}  // namespace
}  // namespace warmpath
