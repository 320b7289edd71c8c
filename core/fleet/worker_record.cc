#include "core/fleet/worker_record.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/fleet/registration.h"
#include "core/hashing/chain_hash.h"

namespace warmpath {

WorkerRecord::WorkerRecord(std::string worker_id, std::shared_ptr<PoolEntry> pool,
                           FleetContext* context, std::uint64_t random_seed)
    : id_(std::move(worker_id)), entry_(std::move(pool)), context_(context), random_(random_seed) {}

// ---- Registration

absl::Status WorkerRecord::CheckTakeover(const Registration& registration, std::string_view peer,
                                         absl::Time now) const {
  const bool silent = now - last_heard_ >= 2 * context_->config.heartbeat;
  if (connected_ && registration.agent_instance != registration_.agent_instance && !silent) {
    return absl::AlreadyExistsError(absl::StrCat(
        "worker_id: '", id_, "' belongs to the live stream of the agent at ", peer_,
        "; the agent at ", ToAbsl(peer),
        " is refused: stop one of the two, or give its engine a worker id of its own"));
  }
  for (const RankSpec& spec : registration.ranks) {
    if (spec.rank >= feeds_.size()) continue;
    const Epoch known = feeds_[spec.rank].spec.epoch;
    if (spec.epoch < known) {
      return absl::FailedPreconditionError(absl::StrCat(
          "ranks.epoch: stale epoch ", spec.epoch, " of worker '", id_, "' rank ", spec.rank,
          "; the router knows ", known,
          ": an agent of an earlier engine process is still running, or the node's clock went "
          "back"));
    }
  }
  return absl::OkStatus();
}

bool WorkerRecord::SameShape(const Registration& registration) const {
  if (registration.ranks.size() != feeds_.size()) return false;
  for (const RankSpec& spec : registration.ranks) {
    if (feeds_[spec.rank].spec.has_events != spec.has_events) return false;
  }
  return true;
}

void WorkerRecord::DropStream() {
  for (TargetFeed& feed : feeds_) {
    DropBuilding(feed);
    EndTurn(feed);
    // The stream may have ended in the middle of a change.
    DoubtHoles(feed);
    feed.queued = false;
    feed.phase = SnapshotPhase::kNone;
  }
  context_->turns.Forget(this);
  sink_.reset();
  connected_ = false;
}

void WorkerRecord::AddTarget(TargetFeed& feed) {
  TargetState state;
  state.worker_id = id_;
  state.spec = feed.spec;
  absl::MutexLock lock(&pool().mu());
  feed.target = pool().AddTarget(std::move(state));
}

void WorkerRecord::Attach(const Registration& registration, std::string_view peer,
                          std::shared_ptr<FeedSink> sink, SessionId session, absl::Time now) {
  ended_ = absl::AbortedError(absl::StrCat("superseded by ", ToAbsl(peer)));
  if (connected_) {
    const std::shared_ptr<FeedSink> old = sink_;
    DropStream();
    old->Close(ended_);
  }
  registration_ = registration;
  peer_ = std::string(peer.substr(0, kMaxNameBytes));
  sink_ = std::move(sink);
  session_ = session;
  connected_ = true;
  lost_ = false;
  last_heard_ = now;
  silent_since_.reset();
  if (!std::exchange(silence_queued_, true)) {
    context_->silent.Add(now + kSilentHeartbeats * context_->config.heartbeat, weak_from_this());
  }
  last_seq_ = 0;
  unacked_ = 0;

  RegisteredReply reply;
  reply.session = session;
  reply.routing_block_size = pool().routing_block_size();
  reply.hash_seed = kHashSeed;
  reply.protocol = kProtocolVersion;
  feeds_.resize(registration.ranks.size());
  for (const RankSpec& spec : registration.ranks) {
    TargetFeed& feed = feeds_[spec.rank];
    const Epoch known = feed.spec.epoch;
    feed.spec = spec;
    if (feed.target == kNoTarget) {
      AddTarget(feed);
    } else if (spec.epoch > known) {
      BeginEpoch(feed, spec.epoch, now);
    }
    feed.router_causes.Set(FreshnessCause::kAgentGone, false);
    feed.failures = 0;
    feed.unproven = false;
    if (!spec.has_events) {
      feed.engine_reachable = true;  // until RankState says otherwise
    } else {
      feed.reason = "turn";
      feed.router_causes.Set(FreshnessCause::kResync);
      feed.phase = SnapshotPhase::kWaiting;
      feed.holds_turn = context_->turns.TakeOrQueue(Ref(feed), /*queued=*/false);
      feed.queued = !feed.holds_turn;
      if (feed.holds_turn) {
        feed.phase = SnapshotPhase::kAsked;
        feed.deadline = now + kSnapshotPatience;
        reply.snapshot_ranks.push_back(spec.rank);
      }
    }
    {
      absl::MutexLock lock(&pool().mu());
      pool().Edit(feed.target, [&](TargetState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
        state.spec = spec;
        state.loras = registration_.loras;
      });
    }
    Publish(feed);
  }
  sink_->Send(std::move(reply));
  if (draining_) sink_->Send(DrainReply{.on = true});
}

void WorkerRecord::Detach(SessionId session, absl::Time now) {
  if (connected_ && session == session_) LoseStream(now + context_->config.worker_lease);
}

void WorkerRecord::LoseStream(absl::Time lease_end) {
  DropStream();
  SetAgentGone(true);
  deadline_ = lease_end;
  if (!std::exchange(lease_queued_, true)) context_->leases.Add(deadline_, weak_from_this());
}

void WorkerRecord::SetAgentGone(bool gone) {
  for (TargetFeed& feed : feeds_) {
    feed.router_causes.Set(FreshnessCause::kAgentGone, gone);
    Publish(feed);
  }
}

void WorkerRecord::Heard(absl::Time now) {
  last_heard_ = now;
  if (!silent_since_.has_value()) return;
  silent_since_.reset();
  SetAgentGone(false);
}

void WorkerRecord::CheckSilence(absl::Time now) {
  silence_queued_ = false;
  if (!connected_) return;
  const absl::Duration lease = context_->config.worker_lease;
  if (silent_since_.has_value() && now >= *silent_since_ + lease) {
    ended_ = absl::UnavailableError(
        absl::StrCat("no message of the agent for ",
                     absl::FormatDuration(absl::Trunc(now - last_heard_, absl::Milliseconds(100))),
                     ", not even a heartbeat; register again"));
    const std::shared_ptr<FeedSink> old = sink_;
    LoseStream(/*lease_end=*/now);
    old->Close(ended_);
    return;
  }
  const absl::Duration patience = kSilentHeartbeats * context_->config.heartbeat;
  // Noticed before it is acted upon: a router that was halted itself first reads what has come.
  if (!silent_since_.has_value() && now >= last_heard_ + patience) {
    silent_since_ = now;
    SetAgentGone(true);
  }
  // It may speak in the meantime and fall silent again.
  const absl::Time next = silent_since_.has_value()
                              ? std::min(*silent_since_ + lease, now + patience)
                              : last_heard_ + patience;
  silence_queued_ = true;
  context_->silent.Add(next, weak_from_this());
}

bool WorkerRecord::LeaseOver(absl::Time now) {
  lease_queued_ = false;
  if (connected_ || lost_ || removed_) return false;
  if (now >= deadline_) return true;
  lease_queued_ = true;
  context_->leases.Add(deadline_, weak_from_this());
  return false;
}

bool WorkerRecord::RetirementOver(absl::Time now) {
  retire_queued_ = false;
  if (!lost_ || removed_) return false;
  if (now >= deadline_) return true;
  retire_queued_ = true;
  context_->retired.Add(deadline_, weak_from_this());
  return false;
}

void WorkerRecord::Lose(absl::Time now) {
  lost_ = true;
  for (TargetFeed& feed : feeds_) {
    feed.had_snapshot = false;
    feed.engine_seq.reset();
    feed.mid_batch = false;
    feed.router_causes.Set(FreshnessCause::kResync, false);
    feed.router_causes.Set(FreshnessCause::kIndexFull, false);
    feed.full_attempts = 0;
    ReplaceSlot(feed, kNoSlot, /*no_holes=*/false);  // no candidate from here on
    absl::MutexLock lock(&pool().mu());
    pool().ledger().ClearTarget(feed.target, CloseCause::kTargetLost, now);
  }
  deadline_ = now + kRetireAfter;
  if (!std::exchange(retire_queued_, true)) context_->retired.Add(deadline_, weak_from_this());
}

void WorkerRecord::Remove(const absl::Status& why, absl::Time now) {
  ended_ = why;
  removed_ = true;
  if (connected_) {
    const std::shared_ptr<FeedSink> old = sink_;
    DropStream();
    old->Close(why);
  }
  for (TargetFeed& feed : feeds_) {
    ReplaceSlot(feed, kNoSlot, /*no_holes=*/false);
    absl::MutexLock lock(&pool().mu());
    pool().RemoveTarget(feed.target, now);
  }
}

// ---- Feeds

TargetFeed* WorkerRecord::Find(Rank rank) { return rank < feeds_.size() ? &feeds_[rank] : nullptr; }

Lifecycle WorkerRecord::LifecycleOf(const TargetFeed& feed) const {
  if (lost_) return Lifecycle::kLost;
  if (!feed.engine_reachable) return Lifecycle::kNotReady;
  if (draining_) return Lifecycle::kDraining;
  if (feed.spec.has_events && !feed.had_snapshot) return Lifecycle::kJoining;
  return Lifecycle::kReady;
}

void WorkerRecord::CopyTo(const TargetFeed& feed, TargetState& state) const {
  for (std::size_t i = 0; i < kFreshnessCauseCount; ++i) {
    const auto cause = static_cast<FreshnessCause>(i);
    state.causes.Set(cause, feed.agent_causes.Has(cause) || feed.router_causes.Has(cause));
  }
  state.spec.epoch = feed.spec.epoch;
  state.spec.kv_capacity_tokens = feed.spec.kv_capacity_tokens;
  state.lifecycle = LifecycleOf(feed);
  state.draining = draining_;
  state.engine_reachable = feed.engine_reachable;
  state.had_snapshot = feed.had_snapshot;
  state.slot = feed.slot;
  state.engine_seq = feed.engine_seq;
  state.event_lag_s = feed.event_lag_s;
}

void WorkerRecord::Publish(const TargetFeed& feed) {
  absl::MutexLock lock(&pool().mu());
  pool().Edit(feed.target,
              [&](TargetState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { CopyTo(feed, state); });
}

void WorkerRecord::ReplaceSlot(TargetFeed& feed, Slot slot, bool no_holes) {
  const Slot old = SwapSlot(feed, slot, no_holes);
  Publish(feed);
  if (old != kNoSlot) pool().index().CloseSlot(old);
}

Slot WorkerRecord::SwapSlot(TargetFeed& feed, Slot slot, bool no_holes) {
  const Slot old = std::exchange(feed.slot, slot);
  feed.may_have_holes = true;
  feed.holes_doubted = false;
  SetMayHaveHoles(feed, !no_holes);
  return old;
}

void WorkerRecord::SetMayHaveHoles(TargetFeed& feed, bool may) {
  may = may || feed.holes_doubted;
  if (feed.slot == kNoSlot || feed.may_have_holes == may) return;
  feed.may_have_holes = may;
  pool().index().SetMayHaveHoles(feed.slot, may);
}

void WorkerRecord::DoubtHoles(TargetFeed& feed) {
  feed.holes_doubted = true;
  SetMayHaveHoles(feed, true);
}

void WorkerRecord::BeginEpoch(TargetFeed& feed, Epoch epoch, absl::Time now) {
  DropBuilding(feed);
  if (feed.phase == SnapshotPhase::kBuilding) {
    EndTurn(feed);
    feed.phase = SnapshotPhase::kNone;
  }
  feed.spec.epoch = epoch;
  feed.had_snapshot = false;
  feed.engine_reachable = true;
  feed.agent_causes = CauseSet();
  feed.router_causes.Set(FreshnessCause::kIndexFull, false);
  feed.full_attempts = 0;
  feed.engine_seq.reset();
  feed.mid_batch = false;
  feed.failures = 0;
  const Slot old = SwapSlot(feed, kNoSlot, /*no_holes=*/false);
  {
    // In one step, so that no pick falls between the old process and the new one.
    absl::MutexLock lock(&pool().mu());
    pool().Edit(feed.target, [&](TargetState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      CopyTo(feed, state);
      state.load.reset();
    });
    pool().ForgetOutcomes(feed.target);
    pool().ledger().ClearTarget(feed.target, CloseCause::kNewEpoch, now);
  }
  if (old != kNoSlot) pool().index().CloseSlot(old);
}

void WorkerRecord::Ask(TargetFeed& feed, absl::Duration backoff, absl::Time now) {
  feed.phase = SnapshotPhase::kAsked;
  feed.deadline = now + backoff + kSnapshotPatience;
  sink_->Send(
      ResyncReply{.rank = feed.spec.rank, .reason = std::string(feed.reason), .backoff = backoff});
}

void WorkerRecord::RequestSnapshot(TargetFeed& feed, std::string_view reason,
                                   absl::Duration backoff, absl::Time now) {
  const bool asked_already = feed.phase == SnapshotPhase::kWaiting ||
                             (feed.phase == SnapshotPhase::kAsked && now < feed.deadline);
  feed.router_causes.Set(FreshnessCause::kResync);
  DoubtHoles(feed);
  if (!asked_already && connected_) {
    context_->stats.resyncs.fetch_add(1, std::memory_order_relaxed);
    DropBuilding(feed);
    feed.reason = reason;
    if (backoff > absl::ZeroDuration()) {
      // Others have the turn while this one waits.
      EndTurn(feed);
      Ask(feed, backoff, now);
    } else if (feed.holds_turn || context_->turns.TakeOrQueue(Ref(feed), feed.queued)) {
      feed.holds_turn = true;
      Ask(feed, absl::ZeroDuration(), now);
    } else {
      feed.queued = true;
      feed.phase = SnapshotPhase::kWaiting;
    }
  }
  Publish(feed);
}

absl::Duration WorkerRecord::NextBackoff(TargetFeed& feed) {
  const std::uint32_t doublings = std::min<std::uint32_t>(feed.failures, 16);
  ++feed.failures;
  const absl::Duration pause =
      std::min<absl::Duration>(kMaxBackoff, kFirstBackoff * (std::int64_t{1} << doublings));
  return pause * (0.8 + 0.4 * random_.Unit());
}

void WorkerRecord::DropBuilding(TargetFeed& feed) {
  if (feed.building == kNoSlot) return;
  pool().index().CloseSlot(std::exchange(feed.building, kNoSlot));
}

void WorkerRecord::EndTurn(TargetFeed& feed) {
  if (!std::exchange(feed.holds_turn, false)) return;
  feed.building_since.reset();
  context_->turns.Release(Ref(feed));
  turn_freed_ = true;
}

void WorkerRecord::MarkIndexFull(TargetFeed& feed, absl::Time now) {
  feed.router_causes.Set(FreshnessCause::kIndexFull);
  DoubtHoles(feed);
  const std::int64_t seconds = std::int64_t{1} << std::min<std::uint32_t>(feed.full_attempts, 6);
  feed.full_not_before = now + absl::Seconds(std::min<std::int64_t>(seconds, 60));
  if (std::exchange(feed.full_listed, true)) return;
  entry_->index_full.Add({weak_from_this(), feed.spec.rank});
}

// ---- Ticks

bool WorkerRecord::GrantTurn(Rank rank, absl::Time now) {
  TargetFeed* feed = Find(rank);
  if (feed == nullptr) return false;
  feed->queued = false;
  if (!connected_ || feed->phase != SnapshotPhase::kWaiting) return false;
  feed->holds_turn = true;
  Ask(*feed, absl::ZeroDuration(), now);
  return true;
}

bool WorkerRecord::CheckTurn(Rank rank, bool others_wait, absl::Time now) {
  TargetFeed* feed = Find(rank);
  if (feed == nullptr || !feed->holds_turn) return false;
  const bool too_long = others_wait && feed->building_since.has_value() &&
                        now >= *feed->building_since + kLongestTurn;
  if (now < feed->deadline && !too_long) return false;
  if (feed->phase == SnapshotPhase::kBuilding) {
    context_->stats.snapshots_failed.fetch_add(1, std::memory_order_relaxed);
  }
  DropBuilding(*feed);
  EndTurn(*feed);
  feed->reason = "snapshot_timeout";
  feed->phase = SnapshotPhase::kWaiting;
  if (!std::exchange(feed->queued, true)) context_->turns.Queue(Ref(*feed));
  return true;
}

WorkerRecord::FullStep WorkerRecord::RecoverFull(Rank rank, bool room, absl::Time now) {
  TargetFeed* feed = Find(rank);
  if (feed == nullptr) return FullStep::kDone;
  if (removed_ || !feed->router_causes.Has(FreshnessCause::kIndexFull)) {
    feed->full_listed = false;
    return FullStep::kDone;
  }
  if (!connected_) return FullStep::kLater;
  if (feed->phase != SnapshotPhase::kNone) {
    // Its agent may never send one: then the others go on without it.
    return now < feed->full_busy_until ? FullStep::kBusy : FullStep::kLater;
  }
  if (!room || now < feed->full_not_before) return FullStep::kLater;
  RequestSnapshot(*feed, "index_full", absl::ZeroDuration(), now);
  feed->full_busy_until = now + kLongestTurn;
  return FullStep::kBusy;
}

void WorkerRecord::CountForAck(absl::Time now) {
  if (++unacked_ >= kAckEvery) {
    unacked_ = 0;
    sink_->Send(AckReply{.delta_seq = last_seq_});
  } else if (!std::exchange(ack_queued_, true)) {
    context_->acks.Add(now + kAckAfter, weak_from_this());
  }
}

void WorkerRecord::SendDueAck() {
  ack_queued_ = false;
  if (!connected_ || unacked_ == 0) return;
  unacked_ = 0;
  sink_->Send(AckReply{.delta_seq = last_seq_});
}

void PumpTurns(FleetContext& context) {
  const absl::Time now = context.clock->Now();
  while (const std::optional<RankRef> next = context.turns.TakeNext()) {
    absl::MutexLock lock(&next->record->mu);
    if (!next->record->GrantTurn(next->rank, now)) context.turns.Release(*next);
  }
}

}  // namespace warmpath
