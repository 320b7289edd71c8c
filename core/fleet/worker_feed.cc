#include "core/fleet/worker_feed.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/fleet/registration.h"

namespace warmpath {
namespace {

constexpr absl::Duration kMaxReportAge = absl::Hours(1);

void Count(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

absl::Status CheckHashes(std::string_view field, std::size_t count) {
  if (count <= kMaxHashesPerMessage) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": ", count, " hashes; at most ",
                                                 kMaxHashesPerMessage, " per message, split it"));
}

absl::Status CheckTier(std::string_view message, Tier tier) {
  if (static_cast<std::size_t>(tier) < kTierCount) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(message), ".tier: ", static_cast<int>(tier), " is not a tier"));
}

// Causes that are the router's to say.
CauseSet WithoutRouterCauses(CauseSet causes) {
  causes.Set(FreshnessCause::kAgentGone, false);
  causes.Set(FreshnessCause::kIndexFull, false);
  return causes;
}

}  // namespace

absl::Status StreamFeed::OnUpdate(SessionId session, const FeedUpdate& update) {
  absl::Status status;
  bool pump = false;
  {
    absl::MutexLock lock(&record_->mu);
    const bool current = record_->connected_ && record_->session_ == session_;
    if (session != session_ || !current) {
      Count(context_->stats.updates_wrong_session);
      return current ? absl::OkStatus() : record_->ended_;
    }
    record_->Heard(now());
    status = std::visit([this](const auto& u)
                            ABSL_EXCLUSIVE_LOCKS_REQUIRED(record_->mu) { return Apply(u); },
                        update);
    pump = record_->TakeTurnFreed();
  }
  if (pump) PumpTurns(*context_);
  return status;
}

void StreamFeed::OnClosed() {
  {
    absl::MutexLock lock(&record_->mu);
    record_->Detach(session_, now());
  }
  PumpTurns(*context_);
}

absl::StatusOr<TargetFeed*> StreamFeed::FeedOf(std::string_view message, Rank rank,
                                               bool with_events) {
  TargetFeed* feed = record_->Find(rank);
  if (feed == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(message), ".rank: ", rank,
                                                   " is not registered; worker '", record_->id(),
                                                   "' has ranks 0..", record_->feeds_.size() - 1));
  }
  if (with_events && !feed->spec.has_events) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(message), ".rank: ", rank, " of worker '", record_->id(),
                     "' was registered without events (ranks.has_events)"));
  }
  return feed;
}

// ---- delta_seq

bool StreamFeed::Sequence(std::uint64_t delta_seq) {
  if (delta_seq <= record_->last_seq_) {
    Count(context_->stats.updates_duplicate);
    return false;
  }
  const bool hole = delta_seq != record_->last_seq_ + 1;
  record_->last_seq_ = delta_seq;
  record_->CountForAck(now());
  if (hole) Hole();
  return true;
}

void StreamFeed::Hole() {
  // Which rank's message is missing is not known.
  for (TargetFeed& feed : record_->feeds_) {
    if (!feed.spec.has_events) continue;
    if (feed.phase == SnapshotPhase::kBuilding) {
      FailSnapshot(feed, "gap");
    } else {
      record_->RequestSnapshot(feed, "gap", record_->NextBackoff(feed), now());
    }
  }
}

void StreamFeed::FailSnapshot(TargetFeed& feed, std::string_view reason) {
  Count(context_->stats.snapshots_failed);
  record_->RequestSnapshot(feed, reason, record_->NextBackoff(feed), now());
}

void StreamFeed::FailIfBuilding(TargetFeed& feed) {
  if (feed.phase == SnapshotPhase::kBuilding) FailSnapshot(feed, "delta_in_snapshot");
}

void StreamFeed::Advance(TargetFeed& feed, std::optional<std::uint64_t> engine_seq, bool changed) {
  if (engine_seq.has_value() && (!feed.engine_seq.has_value() || *engine_seq > *feed.engine_seq)) {
    feed.engine_seq = engine_seq;
    feed.mid_batch = false;
  } else if (changed) {
    // The agent names a sequence once all of it has been sent; this was a part of a later one.
    feed.mid_batch = true;
  }
}

// ---- Snapshots

absl::Status StreamFeed::Apply(const SnapshotBeginUpdate& update) {
  WARMPATH_ASSIGN_OR_RETURN(TargetFeed * feed, FeedOf("snapshot_begin", update.rank, true));
  WARMPATH_RETURN_IF_ERROR(CheckEpoch("snapshot_begin.epoch", update.epoch));
  if (update.epoch < feed->spec.epoch) {
    return absl::FailedPreconditionError(absl::StrCat("snapshot_begin.epoch: stale epoch ",
                                                      update.epoch, " of rank ", update.rank,
                                                      "; the router knows ", feed->spec.epoch));
  }
  if (!Sequence(update.delta_seq)) return absl::OkStatus();
  if (update.epoch > feed->spec.epoch) record_->BeginEpoch(*feed, update.epoch, now());
  record_->DropBuilding(*feed);
  feed->reason = "turn";
  feed->unproven = false;
  feed->router_causes.Set(FreshnessCause::kResync);
  // An agent begins one unasked when it has given up on changes that it had begun to send.
  record_->DoubtHoles(*feed);
  if (!feed->holds_turn) {
    feed->holds_turn = context_->turns.TakeOrQueue(record_->Ref(*feed), feed->queued);
    if (!feed->holds_turn) {
      // As many as may run at once do. What comes now is not looked at, and asked for again.
      feed->queued = true;
      feed->phase = SnapshotPhase::kWaiting;
      record_->Publish(*feed);
      return absl::OkStatus();
    }
  }
  const absl::StatusOr<Slot> slot = pool().index().OpenSlot();
  if (!slot.ok()) {
    record_->MarkIndexFull(*feed, now());
    ++feed->full_attempts;
    feed->phase = SnapshotPhase::kNone;
    record_->EndTurn(*feed);
  } else {
    feed->building = *slot;
    feed->received_count = 0;
    feed->received_xor = 0;
    feed->refused = false;
    feed->phase = SnapshotPhase::kBuilding;
    if (!feed->building_since.has_value()) feed->building_since = now();
    feed->deadline = now() + WorkerRecord::kSnapshotPatience;
  }
  record_->Publish(*feed);
  return absl::OkStatus();
}

absl::Status StreamFeed::Apply(const SnapshotChunkUpdate& update) {
  WARMPATH_ASSIGN_OR_RETURN(TargetFeed * feed, FeedOf("snapshot_chunk", update.rank, true));
  WARMPATH_RETURN_IF_ERROR(CheckTier("snapshot_chunk", update.tier));
  WARMPATH_RETURN_IF_ERROR(CheckHashes("snapshot_chunk.hashes", update.hashes.size()));
  if (!Sequence(update.delta_seq) || feed->phase != SnapshotPhase::kBuilding) {
    return absl::OkStatus();
  }
  const ApplyResult result = pool().index().Apply(feed->building, update.tier, {}, update.hashes);
  feed->refused = feed->refused || result.refused > 0;
  feed->received_count += update.hashes.size();
  for (const ChainHash hash : update.hashes) feed->received_xor ^= hash;
  feed->deadline = now() + WorkerRecord::kSnapshotPatience;
  return absl::OkStatus();
}

absl::Status StreamFeed::Apply(const SnapshotEndUpdate& update) {
  WARMPATH_ASSIGN_OR_RETURN(TargetFeed * feed, FeedOf("snapshot_end", update.rank, true));
  if (!Sequence(update.delta_seq) || feed->phase != SnapshotPhase::kBuilding) {
    return absl::OkStatus();
  }
  bool whole = feed->received_count == update.count && feed->received_xor == update.xor_of_hashes;
  if (whole && !feed->refused) {
    // What arrived and what is held differ if a hash came twice.
    HoldingsDigest held;
    for (const Tier tier : kAllTiers) {
      const HoldingsDigest digest = pool().index().Digest(feed->building, tier);
      held.count += digest.count;
      held.xor_of_hashes ^= digest.xor_of_hashes;
    }
    whole = held == HoldingsDigest{update.count, update.xor_of_hashes};
  }
  if (!whole) {
    FailSnapshot(*feed, "snapshot_mismatch");
    return absl::OkStatus();
  }
  Count(context_->stats.snapshots_applied);
  feed->phase = SnapshotPhase::kNone;
  feed->had_snapshot = true;
  feed->engine_seq = update.engine_seq;
  feed->mid_batch = false;
  feed->router_causes.Set(FreshnessCause::kResync, false);
  if (feed->refused) {
    record_->MarkIndexFull(*feed, now());
    ++feed->full_attempts;
  } else {
    feed->router_causes.Set(FreshnessCause::kIndexFull, false);
    feed->full_attempts = 0;
  }
  record_->ReplaceSlot(*feed, std::exchange(feed->building, kNoSlot),
                       update.no_holes && !feed->refused);
  if (feed->refused) record_->DoubtHoles(*feed);
  record_->EndTurn(*feed);
  return absl::OkStatus();
}

// ---- Changes

absl::Status StreamFeed::Apply(const CacheDeltaUpdate& update) {
  WARMPATH_ASSIGN_OR_RETURN(TargetFeed * feed, FeedOf("delta", update.rank, true));
  WARMPATH_RETURN_IF_ERROR(CheckTier("delta", update.tier));
  WARMPATH_RETURN_IF_ERROR(
      CheckHashes("delta.removed and delta.stored", update.removed.size() + update.stored.size()));
  if (!Sequence(update.delta_seq)) return absl::OkStatus();
  FailIfBuilding(*feed);
  // Without a slot there is nothing that a change could be applied to: the snapshot will hold it.
  if (feed->slot == kNoSlot) return absl::OkStatus();
  if (!update.no_holes) record_->SetMayHaveHoles(*feed, true);
  const ApplyResult result =
      pool().index().Apply(feed->slot, update.tier, update.removed, update.stored);
  FleetStats& stats = context_->stats;
  Count(stats.deltas_applied);
  Count(stats.blocks_stored, result.stored);
  Count(stats.blocks_removed, result.removed);
  Count(stats.removed_missing, result.removed_missing);
  if (result.refused > 0 || result.not_removed > 0) record_->MarkIndexFull(*feed, now());
  if (update.no_holes) record_->SetMayHaveHoles(*feed, false);
  Advance(*feed, update.engine_seq, !update.removed.empty() || !update.stored.empty());
  record_->Publish(*feed);
  return absl::OkStatus();
}

// A fresh slot is O(1), but loses all tiers. So a rank that holds blocks in other tiers has the
// cleared tier's blocks removed one by one: as much work as the removals that the engine spared.
absl::Status StreamFeed::Apply(const ClearedUpdate& update) {
  WARMPATH_ASSIGN_OR_RETURN(TargetFeed * feed, FeedOf("cleared", update.rank, true));
  WARMPATH_RETURN_IF_ERROR(CheckTier("cleared", update.tier));
  if (!Sequence(update.delta_seq)) return absl::OkStatus();
  FailIfBuilding(*feed);
  if (feed->slot == kNoSlot) return absl::OkStatus();
  Count(context_->stats.deltas_applied);
  std::uint64_t others = 0;
  for (const Tier tier : kAllTiers) {
    if (tier != update.tier) others += pool().index().Digest(feed->slot, tier).count;
  }
  absl::StatusOr<Slot> fresh = absl::UnavailableError("other tiers hold blocks");
  if (others == 0) fresh = pool().index().OpenSlot();
  Advance(*feed, update.engine_seq, /*changed=*/true);
  if (fresh.ok()) {
    // What of the GPU tier never arrived does not arrive because another tier is empty.
    const bool doubted = feed->holes_doubted && update.tier != Tier::kGpu;
    record_->ReplaceSlot(*feed, *fresh, /*no_holes=*/true);
    if (doubted) record_->DoubtHoles(*feed);
  } else {
    if (!RemoveTier(*feed, update.tier)) {
      record_->MarkIndexFull(*feed, now());
    } else if (update.tier == Tier::kGpu) {
      record_->SetMayHaveHoles(*feed, false);
    }
    record_->Publish(*feed);
  }
  return absl::OkStatus();
}

bool StreamFeed::RemoveTier(TargetFeed& feed, Tier tier) {
  std::vector<ChainHash> hashes;
  pool().index().ForEach(feed.slot, tier, [&hashes](ChainHash hash) { hashes.push_back(hash); });
  const std::span<const ChainHash> all(hashes);
  bool whole = true;
  for (std::size_t at = 0; at < all.size(); at += kMaxHashesPerMessage) {
    const std::size_t n = std::min(kMaxHashesPerMessage, all.size() - at);
    whole = pool().index().Apply(feed.slot, tier, all.subspan(at, n), {}).not_removed == 0 && whole;
  }
  return whole;
}

absl::Status StreamFeed::Apply(const NewEpochUpdate& update) {
  WARMPATH_ASSIGN_OR_RETURN(TargetFeed * feed, FeedOf("new_epoch", update.rank, false));
  WARMPATH_RETURN_IF_ERROR(CheckEpoch("new_epoch.epoch", update.epoch));
  if (update.epoch < feed->spec.epoch) {
    return absl::FailedPreconditionError(absl::StrCat("new_epoch.epoch: stale epoch ", update.epoch,
                                                      " of rank ", update.rank,
                                                      "; the router knows ", feed->spec.epoch));
  }
  if (!Sequence(update.delta_seq)) return absl::OkStatus();
  if (update.kv_capacity_tokens != 0) feed->spec.kv_capacity_tokens = update.kv_capacity_tokens;
  if (update.epoch > feed->spec.epoch) {
    record_->BeginEpoch(*feed, update.epoch, now());
    if (feed->spec.has_events) {
      // The new process holds nothing yet, as far as its agent knows: an empty slot that deltas
      // may fill at once. DEGRADED until a snapshot or an audit has confirmed it.
      feed->router_causes.Set(FreshnessCause::kResync);
      const absl::StatusOr<Slot> slot = pool().index().OpenSlot();
      if (slot.ok()) {
        record_->SwapSlot(*feed, *slot, /*no_holes=*/true);
        feed->had_snapshot = true;
        feed->unproven = feed->phase == SnapshotPhase::kNone;
      } else {
        record_->MarkIndexFull(*feed, now());
      }
    }
  }
  record_->Publish(*feed);
  return absl::OkStatus();
}

// ---- State

absl::Status StreamFeed::Apply(const LoadUpdate& update) {
  WARMPATH_ASSIGN_OR_RETURN(TargetFeed * feed, FeedOf("load", update.rank, false));
  if (!std::isfinite(update.kv_usage)) {
    return absl::InvalidArgumentError("load.kv_usage: must be a number from 0 to 1");
  }
  const absl::Time at = now();
  const absl::Duration age = std::clamp(update.age, absl::ZeroDuration(), kMaxReportAge);
  const EngineLoad load{.running = update.running,
                        .waiting = update.waiting,
                        .kv_usage = std::clamp(update.kv_usage, 0.0, 1.0),
                        .as_of = at - age};
  absl::MutexLock lock(&pool().mu());
  pool().Edit(feed->target, [&](TargetState& state) { state.load = load; });
  pool().ledger().OnEngineLoad(feed->target, load, at);
  return absl::OkStatus();
}

absl::Status StreamFeed::Apply(const RankStateUpdate& update) {
  WARMPATH_ASSIGN_OR_RETURN(TargetFeed * feed, FeedOf("rank_state", update.rank, false));
  feed->engine_reachable = update.engine_reachable;
  feed->agent_causes = WithoutRouterCauses(update.causes);
  feed->event_lag_s = std::isfinite(update.event_lag_s) ? std::max(0.0, update.event_lag_s) : 0.0;
  context_->stats.events_by_kind.Update(update.events, &feed->last_events);
  context_->stats.skipped_by_cause.Update(update.skipped, &feed->last_skipped);
  record_->Publish(*feed);
  return absl::OkStatus();
}

absl::Status StreamFeed::Apply(const HeartbeatUpdate& update) {
  const std::size_t max_digests = record_->feeds_.size() * kTierCount;
  if (update.digests.size() > max_digests) {
    return absl::InvalidArgumentError(absl::StrCat("heartbeat.digests: ", update.digests.size(),
                                                   " entries; at most one for each "
                                                   "rank and tier, ",
                                                   max_digests));
  }
  for (const HeartbeatUpdate::Digest& digest : update.digests) {
    WARMPATH_RETURN_IF_ERROR(FeedOf("heartbeat.digests", digest.rank, false).status());
    WARMPATH_RETURN_IF_ERROR(CheckTier("heartbeat.digests", digest.tier));
  }
  if (update.delta_seq > record_->last_seq_) {
    // The messages in between never came.
    record_->last_seq_ = update.delta_seq;
    Hole();
  }
  for (TargetFeed& feed : record_->feeds_) {
    if (!feed.spec.has_events) continue;
    // An asked agent that does not begin is asked again. A rank that holds a turn is CheckTurn's.
    if (feed.phase == SnapshotPhase::kAsked && !feed.holds_turn && now() >= feed.deadline) {
      record_->RequestSnapshot(feed, "snapshot_timeout", absl::ZeroDuration(), now());
    }
    if (update.delta_seq == record_->last_seq_) Audit(feed, update);
  }
  return absl::OkStatus();
}

bool StreamFeed::AuditMatches(const TargetFeed& feed, const HeartbeatUpdate& update) {
  // A tier that the agent does not mention is one where it holds nothing.
  std::array<HoldingsDigest, kTierCount> expected{};
  for (const HeartbeatUpdate::Digest& digest : update.digests) {
    if (digest.rank != feed.spec.rank) continue;
    expected[static_cast<std::size_t>(digest.tier)] = {digest.count, digest.xor_of_hashes};
  }
  for (const Tier tier : kAllTiers) {
    if (pool().index().Digest(feed.slot, tier) != expected[static_cast<std::size_t>(tier)]) {
      return false;
    }
  }
  return true;
}

void StreamFeed::Audit(TargetFeed& feed, const HeartbeatUpdate& update) {
  const bool mentioned =
      std::any_of(update.digests.begin(), update.digests.end(),
                  [&feed](const auto& digest) { return digest.rank == feed.spec.rank; });
  // While a snapshot is owed or stores were refused the two sides differ, and both know it.
  if (!mentioned || feed.slot == kNoSlot || !feed.had_snapshot ||
      feed.phase != SnapshotPhase::kNone || feed.router_causes.Has(FreshnessCause::kIndexFull)) {
    return;
  }
  if (!AuditMatches(feed, update)) {
    Count(context_->stats.audit_failures);
    Count(record_->entry().audit_failures);
    record_->RequestSnapshot(feed, "audit", record_->NextBackoff(feed), now());
    return;
  }
  feed.failures = 0;
  if (std::exchange(feed.unproven, false)) {
    feed.router_causes.Set(FreshnessCause::kResync, false);
  }
  for (const HeartbeatUpdate::Digest& digest : update.digests) {
    if (digest.rank == feed.spec.rank) Advance(feed, digest.engine_seq, /*changed=*/false);
  }
  record_->Publish(feed);
}

}  // namespace warmpath
