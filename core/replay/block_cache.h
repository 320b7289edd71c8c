// The KV block pool of one inference engine: a fixed number of physical blocks, each of which is
// empty, or holds a named block ("cached"), or is filled by a running request and not named yet.
// Used by the simulated engine with trace blocks of 512 tokens and with engine blocks of 16.
//
// Rules (those of vLLM's block pool):
//  - A block that a request references is pinned and never evicted.
//  - A named block that nobody references stays cached in a list, least recently freed first.
//  - A request frees its blocks tail first, so tails are evicted before the heads they hang on.
//  - New blocks come from the empty ones; when there are none, the head of the list is evicted.
//
// Not thread-safe: one owner. Deterministic. Memory: O(capacity), all of it taken at construction
// but for the hash map of names.
#ifndef WARMPATH_CORE_REPLAY_BLOCK_CACHE_H_
#define WARMPATH_CORE_REPLAY_BLOCK_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace warmpath {

// Identity of a full block: names its tokens and everything before them.
using BlockKey = std::uint64_t;

// Index of a physical block, below the capacity.
using BlockSlot = std::uint32_t;

class BlockCache {
 public:
  // What happens when a request fills a block whose name is already cached in another slot.
  enum class Duplicates : std::uint8_t {
    kShare,  // The request moves to the cached copy and its own block becomes empty.
    kKeep,   // Both copies stay, as in vLLM; each is evicted on its own.
  };

  struct Eviction {
    BlockKey key = 0;
    // Physical copies of `key` that remain.
    std::uint32_t copies_left = 0;
  };
  using EvictionCallback = std::function<void(const Eviction&)>;

  // `on_eviction` (may be empty) runs inside Acquire, once per evicted copy, in order; it must not
  // call the cache. REQUIRES: capacity < 2^32 - 1.
  BlockCache(std::size_t capacity, Duplicates duplicates, EvictionCallback on_eviction = {});

  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  std::size_t capacity() const { return slots_.size(); }
  // Blocks that Acquire could hand out: empty ones and unreferenced cached ones.
  std::size_t free_blocks() const { return slots_.size() - pinned_; }
  std::size_t pinned_blocks() const { return pinned_; }
  // Distinct names held.
  std::size_t cached_keys() const { return by_key_.size(); }
  // Physical copies of `key`; 0 if it is not cached.
  std::uint32_t Copies(BlockKey key) const;

  // Length of the longest cached run at the start of `keys`.
  std::size_t MatchPrefix(std::span<const BlockKey> keys) const;

  // Whether Acquire would succeed. REQUIRES: as Acquire.
  bool CanAcquire(std::span<const BlockKey> prefix, std::size_t fresh) const;

  // Pins the blocks named by `prefix` and `fresh` new unnamed blocks, and appends their slots to
  // *table in that order. All or nothing: false, with nothing changed, when there are too few free
  // blocks. REQUIRES: every key of `prefix` is cached (a key that stands there twice is counted
  // twice, which only errs towards refusing).
  bool Acquire(std::span<const BlockKey> prefix, std::size_t fresh, std::vector<BlockSlot>* table);

  struct StoreResult {
    BlockSlot slot = 0;  // Where the caller's block lies from now on.
    bool is_new = true;  // False if the caller was moved to an existing copy (kShare).
  };
  // Names the block in `slot`, which stays pinned by its owner. REQUIRES: `slot` is unnamed and
  // pinned by exactly one owner.
  StoreResult Store(BlockSlot slot, BlockKey key);

  // Unpins every block of one request's table, the last one first.
  void Release(std::span<const BlockSlot> table);

  // Forgets every name. False, with nothing changed, while any block is pinned. Does not call the
  // eviction callback.
  bool Clear();

  // Calls `f(key, copies)` for every cached name, in no particular order.
  template <typename F>
  void ForEachKey(F&& f) const {
    for (const auto& [key, copies] : by_key_) f(key, copies.count);
  }

 private:
  static constexpr BlockSlot kNone = ~BlockSlot{0};

  struct Slot {
    BlockKey key = 0;
    std::uint32_t refs = 0;
    bool named = false;
    // Neighbours in the list of evictable blocks; only while named and refs == 0.
    BlockSlot older = kNone;
    BlockSlot newer = kNone;
    // Next copy of the same key.
    BlockSlot next_copy = kNone;
  };
  struct CopyList {
    BlockSlot first = kNone;  // The oldest copy: the one that hits use.
    std::uint32_t count = 0;
  };

  void Pin(BlockSlot slot);
  void Unpin(BlockSlot slot);
  BlockSlot TakeBlock();
  void Unlink(BlockSlot slot);
  void LinkNewest(BlockSlot slot);

  const Duplicates duplicates_;
  const EvictionCallback on_eviction_;
  std::vector<Slot> slots_;
  std::vector<BlockSlot> empty_;  // A stack.
  absl::flat_hash_map<BlockKey, CopyList> by_key_;
  BlockSlot oldest_ = kNone;
  BlockSlot newest_ = kNone;
  std::size_t pinned_ = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_BLOCK_CACHE_H_
