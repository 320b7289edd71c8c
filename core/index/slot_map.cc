#include "core/index/slot_map.h"

#include <algorithm>
#include <bit>

namespace warmpath::index_internal {
namespace {

std::uint64_t CountBits(const SlotMask& mask) {
  std::uint64_t count = 0;
  for (const std::uint64_t word : mask) count += static_cast<std::uint64_t>(std::popcount(word));
  return count;
}

}  // namespace

std::optional<Slot> SlotMap::Open() {
  PlainLock lock(&mu_);
  for (std::size_t word = 0; word < kMaxWords; ++word) {
    const std::uint64_t taken =
        open_[word].load(std::memory_order_relaxed) | closed_[word] | sweeping_[word];
    if (~taken == 0) continue;
    const int bit = std::countr_one(taken);
    if (chunks_[word].load(std::memory_order_relaxed) == nullptr) {
      owned_.push_back(std::make_unique<Chunk>());
      account_->ForceCharge(sizeof(Chunk));
      chunks_[word].store(owned_.back().get(), std::memory_order_release);
    }
    Chunk& chunk = *chunks_[word].load(std::memory_order_relaxed);
    for (TierDigest& digest : chunk[static_cast<std::size_t>(bit)]) {
      digest.count.store(0, std::memory_order_relaxed);
      digest.xor_of_hashes.store(0, std::memory_order_relaxed);
    }
    if (words_.load(std::memory_order_relaxed) <= word) {
      words_.store(word + 1, std::memory_order_release);
    }
    const auto slot = static_cast<Slot>(word * 64 + static_cast<std::size_t>(bit));
    SetHolesLocked(slot, true);
    open_[word].fetch_or(std::uint64_t{1} << bit);
    open_count_.fetch_add(1, std::memory_order_relaxed);
    return slot;
  }
  return std::nullopt;
}

bool SlotMap::Close(Slot slot) {
  if (slot >= kMaxSlots) return false;
  const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
  PlainLock lock(&mu_);
  if ((open_[slot / 64].fetch_and(~bit) & bit) == 0) return false;
  closed_[slot / 64] |= bit;
  any_unswept_.store(true, std::memory_order_relaxed);
  open_count_.fetch_sub(1, std::memory_order_relaxed);
  SetHolesLocked(slot, false);
  return true;
}

void SlotMap::SetMayHaveHoles(Slot slot, bool may) {
  if (MayHaveHoles(slot) == may) return;  // the usual case: said with every delta
  PlainLock lock(&mu_);
  if (IsOpen(slot)) SetHolesLocked(slot, may);
}

void SlotMap::SetHolesLocked(Slot slot, bool may) {
  const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
  std::atomic<std::uint64_t>& word = holes_[slot / 64];
  const bool was = ((may ? word.fetch_or(bit) : word.fetch_and(~bit)) & bit) != 0;
  if (was != may) holes_count_.fetch_add(may ? 1 : ~std::uint64_t{0});
}

void SlotMap::AddToDigest(Slot slot, Tier tier, std::int64_t count, std::uint64_t xor_of_hashes) {
  Chunk& chunk = *chunks_[slot / kPerChunk].load(std::memory_order_acquire);
  TierDigest& digest = chunk[slot % kPerChunk][static_cast<std::size_t>(tier)];
  // Not by atomic addition, which events of a block or two would feel.
  const auto add = static_cast<std::uint64_t>(count);
  digest.count.store(digest.count.load(std::memory_order_relaxed) + add, std::memory_order_relaxed);
  digest.xor_of_hashes.store(digest.xor_of_hashes.load(std::memory_order_relaxed) ^ xor_of_hashes,
                             std::memory_order_relaxed);
}

HoldingsDigest SlotMap::Digest(Slot slot, Tier tier) const {
  if (!IsOpen(slot)) return {};
  const TierDigest& digest = (*DigestsOf(slot))[static_cast<std::size_t>(tier)];
  return {digest.count.load(std::memory_order_relaxed),
          digest.xor_of_hashes.load(std::memory_order_relaxed)};
}

SlotMask SlotMap::BeginSweep() {
  PlainLock lock(&mu_);
  sweeping_ = closed_;
  closed_.fill(0);
  return sweeping_;
}

void SlotMap::EndSweep(bool complete) {
  PlainLock lock(&mu_);
  for (std::size_t word = 0; word < kMaxWords && !complete; ++word) {
    closed_[word] |= sweeping_[word];
  }
  sweeping_.fill(0);
  any_unswept_.store(CountBits(closed_) > 0, std::memory_order_relaxed);
}

std::uint64_t SlotMap::unswept_count() const {
  PlainLock lock(&mu_);
  return CountBits(closed_) + CountBits(sweeping_);
}

bool SlotMap::AnyClosed() const {
  PlainLock lock(&mu_);
  return std::any_of(closed_.begin(), closed_.end(), [](std::uint64_t w) { return w != 0; });
}

std::uint64_t SlotMap::pairs() const {
  std::uint64_t pairs = 0;
  for (std::size_t word = 0; word < words(); ++word) {
    for (std::uint64_t bits = open_[word].load(std::memory_order_relaxed); bits != 0;
         bits &= bits - 1) {
      const auto slot = static_cast<Slot>(word * 64 + std::countr_zero(bits));
      for (const TierDigest& digest : *DigestsOf(slot)) {
        pairs += digest.count.load(std::memory_order_relaxed);
      }
    }
  }
  return pairs;
}

}  // namespace warmpath::index_internal
