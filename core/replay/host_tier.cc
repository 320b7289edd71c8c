#include "core/replay/host_tier.h"

#include <algorithm>

namespace warmpath {

HostTier::HostTier(std::size_t blocks, std::uint32_t block_size, double tokens_per_s,
                   std::vector<Change>* changes)
    : block_size_(block_size),
      tokens_per_s_(tokens_per_s),
      changes_(changes),
      cache_(blocks, BlockCache::Duplicates::kShare,
             [changes](const BlockCache::Eviction& evicted) {
               changes->push_back({.key = evicted.key, .stored = false});
             }) {}

void HostTier::Offload(BlockKey key) {
  scratch_.clear();
  if (cache_.Copies(key) > 0) {
    cache_.Acquire(std::span(&key, 1), 0, &scratch_);
  } else {
    if (!cache_.Acquire({}, 1, &scratch_)) return;
    cache_.Store(scratch_[0], key);
    changes_->push_back({.key = key, .stored = true});
  }
  cache_.Release(scratch_);
}

void HostTier::StartCopy(std::uint64_t id, std::span<const BlockKey> keys) {
  Copy& copy = copies_.emplace_back();
  copy.id = id;
  copy.seconds_left = SecondsFor(std::uint64_t{keys.size()} * block_size_);
  cache_.Acquire(keys, 0, &copy.blocks);
}

bool HostTier::CancelCopy(std::uint64_t id) {
  const auto it = std::find_if(copies_.begin(), copies_.end(),
                               [id](const Copy& copy) { return copy.id == id; });
  if (it == copies_.end()) return false;
  cache_.Release(it->blocks);
  copies_.erase(it);
  return true;
}

void HostTier::Advance(double seconds, std::vector<std::uint64_t>* ended) {
  while (!copies_.empty()) {
    Copy& copy = copies_.front();
    if (copy.seconds_left > seconds) {
      copy.seconds_left -= seconds;
      return;
    }
    seconds -= copy.seconds_left;
    ended->push_back(copy.id);
    cache_.Release(copy.blocks);
    copies_.pop_front();
  }
}

}  // namespace warmpath
