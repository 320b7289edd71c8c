// What picks wrote about caches, beside the index that engines' events feed: IN_FLIGHT (chains of
// open reservations, and of closed ones for a moment longer) and PREDICTED (for targets without
// events, what was routed there; for all, what outcomes showed). docs/semantics.md.
//
// A pick adds a chain of a hundred and more blocks under the pool's mutex, and ten thousand may be
// open. So chains are kept in a radix tree whose nodes are runs of blocks with equal holders:
// adding and looking up a chain cost one hash look-up and one memory comparison per run that it
// shares with others, not one per block. Removing one costs neither: a chain that is open is named
// by the last node of its path, and the way up from there is all of it. Nobody else need keep it.
//
// Invariants
//  1. A node is found by (its parent, the first hash of its run), so a chain's path is unique,
//     also for hashes that a client made up.
//  2. Per target each count of a node is at least that of any child: each chain begins at the root,
//     and PREDICTED drops a chain's tail before its head.
//  3. A node without holders does not exist.
//  4. A node is the end of the same chain for as long as it exists: splitting its run leaves it
//     the last part.
//
// Not thread-safe: guarded by Pool::mu() through the ledger.
#ifndef WARMPATH_CORE_FLEET_PREFIX_OVERLAY_H_
#define WARMPATH_CORE_FLEET_PREFIX_OVERLAY_H_

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "core/base/ids.h"
#include "core/fleet/spare_chains.h"
#include "core/fleet/worker.h"

namespace warmpath {

class PrefixOverlay {
 public:
  // The last node of a chain's path, which stands for the chain; kEmpty for that of no block.
  // Valid while the chain is open or lingers, wherever that is.
  using PathEnd = std::uint32_t;
  static constexpr PathEnd kEmpty = ~PathEnd{0};

  PrefixOverlay() = default;
  PrefixOverlay(const PrefixOverlay&) = delete;
  PrefixOverlay& operator=(const PrefixOverlay&) = delete;

  // A reservation with this chain opened at the target. Each Open is paired with one Close of the
  // path that it returned; a Close that lingers is paired with one EndLinger. Cheapest right after
  // Depths of the same chain.
  PathEnd Open(TargetId target, std::span<const ChainHash> chain);
  // The same for a chain that is open or lingers already, wherever.
  void OpenAgain(TargetId target, PathEnd path);
  void Close(TargetId target, PathEnd path, bool linger);
  void EndLinger(TargetId target, PathEnd path);
  // The first `limit` blocks of the chain, or all that it has.
  std::vector<ChainHash> ChainOf(PathEnd path, std::size_t limit) const;

  // The target is thought to keep these blocks: most recently used now. Afterwards it keeps at most
  // `bound_blocks` blocks; the least recently used go first, of one chain the tail first.
  void Predict(TargetId target, std::span<const ChainHash> chain, std::uint64_t bound_blocks);
  // The same for a chain that is open or lingers, wherever.
  void Predict(TargetId target, PathEnd path, std::uint64_t bound_blocks);
  void ForgetPredicted(TargetId target);

  // depth[t] = how many leading blocks of the chain target t holds by either source, for each
  // target that holds any and is below depth.size(); other entries are left alone.
  void Depths(std::span<const ChainHash> chain, std::span<std::uint32_t> depth) const;

  // Distinct blocks of the target's open reservations; lingering ones do not count.
  std::uint64_t OpenBlocks(TargetId target) const;
  std::uint64_t PredictedBlocks(TargetId target) const;
  // (block, target) pairs that are open or lingering.
  std::uint64_t InFlightBlocks() const { return in_flight_blocks_; }

  // Append every hash the target holds by one source, in no particular order. Slow: O(tree).
  void ForEachInFlight(TargetId target, std::vector<ChainHash>* out) const;
  void ForEachPredicted(TargetId target, std::vector<ChainHash>* out) const;

  std::size_t node_count() const { return children_.size(); }

 private:
  using NodeId = PathEnd;
  static constexpr NodeId kRoot = kEmpty;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Holder {
    TargetId target = kNoTarget;
    std::uint32_t open = 0;
    std::uint32_t lingering = 0;
    std::uint32_t mark = kNone;  // in marks_ when PREDICTED

    bool in_flight() const { return open + lingering > 0; }
    bool empty() const { return !in_flight() && mark == kNone; }
  };
  struct Node {
    NodeId parent = kRoot;
    std::vector<ChainHash> run;  // empty when the node does not exist
    // Sorted by target. Most nodes are one prompt's own tail at one target.
    absl::InlinedVector<Holder, 1> holders;
  };
  // One PREDICTED node of one target, linked from the least to the most recently used.
  struct Mark {
    NodeId node = kRoot;
    std::uint32_t older = kNone;
    std::uint32_t newer = kNone;
  };
  struct PerTarget {
    std::uint64_t open_blocks = 0;
    std::uint64_t predicted_blocks = 0;
    std::uint32_t oldest = kNone;
    std::uint32_t newest = kNone;
  };

  PerTarget& Of(TargetId target);
  NodeId Find(NodeId parent, ChainHash first) const;
  // Find, for the step-th node of a path: the one that Depths came to there, if it still fits.
  NodeId FindSeen(std::size_t step, NodeId parent, ChainHash first) const;
  static std::size_t CommonLength(std::span<const ChainHash> run, std::span<const ChainHash> chain);
  static Holder* FindHolder(Node& node, TargetId target);
  static Holder& HolderOf(Node& node, TargetId target);

  // The nodes that make up the chain exactly, split and created where needed.
  void MakePath(std::span<const ChainHash> chain, std::vector<NodeId>* path);
  NodeId NewNode(NodeId parent, std::span<const ChainHash> run);
  // Cuts the node's run after `keep` blocks and returns the new node that holds the first part; the
  // node itself keeps the rest, and its children.
  NodeId Split(NodeId node, std::size_t keep);
  void OpenAt(TargetId target, NodeId node);
  // Changes one holder of each node of a path and drops what became empty.
  template <typename Change>
  void ForPath(TargetId target, PathEnd path, Change change);
  // REQUIRES: the holder is the node's. Takes it away if it is empty.
  void DropIfEmpty(NodeId node, Holder* holder);

  // Predict, of the nodes in path_.
  void PredictPath(TargetId target, std::uint64_t bound_blocks);
  std::uint32_t NewMark(NodeId node);
  void LinkNewest(PerTarget& of, std::uint32_t mark);
  void LinkNewerThan(PerTarget& of, std::uint32_t mark, std::uint32_t older);
  void Unlink(PerTarget& of, std::uint32_t mark);
  void DropMark(TargetId target, std::uint32_t mark);

  // Deques: growing them moves nothing while a pick waits for the mutex.
  std::deque<Node> nodes_;
  std::vector<NodeId> free_nodes_;
  std::deque<Mark> marks_;
  std::vector<std::uint32_t> free_marks_;
  absl::flat_hash_map<std::pair<NodeId, ChainHash>, NodeId> children_;
  std::vector<PerTarget> targets_;
  std::vector<NodeId> path_;          // reused by Open and Predict
  mutable std::vector<NodeId> seen_;  // the path of the last Depths
  SpareChains spare_runs_;
  std::uint64_t in_flight_blocks_ = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_PREFIX_OVERLAY_H_
