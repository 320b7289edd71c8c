// What one router session has not been told yet. While the stream is blocked, changes pile up
// here as a net difference (a store and its removal cancel out) under a hard bound; beyond it
// the difference is thrown away and a snapshot is asked for, so memory never grows with the lag.
//
// One Coalescer per router session; every rank of the worker goes through it.
// Not thread-safe; guarded by its owner.
#ifndef WARMPATH_CLIENT_AGENT_PUBLISH_COALESCER_H_
#define WARMPATH_CLIENT_AGENT_PUBLISH_COALESCER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/agent/canonical/block_changes.h"
#include "core/base/ids.h"

namespace warmpath {

// One message's worth of changes. A hash appears at most once; apply removed before stored.
struct DeltaPiece {
  Rank rank = 0;
  Tier tier = Tier::kGpu;
  std::vector<ChainHash> removed;
  std::vector<ChainHash> stored;
  // Everything up to and including this engine sequence has been handed out with this piece.
  // Absent while more pieces of the rank are pending: with a part of a batch the router's state
  // belongs to no sequence. Also absent when the engine has named none yet.
  std::optional<std::uint64_t> engine_seq;
  // The router's state has no hole (Canonical::holes) after this piece; while more pieces of the
  // rank are pending: neither has any state of the rank of which it may hold a part.
  bool no_holes = false;
  // The same for a part of this piece.
  bool no_holes_in_part = false;
};

class Coalescer {
 public:
  static constexpr std::size_t kMaxPieceHashes = 4096;
  static constexpr std::size_t kDefaultMaxPending = std::size_t{1} << 18;

  // max_pending: changes per rank that may wait.
  explicit Coalescer(std::size_t max_pending = kDefaultMaxPending) : max_pending_(max_pending) {}

  // Changes of `rank` up to engine_seq, in the order in which they happened, and whether the rank
  // has no holes after them. Ignored while the rank waits for a snapshot (the snapshot will hold
  // them).
  void Add(Rank rank, std::span<const BlockChanges> changes,
           std::optional<std::uint64_t> engine_seq, bool no_holes);

  // The rank needs a snapshot (new session, new epoch, Resync): drops what is pending.
  void RequireSnapshot(Rank rank);

  // A rank that must be sent as a snapshot before any of its deltas, if there is one. Ranks start
  // without a need; call RequireSnapshot for each when a session starts.
  std::optional<Rank> SnapshotNeeded() const;
  bool SnapshotNeeded(Rank rank) const;

  // The caller has copied the rank's whole state (Canonical::Held) with these digests and will
  // send it now. Later changes pile up, and Take withholds them until EndSnapshot.
  void BeginSnapshot(Rank rank, const std::array<SetDigest, kTierCount>& digests,
                     std::optional<std::uint64_t> engine_seq, bool no_holes);
  void EndSnapshot(Rank rank);

  // The next piece to send, at most kMaxPieceHashes hashes; nullopt when nothing is pending.
  // Ranks take turns. A rank whose engine_seq advanced without net changes yields no piece: see
  // EngineSeq.
  std::optional<DeltaPiece> Take();

  bool HasPending() const;
  std::size_t pending(Rank rank) const;

  // Count and xor of all hashes the router holds once it has applied all that was handed out:
  // what a heartbeat reports with the delta_seq of the last message.
  SetDigest SentDigest(Rank rank, Tier tier) const;
  // Engine sequence up to which everything has been handed out.
  std::optional<std::uint64_t> EngineSeq(Rank rank) const;
  // DeltaPiece::no_holes, for a message without changes after all that was handed out.
  bool NoHoles(Rank rank) const;

  // How often a bound was hit and a snapshot asked for.
  std::uint64_t overflows() const { return overflows_; }

 private:
  // Net changes of one (rank, tier), in order of their last turn.
  struct TierState {
    struct Entry {
      ChainHash hash;
      bool stored;
      bool live;
    };
    std::vector<Entry> log;
    absl::flat_hash_map<ChainHash, std::size_t> where;  // hash -> index in log, live entries
    std::size_t head = 0;                               // log entries before it were handed out
    SetDigest sent;
  };
  struct RankState {
    std::array<TierState, kTierCount> tiers;
    std::optional<std::uint64_t> sent_seq;
    std::optional<std::uint64_t> latest_seq;
    // Of all states of which the router may hold a part; of the newest one.
    bool sent_no_holes = false;
    bool latest_no_holes = false;
    bool needs_snapshot = false;
    bool in_snapshot = false;
  };

  static void Compact(TierState& state);
  static void TakeFrom(TierState& state, DeltaPiece* piece);
  static void AddOne(TierState& state, ChainHash hash, bool stored);
  static bool AllOut(const RankState& state);
  static std::size_t PendingOf(const RankState& state);
  static void DropPending(RankState& state);

  std::size_t max_pending_;
  std::map<Rank, RankState> ranks_;
  Rank next_rank_ = 0;  // whose turn it is
  std::uint64_t overflows_ = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_PUBLISH_COALESCER_H_
