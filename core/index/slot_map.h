// Which slots are in use, and the audit numbers of each.
//
//   free -> open -> closed -> sweeping -> free
//
// Closing clears one bit that every reader looks at. A closed slot's members stay in the sets
// until a whole cycle of the sweep has removed them and every reader that could have seen them is
// gone; only then is the number given out again.
#ifndef WARMPATH_CORE_INDEX_SLOT_MAP_H_
#define WARMPATH_CORE_INDEX_SLOT_MAP_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/index/index.h"
#include "core/index/lock.h"
#include "core/index/memory_account.h"
#include "core/index/worker_set.h"

namespace warmpath::index_internal {

using SlotMask = std::array<std::uint64_t, kMaxWords>;

// Thread-safe.
class SlotMap {
 public:
  explicit SlotMap(MemoryAccount* account) : account_(account) {}

  // The lowest free number; nullopt when there is none.
  std::optional<Slot> Open();
  // False if the slot is not open.
  bool Close(Slot slot);

  bool IsOpen(Slot slot) const {
    return slot < kMaxSlots && ((open_[slot / 64].load() >> (slot % 64)) & 1) != 0;
  }
  // Clears the bits of slots that are not open.
  void KeepOpen(std::uint64_t* mask, std::size_t words) const {
    for (std::size_t i = 0; i < words; ++i) mask[i] &= open_[i].load(std::memory_order_relaxed);
  }
  // Index::SetMayHaveHoles. A slot that is not open has none.
  void SetMayHaveHoles(Slot slot, bool may);
  bool MayHaveHoles(Slot slot) const {
    return slot < kMaxSlots && ((holes_[slot / 64].load() >> (slot % 64)) & 1) != 0;
  }
  std::uint64_t holes_count() const { return holes_count_.load(); }  // slots

  // Words of a bitmap that reaches all slots ever opened.
  std::size_t words() const { return words_.load(std::memory_order_acquire); }

  // REQUIRES: the slot was opened. One thread writes a slot's digest at a time.
  void AddToDigest(Slot slot, Tier tier, std::int64_t count, std::uint64_t xor_of_hashes);
  HoldingsDigest Digest(Slot slot, Tier tier) const;

  // The sweep's side: what is closed now becomes sweeping, and is returned as a mask.
  SlotMask BeginSweep();
  // All sweeping slots become free, or closed again when the sweep could not remove them all.
  void EndSweep(bool complete);

  std::uint64_t open_count() const { return open_count_.load(std::memory_order_relaxed); }
  std::uint64_t unswept_count() const;  // closed or sweeping
  // Whether sets may still have members of slots that are not open.
  bool AnyUnswept() const { return any_unswept_.load(std::memory_order_relaxed); }
  bool AnyClosed() const;
  std::uint64_t pairs() const;  // held by open slots

 private:
  void SetHolesLocked(Slot slot, bool may) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  struct TierDigest {
    std::atomic<std::uint64_t> count{0};
    std::atomic<std::uint64_t> xor_of_hashes{0};
  };
  using Digests = std::array<TierDigest, kTierCount>;
  static constexpr std::size_t kPerChunk = 64;
  using Chunk = std::array<Digests, kPerChunk>;

  const Digests* DigestsOf(Slot slot) const {
    const Chunk* const chunk = chunks_[slot / kPerChunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &(*chunk)[slot % kPerChunk];
  }

  MemoryAccount* const account_;
  std::array<std::atomic<std::uint64_t>, kMaxWords> open_{};
  std::array<std::atomic<std::uint64_t>, kMaxWords> holes_{};  // of them, those that may have some
  std::atomic<std::uint64_t> open_count_{0};
  std::atomic<std::uint64_t> holes_count_{0};
  std::atomic<bool> any_unswept_{false};
  std::atomic<std::size_t> words_{0};
  std::array<std::atomic<Chunk*>, kMaxWords> chunks_{};

  mutable PlainMutex mu_;
  std::vector<std::unique_ptr<Chunk>> owned_ ABSL_GUARDED_BY(mu_);
  SlotMask closed_ ABSL_GUARDED_BY(mu_){};
  SlotMask sweeping_ ABSL_GUARDED_BY(mu_){};
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_SLOT_MAP_H_
