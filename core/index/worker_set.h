// Immutable sets of members, as the table's entries share them.
//
// A member is a (slot, tier). Most sets are small and all are alike, so a set is stored in one of
// two forms, chosen by its size alone, so that equal sets have equal bytes:
//   array    the members in rising order, 16 bits each (four of them fit into 16 bytes);
//   bitmap   for each tier that occurs, one bit for each slot.
#ifndef WARMPATH_CORE_INDEX_WORKER_SET_H_
#define WARMPATH_CORE_INDEX_WORKER_SET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/ids.h"
#include "core/index/index.h"

namespace warmpath::index_internal {

using Member = std::uint16_t;

// All (slot, tier) fit into a Member, and the number of members fits into 16 bits.
inline constexpr std::size_t kMaxSlots = 16000;
inline constexpr std::size_t kMaxWords = kMaxSlots / 64;  // of a bitmap of slots

constexpr Member MakeMember(Slot slot, Tier tier) {
  return static_cast<Member>(slot * kTierCount + static_cast<std::size_t>(tier));
}
constexpr Slot SlotOf(Member member) { return member / kTierCount; }
constexpr std::size_t TierOf(Member member) { return member % kTierCount; }

// The stored form. The payload follows the header. Never changed once shared.
struct SetNode {
  std::uint32_t hash;   // sum of HashMember over the members, so that it is updated, not recomputed
  std::uint16_t count;  // members
  std::uint8_t words;   // of a bitmap: words for each tier; 0: an array
  std::uint8_t tiers;   // bit t is set if tier t occurs

  static constexpr std::size_t kMaxArray = 28;

  std::span<const Member> members() const {
    return {reinterpret_cast<const Member*>(this + 1), words == 0 ? count : std::size_t{0}};
  }
  // REQUIRES: a bitmap in which `tier` occurs.
  const std::uint64_t* bits(std::size_t tier) const {
    return reinterpret_cast<const std::uint64_t*>(this + 1) +
           words * static_cast<std::size_t>(__builtin_popcount(tiers & ((1u << tier) - 1)));
  }
  bool has_tier(std::size_t tier) const { return (tiers >> tier) & 1; }

  std::size_t bytes() const {
    return sizeof(SetNode) + (words == 0 ? count * sizeof(Member)
                                         : words * sizeof(std::uint64_t) *
                                               static_cast<std::size_t>(__builtin_popcount(tiers)));
  }

  bool Contains(Member member) const;
  // No member of another tier than the GPU.
  bool GpuOnly() const { return tiers == 1; }

  // Writes `count` words: the slots of `of` that are members in `tier`.
  void IntersectTier(std::size_t tier, const std::uint64_t* of, std::uint64_t* mask,
                     std::size_t count_words) const;
  // Writes `count` words: the slots that are members in `tier`. Slots beyond them are left out.
  void TierMask(std::size_t tier, std::uint64_t* mask, std::size_t count_words) const;
};
static_assert(sizeof(SetNode) == 8);

std::uint32_t HashMember(Member member);

// Builds a set from another one. Reused: it is large.
class SetBuilder {
 public:
  void Clear();
  void Load(const SetNode& node);
  // False if nothing changed.
  bool Add(Member member);
  bool Remove(Member member);
  // Removes all members whose slots are in `mask` (kMaxWords words).
  void RemoveSlots(std::span<const std::uint64_t> mask);

  std::size_t count() const { return count_; }
  // The stored form; valid until the next change. REQUIRES: count() > 0.
  const SetNode* Finish();

 private:
  void ToBitmap();
  void ToArray();

  std::uint32_t hash_ = 0;
  std::size_t count_ = 0;
  bool bitmap_ = false;
  std::array<Member, SetNode::kMaxArray + 1> array_;
  std::size_t words_ = 0;  // all bits at and past it are zero
  std::array<std::array<std::uint64_t, kMaxWords>, kTierCount> bits_{};
  alignas(16) std::array<std::byte, sizeof(SetNode) + kTierCount * kMaxWords * 8> finished_;
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_WORKER_SET_H_
