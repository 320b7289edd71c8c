#include "client/agent/publish/router_session.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/hashing/chain_hash.h"

namespace warmpath {
namespace {

constexpr std::uint32_t kProtocol = 1;
constexpr std::uint32_t kMaxRoutingBlock = 65536;

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
                          std::optional<std::uint64_t> engine_seq, bool no_holes) {
  coalescer_.Add(rank, changes, engine_seq, no_holes);
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
  coalescer_.BeginSnapshot(snapshot.rank, snapshot.digests, snapshot.engine_seq, snapshot.no_holes);
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
  heartbeat_slot_.reset();
  if (registered.has_heartbeat_in_ms()) {
    heartbeat_slot_ = now + absl::Milliseconds(registered.heartbeat_in_ms());
  }

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
    if (queued_.empty() || queued_.back().rank() != rank) continue;
    // The sequence comes with the rank's last part; NextSequence tells it if there is none. Before
    // that one the router may have anything.
    queued_.back().set_no_holes(coalescer_.NoHoles(rank));
    if (words.engine_seq) {
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

}  // namespace warmpath
