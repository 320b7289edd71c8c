#include "core/fleet/load_ledger.h"

#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Chain = std::vector<ChainHash>;

constexpr std::uint32_t kBlock = 64;
const absl::Time kStart = absl::FromUnixSeconds(1000);

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

class LoadLedgerTest : public ::testing::Test {
 protected:
  LoadLedgerTest() {
    LoadLedger::Options options;
    options.block_size = kBlock;
    options.pool_number = 3;
    options.id_seed = 12345;
    ledger_ = LoadLedger::Create(options);
    ledger_->AddTarget(0, /*has_events=*/true, 100);
    ledger_->AddTarget(1, /*has_events=*/false, 100);
  }
  ~LoadLedgerTest() override {
    // Whatever a test did: every reservation that was opened is open or was closed, once.
    const auto closed = ledger_->closed();
    EXPECT_EQ(ledger_->opened() - std::accumulate(closed.begin(), closed.end(), std::uint64_t{0}),
              ledger_->open());
  }

  static Reservation Request(TargetId target, std::uint64_t tokens, double prefill_s,
                             Chain chain = {}) {
    Reservation r;
    r.target = target;
    r.prompt_tokens = tokens;
    r.prefill_s = prefill_s;
    r.prefill_work = prefill_s * 10'000;
    r.chain = std::move(chain);
    return r;
  }
  std::uint64_t Closed(CloseCause cause) const {
    return ledger_->closed()[static_cast<std::size_t>(cause)];
  }
  void Finish(ReservationId id, double at) {
    EXPECT_TRUE(ledger_->Close(id, CloseCause::kFinished, At(at), 10).has_value());
  }
  std::uint32_t Depth(TargetId target, const Chain& chain,
                      ChainKind kind = ChainKind::kTokens) const {
    std::vector<std::uint32_t> depth(2, 0);
    ledger_->KnownDepths(kind, chain, depth);
    return depth[target];
  }
  static Reservation TextRequest(TargetId target, Chain chain) {
    Reservation r = Request(target, chain.size() * kBlock, 1, std::move(chain));
    r.chain_kind = ChainKind::kText;
    return r;
  }
  EngineLoad Report(std::uint32_t requests, double at) const {
    return EngineLoad{.running = requests, .waiting = 0, .kv_usage = 0, .as_of = At(at)};
  }

  std::unique_ptr<LoadLedger> ledger_;
};

TEST_F(LoadLedgerTest, Fault18_ChargedAtTheMomentOfThePick) {
  ledger_->Open(Request(0, 130, 1.5, {1, 2}), At(0));
  const TargetLoad load = ledger_->Load(0, At(0));
  EXPECT_DOUBLE_EQ(load.wait_s, 1.5);
  EXPECT_EQ(load.inflight, 1u);
  EXPECT_EQ(load.own_inflight, 1u);
  // Two blocks, two loose tokens, and the 256 output tokens of a cold pool.
  EXPECT_EQ(load.kv_tokens, 2 * 64 + 2 + 256u);
  EXPECT_EQ(ledger_->Load(1, At(0)).inflight, 0u);
}

TEST_F(LoadLedgerTest, TheHeadDrainsWithTheClockAndNothingBehindIt) {
  ledger_->Open(Request(0, 10, 2), At(0));
  ledger_->Open(Request(0, 10, 3), At(0.5));
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(0.5)).wait_s, 4.5);
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(2)).wait_s, 3);
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(9)).wait_s, 3);
}

TEST_F(LoadLedgerTest, EachFirstTokenReanchors) {
  const ReservationId first = ledger_->Open(Request(0, 10, 2), At(0));
  const ReservationId second = ledger_->Open(Request(0, 10, 3), At(0));
  const ReservationId third = ledger_->Open(Request(0, 10, 4), At(0));
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
  const ReservationId head = ledger_->Open(Request(0, 10, 2), At(0));
  ledger_->Open(Request(0, 10, 3), At(0));
  ledger_->Close(head, CloseCause::kFailed, At(1), {});
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(1)).wait_s, 3);
  EXPECT_DOUBLE_EQ(ledger_->Load(0, At(2)).wait_s, 2);
}

TEST_F(LoadLedgerTest, SenselessPrefillTimesCountAsNothing) {
  ledger_->Open(Request(0, 10, -1), At(0));
  ledger_->Open(Request(0, 10, std::numeric_limits<double>::quiet_NaN()), At(0));
  EXPECT_EQ(ledger_->Load(0, At(0)).wait_s, 0);
  ledger_->Open(Request(0, 10, std::numeric_limits<double>::infinity()), At(0));
  EXPECT_TRUE(std::isfinite(ledger_->Load(0, At(0)).wait_s));
}

TEST_F(LoadLedgerTest, KvTokensCountSharedBlocksOnce) {
  ledger_->Open(Request(0, 3 * 64 + 5, 1, {1, 2, 3}), At(0));
  ledger_->Open(Request(0, 3 * 64 + 7, 1, {1, 2, 4}), At(0));
  EXPECT_EQ(ledger_->Load(0, At(0)).kv_tokens, 4 * 64 + 5 + 7 + 2 * 256u);
  // A prompt whose blocks are not known counts whole.
  ledger_->Open(Request(0, 1000, 1), At(0));
  EXPECT_EQ(ledger_->Load(0, At(0)).kv_tokens, 4 * 64 + 5 + 7 + 1000 + 3 * 256u);
}

TEST_F(LoadLedgerTest, ColdOutputsAreThoseAnnouncedThenThoseLearned) {
  Reservation announced = Request(0, 0, 0);
  announced.expected_output = 40;
  ledger_->Open(announced, At(0));
  ledger_->Open(Request(0, 0, 0), At(0));
  EXPECT_EQ(ledger_->Load(0, At(0)).kv_tokens, 40 + 256u);
  for (int i = 0; i < 20; ++i) Finish(ledger_->Open(Request(1, 0, 0), At(0)), 1);
  EXPECT_EQ(ledger_->Load(0, At(1)).kv_tokens, 20u);  // o = 10
}

TEST_F(LoadLedgerTest, ClosedExactlyOnce) {
  const ReservationId id = ledger_->Open(Request(0, 10, 1), At(0));
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
  Reservation r = Request(0, 10, 1);
  r.request_id = "chat-1";
  const ReservationId first = ledger_->Open(r, At(0));
  r.target = 1;
  const ReservationId second = ledger_->Open(r, At(1));
  EXPECT_EQ(ledger_->Find(first), nullptr);
  EXPECT_NE(ledger_->Find(second), nullptr);
  EXPECT_EQ(Closed(CloseCause::kSuperseded), 1u);
  EXPECT_EQ(ledger_->Load(0, At(1)).inflight, 0u);
  // Once it is over the id is free.
  Finish(second, 2);
  ledger_->Open(r, At(3));
  EXPECT_EQ(Closed(CloseCause::kSuperseded), 1u);
}

TEST_F(LoadLedgerTest, LeasesEndUnlessRenewed) {
  Reservation r = Request(0, 10, 1);
  r.lease = absl::Seconds(10);
  const ReservationId renewed = ledger_->Open(r, At(0));
  const ReservationId left = ledger_->Open(r, At(0));
  const ReservationId standard = ledger_->Open(Request(0, 10, 1), At(0));
  r.lease = absl::Hours(100);
  const ReservationId longest = ledger_->Open(r, At(0));
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
  Reservation r = Request(0, 10, 1);
  r.holder = 77;
  r.lease = absl::Seconds(1);
  const ReservationId id = ledger_->Open(r, At(0));
  ledger_->RenewLease(id, At(0));
  ledger_->Tick(At(100'000));
  EXPECT_NE(ledger_->Find(id), nullptr);
}

TEST_F(LoadLedgerTest, Fault19_AVanishedClientLeaksNothing) {
  Reservation r = Request(0, 10, 1);
  r.holder = 77;
  ledger_->Open(r, At(0));
  ledger_->Open(r, At(0));
  r.holder = 78;
  const ReservationId other = ledger_->Open(r, At(0));
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
    const ReservationId id = ledger_->Open(Request(0, 70, 1, {1}), At(flap));
    ledger_->FirstToken(ledger_->Open(Request(0, 70, 1, {2}), At(flap)), At(flap));
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
  Reservation r = Request(0, 10, 1);
  r.holder = 77;
  const ReservationId id = ledger_->Open(r, At(0));
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

TEST_F(LoadLedgerTest, ServedByMovesEverythingInOneStep) {
  const Chain chain = {1, 2};
  const ReservationId id = ledger_->Open(Request(0, 130, 2, chain), At(0));
  ledger_->Move(id, 1, At(1));
  EXPECT_EQ(ledger_->Load(0, At(1)).inflight, 0u);
  EXPECT_EQ(ledger_->Load(0, At(1)).kv_tokens, 0u);
  EXPECT_EQ(ledger_->Load(0, At(1)).wait_s, 0);
  EXPECT_EQ(Depth(0, chain), 0u);
  EXPECT_EQ(Depth(1, chain), 2u);
  EXPECT_EQ(ledger_->Load(1, At(1)).inflight, 1u);
  EXPECT_DOUBLE_EQ(ledger_->Load(1, At(1)).wait_s, 2);
  EXPECT_EQ(ledger_->open(), 1u);
  EXPECT_EQ(ledger_->opened(), 1u);
  ledger_->Move(id, 99, At(1));  // no such target
  EXPECT_EQ(ledger_->Find(id)->target, 1u);
  Finish(id, 3);
  EXPECT_EQ(ledger_->Load(1, At(3)).inflight, 0u);
}

TEST_F(LoadLedgerTest, ChainsLingerOnTargetsWithEvents) {
  const Chain chain = {1, 2};
  const ReservationId id = ledger_->Open(Request(0, 128, 1, chain), At(0));
  Finish(id, 1);
  EXPECT_EQ(ledger_->Load(0, At(1)).kv_tokens, 0u);
  ledger_->Tick(At(1.499));
  EXPECT_EQ(Depth(0, chain), 2u);
  EXPECT_EQ(ledger_->InFlightBlocks(), 2u);
  ledger_->Tick(At(1.5));
  EXPECT_EQ(Depth(0, chain), 0u);
  EXPECT_EQ(ledger_->InFlightBlocks(), 0u);
}

TEST_F(LoadLedgerTest, ChainsBecomePredictedOnTargetsWithoutEvents) {
  const Chain chain = {1, 2};
  Finish(ledger_->Open(Request(1, 128, 1, chain), At(0)), 1);
  ledger_->Close(ledger_->Open(Request(1, 128, 1, {7}), At(0)), CloseCause::kFailed, At(1), {});
  ledger_->Tick(At(100));
  EXPECT_EQ(Depth(1, chain), 2u);
  EXPECT_EQ(Depth(1, {7}), 0u);  // who knows what a failed request left
  Chain hashes;
  ledger_->ForEachPredicted(1, &hashes);
  EXPECT_THAT(hashes, UnorderedElementsAre(1, 2));
  ledger_->ForgetPredicted(1);
  EXPECT_EQ(Depth(1, chain), 0u);
}

TEST_F(LoadLedgerTest, TextBecomesPredictedOnAnyTargetAndNeverMeetsTokens) {
  const Chain chain = {1, 2};
  for (const TargetId target : {0u, 1u}) {
    const ReservationId id = ledger_->Open(TextRequest(target, chain), At(0));
    EXPECT_EQ(Depth(target, chain, ChainKind::kText), 2u) << "in flight";
    EXPECT_EQ(Depth(target, chain), 0u);
    EXPECT_EQ(ledger_->Load(target, At(0)).kv_tokens, 128u + 256u)
        << "it fills the cache all the same";
    Finish(id, 1);
    ledger_->Tick(At(100));
    EXPECT_EQ(Depth(target, chain, ChainKind::kText), 2u) << "predicted";
    EXPECT_EQ(Depth(target, chain), 0u);
    EXPECT_EQ(ledger_->PredictedBlocks(target), 2u);
    EXPECT_EQ(ledger_->Load(target, At(100)).kv_tokens, 0u);
  }
  EXPECT_EQ(ledger_->InFlightBlocks(), 0u);
  ledger_->ForgetPredicted(0);  // what tokens taught
  EXPECT_EQ(Depth(0, chain, ChainKind::kText), 2u);
  ledger_->ClearTarget(0, CloseCause::kNewEpoch, At(101));
  EXPECT_EQ(Depth(0, chain, ChainKind::kText), 0u);
  EXPECT_EQ(Depth(1, chain, ChainKind::kText), 2u);
}

TEST_F(LoadLedgerTest, TextIsPredictedUnlessItsEndSpeaksAgainstIt) {
  // Nobody reports: the lease ends.
  ledger_->Open(TextRequest(0, {1}), At(0));
  ledger_->Tick(At(120));
  EXPECT_EQ(Closed(CloseCause::kLeaseExpired), 1u);
  EXPECT_EQ(Depth(0, {1}, ChainKind::kText), 1u);
  Reservation held = TextRequest(0, {2});
  held.holder = 5;
  ledger_->Open(held, At(120));
  ledger_->ReleaseHolder(5, "", At(121));
  EXPECT_EQ(Depth(0, {2}, ChainKind::kText), 1u);
  ledger_->Close(ledger_->Open(TextRequest(0, {3}), At(121)), CloseCause::kFailed, At(122), {});
  EXPECT_EQ(Depth(0, {3}, ChainKind::kText), 0u);
  // A retry elsewhere.
  Reservation first = TextRequest(0, {4});
  first.request_id = "r";
  ledger_->Open(first, At(122));
  Reservation second = TextRequest(1, {4});
  second.request_id = "r";
  ledger_->Open(second, At(122));
  EXPECT_EQ(Depth(0, {4}, ChainKind::kText), 0u);
  EXPECT_EQ(Depth(1, {4}, ChainKind::kText), 1u);
}

TEST_F(LoadLedgerTest, PredictedTextIsBoundedByTheTargetsCapacity) {
  for (ChainHash first = 1; first <= 40; ++first) {
    Finish(ledger_->Open(TextRequest(0, {first, 1000 + first, 2000 + first}), At(0)), 1);
  }
  EXPECT_EQ(ledger_->PredictedBlocks(0), 100u);
  EXPECT_EQ(Depth(0, {40, 1040, 2040}, ChainKind::kText), 3u) << "the newest stay";
  EXPECT_EQ(Depth(0, {1, 1001, 2001}, ChainKind::kText), 0u);
}

TEST_F(LoadLedgerTest, ANewEpochForgetsWhatLingersAndWhatWasPredicted) {
  const Chain chain = {1, 2};
  Finish(ledger_->Open(Request(0, 128, 1, chain), At(0)), 1);
  ledger_->LearnPredicted(0, Chain{5, 6});
  ledger_->Open(Request(0, 128, 1, {8}), At(1));
  ledger_->OnEngineLoad(0, Report(9, 1), At(1));
  ledger_->ClearTarget(0, CloseCause::kNewEpoch, At(1.1));
  EXPECT_EQ(Depth(0, chain), 0u);
  EXPECT_EQ(Depth(0, {5, 6}), 0u);
  EXPECT_EQ(Depth(0, {8}), 0u);
  EXPECT_EQ(ledger_->Load(0, At(1.1)).external, 0u);
  EXPECT_EQ(Closed(CloseCause::kNewEpoch), 1u);
  // What had lingered is not taken away twice from what opens now.
  ledger_->Open(Request(0, 128, 1, chain), At(1.2));
  ledger_->Tick(At(10));
  EXPECT_EQ(Depth(0, chain), 2u);
}

TEST_F(LoadLedgerTest, ARemovedTargetsNumberStartsAfresh) {
  const ReservationId id = ledger_->Open(Request(0, 128, 1, {1, 2}), At(0));
  ledger_->RemoveTarget(0, At(1));
  EXPECT_EQ(ledger_->Find(id), nullptr);
  EXPECT_EQ(ledger_->Open(Request(0, 10, 1), At(1)), 0u);
  ledger_->AddTarget(0, /*has_events=*/true, 100);
  EXPECT_EQ(ledger_->Load(0, At(1)).inflight, 0u);
  EXPECT_EQ(Depth(0, {1, 2}), 0u);
}

TEST_F(LoadLedgerTest, ExternalLoadCountsInRequestsAndInTime) {
  Finish(ledger_->Open(Request(1, 10, 0.5), At(0)), 0.1);  // mean prefill 0.5 s
  ledger_->Open(Request(0, 10, 0.5), At(1));
  ledger_->OnEngineLoad(0, Report(4, 1.5), At(1.6));
  const TargetLoad load = ledger_->Load(0, At(1));
  EXPECT_EQ(load.external, 3u);
  EXPECT_EQ(load.own_inflight, 1u);
  EXPECT_EQ(load.inflight, 4u);
  EXPECT_DOUBLE_EQ(load.wait_s, 0.5 + 3 * 0.5);
  EXPECT_EQ(load.kv_tokens, 10 + 4 * 256u);
}

TEST_F(LoadLedgerTest, TwoEmptyReportsCloseWhatTheEngineDoesNotHave) {
  const ReservationId old = ledger_->Open(Request(0, 10, 1), At(0));
  ledger_->OnEngineLoad(0, Report(0, 2.1), At(2.1));
  EXPECT_NE(ledger_->Find(old), nullptr);
  const ReservationId young = ledger_->Open(Request(0, 10, 1), At(2.1));
  ledger_->OnEngineLoad(0, Report(0, 4.2), At(4.2));
  EXPECT_EQ(ledger_->Find(old), nullptr);
  // The first of the two reports was made before this pick.
  EXPECT_NE(ledger_->Find(young), nullptr);
  EXPECT_EQ(Closed(CloseCause::kReconciled), 1u);
  EXPECT_EQ(ledger_->Averages().finished, 0u);
}

TEST_F(LoadLedgerTest, ReportsOtherwiseNeverCloseAnything) {
  const ReservationId id = ledger_->Open(Request(0, 10, 1), At(0));
  ledger_->OnEngineLoad(0, Report(0, 10), At(10));
  ledger_->OnEngineLoad(0, Report(1, 12), At(12));
  ledger_->OnEngineLoad(0, Report(0, 14), At(14));
  ledger_->OnEngineLoad(0, Report(0, 14), At(14));  // the same report again
  EXPECT_NE(ledger_->Find(id), nullptr);
}

// Each prefill takes 100 ms but is believed to take a second: each first token seems to belong to
// the step before. All the same the true rate comes out.
// 20 requests ended without a word of their first tokens.
class SilentLedgerTest : public LoadLedgerTest {
 protected:
  void SetUp() override {
    for (int i = 0; i < 20; ++i) {
      const ReservationId id = ledger_->Open(Request(0, 100, 1), At(i * 10));
      ledger_->Close(id, CloseCause::kFinished, At(i * 10 + 9), 10);
    }
  }
  double Wait(double at) const { return ledger_->Load(0, At(at)).wait_s; }
};

TEST_F(SilentLedgerTest, TheClockLetsPrefillsEndInTheirOrder) {
  const ReservationId first = ledger_->Open(Request(0, 100, 1), At(1000));
  ledger_->Open(Request(0, 100, 2), At(1000));
  ledger_->Open(Request(0, 100, 4), At(1000));
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
  ledger_->Open(Request(0, 100, 2), At(1100));
  EXPECT_NEAR(Wait(1101), 1, 1e-9);
  EXPECT_EQ(ledger_->Load(0, At(1101)).own_inflight, 3u);
}

TEST_F(SilentLedgerTest, ALateFirstTokenTeachesNothing) {
  const ReservationId first = ledger_->Open(Request(0, 100, 1), At(1000));
  ledger_->Open(Request(0, 100, 3), At(1000));
  ledger_->Tick(At(1002));
  EXPECT_EQ(ledger_->FirstToken(first, At(1002)), std::nullopt);
  EXPECT_NEAR(Wait(1002), 2, 1e-9);
}

TEST_F(SilentLedgerTest, PoolsThatTellAreBelieved) {
  for (int i = 0; i < 60; ++i) {
    const ReservationId id = ledger_->Open(Request(0, 100, 1), At(2000 + i * 10));
    ledger_->FirstToken(id, At(2000 + i * 10 + 1));
    ledger_->Close(id, CloseCause::kFinished, At(2000 + i * 10 + 9), 10);
  }
  ledger_->Open(Request(0, 100, 1), At(3000));
  ledger_->Open(Request(0, 100, 2), At(3000));
  EXPECT_NEAR(Wait(3010), 2, 1e-9) << "the first has not begun to answer, whatever the clock says";
}

TEST_F(LoadLedgerTest, SpansEndAlsoWherePrefillsAreBelievedTooLong) {
  std::vector<ReservationId> ids;
  for (int i = 0; i < 20; ++i) {
    Reservation request = Request(0, 1000, 1);
    request.prefill_work = 1000;
    ids.push_back(ledger_->Open(std::move(request), At(0)));
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

TEST_F(LoadLedgerTest, FirstTokensTellHowLongPrefillsTook) {
  const ReservationId a = ledger_->Open(Request(0, 10, 1), At(0));
  const ReservationId b = ledger_->Open(Request(0, 10, 1), At(0.2));
  const ReservationId c = ledger_->Open(Request(0, 10, 2), At(0.2));
  const ReservationId d = ledger_->Open(Request(0, 10, 1), At(9));
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
  ledger_->FirstToken(ledger_->Open(Request(0, 10, 1), At(20)), At(21));
  span = ledger_->FirstToken(ledger_->Open(Request(0, 10, 1), At(22)), At(23));
  ASSERT_TRUE(span.has_value());
  EXPECT_NEAR(span->seconds, 1, 1e-9);
}

TEST_F(LoadLedgerTest, FullMeansNoReservation) {
  LoadLedger::Options options;
  options.block_size = kBlock;
  options.max_reservations = 2;
  ledger_ = LoadLedger::Create(options);
  ledger_->AddTarget(0, true, 10);
  EXPECT_NE(ledger_->Open(Request(0, 10, 1), At(0)), 0u);
  EXPECT_NE(ledger_->Open(Request(0, 10, 1), At(0)), 0u);
  EXPECT_EQ(ledger_->Open(Request(0, 10, 1), At(0)), 0u);
  EXPECT_EQ(ledger_->opened(), 2u);
}

TEST_F(LoadLedgerTest, ChainsBeyondTheirBoundCountAsLoadOnly) {
  LoadLedger::Options options;
  options.block_size = kBlock;
  options.max_chain_blocks = 10;
  ledger_ = LoadLedger::Create(options);
  ledger_->AddTarget(0, true, 100);
  const auto chain = [](ChainHash first, std::size_t blocks) {
    std::vector<ChainHash> hashes(blocks);
    std::iota(hashes.begin(), hashes.end(), first);
    return hashes;
  };
  const auto open = [&](ChainHash first, std::size_t blocks) {
    Reservation reservation = Request(0, 10 * kBlock, 1);
    reservation.chain = chain(first, blocks);
    return ledger_->Open(reservation, At(0));
  };
  const ReservationId first = open(100, 10);
  const ReservationId second = open(200, 1);
  EXPECT_EQ(ledger_->InFlightBlocks(), 10u);
  EXPECT_EQ(ledger_->Load(0, At(0)).own_inflight, 2u);
  EXPECT_GE(ledger_->Load(0, At(0)).kv_tokens, 20 * kBlock) << "all of its prompt is load";
  ledger_->Close(first, CloseCause::kFinished, At(1), std::nullopt);
  EXPECT_EQ(ledger_->InFlightBlocks(), 10u) << "it lingers";
  ledger_->Close(second, CloseCause::kFinished, At(1), std::nullopt);
  while (ledger_->Tick(At(2))) {
  }
  EXPECT_EQ(ledger_->InFlightBlocks(), 0u);
  const ReservationId third = open(300, 10);
  EXPECT_EQ(ledger_->InFlightBlocks(), 10u);
  ledger_->ClearTarget(0, CloseCause::kNewEpoch, At(3));
  open(400, 10);
  EXPECT_EQ(ledger_->InFlightBlocks(), 10u);
  EXPECT_EQ(ledger_->Find(third), nullptr);
}

TEST_F(LoadLedgerTest, ATickIsBoundedAndSaysWhenMoreIsDue) {
  for (int i = 0; i < 1000; ++i) ledger_->Open(Request(0, 10, 1), At(0));
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
