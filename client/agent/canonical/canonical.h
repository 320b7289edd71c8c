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
#ifndef WARMPATH_CLIENT_AGENT_CANONICAL_CANONICAL_H_
#define WARMPATH_CLIENT_AGENT_CANONICAL_CANONICAL_H_

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
#include "client/agent/canonical/block_changes.h"
#include "client/agent/canonical/block_tree.h"
#include "client/agent/canonical/feed_cause.h"
#include "client/agent/events/engine_event.h"
#include "core/base/ids.h"

namespace warmpath {

struct CanonicalOptions {
  // B: tokens per routing block, as the router said in Registered. At most 65,536.
  std::uint32_t routing_block = 64;
  // What the engine registered; 0 = unknown. Events of another size are obeyed and raise kDrift.
  std::uint32_t engine_block = 0;
  // Most engine blocks (copies) each tier can hold; 0 = unknown. For vLLM's GPU tier: blocks less
  // the null block. Bounds what is believed after a loss (MarkLoss).
  std::array<std::uint64_t, kTierCount> capacity{};
  // Hard bound on blocks remembered, all tiers and groups. 215 to 270 bytes each, plus 4 per token
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

class Canonical final : private HeldObserver {
 public:
  // REQUIRES: options.routing_block > 0.
  explicit Canonical(CanonicalOptions options);
  ~Canonical();
  Canonical(const Canonical&) = delete;
  Canonical& operator=(const Canonical&) = delete;

  // Applies one batch, in order. Returns the net changes, one entry per tier that changed.
  // Each sequence once: copies are counted. A batch with malformed events raises kDrift.
  std::vector<BlockChanges> Apply(const EngineBatch& batch);

  // A new engine process: forget everything, counters excepted. Reports no changes: the new epoch
  // itself tells the router.
  void Clear();

  // Messages were lost and can not be replayed. Nothing is cleared; what is held now becomes
  // suspect. From here on a tier holds at most capacity[tier] copies: above it suspects are
  // dropped, oldest first (stored or confirmed longest ago). causes() shows `kind` until nothing
  // from before can be left: no suspect copy, no block of an unreported parent, and each tier in
  // use full of later blocks, or turned over once (kGap), or cleared. May drop suspects at once:
  // returns the changes.
  std::vector<BlockChanges> MarkLoss(LossKind kind);

  // kGap, kMissedStart, kHiddenDomain, kDrift as far as they hold now.
  FeedCauses causes() const;

  // What is held. Digests are kept as we go; Held copies (order unspecified) for a snapshot.
  SetDigest digest(Tier tier) const { return digests_[static_cast<std::size_t>(tier)]; }
  std::vector<ChainHash> Held(Tier tier) const;
  bool IsHeld(Tier tier, ChainHash hash) const;

  // Routing blocks that the GPU tier holds without the one before them in their chain, summed over
  // the groups that count. 0: what is held has no hole, since each group's chains are whole from
  // their start, hence also what they have in common. With one group it is exact; with several more
  // than 0 may be a false alarm.
  std::uint64_t holes() const { return totals_.holes; }

  // Blocks and events left out, since construction.
  SkipCounts skipped() const { return totals_.skipped; }
  // Engine block size of the latest store; 0 before the first.
  std::uint32_t seen_block_size() const { return seen_block_size_; }
  // Engine blocks remembered, of them waiting for a parent, and pre-loss copies not confirmed.
  std::size_t blocks() const { return totals_.blocks; }
  std::size_t orphans() const { return totals_.orphans; }
  std::uint64_t suspects() const;
  // Estimate of heap use, for the memory gauge.
  std::size_t bytes() const;

  // Everything needed to go on after a restart of this process; Restore expects the same routing
  // block and fails with INVALID_ARGUMENT or FAILED_PRECONDITION (then it is Clear()ed).
  std::string Serialize() const;
  absl::Status Restore(std::string_view bytes);

  // The tier's capacity turned out to be another (the engine was started anew, or told late).
  void SetCapacity(Tier tier, std::uint64_t copies) {
    options_.capacity[static_cast<std::size_t>(tier)] = copies;
  }

  const CanonicalOptions& options() const { return options_; }

 private:
  // One KV group that stores were seen of.
  struct Group {
    std::uint32_t index;
    // Null: not full or MLA attention, so it says nothing about whether a prefix can be reused.
    std::unique_ptr<BlockTree> tree;
  };
  // A group's place in groups_ is its bit in tier_groups_.
  static constexpr std::size_t kMaxGroups = 64;

  void OnHeld(Tier tier, ChainHash hash, bool held) override;
  void NoteChange(Tier tier, ChainHash hash, bool was_held);
  void ApplyStored(const BlockStored& event);
  std::optional<SkipCause> CheckShape(const BlockStored& event);
  void StoreBlocks(const BlockStored& event, BlockTree& tree);
  void ApplyRemoved(const BlockRemoved& event);
  std::unique_ptr<BlockTree> NewTree();
  // Slot of the event's group, made if need be; nullopt: no room for another group.
  std::optional<std::size_t> GroupSlot(const BlockStored& event);
  void NoteGroupInTier(std::size_t slot, Tier tier);
  std::uint64_t SeedFor(const BlockStored& event, const std::optional<std::string>& salt) const;
  void BoundSuspects();
  void QueueSuspects();
  bool NothingFromBefore() const;
  void UpdateLoss();
  int GroupsIn(Tier tier) const;
  std::vector<BlockChanges> TakeChanges();
  bool RestoreFields(ByteReader& in);

  CanonicalOptions options_;  // only capacity ever changes
  TreeTotals totals_;         // before groups_: trees refer to it
  std::vector<Group> groups_;
  // Per tier, the groups that ever stored there; a chain hash is held when all of them hold it.
  std::array<std::uint64_t, kTierCount> tier_groups_{};
  std::array<absl::flat_hash_map<ChainHash, std::uint8_t>, kTierCount> holders_;
  std::array<SetDigest, kTierCount> digests_;
  // Net effect of the batch under way: hash -> held before it.
  std::array<absl::flat_hash_map<ChainHash, bool>, kTierCount> touched_;
  std::uint32_t seen_block_size_ = 0;
  bool drift_ = false;
  std::uint32_t stamp_ = 0;  // counts batches; blocks carry that of their last store

  std::optional<LossKind> loss_;
  bool cleared_since_loss_ = false;                            // GPU tier
  std::array<std::uint64_t, kTierCount> stored_since_loss_{};  // copies
  // Suspects by age, oldest last; entries may be out of date.
  std::vector<BlockTree::Suspect> suspect_queue_[kTierCount];
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_CANONICAL_CANONICAL_H_
