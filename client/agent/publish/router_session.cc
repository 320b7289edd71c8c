#include "client/agent/publish/router_session.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/hashing/chain_hash.h"

namespace warmpath {
namespace {

constexpr std::uint32_t kProtocol = 1;
constexpr std::uint32_t kMaxRoutingBlock = 65536;

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

bool IsSameButEpochs(v1::Register a, v1::Register b) {
  for (auto* side : {&a, &b}) {
    for (auto& rank : *side->mutable_ranks()) rank.clear_epoch();
  }
  // Maps have no fixed order on the wire; labels are compared apart.
  const bool labels = a.labels().size() == b.labels().size() &&
                      std::all_of(a.labels().begin(), a.labels().end(), [&b](const auto& label) {
                        const auto it = b.labels().find(label.first);
                        return it != b.labels().end() && it->second == label.second;
                      });
  a.clear_labels();
  b.clear_labels();
  return labels && a.SerializeAsString() == b.SerializeAsString();
}

}  // namespace

RouterSession::RouterSession(const SessionOptions& options, std::uint64_t random_seed)
    : options_(options), random_(random_seed), coalescer_(options.max_pending) {}

// ---- From the engine's side.

bool RouterSession::SetRegister(const v1::Register& registration) {
  const bool changed = !IsSameButEpochs(register_, registration);
  register_ = registration;
  for (const v1::RankInfo& info : registration.ranks()) {
    const bool is_new = !ranks_.contains(info.rank());
    RankState& state = ranks_[info.rank()];
    state.capacity_tokens = info.kv_capacity_tokens();
    state.has_events = info.has_events();
    if (is_new) {
      state.epoch = info.epoch();
      if (state.has_events) RequireSnapshot(info.rank(), state, "register");
    } else if (info.epoch() != state.epoch) {
      NewEpoch(info.rank(), info.epoch());
    }
  }
  return changed;
}

void RouterSession::Offer(Rank rank, std::span<const BlockChanges> changes,
                          std::optional<std::uint64_t> engine_seq) {
  coalescer_.Add(rank, changes, engine_seq);
}

void RouterSession::NewEpoch(Rank rank, Epoch epoch) {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end() || it->second.epoch == epoch) return;
  it->second.epoch = epoch;
  if (it->second.has_events) RequireSnapshot(rank, it->second, "new epoch");
}

void RouterSession::SetLoad(Rank rank, const RankLoad& load) {
  const auto it = ranks_.find(rank);
  if (it != ranks_.end()) it->second.load = load;
}

void RouterSession::SetVerdict(Rank rank, const RankVerdict& verdict) {
  const auto it = ranks_.find(rank);
  if (it != ranks_.end()) it->second.verdict = verdict;
}

std::optional<Rank> RouterSession::SnapshotWanted(absl::Time now) const {
  // With the window closed it would be old before its first part is sent.
  if (!registered() || sending_ || !WindowOpen()) return std::nullopt;
  for (const auto& [rank, state] : ranks_) {
    if (state.has_events && coalescer_.SnapshotNeeded(rank) && now >= state.snapshot_not_before) {
      return rank;
    }
  }
  return std::nullopt;
}

void RouterSession::GiveSnapshot(RankSnapshot snapshot) {
  const auto it = ranks_.find(snapshot.rank);
  if (it == ranks_.end() || sending_) return;
  coalescer_.BeginSnapshot(snapshot.rank, snapshot.digests, snapshot.engine_seq);
  it->second.held = Held::kNo;
  sending_ = Sending{.snapshot = std::move(snapshot)};
}

// ---- From the stream's side.

void RouterSession::OnStreamStart(absl::Time now) {
  register_due_ = true;
  session_ = 0;
  delta_seq_ = 0;
  acked_ = 0;
  ack_progress_at_ = now;
  heartbeat_at_ = absl::InfiniteFuture();
  for (auto& [rank, state] : ranks_) {
    state.seq_sent.reset();
    state.load_sent.reset();
    state.load_sent_at = absl::InfinitePast();
    state.verdict_sent = RankVerdict();
    state.verdict_due = true;
  }
}

absl::Status RouterSession::OnMessage(const v1::RouterUpdate& update, absl::Time now) {
  switch (update.update_case()) {
    case v1::RouterUpdate::kRegistered:
      return OnRegistered(update.registered(), now);
    case v1::RouterUpdate::kAck:
      if (update.ack().delta_seq() > acked_) ack_progress_at_ = now;
      OnAck(update.ack().delta_seq());
      return absl::OkStatus();
    case v1::RouterUpdate::kResync:
      OnResync(update.resync(), now);
      return absl::OkStatus();
    case v1::RouterUpdate::kDrain:
      draining_ = update.drain().on();
      return absl::OkStatus();
    case v1::RouterUpdate::UPDATE_NOT_SET:
      break;  // From a newer router; nothing in version 1 depends on it.
  }
  return absl::OkStatus();
}

absl::Status RouterSession::OnRegistered(const v1::Registered& registered, absl::Time now) {
  if (session_ != 0) return absl::FailedPreconditionError("registered: sent twice in one stream");
  if (registered.session() == 0) return absl::InvalidArgumentError("registered.session: is 0");
  if (registered.protocol() != kProtocol) {
    return absl::FailedPreconditionError(
        absl::StrCat("registered.protocol: ", registered.protocol(), ", this agent speaks ",
                     kProtocol, "; use an agent and a router of the same release"));
  }
  if (registered.hash_seed() != kHashSeed) {
    return absl::FailedPreconditionError(
        absl::StrCat("registered.hash_seed: ", registered.hash_seed(), ", this agent hashes with ",
                     kHashSeed, "; use an agent and a router of the same release"));
  }
  const std::uint32_t block = registered.routing_block_size();
  if (block == 0 || block > kMaxRoutingBlock) {
    return absl::InvalidArgumentError(
        absl::StrCat("registered.routing_block_size: ", block, ", not in 1..", kMaxRoutingBlock));
  }
  session_ = registered.session();
  ++counts_.sessions;
  max_hashes_ =
      registered.max_hashes_per_message() == 0
          ? Coalescer::kMaxPieceHashes
          : std::min<std::size_t>(registered.max_hashes_per_message(), Coalescer::kMaxPieceHashes);
  heartbeat_ = absl::Milliseconds(
      registered.heartbeat_ms() == 0 ? 2000U : std::clamp(registered.heartbeat_ms(), 50U, 60000U));
  heartbeat_at_ = now;

  const bool other_block = routing_block_ != 0 && routing_block_ != block;
  routing_block_ = block;
  for (auto& [rank, state] : ranks_) {
    if (!state.has_events) continue;
    const auto& wanted = registered.snapshot_ranks();
    if (other_block || std::find(wanted.begin(), wanted.end(), rank) != wanted.end()) {
      RequireSnapshot(rank, state, "register");
    } else if (state.held == Held::kYes && !coalescer_.SnapshotNeeded(rank)) {
      ++counts_.resumed;
    } else {
      state.snapshot_not_before = now + options_.unasked_snapshot_after;
    }
  }
  return absl::OkStatus();
}

void RouterSession::OnAck(std::uint64_t delta_seq) {
  acked_ = std::max(acked_, std::min(delta_seq, delta_seq_));
  while (!unacked_.empty() && unacked_.front().delta_seq <= acked_) unacked_.pop_front();
  for (auto& [rank, state] : ranks_) {
    if (state.held == Held::kSnapshotSent && state.snapshot_end <= acked_) state.held = Held::kYes;
  }
}

void RouterSession::OnResync(const v1::Resync& resync, absl::Time now) {
  const auto it = ranks_.find(resync.rank());
  if (it == ranks_.end() || !it->second.has_events) return;
  ++counts_.resyncs;
  RequireSnapshot(resync.rank(), it->second, absl::StrCat("resync: ", resync.reason()));
  it->second.snapshot_not_before = now + absl::Milliseconds(std::min(resync.backoff_ms(), 60000U));
}

void RouterSession::OnStreamEnd() {
  QueueUnacked();
  session_ = 0;
  register_due_ = false;
  draining_ = false;
  for (auto& [rank, state] : ranks_) {
    if (state.has_events && state.held != Held::kYes) RequireSnapshot(rank, state, "register");
  }
  sending_.reset();
}

void RouterSession::QueueUnacked() {
  // How many of these the router has applied is not known. The last word on each hash leads from
  // any of those states to the newest, and in one message, if it is not too long, so that the
  // router shows no state in between.
  struct Words {
    std::array<absl::flat_hash_map<ChainHash, bool>, kTierCount> stored;
    std::optional<std::uint64_t> engine_seq;
  };
  std::map<Rank, Words> ranks;
  const auto add = [&ranks](const v1::CacheDelta& delta) {
    Words& words = ranks[delta.rank()];
    auto& tier = words.stored[static_cast<std::size_t>(delta.tier()) - 1];
    for (const ChainHash hash : delta.removed()) tier[hash] = false;
    for (const ChainHash hash : delta.stored()) tier[hash] = true;
    if (delta.engine_seq_valid()) words.engine_seq = delta.engine_seq();
  };
  for (const Unacked& entry : unacked_) {
    if (entry.delta) add(*entry.delta);
  }
  for (const v1::CacheDelta& delta : queued_) add(delta);
  unacked_.clear();
  queued_.clear();
  for (const auto& [rank, words] : ranks) {
    for (const Tier tier : kAllTiers) {
      DeltaPiece piece{.rank = rank, .tier = tier, .removed = {}, .stored = {}, .engine_seq = {}};
      for (const auto& [hash, stored] : words.stored[static_cast<std::size_t>(tier)]) {
        (stored ? piece.stored : piece.removed).push_back(hash);
      }
      if (!piece.stored.empty() || !piece.removed.empty()) QueuePiece(std::move(piece));
    }
    // The sequence comes with the rank's last part; NextSequence tells it if there is none.
    if (words.engine_seq && !queued_.empty() && queued_.back().rank() == rank) {
      queued_.back().set_engine_seq(*words.engine_seq);
      queued_.back().set_engine_seq_valid(true);
    }
  }
}

void RouterSession::RequireSnapshot(Rank rank, RankState& state, std::string reason) {
  state.held = Held::kNo;
  state.snapshot_reason = std::move(reason);
  state.snapshot_not_before = absl::InfinitePast();
  if (sending_ && sending_->snapshot.rank == rank) sending_.reset();
  coalescer_.RequireSnapshot(rank);
  std::erase_if(queued_, [rank](const v1::CacheDelta& delta) { return delta.rank() == rank; });
  for (Unacked& entry : unacked_) {
    if (entry.rank == rank) entry.delta.reset();
  }
}

bool RouterSession::IsQueued(Rank rank) const {
  return std::any_of(queued_.begin(), queued_.end(),
                     [rank](const v1::CacheDelta& delta) { return delta.rank() == rank; });
}

bool RouterSession::IsDrained(Rank rank) const {
  return !coalescer_.SnapshotNeeded(rank) && !(sending_ && sending_->snapshot.rank == rank) &&
         coalescer_.pending(rank) == 0 && !IsQueued(rank);
}

bool RouterSession::Stalled(absl::Time now) const {
  return registered() && !unacked_.empty() && now - ack_progress_at_ > options_.stalled_after;
}

std::size_t RouterSession::pending() const {
  std::size_t sum = 0;
  for (const auto& [rank, state] : ranks_) sum += coalescer_.pending(rank);
  return sum;
}

SessionCounts RouterSession::counts() const {
  SessionCounts counts = counts_;
  counts.overflows = coalescer_.overflows();
  return counts;
}

// ---- What to write next.

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

bool RouterSession::NextHeartbeat(absl::Time now, v1::WorkerUpdate* out) {
  if (now < heartbeat_at_) return false;
  // Jitter, so that a fleet's heartbeats do not fall into step.
  heartbeat_at_ = now + heartbeat_ * (0.9 + 0.2 * random_.Unit());
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
    std::size_t room = max_hashes_;
    for (; room > 0 && removed < piece.removed.size(); --room) {
      part.add_removed(piece.removed[removed++]);
    }
    for (; room > 0 && stored < piece.stored.size(); --room) {
      part.add_stored(piece.stored[stored++]);
    }
  } while (removed < piece.removed.size() || stored < piece.stored.size());
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
    if (!seq || seq == state.seq_sent || now - state.seq_sent_at < options_.sequence_interval) {
      continue;
    }
    QueuePiece(DeltaPiece{
        .rank = rank, .tier = Tier::kGpu, .removed = {}, .stored = {}, .engine_seq = seq});
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
  state.seq_sent = seq;
  state.held = Held::kSnapshotSent;
  state.snapshot_end = message->delta_seq();
  state.verdict_due = true;
  coalescer_.EndSnapshot(rank);
  sending_.reset();
  return true;
}

}  // namespace warmpath
