// A session between the state of an engine, kept here, and the model of a router.
#ifndef WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_ROUTER_SESSION_FIXTURE_H_
#define WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_ROUTER_SESSION_FIXTURE_H_

#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "client/agent/publish/router_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/publish/router_model.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {

class RouterSessionTest : public ::testing::Test {
 protected:
  explicit RouterSessionTest(int ranks = 1, SessionOptions options = {}) : session_(options, 1) {
    for (int rank = 0; rank < ranks; ++rank) {
      v1::RankInfo* info = register_.add_ranks();
      info->set_rank(static_cast<Rank>(rank));
      info->set_epoch(100);
      info->set_has_events(true);
      info->set_kv_capacity_tokens(1000);
    }
    register_.set_worker_id("w");
    held_.resize(static_cast<std::size_t>(ranks));
    seq_.resize(static_cast<std::size_t>(ranks));
    no_holes_.resize(static_cast<std::size_t>(ranks));
    session_.SetRegister(register_);
  }
  ~RouterSessionTest() override { EXPECT_THAT(model_.breaches, ::testing::IsEmpty()); }

  v1::RouterUpdate Registered(std::uint64_t session, std::vector<Rank> snapshots = {0}) {
    v1::RouterUpdate update;
    v1::Registered* message = update.mutable_registered();
    message->set_session(session);
    message->set_routing_block_size(64);
    message->set_hash_seed(1337);
    message->set_protocol(1);
    message->set_heartbeat_ms(2000);
    for (const Rank rank : snapshots) message->add_snapshot_ranks(rank);
    return update;
  }
  v1::RouterUpdate Ack(std::uint64_t delta_seq) {
    v1::RouterUpdate update;
    update.mutable_ack()->set_delta_seq(delta_seq);
    return update;
  }

  void Begin(std::uint64_t session, std::vector<Rank> snapshots = {0}) {
    session_.OnStreamStart(now_);
    v1::WorkerUpdate update;
    ASSERT_TRUE(session_.Next(now_, &update));
    ASSERT_TRUE(update.has_register_());
    model_.Begin(session);
    model_.Apply(update);
    EXPECT_FALSE(session_.Next(now_, &update)) << "nothing before Registered";
    ASSERT_THAT(session_.OnMessage(Registered(session, std::move(snapshots)), now_), IsOk());
  }

  // Writes at most `max` messages, answering wishes for snapshots. Returns how many.
  int Write(int max = 1 << 20, bool ack = true) {
    int n = 0;
    for (; n < max; ++n) {
      if (const auto rank = session_.SnapshotWanted(now_)) GiveSnapshot(*rank);
      v1::WorkerUpdate update;
      if (!session_.Next(now_, &update)) break;
      kinds_.push_back(update.update_case());
      if (update.has_delta()) said_.push_back(update.delta().no_holes());
      if (update.has_snapshot_end()) said_.push_back(update.snapshot_end().no_holes());
      model_.Apply(update);
      if (ack) {
        EXPECT_THAT(session_.OnMessage(Ack(model_.delta_seq()), now_), IsOk());
      }
    }
    return n;
  }

  void GiveSnapshot(Rank rank) {
    RankSnapshot snapshot;
    snapshot.rank = rank;
    snapshot.engine_seq = seq_[rank];
    snapshot.no_holes = no_holes_[rank];
    for (const ChainHash hash : held_[rank]) {
      snapshot.held[0].push_back(hash);
      snapshot.digests[0].Insert(hash);
    }
    session_.GiveSnapshot(std::move(snapshot));
  }

  // The engine's next batch.
  void Change(std::vector<ChainHash> removed, std::vector<ChainHash> stored, Rank rank = 0) {
    for (const ChainHash hash : removed) held_[rank].erase(hash);
    for (const ChainHash hash : stored) held_[rank].insert(hash);
    seq_[rank] = seq_[rank] ? *seq_[rank] + 1 : 0;
    const BlockChanges changes{
        .tier = Tier::kGpu, .removed = std::move(removed), .stored = std::move(stored)};
    session_.Offer(rank, {&changes, 1}, seq_[rank], no_holes_[rank]);
  }

  static std::vector<ChainHash> Range(ChainHash from, std::size_t n) {
    std::vector<ChainHash> hashes(n);
    std::iota(hashes.begin(), hashes.end(), from);
    return hashes;
  }

  void ExpectEqual(Rank rank = 0) {
    EXPECT_EQ(model_.held(rank), held_[rank]);
    EXPECT_EQ(model_.ranks[rank].engine_seq, seq_[rank]);
  }

  RouterSession session_;
  v1::Register register_;
  RouterModel model_;
  std::vector<RouterModel::Set> held_;
  std::vector<std::optional<std::uint64_t>> seq_;
  std::vector<bool> no_holes_;  // of held_, as the test wants it
  std::vector<v1::WorkerUpdate::UpdateCase> kinds_;
  std::vector<bool> said_;  // no_holes of each delta and each end of a snapshot
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_ROUTER_SESSION_FIXTURE_H_
