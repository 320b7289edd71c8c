// The prefix index: of these chained block hashes, how far does each target hold the chain?
//
// One index serves one pool. It is fed by worker events and snapshots only; what is in
// flight and what was only predicted live in core/fleet. See docs/index.md for the design.
//
// Slots. A slot is one generation of one target's cache contents. A registration in a new
// epoch, a Cleared and a snapshot swap each open a fresh slot and close the old one, so that
// each is O(1): a closed slot is masked at once and its blocks are swept in the background.
//
// Chains. Every query is a chain: hashes[i] names the whole prefix of i + 1 routing blocks, so
// a set of hashes needs no parent pointers.
#ifndef WARMPATH_CORE_INDEX_INDEX_H_
#define WARMPATH_CORE_INDEX_INDEX_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"

namespace warmpath {

// Dense small integer, reused only after every reader that could see the old use is gone.
using Slot = std::uint32_t;
inline constexpr Slot kNoSlot = ~Slot{0};

// How far one slot holds a chain, in routing blocks.
struct SlotMatch {
  Slot slot = kNoSlot;
  // Leading run in the GPU tier.
  std::uint32_t gpu_depth = 0;
  // Largest d such that every block below d is held in some tier. usable >= gpu_depth.
  std::uint32_t usable_depth = 0;
  // Of the blocks below usable_depth: how many have this tier as their fastest.
  std::array<std::uint32_t, kTierCount> by_tier{};

  friend bool operator==(const SlotMatch&, const SlotMatch&) = default;
};

// The slots by their depth in the GPU tier, for callers that need not see each one: most slots that
// hold any of a chain hold the same few leading blocks of it. Reused between calls.
struct MatchSegments {
  struct Segment {
    std::uint32_t depth = 0;     // in blocks, > 0
    std::size_t first_word = 0;  // in `words`
  };
  // Shallowest first; each slot with gpu_depth > 0 is in exactly one.
  std::vector<Segment> segments;
  // Bitmaps of slots, words_per_segment each: slot s is bit s % 64 of word s / 64.
  std::vector<std::uint64_t> words;
  std::size_t words_per_segment = 0;
  // Depths up to exact_to are exact, and verification may begin here: each of so many blocks was
  // looked at, or no slot may have holes.
  std::size_t exact_to = 0;

  bool Contains(const Segment& segment, Slot slot) const {
    return slot / 64 < words_per_segment &&
           ((words[segment.first_word + slot / 64] >> (slot % 64)) & 1) != 0;
  }
  // The first slot of the segment that is not below `from`; kNoSlot if there is none.
  Slot FirstSlot(const Segment& segment, Slot from) const {
    for (std::size_t word = from / 64; word < words_per_segment; ++word) {
      std::uint64_t bits = words[segment.first_word + word];
      if (word == from / 64) bits &= ~std::uint64_t{0} << (from % 64);
      if (bits != 0) {
        return static_cast<Slot>(word * 64 + static_cast<std::size_t>(std::countr_zero(bits)));
      }
    }
    return kNoSlot;
  }
  template <typename Visit>
  void ForEachSlot(const Segment& segment, Visit visit) const {
    for (std::size_t i = 0; i < words_per_segment; ++i) {
      for (std::uint64_t bits = words[segment.first_word + i]; bits != 0; bits &= bits - 1) {
        visit(static_cast<Slot>(i * 64 + static_cast<std::size_t>(std::countr_zero(bits))));
      }
    }
  }
};

// Reused between calls, so that a match allocates nothing once warm.
struct MatchResult {
  // One entry for each open slot with usable_depth > 0, in no particular order.
  std::vector<SlotMatch> slots;
  // Depths up to exact_to are exact, and verification may begin here: each of so many blocks was
  // looked at, or no slot may have holes.
  std::size_t exact_to = 0;
  // The index's own, for the call.
  MatchSegments segments;
  std::vector<std::uint64_t> scratch;
};

struct ApplyResult {
  std::uint32_t stored = 0;          // newly held
  std::uint32_t already_stored = 0;  // held before: counted, no error
  std::uint32_t removed = 0;
  std::uint32_t removed_missing = 0;  // was not held: counted, no error
  std::uint32_t refused = 0;          // not stored: the index is at its memory bound
  std::uint32_t not_removed = 0;      // still held: no memory for the set without the slot

  friend bool operator==(const ApplyResult&, const ApplyResult&) = default;
};

// Count and xor of all hashes held by one (slot, tier): the audit numbers of Heartbeat.
struct HoldingsDigest {
  std::uint64_t count = 0;
  std::uint64_t xor_of_hashes = 0;

  friend bool operator==(const HoldingsDigest&, const HoldingsDigest&) = default;
};

struct IndexStats {
  std::uint64_t blocks = 0;          // distinct chain hashes in the table
  std::uint64_t pairs = 0;           // (block, slot, tier) triples held by open slots
  std::uint64_t sets = 0;            // distinct worker sets (0 where the implementation has none)
  std::uint64_t bytes = 0;           // memory by the index's own account
  std::uint64_t bound_bytes = 0;     // configured hard bound; 0 = none
  std::uint64_t refused_stores = 0;  // since start
  std::uint64_t open_slots = 0;
  std::uint64_t slots_with_holes = 0;  // open ones that may have some
  std::uint64_t closed_slots_unswept = 0;
};

// Thread-safe. Readers (Match, Holds, VerifiedDepth) never wait for writers. For one slot, calls
// of Apply must come from one thread at a time (one worker stream owns its targets' slots);
// different slots may be written at once.
class Index {
 public:
  virtual ~Index() = default;

  // A fresh, empty slot. RESOURCE_EXHAUSTED when all slot numbers are in use.
  virtual absl::StatusOr<Slot> OpenSlot() = 0;

  // Masks the slot at once: no later Match or Holds reports it. Its blocks are reclaimed by
  // Maintain(). Idempotent for a slot that is not open.
  virtual void CloseSlot(Slot slot) = 0;

  // A slot has a hole where its GPU tier lacks a block of a chain and holds a later one. A new slot
  // counts as one that may have holes; whoever feeds it takes that back once what it holds is known
  // to have none, and says so again before a change that may make one. While it counts as one that
  // has none, each block is at any time as in some contents without holes that the slot had or
  // gets, however the change between them is cut into calls of Apply, in whatever order. Then a
  // match may jump over blocks and still be exact: it credits no more than the larger of the two.
  // No-op for a slot that is not open.
  virtual void SetMayHaveHoles(Slot slot, bool may) = 0;

  // Removes, then stores. A hash appears at most once in each span. REQUIRES: slot is open.
  virtual ApplyResult Apply(Slot slot, Tier tier, std::span<const ChainHash> removed,
                            std::span<const ChainHash> stored) = 0;

  // Depth of every open slot along the chain. Past result->exact_to it may over-credit a slot that
  // may have holes: verify the winner before it is reserved.
  virtual void Match(std::span<const ChainHash> chain, MatchResult* result) const = 0;

  // The gpu_depth part of Match, by segments; the same bounds on its truth. True when it met no
  // block in another tier: then that is all that Match would tell.
  virtual bool MatchGpu(std::span<const ChainHash> chain, MatchSegments* result) const = 0;

  // As Match, but looks at every block: never over-credits.
  virtual void MatchExact(std::span<const ChainHash> chain, MatchResult* result) const = 0;

  // Exact, for a slot without holes as a match is: the length of the run chain[from], chain[from +
  // 1], ... that the slot holds in the GPU tier, looking at no block at or past `limit`. Returns a
  // position in [from, limit].
  virtual std::size_t VerifiedGpuDepth(Slot slot, std::span<const ChainHash> chain,
                                       std::size_t from, std::size_t limit) const = 0;

  // Exact, over all tiers: what the slot holds of chain[from], chain[from + 1], ... Depths are
  // positions in the chain, `from` at least; by_tier counts the blocks in [from, usable_depth).
  virtual SlotMatch VerifiedMatch(Slot slot, std::span<const ChainHash> chain,
                                  std::size_t from) const = 0;

  virtual bool Holds(Slot slot, Tier tier, ChainHash hash) const = 0;

  virtual HoldingsDigest Digest(Slot slot, Tier tier) const = 0;

  // Calls `visit` for each hash the (slot, tier) holds, in no particular order. For DumpIndex and
  // tests: slow, and only exact while nobody writes this slot.
  virtual void ForEach(Slot slot, Tier tier, absl::FunctionRef<void(ChainHash)> visit) const = 0;

  virtual IndexStats Stats() const = 0;

  // Background work (sweep of closed slots, reclamation), at most about `budget_blocks` blocks of
  // it. Returns true while more is left. Call it from one thread, about every 10 ms while it
  // returns true and every 100 ms otherwise.
  virtual bool Maintain(std::size_t budget_blocks) = 0;
};

struct IndexOptions {
  // Hard memory bound; 0 = none. At it stores are refused, removals go on.
  std::uint64_t bound_bytes = 0;
  // Decides where blocks lie in memory. A random one keeps agents from crowding them on purpose.
  std::uint64_t seed = 0x8E5B0A1CF3D97246;
  // So many leading blocks of a chain are looked at one by one, the rest is searched. > 0.
  std::uint32_t exact_blocks = 1024;
};

// The index that the router runs.
std::unique_ptr<Index> CreateIndex(const IndexOptions& options);

// The slow plain model that tests compare against (core/index/reference_index.h).
std::unique_ptr<Index> CreateReferenceIndex(const IndexOptions& options);

}  // namespace warmpath

#endif  // WARMPATH_CORE_INDEX_INDEX_H_
