// What operators see of a worker.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/fleet/prefill_rate.h"
#include "core/fleet/worker_record.h"

namespace warmpath {

std::uint32_t WorkerRecord::SetDraining(bool on) {
  if (std::exchange(draining_, on) != on && connected_) sink_->Send(DrainReply{.on = on});
  std::uint32_t open = 0;
  const absl::Time now = context_->clock->Now();
  for (const TargetFeed& feed : feeds_) {
    Publish(feed);
    absl::MutexLock lock(&pool().mu());
    open += pool().ledger().Load(feed.target, now).own_inflight;
  }
  return open;
}

bool WorkerRecord::SnapshotsWhole() const {
  return lost_ || std::all_of(feeds_.begin(), feeds_.end(), [](const TargetFeed& feed) {
           return !feed.spec.has_events || feed.had_snapshot;
         });
}

WorkerView WorkerRecord::View(const PeerRates& peers, absl::Time now) const {
  WorkerView view;
  view.worker_id = id_;
  view.pool = pool().name();
  view.engine = registration_.engine;
  view.engine_version = registration_.engine_version;
  view.agent_address = peer_;
  view.agent_version = registration_.agent_version;
  view.draining = draining_;
  view.loras = registration_.loras;
  view.labels = registration_.labels;
  for (const TargetFeed& feed : feeds_) {
    TargetView target;
    target.rank = feed.spec.rank;
    target.address = feed.spec.address;
    target.engine_block_size = feed.spec.engine_block_size;
    target.has_events = feed.spec.has_events;
    if (feed.slot != kNoSlot) {
      target.may_have_holes = feed.may_have_holes;
      for (const Tier tier : kAllTiers) {
        target.blocks[static_cast<std::size_t>(tier)] =
            pool().index().Digest(feed.slot, tier).count;
      }
    }
    {
      absl::MutexLock lock(&pool().mu());
      const TargetState& state = pool().targets()[feed.target];
      target.lifecycle = state.lifecycle;
      target.freshness = state.freshness();
      target.causes = state.AllCauses();
      target.epoch = state.spec.epoch;
      target.engine_seq = state.engine_seq;
      target.event_lag_s = state.event_lag_s;
      target.kv_capacity_tokens = state.spec.kv_capacity_tokens;
      target.prefill_tokens_per_s = RateInUse(state.rate, state.spec.prefill_tokens_per_s, peers);
      target.load = state.load;
      const TargetLoad load = pool().ledger().Load(feed.target, now);
      target.inflight = load.own_inflight;
      target.external_inflight = load.external;
      target.wait_s = load.wait_s;
      target.kv_tokens = load.kv_tokens;
      target.predicted_blocks = pool().ledger().PredictedBlocks(feed.target);
    }
    view.targets.push_back(std::move(target));
  }
  return view;
}

absl::StatusOr<DumpHeader> WorkerRecord::Dump(Rank rank, Tier tier, KnowledgeSource source,
                                              std::vector<ChainHash>* hashes) const {
  if (rank >= feeds_.size()) {
    return absl::NotFoundError(absl::StrCat("rank: worker '", id_, "' has no rank ", rank,
                                            ", it has 0..", feeds_.size() - 1));
  }
  const TargetFeed& feed = feeds_[rank];
  DumpHeader header;
  header.routing_block_size = pool().routing_block_size();
  header.epoch = feed.spec.epoch;
  if (!feed.mid_batch) header.engine_seq = feed.engine_seq;
  {
    absl::MutexLock lock(&pool().mu());
    const TargetState& state = pool().targets()[feed.target];
    header.freshness = state.freshness();
    header.causes = state.AllCauses();
    if (source == KnowledgeSource::kInFlight) {
      pool().ledger().ForEachInFlight(feed.target, hashes);
    } else if (source == KnowledgeSource::kPredicted) {
      pool().ledger().ForEachPredicted(feed.target, hashes);
    }
  }
  if (source == KnowledgeSource::kEvents && feed.slot != kNoSlot) {
    // The record's mutex keeps writers of this slot out.
    hashes->reserve(hashes->size() + pool().index().Digest(feed.slot, tier).count);
    pool().index().ForEach(feed.slot, tier, [hashes](ChainHash hash) { hashes->push_back(hash); });
  }
  return header;
}

}  // namespace warmpath
