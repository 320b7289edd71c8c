#include "core/replay/block_cache.h"

#include <utility>

namespace warmpath {

BlockCache::BlockCache(std::size_t capacity, Duplicates duplicates, EvictionCallback on_eviction)
    : duplicates_(duplicates), on_eviction_(std::move(on_eviction)), slots_(capacity) {
  empty_.reserve(capacity);
  // Reversed, so that slots are handed out from 0 upwards.
  for (std::size_t i = capacity; i > 0; --i) empty_.push_back(static_cast<BlockSlot>(i - 1));
}

std::uint32_t BlockCache::Copies(BlockKey key) const {
  const auto it = by_key_.find(key);
  return it == by_key_.end() ? 0 : it->second.count;
}

std::size_t BlockCache::MatchPrefix(std::span<const BlockKey> keys) const {
  std::size_t n = 0;
  while (n < keys.size() && by_key_.contains(keys[n])) ++n;
  return n;
}

bool BlockCache::CanAcquire(std::span<const BlockKey> prefix, std::size_t fresh) const {
  std::size_t needed = fresh;
  for (const BlockKey key : prefix) {
    if (slots_[by_key_.find(key)->second.first].refs == 0) ++needed;
  }
  return needed <= free_blocks();
}

bool BlockCache::Acquire(std::span<const BlockKey> prefix, std::size_t fresh,
                         std::vector<BlockSlot>* table) {
  // Pinning a cached block takes it out of the free ones. Counted before anything is touched, so
  // that a refused request does not refresh the place of its blocks in the eviction order.
  std::size_t needed = fresh;
  const std::size_t start = table->size();
  table->reserve(start + prefix.size() + fresh);
  for (const BlockKey key : prefix) {
    const BlockSlot slot = by_key_.find(key)->second.first;
    if (slots_[slot].refs == 0) ++needed;
    table->push_back(slot);
  }
  if (needed > free_blocks()) {
    table->resize(start);
    return false;
  }
  // The prefix goes first: a request must never evict the blocks it is about to reuse.
  for (std::size_t i = start; i < table->size(); ++i) Pin((*table)[i]);
  for (std::size_t i = 0; i < fresh; ++i) table->push_back(TakeBlock());
  return true;
}

BlockCache::StoreResult BlockCache::Store(BlockSlot slot, BlockKey key) {
  CopyList& copies = by_key_[key];
  if (copies.count > 0 && duplicates_ == Duplicates::kShare) {
    const BlockSlot existing = copies.first;
    Pin(existing);
    Unpin(slot);
    return {.slot = existing, .is_new = false};
  }
  slots_[slot].key = key;
  slots_[slot].named = true;
  if (copies.count == 0) {
    copies.first = slot;
  } else {
    // Behind the first copy, which stays the one that hits use.
    Slot& first = slots_[copies.first];
    slots_[slot].next_copy = first.next_copy;
    first.next_copy = slot;
  }
  ++copies.count;
  return {.slot = slot, .is_new = true};
}

void BlockCache::Release(std::span<const BlockSlot> table) {
  for (std::size_t i = table.size(); i > 0; --i) Unpin(table[i - 1]);
}

bool BlockCache::Clear() {
  if (pinned_ > 0) return false;
  by_key_.clear();
  oldest_ = newest_ = kNone;
  empty_.clear();
  for (std::size_t i = slots_.size(); i > 0; --i) {
    slots_[i - 1] = Slot();
    empty_.push_back(static_cast<BlockSlot>(i - 1));
  }
  return true;
}

void BlockCache::Pin(BlockSlot slot) {
  if (slots_[slot].refs++ > 0) return;
  ++pinned_;
  Unlink(slot);
}

void BlockCache::Unpin(BlockSlot slot) {
  if (--slots_[slot].refs > 0) return;
  --pinned_;
  if (slots_[slot].named) {
    LinkNewest(slot);
  } else {
    empty_.push_back(slot);
  }
}

BlockSlot BlockCache::TakeBlock() {
  BlockSlot slot;
  if (!empty_.empty()) {
    slot = empty_.back();
    empty_.pop_back();
  } else {
    slot = oldest_;
    Unlink(slot);
    const auto it = by_key_.find(slots_[slot].key);
    CopyList& copies = it->second;
    const Eviction eviction = {.key = it->first, .copies_left = copies.count - 1};
    if (--copies.count == 0) {
      by_key_.erase(it);
    } else if (copies.first == slot) {
      copies.first = slots_[slot].next_copy;
    } else {
      BlockSlot before = copies.first;
      while (slots_[before].next_copy != slot) before = slots_[before].next_copy;
      slots_[before].next_copy = slots_[slot].next_copy;
    }
    slots_[slot] = Slot();
    if (on_eviction_) on_eviction_(eviction);
  }
  slots_[slot].refs = 1;
  ++pinned_;
  return slot;
}

void BlockCache::Unlink(BlockSlot slot) {
  Slot& s = slots_[slot];
  (s.older == kNone ? oldest_ : slots_[s.older].newer) = s.newer;
  (s.newer == kNone ? newest_ : slots_[s.newer].older) = s.older;
  s.older = s.newer = kNone;
}

void BlockCache::LinkNewest(BlockSlot slot) {
  slots_[slot].older = newest_;
  (newest_ == kNone ? oldest_ : slots_[newest_].newer) = slot;
  newest_ = slot;
}

}  // namespace warmpath
