// The engine blocks of one (rank, KV group): a forest by engine hash, with the copies of each
// block per tier, from which follows which routing blocks are held.
//
// A block is known once stored, resolved once its chain up to token 0 is known. The parent of an
// orphan is a placeholder: when the parent is stored after all, what hangs below is resolved.
// Blocks without copies stay while something hangs below them, since only they know where in the
// chain their children stand.
//
// Internal to Canonical. Not thread-safe.
#ifndef WARMPATH_CLIENT_AGENT_CANONICAL_BLOCK_TREE_H_
#define WARMPATH_CLIENT_AGENT_CANONICAL_BLOCK_TREE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "client/agent/canonical/byte_io.h"
#include "client/agent/events/engine_event.h"
#include "core/base/ids.h"

namespace warmpath {

// Told when a routing block begins or ceases to be held, each change once.
class HeldObserver {
 public:
  virtual void OnHeld(Tier tier, ChainHash hash, bool held) = 0;

 protected:
  ~HeldObserver() = default;
};

// Sums over all groups of a rank, and their common bounds.
struct TreeTotals {
  std::size_t max_blocks = 0;
  std::size_t max_orphans = 0;
  std::size_t blocks = 0;   // nodes, placeholders and copyless parents included
  std::size_t orphans = 0;  // stored, not resolved
  std::array<std::uint64_t, kTierCount> copies{};
  std::array<std::uint64_t, kTierCount> suspects{};  // of them, not seen since the loss
  std::uint64_t holes = 0;  // routing blocks held in the GPU tier, the one before them not
  std::size_t payload_bytes = 0;
  SkipCounts skipped;
  bool drift = false;
  bool hidden = false;
};

class BlockTree {
 public:
  // A multimodal item; `offset` = item start minus block start, tokens.
  struct Item {
    std::string id;
    std::int64_t offset = 0;

    friend bool operator==(const Item&, const Item&) = default;
  };

  struct NewBlock {
    EngineHash hash = 0;
    std::optional<EngineHash> parent;  // absent: starts at token 0
    std::span<const TokenId> tokens;
    std::vector<Item> items;
    bool opaque = false;     // something unknown went into the engine's hash
    std::uint64_t seed = 0;  // of the domain; used when the block starts at token 0
  };

  struct Suspect {
    std::uint32_t stamp;
    std::uint32_t depth;  // blocks above it in its chain, as far as known
    EngineHash hash;
    Tier tier;
  };

  // Both pointers must outlive this. REQUIRES: routing_block > 0.
  BlockTree(std::uint32_t routing_block, HeldObserver* observer, TreeTotals* totals);
  // Takes what it holds out of the totals; does not tell the observer.
  ~BlockTree();
  BlockTree(const BlockTree&) = delete;
  BlockTree& operator=(const BlockTree&) = delete;

  // Adds one copy (or confirms one, when !new_copy and there is one). On refusal, which the caller
  // counts, the blocks that follow in the same event have no parent and are to be left out too.
  std::optional<SkipCause> Store(const NewBlock& block, Tier tier, bool new_copy,
                                 std::uint32_t stamp);

  // Takes one copy away. False: there was none.
  bool Remove(EngineHash hash, Tier tier);

  void ClearTier(Tier tier);

  // Turns all present copies into suspects.
  void MarkSuspects();
  // Appends one entry per (block, tier) that has suspect copies.
  void ListSuspects(std::vector<Suspect>* suspects) const;
  // Takes one suspect copy away. False: there was none.
  bool DropSuspect(EngineHash hash, Tier tier);

  std::size_t size() const { return by_hash_.size(); }
  std::size_t bytes() const;

  void Serialize(ByteWriter& out) const;
  // Into an empty tree; tells the observer what is held. False: `in` is not what Serialize wrote;
  // the tree is then good only for destruction.
  bool Restore(ByteReader& in);

 private:
  using Index = std::uint32_t;
  static constexpr Index kNone = ~Index{0};

  // Kept while needed: unresolved blocks, and blocks that do not end a routing block.
  struct Payload {
    std::vector<TokenId> tokens;
    std::vector<Item> items;
  };

  struct Node {
    EngineHash hash = 0;
    std::uint64_t key = 0;   // names the content up to the block's end; chain hash at a boundary
    ChainHash base = 0;      // chain hash of the routing block before this one's
    std::uint64_t seed = 0;  // of the domain
    Index parent = kNone;
    Index first_child = kNone;
    Index next_sibling = kNone;
    Index prev_sibling = kNone;
    std::uint32_t size = 0;    // tokens
    std::uint32_t offset = 0;  // of the first token in its routing block
    std::uint32_t depth = 0;   // blocks above it in its chain, as far as known
    // Of a block that ends a routing block: the routing blocks right below that are held in the GPU
    // tier. Counted here, since a block may have very many children.
    std::uint32_t held_below = 0;
    std::array<std::uint16_t, kTierCount> copies{};
    std::array<std::uint16_t, kTierCount> suspect{};  // of them
    std::array<std::uint32_t, kTierCount> stamp{};    // last stored or confirmed
    std::uint8_t held = 0;                            // tier bits told to the observer
    bool placeholder = false;                         // referred to, never stored
    bool resolved = false;
    bool has_base = false;
    bool opaque = false;      // own content not fully known
    bool uncredited = false;  // opaque, hidden or misaligned, or below such a block
    std::unique_ptr<Payload> payload;
  };

  bool IsBoundary(const Node& node) const { return node.offset + node.size == routing_block_; }
  bool HasCopies(const Node& node) const;
  Index Find(EngineHash hash) const;
  Index Create(EngineHash hash);
  void Link(Index child, Index parent);
  void Unlink(Index child);
  void ReleaseIfUnused(Index index);
  bool IsAncestor(Index ancestor, Index of) const;
  bool SameParent(const Node& node, const NewBlock& block) const;
  std::optional<SkipCause> Insert(const NewBlock& block, Index* index);
  void SetPayload(Node& node, std::unique_ptr<Payload> payload);
  static std::size_t PayloadBytes(const Payload& payload);

  // Computes `top` and everything below it, now that its parent is resolved.
  void Resolve(Index top);
  void ResolveOne(Node& node);
  void HashOne(Node& node);
  std::uint64_t RoutingBlockHash(const Node& last) const;
  // Makes the block the one that stands for its content in the tier. False: another engine hash
  // does already, so that neither is credited from now on.
  bool Claim(Index index, Tier tier);
  void Disclaim(Index index, Tier tier);
  void Uncredit(Index top, SkipCause cause);

  void AddCopy(Node& node, Tier tier, bool new_copy, std::uint32_t stamp);
  void TakeCopy(Index index, Tier tier, bool suspect);
  void SetHeld(Node& node, Tier tier, bool held);
  // The block that ends the routing block before this one's; kNone at the chain's start.
  Index EndBefore(const Node& node) const;
  // Keeps TreeTotals::holes, now that the block begins or ceases to be held in the GPU tier.
  void CountHoles(const Node& node);
  bool CoveredUpTo(const Node& node, Tier tier) const;
  // The node's presence in the tier has changed: settle the routing blocks that it covers.
  void Settle(Index index, Tier tier);

  bool RestoreNode(ByteReader& in, std::size_t ordinal);

  const std::uint32_t routing_block_;
  HeldObserver* const observer_;
  TreeTotals* const totals_;
  std::vector<Node> nodes_;
  std::vector<Index> free_;
  absl::flat_hash_map<EngineHash, Index> by_hash_;
  // Content -> the credited block that has copies in the tier. Per tier, because a connector may
  // name what it keeps in other tiers by hashes of its own.
  std::array<absl::flat_hash_map<std::uint64_t, Index>, kTierCount> by_key_;
  absl::flat_hash_set<std::uint64_t> hidden_keys_;  // seen under two engine hashes
  std::vector<Index> stack_;                        // scratch
  mutable std::vector<TokenId> tokens_;             // scratch
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_CANONICAL_BLOCK_TREE_H_
