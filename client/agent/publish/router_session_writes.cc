// RouterSession: what to write next, in the order of urgency that the header tells.
#include <algorithm>
#include <cmath>
#include <utility>

#include "client/agent/publish/router_session.h"

namespace warmpath {
namespace {

v1::Tier ToProto(Tier tier) { return static_cast<v1::Tier>(static_cast<int>(tier) + 1); }

v1::FreshnessCause ToProto(FeedCause cause) {
  switch (cause) {
    case FeedCause::kResync:
      return v1::FRESHNESS_CAUSE_RESYNC;
    case FeedCause::kGap:
      return v1::FRESHNESS_CAUSE_GAP;
    case FeedCause::kMissedStart:
      return v1::FRESHNESS_CAUSE_MISSED_START;
    case FeedCause::kLateJoin:
      return v1::FRESHNESS_CAUSE_LATE_JOIN;
    case FeedCause::kHiddenDomain:
      return v1::FRESHNESS_CAUSE_HIDDEN_DOMAIN;
    case FeedCause::kSilent:
      return v1::FRESHNESS_CAUSE_SILENT;
    case FeedCause::kDrift:
      return v1::FRESHNESS_CAUSE_DRIFT;
    case FeedCause::kCount:
      break;
  }
  return v1::FRESHNESS_CAUSE_UNSPECIFIED;
}

// Nothing of `causes` that is not in `known`.
bool IsSubset(FeedCauses causes, FeedCauses known) { return (causes | known) == known; }

}  // namespace

bool RouterSession::Next(absl::Time now, v1::WorkerUpdate* out) {
  out->Clear();
  if (NextRegister(out)) return true;
  if (!registered()) return false;
  out->set_session(session_);
  // Bad news overtakes the changes that it is about; good news follows them (below), so that the
  // router never takes an incomplete state for EXACT.
  return NextEpoch(now, out) || NextUrgentVerdict(out) || NextHeartbeat(now, out) ||
         NextLoad(now, out) || NextCache(now, out) || NextImprovedVerdict(out);
}

bool RouterSession::NextRegister(v1::WorkerUpdate* out) {
  if (!register_due_) return false;
  register_due_ = false;
  v1::Register* message = out->mutable_register_();
  *message = register_;
  for (v1::RankInfo& info : *message->mutable_ranks()) {
    RankState& state = ranks_[info.rank()];
    info.set_epoch(state.epoch);
    state.epoch_sent = state.epoch;
  }
  return true;
}

std::uint64_t RouterSession::Number(Rank rank, absl::Time now) {
  if (unacked_.empty()) ack_progress_at_ = now;
  unacked_.push_back(Unacked{.delta_seq = ++delta_seq_, .rank = rank, .delta = std::nullopt});
  return delta_seq_;
}

bool RouterSession::NextEpoch(absl::Time now, v1::WorkerUpdate* out) {
  if (!WindowOpen()) return false;
  for (auto& [rank, state] : ranks_) {
    if (state.epoch == state.epoch_sent) continue;
    v1::NewEpoch* message = out->mutable_new_epoch();
    message->set_delta_seq(Number(rank, now));
    message->set_rank(rank);
    message->set_epoch(state.epoch);
    message->set_kv_capacity_tokens(state.capacity_tokens);
    state.epoch_sent = state.epoch;
    return true;
  }
  return false;
}

void RouterSession::WriteVerdict(Rank rank, RankState& state, v1::WorkerUpdate* out) {
  RankVerdict verdict = *state.verdict;
  if (!IsDrained(rank)) verdict.causes = verdict.causes | state.verdict_sent.causes;
  v1::RankState* message = out->mutable_rank_state();
  message->set_rank(rank);
  message->set_engine_reachable(verdict.engine_reachable);
  for (std::uint8_t i = 0; i < static_cast<std::uint8_t>(FeedCause::kCount); ++i) {
    const auto cause = static_cast<FeedCause>(i);
    if (verdict.causes.Has(cause)) message->add_causes(ToProto(cause));
  }
  message->set_event_lag_s(verdict.event_lag_s);
  for (const auto& [cause, n] : verdict.skipped) (*message->mutable_skipped())[cause] = n;
  for (const auto& [kind, n] : verdict.events) (*message->mutable_events())[kind] = n;
  state.verdict_sent = std::move(verdict);
  state.verdict_due = false;
}

bool RouterSession::NextUrgentVerdict(v1::WorkerUpdate* out) {
  for (auto& [rank, state] : ranks_) {
    if (!state.verdict) continue;
    const bool urgent = state.verdict_due ||
                        state.verdict->engine_reachable != state.verdict_sent.engine_reachable ||
                        !IsSubset(state.verdict->causes, state.verdict_sent.causes);
    if (!urgent) continue;
    WriteVerdict(rank, state, out);
    return true;
  }
  return false;
}

bool RouterSession::NextImprovedVerdict(v1::WorkerUpdate* out) {
  for (auto& [rank, state] : ranks_) {
    if (!state.verdict || state.verdict->causes == state.verdict_sent.causes || !IsDrained(rank)) {
      continue;
    }
    WriteVerdict(rank, state, out);
    return true;
  }
  return false;
}

absl::Time RouterSession::HeartbeatAfter(absl::Time now) {
  // An older router wants jitter, so that a fleet's heartbeats do not fall into step.
  if (!heartbeat_slot_) return now + heartbeat_ * (0.9 + 0.2 * random_.Unit());
  // At least half an interval from now, so that a late one does not make the next one early.
  const absl::Time soonest = now + heartbeat_ / 2;
  const absl::Duration left = (*heartbeat_slot_ - soonest) % heartbeat_;
  return soonest + (left < absl::ZeroDuration() ? left + heartbeat_ : left);
}

bool RouterSession::NextHeartbeat(absl::Time now, v1::WorkerUpdate* out) {
  if (now < heartbeat_at_) return false;
  heartbeat_at_ = HeartbeatAfter(now);
  ++counts_.heartbeats;
  v1::Heartbeat* message = out->mutable_heartbeat();
  message->set_delta_seq(delta_seq_);
  for (auto& [rank, state] : ranks_) {
    // In the same message: two would wake the router twice.
    if (state.load) WriteLoad(rank, state, now, message->add_loads());
    if (state.verdict && *state.verdict != state.verdict_sent) state.verdict_due = true;
    // Between Begin and End, and with parts of the difference still here, the two sides are not
    // meant to agree.
    if (!state.has_events || state.held == Held::kNo || coalescer_.SnapshotNeeded(rank) ||
        IsQueued(rank)) {
      continue;
    }
    const std::optional<std::uint64_t> seq = coalescer_.EngineSeq(rank);
    for (const Tier tier : kAllTiers) {
      const SetDigest digest = coalescer_.SentDigest(rank, tier);
      v1::RankDigest* entry = message->add_digests();
      entry->set_rank(rank);
      entry->set_tier(ToProto(tier));
      entry->set_count(digest.count);
      entry->set_xor_(digest.xor_hash);
      entry->set_engine_seq(seq.value_or(0));
      entry->set_engine_seq_valid(seq.has_value());
    }
  }
  return true;
}

bool RouterSession::IsLoadChanged(const RankState& state) {
  return !state.load_sent || state.load->running != state.load_sent->running ||
         state.load->waiting != state.load_sent->waiting ||
         std::abs(state.load->kv_usage - state.load_sent->kv_usage) >= 0.01;
}

void RouterSession::WriteLoad(Rank rank, RankState& state, absl::Time now,
                              v1::LoadReport* message) {
  message->set_rank(rank);
  message->set_running(state.load->running);
  message->set_waiting(state.load->waiting);
  message->set_kv_usage(state.load->kv_usage);
  const std::int64_t age = absl::ToInt64Milliseconds(now - state.load->asked);
  message->set_age_ms(static_cast<std::uint32_t>(std::clamp<std::int64_t>(age, 0, 3600000)));
  state.load_sent = state.load;
  state.load_sent_at = now;
  ++counts_.loads;
}

bool RouterSession::NextLoad(absl::Time now, v1::WorkerUpdate* out) {
  for (auto& [rank, state] : ranks_) {
    if (!state.load) continue;
    if (!IsLoadChanged(state) || now - state.load_sent_at < options_.load_interval) continue;
    WriteLoad(rank, state, now, out->mutable_load());
    return true;
  }
  return false;
}

bool RouterSession::NextCache(absl::Time now, v1::WorkerUpdate* out) {
  if (!WindowOpen()) return false;
  if (NextQueued(now, out)) return true;
  snapshot_turn_ = !snapshot_turn_;
  if (snapshot_turn_) {
    return NextSnapshotPart(now, out) || NextDelta(now, out) || NextSequence(now, out);
  }
  return NextDelta(now, out) || NextSnapshotPart(now, out) || NextSequence(now, out);
}

bool RouterSession::NextQueued(absl::Time now, v1::WorkerUpdate* out) {
  if (queued_.empty()) return false;
  v1::CacheDelta* message = out->mutable_delta();
  *message = std::move(queued_.front());
  queued_.pop_front();
  RankState& state = ranks_[message->rank()];
  if (message->engine_seq_valid()) {
    state.seq_sent = message->engine_seq();
  } else if (state.seq_sent) {
    // A part that is not the last: the sequence did not advance yet.
    message->set_engine_seq(*state.seq_sent);
    message->set_engine_seq_valid(true);
  }
  state.seq_sent_at = now;
  state.no_holes_sent = message->no_holes();
  message->set_delta_seq(Number(message->rank(), now));
  unacked_.back().delta = *message;
  ++counts_.deltas;
  counts_.hashes += static_cast<std::uint64_t>(message->removed_size() + message->stored_size());
  return true;
}

void RouterSession::QueuePiece(DeltaPiece piece) {
  // Usually one part; more when the router wants smaller messages. Removed goes before stored,
  // also from part to part.
  std::size_t removed = 0;
  std::size_t stored = 0;
  do {
    v1::CacheDelta& part = queued_.emplace_back();
    part.set_rank(piece.rank);
    part.set_tier(ToProto(piece.tier));
    part.set_no_holes(piece.no_holes_in_part);
    std::size_t room = max_hashes_;
    for (; room > 0 && removed < piece.removed.size(); --room) {
      part.add_removed(piece.removed[removed++]);
    }
    for (; room > 0 && stored < piece.stored.size(); --room) {
      part.add_stored(piece.stored[stored++]);
    }
  } while (removed < piece.removed.size() || stored < piece.stored.size());
  queued_.back().set_no_holes(piece.no_holes);
  if (piece.engine_seq) {
    queued_.back().set_engine_seq(*piece.engine_seq);
    queued_.back().set_engine_seq_valid(true);
  }
}

bool RouterSession::NextDelta(absl::Time now, v1::WorkerUpdate* out) {
  std::optional<DeltaPiece> piece = coalescer_.Take();
  if (!piece) return false;
  QueuePiece(*std::move(piece));
  return NextQueued(now, out);
}

bool RouterSession::NextSequence(absl::Time now, v1::WorkerUpdate* out) {
  for (auto& [rank, state] : ranks_) {
    if (state.held == Held::kNo || !IsDrained(rank)) continue;
    const std::optional<std::uint64_t> seq = coalescer_.EngineSeq(rank);
    const bool due =
        seq && seq != state.seq_sent && now - state.seq_sent_at >= options_.sequence_interval;
    // What was left of a change was undone before it went out: the part that did go has holes now.
    const bool wrong = state.no_holes_sent && !coalescer_.NoHoles(rank);
    if (!due && !wrong) continue;
    QueuePiece(DeltaPiece{.rank = rank,
                          .tier = Tier::kGpu,
                          .removed = {},
                          .stored = {},
                          .engine_seq = seq,
                          .no_holes = coalescer_.NoHoles(rank)});
    return NextQueued(now, out);
  }
  return false;
}

bool RouterSession::NextSnapshotPart(absl::Time now, v1::WorkerUpdate* out) {
  if (!sending_) return false;
  const Rank rank = sending_->snapshot.rank;
  RankState& state = ranks_[rank];
  if (!sending_->begun) {
    sending_->begun = true;
    ++counts_.snapshots;
    v1::SnapshotBegin* message = out->mutable_snapshot_begin();
    message->set_delta_seq(Number(rank, now));
    message->set_rank(rank);
    message->set_epoch(state.epoch);
    message->set_reason(state.snapshot_reason);
    return true;
  }
  auto& held = sending_->snapshot.held;
  while (sending_->tier < kTierCount && sending_->at == held[sending_->tier].size()) {
    held[sending_->tier] = {};  // Sent: no reason to keep it.
    ++sending_->tier;
    sending_->at = 0;
  }
  if (sending_->tier < kTierCount) {
    const std::vector<ChainHash>& hashes = held[sending_->tier];
    const std::size_t n = std::min(max_hashes_, hashes.size() - sending_->at);
    v1::SnapshotChunk* message = out->mutable_snapshot_chunk();
    message->set_delta_seq(Number(rank, now));
    message->set_rank(rank);
    message->set_tier(ToProto(static_cast<Tier>(sending_->tier)));
    const auto begin = hashes.begin() + static_cast<std::ptrdiff_t>(sending_->at);
    message->mutable_hashes()->Add(begin, begin + static_cast<std::ptrdiff_t>(n));
    sending_->at += n;
    counts_.hashes += n;
    return true;
  }
  v1::SnapshotEnd* message = out->mutable_snapshot_end();
  message->set_delta_seq(Number(rank, now));
  message->set_rank(rank);
  SetDigest all;
  for (const SetDigest& digest : sending_->snapshot.digests) {
    all.count += digest.count;
    all.xor_hash ^= digest.xor_hash;
  }
  message->set_count(all.count);
  message->set_xor_(all.xor_hash);
  const std::optional<std::uint64_t> seq = sending_->snapshot.engine_seq;
  message->set_engine_seq(seq.value_or(0));
  message->set_engine_seq_valid(seq.has_value());
  message->set_no_holes(sending_->snapshot.no_holes);
  state.no_holes_sent = sending_->snapshot.no_holes;
  state.seq_sent = seq;
  state.held = Held::kSnapshotSent;
  state.snapshot_end = message->delta_seq();
  state.verdict_due = true;
  coalescer_.EndSnapshot(rank);
  sending_.reset();
  return true;
}

}  // namespace warmpath
