#include "core/fleet/load_ledger.h"

#include <numeric>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/ledger_fixture.h"

namespace warmpath {
namespace {

using testing::At;
using testing::Chain;
using testing::kBlock;
using testing::LedgerFixture;
using ::testing::UnorderedElementsAre;

class LedgerChainsTest : public LedgerFixture {};

TEST_F(LedgerChainsTest, KvTokensCountSharedBlocksOnce) {
  Open(Request(0, 3 * 64 + 5, 1, {1, 2, 3}), At(0));
  Open(Request(0, 3 * 64 + 7, 1, {1, 2, 4}), At(0));
  EXPECT_EQ(ledger_->Load(0, At(0)).kv_tokens, 4 * 64 + 5 + 7 + 2 * 256u);
  // A prompt whose blocks are not known counts whole.
  Open(Request(0, 1000, 1), At(0));
  EXPECT_EQ(ledger_->Load(0, At(0)).kv_tokens, 4 * 64 + 5 + 7 + 1000 + 3 * 256u);
}

TEST_F(LedgerChainsTest, ServedByMovesEverythingInOneStep) {
  const Chain chain = {1, 2};
  const ReservationId id = Open(Request(0, 130, 2, chain), At(0));
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

TEST_F(LedgerChainsTest, ChainsLingerOnTargetsWithEvents) {
  const Chain chain = {1, 2};
  const ReservationId id = Open(Request(0, 128, 1, chain), At(0));
  Finish(id, 1);
  EXPECT_EQ(ledger_->Load(0, At(1)).kv_tokens, 0u);
  ledger_->Tick(At(1.499));
  EXPECT_EQ(Depth(0, chain), 2u);
  EXPECT_EQ(ledger_->InFlightBlocks(), 2u);
  ledger_->Tick(At(1.5));
  EXPECT_EQ(Depth(0, chain), 0u);
  EXPECT_EQ(ledger_->InFlightBlocks(), 0u);
}

TEST_F(LedgerChainsTest, ChainsBecomePredictedOnTargetsWithoutEvents) {
  const Chain chain = {1, 2};
  Finish(Open(Request(1, 128, 1, chain), At(0)), 1);
  ledger_->Close(Open(Request(1, 128, 1, {7}), At(0)), CloseCause::kFailed, At(1), {});
  ledger_->Tick(At(100));
  EXPECT_EQ(Depth(1, chain), 2u);
  EXPECT_EQ(Depth(1, {7}), 0u);  // who knows what a failed request left
  Chain hashes;
  ledger_->ForEachPredicted(1, &hashes);
  EXPECT_THAT(hashes, UnorderedElementsAre(1, 2));
  ledger_->ForgetPredicted(1);
  EXPECT_EQ(Depth(1, chain), 0u);
}

TEST_F(LedgerChainsTest, TextBecomesPredictedOnAnyTargetAndNeverMeetsTokens) {
  const Chain chain = {1, 2};
  for (const TargetId target : {0u, 1u}) {
    const ReservationId id = Open(TextRequest(target, chain), At(0));
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

TEST_F(LedgerChainsTest, TextIsPredictedUnlessItsEndSpeaksAgainstIt) {
  // Nobody reports: the lease ends.
  Open(TextRequest(0, {1}), At(0));
  ledger_->Tick(At(120));
  EXPECT_EQ(Closed(CloseCause::kLeaseExpired), 1u);
  EXPECT_EQ(Depth(0, {1}, ChainKind::kText), 1u);
  Asked held = TextRequest(0, {2});
  held.holder = 5;
  Open(held, At(120));
  ledger_->ReleaseHolder(5, "", At(121));
  EXPECT_EQ(Depth(0, {2}, ChainKind::kText), 1u);
  ledger_->Close(Open(TextRequest(0, {3}), At(121)), CloseCause::kFailed, At(122), {});
  EXPECT_EQ(Depth(0, {3}, ChainKind::kText), 0u);
  // A retry elsewhere.
  Asked first = TextRequest(0, {4});
  first.request_id = "r";
  Open(first, At(122));
  Asked second = TextRequest(1, {4});
  second.request_id = "r";
  Open(second, At(122));
  EXPECT_EQ(Depth(0, {4}, ChainKind::kText), 0u);
  EXPECT_EQ(Depth(1, {4}, ChainKind::kText), 1u);
}

TEST_F(LedgerChainsTest, PredictedTextIsBoundedByTheTargetsCapacity) {
  for (ChainHash first = 1; first <= 40; ++first) {
    Finish(Open(TextRequest(0, {first, 1000 + first, 2000 + first}), At(0)), 1);
  }
  EXPECT_EQ(ledger_->PredictedBlocks(0), 100u);
  EXPECT_EQ(Depth(0, {40, 1040, 2040}, ChainKind::kText), 3u) << "the newest stay";
  EXPECT_EQ(Depth(0, {1, 1001, 2001}, ChainKind::kText), 0u);
}

TEST_F(LedgerChainsTest, ANewEpochForgetsWhatLingersAndWhatWasPredicted) {
  const Chain chain = {1, 2};
  Finish(Open(Request(0, 128, 1, chain), At(0)), 1);
  ledger_->LearnPredicted(0, Chain{5, 6});
  Open(Request(0, 128, 1, {8}), At(1));
  ledger_->OnEngineLoad(0, Report(9, 1), At(1));
  ledger_->ClearTarget(0, CloseCause::kNewEpoch, At(1.1));
  EXPECT_EQ(Depth(0, chain), 0u);
  EXPECT_EQ(Depth(0, {5, 6}), 0u);
  EXPECT_EQ(Depth(0, {8}), 0u);
  EXPECT_EQ(ledger_->Load(0, At(1.1)).external, 0u);
  EXPECT_EQ(Closed(CloseCause::kNewEpoch), 1u);
  // What had lingered is not taken away twice from what opens now.
  Open(Request(0, 128, 1, chain), At(1.2));
  ledger_->Tick(At(10));
  EXPECT_EQ(Depth(0, chain), 2u);
}

TEST_F(LedgerChainsTest, ARemovedTargetsNumberStartsAfresh) {
  const ReservationId id = Open(Request(0, 128, 1, {1, 2}), At(0));
  ledger_->RemoveTarget(0, At(1));
  EXPECT_EQ(ledger_->Find(id), nullptr);
  EXPECT_EQ(Open(Request(0, 10, 1), At(1)), 0u);
  ledger_->AddTarget(0, /*has_events=*/true, 100);
  EXPECT_EQ(ledger_->Load(0, At(1)).inflight, 0u);
  EXPECT_EQ(Depth(0, {1, 2}), 0u);
}

TEST_F(LedgerChainsTest, ChainsBeyondTheirBoundCountAsLoadOnly) {
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
    return Open(Request(0, 10 * kBlock, 1, chain(first, blocks)), At(0));
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

}  // namespace
}  // namespace warmpath
