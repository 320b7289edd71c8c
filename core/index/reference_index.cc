#include "core/index/reference_index.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"

namespace warmpath {

absl::StatusOr<Slot> ReferenceIndex::OpenSlot() {
  absl::MutexLock lock(&mu_);
  for (Slot slot = 0; slot < kMaxSlots; ++slot) {
    if (!open_.contains(slot) && !closed_.contains(slot)) {
      open_.try_emplace(slot);
      may_have_holes_.insert(slot);
      return slot;
    }
  }
  return absl::ResourceExhaustedError(
      "index: all 65536 slots are in use; run fewer workers or ranks in this pool");
}

void ReferenceIndex::CloseSlot(Slot slot) {
  absl::MutexLock lock(&mu_);
  const auto it = open_.find(slot);
  if (it == open_.end()) return;
  for (const auto& hashes : it->second) pairs_ -= hashes.size();
  open_.erase(it);
  may_have_holes_.erase(slot);
  closed_.insert(slot);
}

void ReferenceIndex::SetMayHaveHoles(Slot slot, bool may) {
  absl::MutexLock lock(&mu_);
  if (!open_.contains(slot)) return;
  if (may) {
    may_have_holes_.insert(slot);
  } else {
    may_have_holes_.erase(slot);
  }
}

ApplyResult ReferenceIndex::Apply(Slot slot, Tier tier, std::span<const ChainHash> removed,
                                  std::span<const ChainHash> stored) {
  absl::MutexLock lock(&mu_);
  ApplyResult result;
  const auto it = open_.find(slot);
  if (it == open_.end()) return result;
  auto& hashes = it->second[static_cast<std::size_t>(tier)];
  for (const ChainHash hash : removed) {
    if (hashes.erase(hash) > 0) {
      --pairs_;
      ++result.removed;
    } else {
      ++result.removed_missing;
    }
  }
  for (const ChainHash hash : stored) {
    if (hashes.contains(hash)) {
      ++result.already_stored;
    } else if (bound_bytes_ != 0 && (pairs_ + 1) * kBytesPerPair > bound_bytes_) {
      ++result.refused;
    } else {
      hashes.insert(hash);
      ++pairs_;
      ++result.stored;
    }
  }
  refused_ += result.refused;
  return result;
}

void ReferenceIndex::Match(std::span<const ChainHash> chain, MatchResult* result) const {
  result->slots.clear();
  result->exact_to = chain.size();
  absl::MutexLock lock(&mu_);
  for (const auto& [slot, holdings] : open_) {
    SlotMatch match{.slot = slot};
    bool gpu_run = true;
    for (const ChainHash hash : chain) {
      std::size_t fastest = 0;
      while (fastest < kTierCount && !holdings[fastest].contains(hash)) ++fastest;
      if (fastest == kTierCount) break;
      ++match.usable_depth;
      ++match.by_tier[fastest];
      gpu_run = gpu_run && fastest == 0;
      if (gpu_run) ++match.gpu_depth;
    }
    if (match.usable_depth > 0) result->slots.push_back(match);
  }
}

bool ReferenceIndex::MatchGpu(std::span<const ChainHash> chain, MatchSegments* result) const {
  MatchResult match;
  Match(chain, &match);
  std::map<std::uint32_t, std::vector<Slot>> by_depth;
  Slot highest = 0;
  bool gpu_only = true;
  for (const SlotMatch& slot : match.slots) {
    if (slot.usable_depth > slot.gpu_depth) gpu_only = false;
    if (slot.gpu_depth == 0) continue;
    by_depth[slot.gpu_depth].push_back(slot.slot);
    highest = std::max(highest, slot.slot);
  }
  result->segments.clear();
  result->words.clear();
  result->words_per_segment = highest / 64 + 1;
  result->exact_to = chain.size();
  for (const auto& [depth, slots] : by_depth) {
    result->segments.push_back({depth, result->words.size()});
    result->words.resize(result->words.size() + result->words_per_segment);
    for (const Slot slot : slots) {
      result->words[result->segments.back().first_word + slot / 64] |= std::uint64_t{1}
                                                                       << (slot % 64);
    }
  }
  return gpu_only;
}

std::size_t ReferenceIndex::VerifiedGpuDepth(Slot slot, std::span<const ChainHash> chain,
                                             std::size_t from, std::size_t limit) const {
  std::size_t depth = from;
  while (depth < limit && depth < chain.size() && Holds(slot, Tier::kGpu, chain[depth])) ++depth;
  return depth;
}

SlotMatch ReferenceIndex::VerifiedMatch(Slot slot, std::span<const ChainHash> chain,
                                        std::size_t from) const {
  SlotMatch match{.slot = slot,
                  .gpu_depth = static_cast<std::uint32_t>(from),
                  .usable_depth = static_cast<std::uint32_t>(from)};
  bool gpu_run = true;
  for (std::size_t i = from; i < chain.size(); ++i) {
    std::size_t fastest = 0;
    while (fastest < kTierCount && !Holds(slot, kAllTiers[fastest], chain[i])) ++fastest;
    if (fastest == kTierCount) break;
    ++match.usable_depth;
    ++match.by_tier[fastest];
    gpu_run = gpu_run && fastest == 0;
    if (gpu_run) ++match.gpu_depth;
  }
  return match;
}

bool ReferenceIndex::Holds(Slot slot, Tier tier, ChainHash hash) const {
  absl::MutexLock lock(&mu_);
  const auto it = open_.find(slot);
  return it != open_.end() && it->second[static_cast<std::size_t>(tier)].contains(hash);
}

HoldingsDigest ReferenceIndex::Digest(Slot slot, Tier tier) const {
  HoldingsDigest digest;
  ForEach(slot, tier, [&digest](ChainHash hash) {
    ++digest.count;
    digest.xor_of_hashes ^= hash;
  });
  return digest;
}

void ReferenceIndex::ForEach(Slot slot, Tier tier, absl::FunctionRef<void(ChainHash)> visit) const {
  // Copied first, so that `visit` may call back into the index.
  std::vector<ChainHash> hashes;
  {
    absl::MutexLock lock(&mu_);
    const auto it = open_.find(slot);
    if (it == open_.end()) return;
    const auto& held = it->second[static_cast<std::size_t>(tier)];
    hashes.assign(held.begin(), held.end());
  }
  for (const ChainHash hash : hashes) visit(hash);
}

IndexStats ReferenceIndex::Stats() const {
  absl::MutexLock lock(&mu_);
  absl::flat_hash_set<ChainHash> distinct;
  for (const auto& [slot, holdings] : open_) {
    for (const auto& hashes : holdings) distinct.insert(hashes.begin(), hashes.end());
  }
  return IndexStats{.blocks = distinct.size(),
                    .pairs = pairs_,
                    .sets = 0,
                    .bytes = pairs_ * kBytesPerPair,
                    .bound_bytes = bound_bytes_,
                    .refused_stores = refused_,
                    .open_slots = open_.size(),
                    .slots_with_holes = may_have_holes_.size(),
                    .closed_slots_unswept = closed_.size()};
}

bool ReferenceIndex::Maintain(std::size_t /*budget_blocks*/) {
  absl::MutexLock lock(&mu_);
  closed_.clear();
  return false;
}

std::unique_ptr<Index> CreateReferenceIndex(const IndexOptions& options) {
  return std::make_unique<ReferenceIndex>(options);
}

}  // namespace warmpath
