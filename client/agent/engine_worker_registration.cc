// What a worker tells its routers about itself, and what their answers change: the engine's facts,
// epochs, the routing block.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/agent/engine_worker.h"

namespace warmpath {

void EngineWorker::OnFacts(const EngineFacts& facts) {
  const std::optional<EngineFacts> before = std::exchange(facts_, facts);
  if (!before) {
    DrawEpochs();
    if (routing_block_ != 0) StartFeeds();
  } else {
    for (Rank rank = 0; rank < config_.ranks; ++rank) {
      if (ranks_[rank].feed == nullptr || before->ranks[rank] == facts.ranks[rank]) continue;
      if (before->ranks[rank].block_size != facts.ranks[rank].block_size) {
        // Another geometry: nothing of the old state can be read with it.
        StartFeed(rank);
      } else {
        ranks_[rank].feed->SetGpuCapacity(facts.ranks[rank].num_blocks);
      }
    }
  }
  Announce();
}

void EngineWorker::DrawEpochs(Epoch at_least) {
  const auto now = static_cast<Epoch>(absl::ToUnixNanos(clock_.WallNow()));
  for (Rank rank = 0; rank < config_.ranks; ++rank) {
    if (ranks_[rank].feed != nullptr) continue;
    SetEpoch(rank, std::max({ranks_[rank].epoch + 1, now, at_least}));
  }
}

void EngineWorker::OnStaleEpoch() {
  Log(LogLevel::kWarn, "the router knows a later epoch: drawing a new one",
      {{"worker", config_.worker_id}});
  // A clock that was set back may be far behind what the router knows: reach further each time.
  const Epoch step = Epoch{1'000'000'000} << std::min(stale_epochs_++, 30);
  Epoch latest = 0;
  for (const RankState& rank : ranks_) latest = std::max(latest, rank.epoch);
  for (RankState& rank : ranks_) {
    if (rank.feed != nullptr) rank.feed->RenewEpoch(latest + step);
  }
  DrawEpochs(latest + step);
}

// The engine's process as its start time shows it.
void EngineWorker::OnEngineProcess(const EngineReport& report) {
  const std::optional<double> start = report.metrics.process_start;
  if (start) {
    for (RankState& rank : ranks_) {
      if (rank.feed != nullptr) rank.feed->OnProcessStart(*start);
    }
  }
  // Without events nothing else tells that what was routed there is gone.
  const bool back = !engine_up_ && facts_ && announced_ && !start;
  if ((start && process_start_ && *start != *process_start_) || back) DrawEpochs();
  if (start) process_start_ = start;
}

void EngineWorker::Announce() {
  if (!facts_) return;
  std::vector<Epoch> epochs;
  epochs.reserve(ranks_.size());
  for (const RankState& rank : ranks_) epochs.push_back(rank.epoch);
  const v1::Register message = MakeRegister(config_, *facts_, instance_, epochs);
  for (const auto& publisher : publishers_) publisher->SetRegister(message);
  announced_ = true;
}

void EngineWorker::HandlePublishers() {
  for (std::size_t i = 0; i < publishers_.size(); ++i) {
    for (const PublisherEvent& event : publishers_[i]->TakeEvents()) {
      if (event.kind == PublisherEvent::Kind::kRegistered) {
        OnRegistered(i, event.routing_block);
      } else {
        OnStaleEpoch();
      }
    }
    while (const std::optional<Rank> rank = publishers_[i]->SnapshotWanted()) {
      const RankFeed* feed = ranks_[*rank].feed.get();
      if (feed == nullptr) break;
      RankSnapshot snapshot;
      snapshot.rank = *rank;
      for (const Tier tier : kAllTiers) {
        snapshot.held[static_cast<std::size_t>(tier)] = feed->canonical().Held(tier);
      }
      snapshot.digests = feed->digests();
      snapshot.engine_seq = feed->engine_seq();
      snapshot.no_holes = feed->canonical().holes() == 0;
      publishers_[i]->GiveSnapshot(std::move(snapshot));
    }
  }
}

void EngineWorker::OnRegistered(std::size_t publisher, std::uint32_t routing_block) {
  if (!config_.has_events()) return;
  if (routing_block == routing_block_) {
    if (ranks_[0].feed == nullptr) StartFeeds();
    return;
  }
  for (std::size_t i = 0; i < publishers_.size(); ++i) {
    const PublisherView other = publishers_[i]->View();
    if (i == publisher || !other.registered || other.routing_block != routing_block_) continue;
    publishers_[publisher]->Refuse(absl::FailedPreconditionError(absl::StrCat(
        "routing block ", routing_block, " differs from ", routing_block_, " of router ",
        other.router, "; set routing_block_size of the pool to the same value in both")));
    return;
  }
  if (facts_) {
    for (const RankFacts& rank : facts_->ranks) {
      const absl::Status fits = CheckBlockSizes(rank.block_size, routing_block);
      if (!fits.ok()) return publishers_[publisher]->Refuse(fits);
    }
  }
  if (routing_block_ != 0) {
    Log(LogLevel::kWarn, "routing block of the router differs from the one in use: starting anew",
        {{"worker", config_.worker_id},
         {"routing_block", routing_block},
         {"before", routing_block_}});
  }
  routing_block_ = routing_block;
  StartFeeds();
}

}  // namespace warmpath
