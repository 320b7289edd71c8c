#include "core/index/worker_set.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace warmpath::index_internal {

std::uint32_t HashMember(Member member) {
  // Any mixing will do that keeps sums of a few members apart (finalizer of splitmix64).
  std::uint64_t z = (member + std::uint64_t{1}) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<std::uint32_t>(z >> 32);
}

bool SetNode::Contains(Member member) const {
  if (words == 0) {
    const auto all = members();
    return std::find(all.begin(), all.end(), member) != all.end();
  }
  const Slot slot = SlotOf(member);
  const std::size_t tier = TierOf(member);
  return slot / 64 < words && has_tier(tier) && ((bits(tier)[slot / 64] >> (slot % 64)) & 1) != 0;
}

void SetNode::IntersectTier(std::size_t tier, const std::uint64_t* of, std::uint64_t* mask,
                            std::size_t count_words) const {
  if (words != 0) {
    const std::size_t present = has_tier(tier) ? std::min<std::size_t>(words, count_words) : 0;
    for (std::size_t i = 0; i < present; ++i) mask[i] = of[i] & bits(tier)[i];
    for (std::size_t i = present; i < count_words; ++i) mask[i] = 0;
    return;
  }
  for (std::size_t i = 0; i < count_words; ++i) mask[i] = 0;
  for (const Member member : members()) {
    const Slot slot = SlotOf(member);
    if (TierOf(member) == tier && slot / 64 < count_words) {
      mask[slot / 64] |= of[slot / 64] & (std::uint64_t{1} << (slot % 64));
    }
  }
}

void SetNode::TierMask(std::size_t tier, std::uint64_t* mask, std::size_t count_words) const {
  if (words == 0) {
    std::fill_n(mask, count_words, 0);
    for (const Member member : members()) {
      const Slot slot = SlotOf(member);
      if (TierOf(member) == tier && slot / 64 < count_words) {
        mask[slot / 64] |= std::uint64_t{1} << (slot % 64);
      }
    }
    return;
  }
  const std::size_t present = has_tier(tier) ? std::min<std::size_t>(words, count_words) : 0;
  if (present > 0) std::copy_n(bits(tier), present, mask);
  std::fill(mask + present, mask + count_words, 0);
}

void SetBuilder::Clear() {
  if (bitmap_) {
    for (auto& tier : bits_) std::fill_n(tier.begin(), words_, 0);
  }
  hash_ = 0;
  count_ = 0;
  words_ = 0;
  bitmap_ = false;
}

void SetBuilder::Load(const SetNode& node) {
  Clear();
  hash_ = node.hash;
  count_ = node.count;
  if (node.words == 0) {
    std::copy(node.members().begin(), node.members().end(), array_.begin());
    return;
  }
  bitmap_ = true;
  words_ = node.words;
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    if (node.has_tier(tier)) std::copy_n(node.bits(tier), words_, bits_[tier].begin());
  }
}

void SetBuilder::ToBitmap() {
  bitmap_ = true;
  words_ = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const Slot slot = SlotOf(array_[i]);
    bits_[TierOf(array_[i])][slot / 64] |= std::uint64_t{1} << (slot % 64);
    words_ = std::max<std::size_t>(words_, slot / 64 + 1);
  }
}

void SetBuilder::ToArray() {
  std::size_t n = 0;
  for (std::size_t word = 0; word < words_; ++word) {
    std::uint64_t any = 0;
    for (const auto& tier : bits_) any |= tier[word];
    for (; any != 0; any &= any - 1) {
      const int bit = std::countr_zero(any);
      for (std::size_t tier = 0; tier < kTierCount; ++tier) {
        if (((bits_[tier][word] >> bit) & 1) != 0) {
          array_[n++] = MakeMember(static_cast<Slot>(word * 64 + static_cast<std::size_t>(bit)),
                                   static_cast<Tier>(tier));
        }
      }
    }
    for (auto& tier : bits_) tier[word] = 0;
  }
  words_ = 0;
  bitmap_ = false;
}

bool SetBuilder::Add(Member member) {
  if (!bitmap_ && count_ == SetNode::kMaxArray) ToBitmap();
  if (bitmap_) {
    const Slot slot = SlotOf(member);
    std::uint64_t& word = bits_[TierOf(member)][slot / 64];
    const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
    if ((word & bit) != 0) return false;
    word |= bit;
    words_ = std::max<std::size_t>(words_, slot / 64 + 1);
  } else {
    auto* const end = array_.begin() + count_;
    auto* const at = std::lower_bound(array_.begin(), end, member);
    if (at != end && *at == member) return false;
    std::copy_backward(at, end, end + 1);
    *at = member;
  }
  ++count_;
  hash_ += HashMember(member);
  return true;
}

bool SetBuilder::Remove(Member member) {
  if (bitmap_) {
    const Slot slot = SlotOf(member);
    std::uint64_t& word = bits_[TierOf(member)][slot / 64];
    const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
    if ((word & bit) == 0) return false;
    word &= ~bit;
  } else {
    auto* const end = array_.begin() + count_;
    auto* const at = std::lower_bound(array_.begin(), end, member);
    if (at == end || *at != member) return false;
    std::copy(at + 1, end, at);
  }
  --count_;
  hash_ -= HashMember(member);
  return true;
}

void SetBuilder::RemoveSlots(std::span<const std::uint64_t> mask) {
  const auto dead = [&](Slot slot) { return ((mask[slot / 64] >> (slot % 64)) & 1) != 0; };
  if (!bitmap_) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      if (dead(SlotOf(array_[i]))) {
        hash_ -= HashMember(array_[i]);
      } else {
        array_[kept++] = array_[i];
      }
    }
    count_ = kept;
    return;
  }
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    for (std::size_t word = 0; word < words_; ++word) {
      std::uint64_t gone = bits_[tier][word] & mask[word];
      bits_[tier][word] ^= gone;
      for (; gone != 0; gone &= gone - 1) {
        const auto slot = static_cast<Slot>(word * 64 + std::countr_zero(gone));
        hash_ -= HashMember(MakeMember(slot, static_cast<Tier>(tier)));
        --count_;
      }
    }
  }
}

const SetNode* SetBuilder::Finish() {
  if (bitmap_ && count_ <= SetNode::kMaxArray) ToArray();
  auto* const node = reinterpret_cast<SetNode*>(finished_.data());
  node->hash = hash_;
  node->count = static_cast<std::uint16_t>(count_);
  node->words = 0;
  node->tiers = 0;
  std::byte* payload = finished_.data() + sizeof(SetNode);
  if (!bitmap_) {
    for (std::size_t i = 0; i < count_; ++i) {
      node->tiers = static_cast<std::uint8_t>(node->tiers | (1u << TierOf(array_[i])));
    }
    std::memcpy(payload, array_.data(), count_ * sizeof(Member));
    return node;
  }
  const auto used = [&](std::size_t word) {
    for (const auto& tier : bits_) {
      if (tier[word] != 0) return true;
    }
    return false;
  };
  while (words_ > 0 && !used(words_ - 1)) --words_;
  node->words = static_cast<std::uint8_t>(words_);
  for (std::size_t tier = 0; tier < kTierCount; ++tier) {
    const auto& words = bits_[tier];
    if (std::all_of(words.begin(), words.begin() + words_,
                    [](std::uint64_t w) { return w == 0; })) {
      continue;
    }
    node->tiers = static_cast<std::uint8_t>(node->tiers | (1u << tier));
    std::memcpy(payload, words.data(), words_ * sizeof(std::uint64_t));
    payload += words_ * sizeof(std::uint64_t);
  }
  return node;
}

}  // namespace warmpath::index_internal
