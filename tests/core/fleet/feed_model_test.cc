// Random streams against a plain model: deltas in pieces, lost messages, snapshots that break,
// reconnects, takeovers, new epochs, lost leases. Whenever a dump says EXACT and names an engine
// sequence, it equals what the engine held after that sequence; whenever the router takes it that a
// state at an engine sequence has no holes, it has none, EXACT or not; and once the faults stop,
// every target becomes EXACT at the engine's last sequence.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/fleet_harness.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {
namespace {

using State = std::array<std::set<ChainHash>, kTierCount>;

// Hashes are of chains of ten blocks: 1 to 10, 11 to 20, ...
constexpr ChainHash kStep = 0x9e3779b97f4a7c15ull;
constexpr std::uint64_t kHashes = 150;
bool IsFirst(std::uint64_t number) { return number % 10 == 1; }

template <typename Hashes>
bool HasHoles(const Hashes& gpu) {
  const std::set<ChainHash> held(gpu.begin(), gpu.end());
  for (std::uint64_t n = 1; n <= kHashes; ++n) {
    if (!IsFirst(n) && held.contains(n * kStep) && !held.contains((n - 1) * kStep)) return true;
  }
  return false;
}

// One engine process after another, and all states it ever had.
struct ModelRank {
  Epoch epoch = 1000;
  std::optional<std::uint64_t> seq;  // of the last batch
  State truth;
  std::map<std::pair<Epoch, std::optional<std::uint64_t>>, State> history;

  // The agent's side.
  State sent;
  std::optional<std::uint64_t> sent_seq;
  std::optional<std::uint64_t> named_seq;  // the last one that a message named
  bool in_snapshot = false;
  std::vector<std::pair<Tier, Hashes>> chunks;  // of the snapshot still to send
  std::uint64_t snapshot_count = 0;
  std::uint64_t snapshot_xor = 0;
  std::optional<absl::Time> wants_snapshot;

  void Remember() { history[{epoch, seq}] = truth; }
};

class Model {
 public:
  Model(FleetHarness& fleet, std::string id, std::size_t ranks, std::uint64_t seed)
      : fleet_(fleet), id_(std::move(id)), random_(seed), ranks_(ranks) {
    Registration registration = MakeRegistration(id_, ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      registration.ranks[r].epoch = ranks_[r].epoch;
      ranks_[r].Remember();
    }
    agent_ = std::make_unique<TestAgent>(*fleet_, registration);
  }

  bool faults = true;
  std::uint64_t exact_samples = 0;
  std::uint64_t whole_samples = 0;  // without holes
  std::uint64_t holed_samples = 0;  // with some

  void Step() {
    if (!agent_->connected()) {
      if (Chance(0.3)) Connect();
    } else if (faults && Chance(0.01)) {
      agent_->Close();
    } else if (faults && Chance(0.01)) {
      Connect();  // takes over from itself
    }
    ListenForResyncs();
    const auto rank = static_cast<Rank>(random_.Below(ranks_.size()));
    ModelRank& r = ranks_[rank];
    EngineStep(r);
    if (!agent_->connected()) return;
    if (r.in_snapshot) {
      SnapshotStep(rank, r);
    } else if (r.wants_snapshot.has_value() && fleet_.clock().Now() >= *r.wants_snapshot &&
               Chance(0.7)) {
      BeginSnapshot(rank, r);
    } else if (faults && Chance(0.01)) {
      BeginSnapshot(rank, r);  // unasked
    } else {
      Flush(rank, r);
    }
    if (Chance(0.1)) Heartbeat();
    if (faults && agent_->delivered() > 0 && Chance(0.02)) {
      // A message that was applied before comes again.
      const Hashes stale = {Draw(), Draw()};
      Ok(agent_->Send(CacheDeltaUpdate{.delta_seq = 1 + random_.Below(agent_->delivered()),
                                       .rank = rank,
                                       .removed = stale,
                                       .engine_seq = 1}));
    }
  }

  // Whatever claims to be exact must be.
  void Check() {
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      const ModelRank& r = ranks_[rank];
      for (const Tier tier : kAllTiers) {
        DumpHeader header;
        const Hashes dumped = fleet_.Dump(id_, tier, rank, &header);
        if (tier == Tier::kGpu && header.engine_seq.has_value()) {
          const bool has_holes = HasHoles(dumped);
          ++(has_holes ? holed_samples : whole_samples);
          ASSERT_FALSE(has_holes && !fleet_.View(id_, rank)->may_have_holes)
              << id_ << " rank " << rank << " at " << *header.engine_seq;
        }
        if (header.freshness != Freshness::kExact || !header.engine_seq.has_value()) continue;
        ++exact_samples;
        const auto it = r.history.find({header.epoch, header.engine_seq});
        ASSERT_NE(it, r.history.end()) << id_ << " rank " << rank << " epoch " << header.epoch
                                       << " names a sequence that never was";
        const auto& held = it->second[static_cast<std::size_t>(tier)];
        ASSERT_EQ(dumped, Hashes(held.begin(), held.end()))
            << id_ << " rank " << rank << " tier " << TierName(tier) << " at "
            << *header.engine_seq;
      }
    }
  }

  void CheckSettled() {
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      const ModelRank& r = ranks_[rank];
      EXPECT_EQ(fleet_.Look(id_, rank), (Glance{Lifecycle::kReady, Freshness::kExact, ""}))
          << id_ << " rank " << rank;
      EXPECT_EQ(fleet_.View(id_, rank)->may_have_holes, HasHoles(r.truth[0]))
          << id_ << " rank " << rank;
      DumpHeader header;
      for (const Tier tier : kAllTiers) {
        const auto& held = r.truth[static_cast<std::size_t>(tier)];
        EXPECT_EQ(fleet_.Dump(id_, tier, rank, &header), Hashes(held.begin(), held.end()));
      }
      EXPECT_EQ(header.epoch, r.epoch);
      EXPECT_EQ(header.engine_seq, r.seq);
    }
  }

  // The engine rests; the agent hands over what is left and beats.
  void Settle() {
    if (!agent_->connected()) Connect();
    ListenForResyncs();
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      ModelRank& r = ranks_[rank];
      while (r.in_snapshot) SnapshotStep(rank, r);
      if (r.wants_snapshot.has_value() && fleet_.clock().Now() >= *r.wants_snapshot) {
        BeginSnapshot(rank, r);
        while (r.in_snapshot) SnapshotStep(rank, r);
      }
      Flush(rank, r);
    }
    Heartbeat();
  }

 private:
  bool Chance(double p) { return random_.Unit() < p; }
  bool Lost() { return faults && Chance(0.01); }
  ChainHash Draw() { return (1 + random_.Below(kHashes)) * kStep; }
  void Ok(const absl::Status& status) { EXPECT_THAT(status, IsOk()) << id_; }

  void Connect() {
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      agent_->registration().ranks[rank].epoch = ranks_[rank].epoch;
    }
    Ok(agent_->Register());
    for (ModelRank& r : ranks_) {
      r.in_snapshot = false;
      r.wants_snapshot.reset();
      // What the router has is not known; a snapshot will tell it.
      r.sent = r.truth;
      r.sent_seq = r.seq;
      r.named_seq.reset();
    }
    for (const Rank rank : agent_->registered().snapshot_ranks) {
      ranks_[rank].wants_snapshot = fleet_.clock().Now();
    }
  }

  void ListenForResyncs() {
    if (!agent_->connected()) return;
    for (const ResyncReply& resync : agent_->sink().TakeResyncReplies()) {
      ranks_[resync.rank].wants_snapshot = fleet_.clock().Now() + resync.backoff;
    }
  }

  void EngineStep(ModelRank& r) {
    if (faults && Chance(0.01)) {
      r.epoch += 1 + random_.Below(5);
      r.truth = State();
      r.seq.reset();
      r.Remember();
      AnnounceEpoch(r);
      return;
    }
    if (!Chance(0.8)) return;
    const auto tier = static_cast<std::size_t>(Chance(0.7) ? 0 : random_.Below(kTierCount));
    const std::uint64_t changes = random_.Below(Chance(0.1) ? 60 : 8);
    for (std::uint64_t i = 0; i < changes; ++i) {
      const ChainHash hash = Draw();
      if (r.truth[tier].erase(hash) == 0) r.truth[tier].insert(hash);
    }
    // Mostly an engine keeps what its blocks hang on.
    const bool keeps = Chance(0.8);
    for (std::uint64_t n = 1; keeps && tier == 0 && n <= kHashes; ++n) {
      if (!IsFirst(n) && !r.truth[0].contains((n - 1) * kStep)) r.truth[0].erase(n * kStep);
    }
    r.seq = r.seq.value_or(0) + 1;
    r.Remember();
    if (Chance(0.05) && !r.in_snapshot && agent_->connected() && r.sent[0] == r.truth[0]) {
      // AllBlocksCleared, told as such.
      const auto rank = static_cast<Rank>(&r - ranks_.data());
      FlushAll(rank, r);
      r.truth[0].clear();
      r.seq = *r.seq + 1;
      r.sent = r.truth;
      r.sent_seq = r.named_seq = r.seq;
      r.Remember();
      if (Lost()) {
        agent_->Skip();
      } else {
        Ok(agent_->Cleared(Tier::kGpu, r.seq, rank));
      }
    }
  }

  void AnnounceEpoch(ModelRank& r) {
    const auto rank = static_cast<Rank>(&r - ranks_.data());
    r.in_snapshot = false;
    r.sent = State();
    r.sent_seq.reset();
    r.named_seq.reset();
    if (!agent_->connected()) return;  // Register will tell it
    if (Chance(0.2)) {
      BeginSnapshot(rank, r);  // tells it, too
      return;
    }
    if (Lost()) {
      agent_->Skip();
    } else {
      Ok(agent_->NewEpoch(r.epoch, rank));
    }
    if (Chance(0.5)) r.wants_snapshot = fleet_.clock().Now();
  }

  void Flush(Rank rank, ModelRank& r) {
    if (Chance(0.8)) FlushAll(rank, r);
  }

  // The difference between what was sent and what is, in pieces.
  void FlushAll(Rank rank, ModelRank& r) {
    struct Piece {
      Tier tier = Tier::kGpu;
      Hashes removed;
      Hashes stored;
    };
    std::vector<Piece> pieces;
    const std::size_t size = Chance(0.5) ? 4096 : 1 + random_.Below(5);
    for (const Tier tier : kAllTiers) {
      const auto& before = r.sent[static_cast<std::size_t>(tier)];
      const auto& after = r.truth[static_cast<std::size_t>(tier)];
      Piece piece{.tier = tier};
      const auto flush_piece = [&pieces, &piece, tier] {
        if (!piece.removed.empty() || !piece.stored.empty()) pieces.push_back(piece);
        piece = Piece{.tier = tier};
      };
      for (const ChainHash hash : before) {
        if (after.contains(hash)) continue;
        piece.removed.push_back(hash);
        if (piece.removed.size() >= size) flush_piece();
      }
      for (const ChainHash hash : after) {
        if (before.contains(hash)) continue;
        piece.stored.push_back(hash);
        if (piece.removed.size() + piece.stored.size() >= size) flush_piece();
      }
      flush_piece();
    }
    const bool whole = !HasHoles(r.truth[0]);
    const bool all_along = whole && !HasHoles(r.sent[0]);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      agent_->SayNoHoles(i + 1 < pieces.size() ? all_along : whole);
      // A sequence is named when all of it has been handed out: before, the one named last or none.
      std::optional<std::uint64_t> seq = r.seq;
      if (i + 1 < pieces.size()) seq = Chance(0.5) ? r.named_seq : std::nullopt;
      if (seq.has_value()) r.named_seq = seq;
      if (Lost()) {
        agent_->Skip();
      } else {
        Ok(agent_->Delta(pieces[i].removed, pieces[i].stored, seq, pieces[i].tier, rank));
      }
      if (Chance(0.05)) Check();
    }
    r.sent = r.truth;
    r.sent_seq = r.seq;
  }

  void BeginSnapshot(Rank rank, ModelRank& r) {
    r.wants_snapshot.reset();
    r.in_snapshot = true;
    r.sent = r.truth;
    r.sent_seq = r.named_seq = r.seq;
    r.chunks.clear();
    r.snapshot_count = 0;
    r.snapshot_xor = 0;
    for (const Tier tier : kAllTiers) {
      Hashes chunk;
      for (const ChainHash hash : r.truth[static_cast<std::size_t>(tier)]) {
        chunk.push_back(hash);
        ++r.snapshot_count;
        r.snapshot_xor ^= hash;
        if (chunk.size() >= 40) r.chunks.emplace_back(tier, std::exchange(chunk, {}));
      }
      if (!chunk.empty()) r.chunks.emplace_back(tier, chunk);
    }
    if (Lost()) {
      agent_->Skip();
    } else {
      Ok(agent_->Begin(rank, r.epoch));
    }
  }

  void SnapshotStep(Rank rank, ModelRank& r) {
    if (faults && Chance(0.02)) {
      BeginSnapshot(rank, r);  // begins anew
      return;
    }
    if (Lost()) {
      agent_->Skip();
      if (r.chunks.empty()) r.in_snapshot = false;
    } else if (!r.chunks.empty()) {
      Ok(agent_->Chunk(r.chunks.back().second, r.chunks.back().first, rank));
    } else {
      agent_->SayNoHoles(!HasHoles(r.sent[0]));
      const std::uint64_t wrong = faults && Chance(0.05) ? 1 : 0;
      Ok(agent_->End(r.snapshot_count + wrong, r.snapshot_xor, r.sent_seq, rank));
      r.in_snapshot = false;
    }
    if (!r.chunks.empty()) r.chunks.pop_back();
  }

  void Heartbeat() {
    HeartbeatUpdate update{.delta_seq = agent_->seq(), .digests = {}};
    for (Rank rank = 0; rank < ranks_.size(); ++rank) {
      const ModelRank& r = ranks_[rank];
      for (const Tier tier : kAllTiers) {
        HeartbeatUpdate::Digest digest{.rank = rank, .tier = tier, .engine_seq = r.sent_seq};
        for (const ChainHash hash : r.sent[static_cast<std::size_t>(tier)]) {
          ++digest.count;
          digest.xor_of_hashes ^= hash;
        }
        update.digests.push_back(digest);
      }
    }
    for (ModelRank& r : ranks_) r.named_seq = r.sent_seq;
    Ok(agent_->Send(update));
  }

  FleetHarness& fleet_;
  const std::string id_;
  Random random_;
  std::vector<ModelRank> ranks_;
  std::unique_ptr<TestAgent> agent_;
};

class FeedModelTest : public ::testing::TestWithParam<int> {};

TEST_P(FeedModelTest, ExactMeansEqual) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  FleetConfig config;
  config.max_concurrent_snapshots = 2;
  config.heartbeat = absl::Minutes(1);  // the steps send some only now and then
  FleetHarness fleet(config);
  Random random(seed);
  std::vector<std::unique_ptr<Model>> models;
  for (int i = 0; i < 3; ++i) {
    models.push_back(std::make_unique<Model>(fleet, absl::StrCat("w", i), 1 + i % 2,
                                             seed * 1000 + static_cast<std::uint64_t>(i)));
  }
  for (int step = 0; step < 800; ++step) {
    for (const auto& model : models) {
      model->Step();
      if (HasFatalFailure()) return;
    }
    if (step % 4 == 0) {
      for (const auto& model : models) ASSERT_NO_FATAL_FAILURE(model->Check());
    }
    // Sometimes long enough for a lease to end.
    const double milliseconds = random.Unit() < 0.01 ? 12'000 : random.Exponential(60);
    fleet.Pass(absl::Milliseconds(milliseconds));
    if (step % 10 == 0) fleet->MaintainIndexes(1000);
  }
  for (const auto& model : models) model->faults = false;
  for (int i = 0; i < 60; ++i) {
    for (const auto& model : models) model->Settle();
    fleet.Pass(absl::Seconds(4));
    fleet->MaintainIndexes(100'000);
  }
  std::uint64_t samples = 0;
  std::uint64_t whole = 0;
  std::uint64_t holed = 0;
  for (const auto& model : models) {
    model->CheckSettled();
    samples += model->exact_samples;
    whole += model->whole_samples;
    holed += model->holed_samples;
  }
  EXPECT_GT(whole, 500u);
  EXPECT_GT(holed, 50u);
  EXPECT_GT(samples, 500u) << "the faults must leave something to compare";
  std::uint64_t slots = 0;
  for (const PoolView& pool : fleet->ListPools("")) slots += pool.index.open_slots;
  EXPECT_EQ(slots, 4u) << "one for each target; nothing leaks";
}

INSTANTIATE_TEST_SUITE_P(Seeds, FeedModelTest, ::testing::Range(1, 9));

}  // namespace
}  // namespace warmpath::testing
