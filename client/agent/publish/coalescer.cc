#include "client/agent/publish/coalescer.h"

#include <algorithm>
#include <utility>

namespace warmpath {
namespace {

constexpr std::size_t At(Tier tier) { return static_cast<std::size_t>(tier); }

}  // namespace

void Coalescer::AddOne(TierState& state, ChainHash hash, bool stored) {
  const auto [it, inserted] = state.where.try_emplace(hash, state.log.size());
  if (inserted) {
    state.log.push_back({hash, stored, true});
    return;
  }
  TierState::Entry& entry = state.log[it->second];
  if (entry.stored == stored) return;
  // Back to what the router already has.
  entry.live = false;
  state.where.erase(it);
}

bool Coalescer::AllOut(const RankState& state) {
  return !state.needs_snapshot && !state.in_snapshot && PendingOf(state) == 0;
}

std::size_t Coalescer::PendingOf(const RankState& state) {
  std::size_t pending = 0;
  for (const TierState& tier : state.tiers) pending += tier.where.size();
  return pending;
}

void Coalescer::DropPending(RankState& state) {
  for (TierState& tier : state.tiers) {
    tier.log = {};
    tier.where = {};
    tier.head = 0;
  }
}

void Coalescer::Add(Rank rank, std::span<const BlockChanges> changes,
                    std::optional<std::uint64_t> engine_seq, bool no_holes) {
  RankState& state = ranks_[rank];
  if (engine_seq.has_value()) state.latest_seq = engine_seq;
  state.latest_no_holes = no_holes;
  if (state.needs_snapshot) return;
  std::size_t added = 0;
  for (const BlockChanges& change : changes) {
    TierState& tier = state.tiers[At(change.tier)];
    for (const ChainHash hash : change.removed) AddOne(tier, hash, false);
    for (const ChainHash hash : change.stored) AddOne(tier, hash, true);
    added += change.removed.size() + change.stored.size();
    // Entries that cancelled or went out must not let the log outgrow what it stands for.
    if (tier.log.size() > 2 * tier.where.size() + kMaxPieceHashes) Compact(tier);
  }
  if (added != 0 && PendingOf(state) > max_pending_) {
    ++overflows_;
    state.needs_snapshot = true;
    DropPending(state);
  }
}

void Coalescer::Compact(TierState& state) {
  std::vector<TierState::Entry> live;
  live.reserve(state.where.size());
  for (std::size_t i = state.head; i < state.log.size(); ++i) {
    if (!state.log[i].live) continue;
    state.where[state.log[i].hash] = live.size();
    live.push_back(state.log[i]);
  }
  state.log = std::move(live);
  state.head = 0;
}

void Coalescer::RequireSnapshot(Rank rank) {
  RankState& state = ranks_[rank];
  state.needs_snapshot = true;
  state.in_snapshot = false;
  DropPending(state);
}

std::optional<Rank> Coalescer::SnapshotNeeded() const {
  for (const auto& [rank, state] : ranks_) {
    if (state.needs_snapshot) return rank;
  }
  return std::nullopt;
}

bool Coalescer::SnapshotNeeded(Rank rank) const {
  const auto it = ranks_.find(rank);
  return it != ranks_.end() && it->second.needs_snapshot;
}

void Coalescer::BeginSnapshot(Rank rank, const std::array<SetDigest, kTierCount>& digests,
                              std::optional<std::uint64_t> engine_seq, bool no_holes) {
  RankState& state = ranks_[rank];
  DropPending(state);
  for (std::size_t t = 0; t < kTierCount; ++t) state.tiers[t].sent = digests[t];
  state.sent_seq = engine_seq;
  state.latest_seq = engine_seq;
  state.sent_no_holes = no_holes;
  state.latest_no_holes = no_holes;
  state.needs_snapshot = false;
  state.in_snapshot = true;
}

void Coalescer::EndSnapshot(Rank rank) { ranks_[rank].in_snapshot = false; }

std::optional<DeltaPiece> Coalescer::Take() {
  auto next = ranks_.lower_bound(next_rank_);
  for (std::size_t i = 0; i < ranks_.size(); ++i, ++next) {
    if (next == ranks_.end()) next = ranks_.begin();
    RankState& state = next->second;
    if (state.needs_snapshot || state.in_snapshot) continue;
    const std::size_t pending = PendingOf(state);
    if (pending == 0) {
      state.sent_seq = state.latest_seq;
      state.sent_no_holes = state.latest_no_holes;
      continue;
    }
    for (const Tier tier : kAllTiers) {
      if (state.tiers[At(tier)].where.empty()) continue;
      DeltaPiece piece;
      piece.rank = next->first;
      piece.tier = tier;
      TakeFrom(state.tiers[At(tier)], &piece);
      // The router holds something between the state before and the newest one.
      state.sent_no_holes = state.sent_no_holes && state.latest_no_holes;
      piece.no_holes_in_part = state.sent_no_holes;
      if (PendingOf(state) == 0) {
        state.sent_seq = state.latest_seq;
        state.sent_no_holes = state.latest_no_holes;
        piece.engine_seq = state.latest_seq;
      }
      piece.no_holes = state.sent_no_holes;
      next_rank_ = next->first + 1;
      return piece;
    }
  }
  return std::nullopt;
}

void Coalescer::TakeFrom(TierState& state, DeltaPiece* piece) {
  std::size_t room = kMaxPieceHashes;
  for (; state.head < state.log.size() && room > 0; ++state.head) {
    const TierState::Entry& entry = state.log[state.head];
    if (!entry.live) continue;
    --room;
    state.where.erase(entry.hash);
    (entry.stored ? piece->stored : piece->removed).push_back(entry.hash);
    entry.stored ? state.sent.Insert(entry.hash) : state.sent.Erase(entry.hash);
  }
  if (state.where.empty()) {
    state.log = {};
    state.where = {};
    state.head = 0;
  }
}

bool Coalescer::HasPending() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& entry) {
    const RankState& state = entry.second;
    return !state.needs_snapshot && !state.in_snapshot && PendingOf(state) != 0;
  });
}

std::size_t Coalescer::pending(Rank rank) const {
  const auto it = ranks_.find(rank);
  return it == ranks_.end() ? 0 : PendingOf(it->second);
}

SetDigest Coalescer::SentDigest(Rank rank, Tier tier) const {
  const auto it = ranks_.find(rank);
  return it == ranks_.end() ? SetDigest{} : it->second.tiers[At(tier)].sent;
}

std::optional<std::uint64_t> Coalescer::EngineSeq(Rank rank) const {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return std::nullopt;
  return AllOut(it->second) ? it->second.latest_seq : it->second.sent_seq;
}

bool Coalescer::NoHoles(Rank rank) const {
  const auto it = ranks_.find(rank);
  if (it == ranks_.end()) return false;
  return AllOut(it->second) ? it->second.latest_no_holes : it->second.sent_no_holes;
}

}  // namespace warmpath
