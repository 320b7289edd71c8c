// The part of an engine's KV cache that lies in host memory: an LRU list of blocks that the GPU had
// to give up, and the link on which they come back.
//
// Rules (those of engines that offload when they evict):
//  - A block that the GPU evicts is written here, unless it is here already. Writing takes no time:
//    it happens beside the engine's steps, and nobody waits for it.
//  - A block that is copied back stays here, as most recently used, and is never evicted during
//    the copy.
//  - Copies run one after another at one rate, beside the engine's steps.
//
// Not thread-safe: one owner. Deterministic.
#ifndef WARMPATH_CORE_REPLAY_HOST_TIER_H_
#define WARMPATH_CORE_REPLAY_HOST_TIER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/replay/block_cache.h"

namespace warmpath {

class HostTier {
 public:
  // One change of what lies here.
  struct Change {
    BlockKey key = 0;
    bool stored = false;  // else evicted
  };

  // `blocks` of `block_size` tokens; copies at `tokens_per_s` > 0. Changes are appended to
  // *changes, in order.
  HostTier(std::size_t blocks, std::uint32_t block_size, double tokens_per_s,
           std::vector<Change>* changes);

  HostTier(const HostTier&) = delete;
  HostTier& operator=(const HostTier&) = delete;

  const BlockCache& cache() const { return cache_; }
  double SecondsFor(std::uint64_t tokens) const {
    return static_cast<double>(tokens) / tokens_per_s_;
  }
  // Length of the longest run at the start of `keys` that lies here.
  std::size_t MatchPrefix(std::span<const BlockKey> keys) const { return cache_.MatchPrefix(keys); }

  // The GPU has evicted its last copy. Without effect when each block here is being copied.
  void Offload(BlockKey key);

  // The blocks will be copied for request `id`, after the copies asked for before. REQUIRES: all of
  // them lie here; they are not empty; no copy for `id` is under way.
  void StartCopy(std::uint64_t id, std::span<const BlockKey> keys);
  // False if no copy for `id` is under way.
  bool CancelCopy(std::uint64_t id);
  // So much time has passed since StartCopy or the last call: appends whose copies have ended.
  void Advance(double seconds, std::vector<std::uint64_t>* ended);
  // Of the copy under way; 0 when there is none.
  double SecondsLeft() const { return copies_.empty() ? 0 : copies_.front().seconds_left; }

  // Forgets all blocks. REQUIRES: no copy is under way.
  void Clear() { cache_.Clear(); }

 private:
  struct Copy {
    std::uint64_t id = 0;
    double seconds_left = 0;
    std::vector<BlockSlot> blocks;
  };

  const std::uint32_t block_size_;
  const double tokens_per_s_;
  std::vector<Change>* const changes_;
  BlockCache cache_;
  std::deque<Copy> copies_;  // the first is under way
  std::vector<BlockSlot> scratch_;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_HOST_TIER_H_
