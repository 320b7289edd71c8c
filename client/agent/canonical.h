// Engine blocks -> routing blocks for one rank of one engine process. Keeps, for every engine
// hash, how many copies each (tier, group) holds and where the block stands in its chain, and
// says which chain hashes (core/hashing/chain_hash.h) began or ceased to be held.
//
// A routing block is held in a tier iff every engine block that covers its tokens is held there,
// in every group that counts (full and MLA attention). Rules: docs/semantics.md "Hash domain" and
// "Sequence numbers".
//
// Not thread-safe; confined to its rank's feed. Nothing in a batch can make it fail: what does not
// fit is counted (skipped()) and left out.
#ifndef WARMPATH_CLIENT_AGENT_CANONICAL_H_
#define WARMPATH_CLIENT_AGENT_CANONICAL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "client/agent/block_changes.h"
#include "client/agent/engine_event.h"
#include "client/agent/feed_cause.h"
#include "core/base/ids.h"

namespace warmpath {

class BlockTree;

struct CanonicalOptions {
  // B: tokens per routing block, as the router said in Registered. At most 65,536.
  std::uint32_t routing_block = 64;
  // What the engine registered; 0 = unknown. Events of another size are obeyed and raise kDrift.
  std::uint32_t engine_block = 0;
  // Most engine blocks (copies) each tier can hold; 0 = unknown. For vLLM's GPU tier: blocks less
  // the null block. Bounds what is believed after a loss (MarkLoss).
  std::array<std::uint64_t, kTierCount> capacity{};
  // Hard bound on blocks remembered, all tiers and groups. About 100 bytes each, plus 4 per token
  // of blocks that do not end a routing block.
  std::size_t max_blocks = std::size_t{1} << 21;
  // Blocks kept aside because their parent was never reported.
  std::size_t max_orphans = 65536;
  // The engine re-reports blocks it reuses: a store of a held block is no new copy.
  bool reports_reuse = false;
  // Names for engines that send only a LoRA number; others become "lora-id:<n>".
  std::map<std::int64_t, std::string> lora_names;
};

// Whether blocks of `engine_block` tokens can be turned into routing blocks of `routing_block`.
// FAILED_PRECONDITION naming both and the setting to change.
absl::Status CheckBlockSizes(std::uint32_t engine_block, std::uint32_t routing_block);

// What a message that never came may have changed.
enum class LossKind : std::uint8_t { kGap, kMissedStart };

class Canonical {
 public:
  // REQUIRES: options.routing_block > 0.
  explicit Canonical(CanonicalOptions options);
  ~Canonical();
  Canonical(const Canonical&) = delete;
  Canonical& operator=(const Canonical&) = delete;

  // Applies one batch, in order. Returns the net changes, one entry per tier that changed.
  // `already_applied`: this sequence was applied before (a replay overlap): stores then are no new
  // copies and removals are not applied.
  std::vector<BlockChanges> Apply(const EngineBatch& batch, bool already_applied = false);

  // A new engine process: forget everything, counters excepted. Reports no changes: the new epoch
  // itself tells the router.
  void Clear();

  // Messages were lost and can not be replayed. Nothing is cleared; what is held now becomes
  // suspect. From here on a tier holds at most capacity[tier] copies: above it suspects are
  // dropped, oldest first (stored or confirmed longest ago). causes() shows `kind` until no
  // suspect and no block of an unreported parent is left and the engine has since filled its GPU
  // capacity, or cleared it. May drop suspects at once: returns the changes.
  std::vector<BlockChanges> MarkLoss(LossKind kind);

  // kGap, kMissedStart, kHiddenDomain, kDrift as far as they hold now.
  FeedCauses causes() const;

  // What is held. Digests are kept as we go; Held copies (order unspecified) for a snapshot.
  SetDigest digest(Tier tier) const { return digests_[static_cast<std::size_t>(tier)]; }
  std::vector<ChainHash> Held(Tier tier) const;
  bool IsHeld(Tier tier, ChainHash hash) const;

  // Blocks and events left out, since construction.
  const SkipCounts& skipped() const { return skipped_; }
  // Engine block size of the latest store; 0 before the first.
  std::uint32_t seen_block_size() const { return seen_block_size_; }
  // Engine blocks remembered, of them waiting for a parent, and pre-loss copies not confirmed.
  std::size_t blocks() const;
  std::size_t orphans() const;
  std::size_t suspects() const;
  // Estimate of heap use, for the memory gauge.
  std::size_t bytes() const;

  // Everything needed to go on after a restart of this process; Restore expects the same routing
  // block and fails with INVALID_ARGUMENT or FAILED_PRECONDITION (then it is Clear()ed).
  std::string Serialize() const;
  absl::Status Restore(std::string_view bytes);

  const CanonicalOptions& options() const { return options_; }

 private:
  friend class BlockTree;
  struct Group;

  // Called by a group's tree when a chain hash begins or ceases to be held there.
  void OnTreeChange(Tier tier, ChainHash hash, bool held);
  void ApplyStored(const BlockStored& event, bool already_applied);
  void ApplyRemoved(const BlockRemoved& event);
  void ApplyCleared();
  // Null when the group does not count or the table of groups is full.
  BlockTree* GroupFor(const BlockStored& event);
  std::uint64_t SeedFor(const BlockStored& event, bool* known);
  void BoundSuspects();
  void UpdateLoss();
  void RecountGroups();
  std::vector<BlockChanges> TakeChanges();

  const CanonicalOptions options_;
  std::map<std::int64_t, std::unique_ptr<BlockTree>> trees_;  // by group index, -1 = none given
  std::map<std::int64_t, bool> group_counts_;                 // group index -> counts
  // Per tier, chain hash -> number of groups that hold it; held when all do.
  std::array<absl::flat_hash_map<ChainHash, std::uint16_t>, kTierCount> holders_;
  std::array<SetDigest, kTierCount> digests_;
  // Net effect of the batch under way: hash -> held at its start.
  std::array<absl::flat_hash_map<ChainHash, bool>, kTierCount> touched_;
  SkipCounts skipped_;
  std::uint32_t seen_block_size_ = 0;
  bool drift_ = false;
  bool hidden_ = false;
  std::optional<LossKind> loss_;
  std::uint64_t stored_since_loss_ = 0;  // GPU copies
  std::uint64_t batch_stamp_ = 1;        // of the batch under way; blocks carry their last store's
  std::uint64_t loss_stamp_ = 0;         // blocks stamped below it are suspect
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_CANONICAL_H_
