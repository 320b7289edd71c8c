#include "client/agent/canonical/canonical.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/base/strings.h"
#include "core/hashing/chain_hash.h"

namespace warmpath {
namespace {

constexpr std::size_t At(Tier tier) { return static_cast<std::size_t>(tier); }

// vLLM's kv_cache_spec_kind. Without it (older engines have one group only) a group counts.
bool KindCounts(const std::optional<std::string>& kind) {
  return !kind.has_value() || *kind == "full_attention" || *kind == "mla_attention";
}

// What a block's extra keys say, the LoRA name put aside.
struct KeyFacts {
  std::optional<std::string> salt;
  std::vector<BlockTree::Item> items;
  bool opaque = false;
};

KeyFacts ReadKeys(const std::vector<ExtraKey>& keys, const std::optional<std::string>& lora_name,
                  bool at_token_0) {
  KeyFacts facts;
  bool lora_seen = false;
  for (const ExtraKey& key : keys) {
    switch (key.kind) {
      case ExtraKey::Kind::kBare:
        // The engine lists the LoRA name first, as a string like any other: taken for the salt or
        // an item it would put every LoRA request into a domain of its own.
        if (!lora_seen && lora_name.has_value() && key.text == *lora_name) {
          lora_seen = true;
        } else if (at_token_0 && !facts.salt.has_value()) {
          facts.salt = key.text;
        } else {
          facts.opaque = true;
        }
        break;
      case ExtraKey::Kind::kLora:
        break;
      case ExtraKey::Kind::kSalt:
        facts.salt = key.text;
        break;
      case ExtraKey::Kind::kItem:
        facts.items.push_back({key.text, key.offset});
        break;
      case ExtraKey::Kind::kUnknown:
        facts.opaque = true;
        break;
    }
  }
  return facts;
}

}  // namespace

absl::Status CheckBlockSizes(std::uint32_t engine_block, std::uint32_t routing_block) {
  if (engine_block != 0 && routing_block != 0 && routing_block % engine_block == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "engine block_size ", engine_block, " does not divide the routing block of ", routing_block,
      " tokens: set the pool's routing_block_size to a multiple of the engine's block "
      "size, or the engine's block size to a divisor of it"));
}

Canonical::Canonical(CanonicalOptions options) : options_(std::move(options)) {
  totals_.max_blocks = options_.max_blocks;
  totals_.max_orphans = options_.max_orphans;
}

Canonical::~Canonical() = default;

void Canonical::Clear() {
  groups_.clear();
  totals_.drift = false;
  totals_.hidden = false;
  tier_groups_ = {};
  digests_ = {};
  for (std::size_t t = 0; t < kTierCount; ++t) {
    holders_[t] = {};
    touched_[t] = {};
    suspect_queue_[t] = {};
  }
  seen_block_size_ = 0;
  drift_ = false;
  stamp_ = 0;
  loss_.reset();
  cleared_since_loss_ = false;
  stored_since_loss_ = {};
}

std::vector<BlockChanges> Canonical::Apply(const EngineBatch& batch) {
  if (stamp_ != std::numeric_limits<std::uint32_t>::max()) ++stamp_;
  if (batch.skipped.Of(SkipCause::kMalformed) != 0) drift_ = true;
  for (const EngineEvent& event : batch.events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      ApplyStored(*stored);
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      ApplyRemoved(*removed);
    } else {
      for (const Group& group : groups_) {
        if (group.tree != nullptr) group.tree->ClearTier(Tier::kGpu);
      }
      cleared_since_loss_ = true;
    }
  }
  if (loss_.has_value()) {
    BoundSuspects();
    UpdateLoss();
  }
  return TakeChanges();
}

std::unique_ptr<BlockTree> Canonical::NewTree() {
  HeldObserver* const observer = this;
  return std::make_unique<BlockTree>(options_.routing_block, observer, &totals_);
}

std::optional<std::size_t> Canonical::GroupSlot(const BlockStored& event) {
  const std::uint32_t index = event.group_idx.value_or(0);
  for (std::size_t slot = 0; slot < groups_.size(); ++slot) {
    if (groups_[slot].index == index) return slot;
  }
  if (groups_.size() == kMaxGroups) return std::nullopt;
  Group group{index, nullptr};
  if (KindCounts(event.kv_cache_spec_kind)) {
    group.tree = NewTree();
  }
  groups_.push_back(std::move(group));
  return groups_.size() - 1;
}

void Canonical::NoteGroupInTier(std::size_t slot, Tier tier) {
  std::uint64_t& groups = tier_groups_[At(tier)];
  const std::uint64_t bit = std::uint64_t{1} << slot;
  if ((groups & bit) != 0) return;
  // What all groups but this one held is not held any more, until this one says so too.
  const int before = GroupsIn(tier);
  if (before != 0) {
    for (const auto& [hash, count] : holders_[At(tier)]) {
      if (count != before) continue;
      NoteChange(tier, hash, true);
      digests_[At(tier)].Erase(hash);
    }
  }
  groups |= bit;
}

std::optional<SkipCause> Canonical::CheckShape(const BlockStored& event) {
  const std::uint32_t size = event.block_size;
  const std::size_t blocks = event.block_hashes.size();
  if (size == 0 || options_.routing_block % size != 0) {
    drift_ = true;
    return SkipCause::kBlockSize;
  }
  const std::size_t covered = blocks * size;
  if (event.token_ids.size() > covered) return SkipCause::kMasked;
  if (event.token_ids.size() < covered ||
      (event.extra_keys.has_value() && event.extra_keys->size() != blocks)) {
    drift_ = true;
    return SkipCause::kMalformed;
  }
  if (options_.engine_block != 0 && size != options_.engine_block) drift_ = true;
  seen_block_size_ = size;
  return std::nullopt;
}

void Canonical::ApplyStored(const BlockStored& event) {
  if (event.token_ids.empty() && event.block_size == 0) {
    totals_.skipped.Add(SkipCause::kPlaceholder);
    return;
  }
  // Also remembers groups that do not count: removals name the group, not its kind.
  const std::optional<std::size_t> slot = GroupSlot(event);
  if (!slot.has_value() || groups_[*slot].tree == nullptr ||
      !KindCounts(event.kv_cache_spec_kind)) {
    totals_.skipped.Add(SkipCause::kGroup);
    return;
  }
  if (const std::optional<SkipCause> cause = CheckShape(event)) {
    totals_.skipped.Add(*cause);
    return;
  }
  NoteGroupInTier(*slot, event.tier);
  StoreBlocks(event, *groups_[*slot].tree);
}

void Canonical::StoreBlocks(const BlockStored& event, BlockTree& tree) {
  const bool new_copy = !options_.reports_reuse && event.origin != "REUSED";
  BlockTree::NewBlock block;
  block.parent = event.parent_block_hash;
  for (std::size_t i = 0; i < event.block_hashes.size(); ++i) {
    block.hash = event.block_hashes[i];
    block.tokens = std::span(event.token_ids).subspan(i * event.block_size, event.block_size);
    const bool at_token_0 = !block.parent.has_value();
    KeyFacts facts;
    if (event.extra_keys.has_value()) {
      facts = ReadKeys((*event.extra_keys)[i], event.lora_name, at_token_0);
    }
    if (event.cache_salt.has_value()) facts.salt = event.cache_salt;
    if (at_token_0) block.seed = SeedFor(event, facts.salt);
    block.items = std::move(facts.items);
    block.opaque = facts.opaque;
    if (const auto refused = tree.Store(block, event.tier, new_copy, stamp_)) {
      // What follows hangs below this block.
      totals_.skipped.Add(*refused, event.block_hashes.size() - i);
      if (*refused == SkipCause::kBlockBound) drift_ = true;
      return;
    }
    ++stored_since_loss_[At(event.tier)];
    block.parent = block.hash;
  }
}

std::uint64_t Canonical::SeedFor(const BlockStored& event,
                                 const std::optional<std::string>& salt) const {
  std::optional<std::string> lora = event.lora_name;
  if (!lora.has_value() && event.lora_id.has_value()) {
    const auto named = options_.lora_names.find(*event.lora_id);
    lora = named != options_.lora_names.end() ? named->second
                                              : absl::StrCat("lora-id:", *event.lora_id);
  }
  return DomainSeed(lora, salt);
}

void Canonical::ApplyRemoved(const BlockRemoved& event) {
  const std::uint32_t index = event.group_idx.value_or(0);
  const auto group = std::find_if(groups_.begin(), groups_.end(),
                                  [&](const Group& g) { return g.index == index; });
  if (group == groups_.end()) {
    totals_.skipped.Add(SkipCause::kUnderflow, event.block_hashes.size());
    return;
  }
  if (group->tree == nullptr) {
    totals_.skipped.Add(SkipCause::kGroup);
    return;
  }
  for (const EngineHash hash : event.block_hashes) {
    if (!group->tree->Remove(hash, event.tier)) totals_.skipped.Add(SkipCause::kUnderflow);
  }
}

int Canonical::GroupsIn(Tier tier) const { return std::popcount(tier_groups_[At(tier)]); }

void Canonical::NoteChange(Tier tier, ChainHash hash, bool was_held) {
  touched_[At(tier)].try_emplace(hash, was_held);
}

void Canonical::OnHeld(Tier tier, ChainHash hash, bool held) {
  auto& holders = holders_[At(tier)];
  const auto it = holders.try_emplace(hash, std::uint8_t{0}).first;
  const int needed = GroupsIn(tier);
  const bool was = it->second == needed;
  held ? ++it->second : --it->second;
  const bool is = it->second == needed;
  if (it->second == 0) holders.erase(it);
  if (was == is) return;
  NoteChange(tier, hash, was);
  is ? digests_[At(tier)].Insert(hash) : digests_[At(tier)].Erase(hash);
}

std::vector<BlockChanges> Canonical::TakeChanges() {
  std::vector<BlockChanges> all;
  for (const Tier tier : kAllTiers) {
    auto& touched = touched_[At(tier)];
    if (touched.empty()) continue;
    BlockChanges changes;
    changes.tier = tier;
    for (const auto& [hash, was_held] : touched) {
      if (IsHeld(tier, hash) == was_held) continue;
      (was_held ? changes.removed : changes.stored).push_back(hash);
    }
    touched.clear();
    if (!changes.empty()) all.push_back(std::move(changes));
  }
  return all;
}

bool Canonical::IsHeld(Tier tier, ChainHash hash) const {
  const auto it = holders_[At(tier)].find(hash);
  return it != holders_[At(tier)].end() && it->second == GroupsIn(tier);
}

std::vector<ChainHash> Canonical::Held(Tier tier) const {
  std::vector<ChainHash> held;
  held.reserve(digest(tier).count);
  const int needed = GroupsIn(tier);
  for (const auto& [hash, count] : holders_[At(tier)]) {
    if (count == needed) held.push_back(hash);
  }
  return held;
}

std::vector<BlockChanges> Canonical::MarkLoss(LossKind kind) {
  // A lost start is the worse of the two: there is no turn-over by which it heals.
  if (loss_ != LossKind::kMissedStart) loss_ = kind;
  cleared_since_loss_ = false;
  stored_since_loss_ = {};
  for (const Group& group : groups_) {
    if (group.tree != nullptr) group.tree->MarkSuspects();
  }
  QueueSuspects();
  BoundSuspects();
  return TakeChanges();
}

void Canonical::QueueSuspects() {
  for (auto& queue : suspect_queue_) queue.clear();
  std::vector<BlockTree::Suspect> all;
  for (const Group& group : groups_) {
    if (group.tree != nullptr) group.tree->ListSuspects(&all);
  }
  // Dropped from the back: oldest first, and of one age tails first, as engines evict.
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tuple(b.stamp, a.depth, a.hash) < std::tuple(a.stamp, b.depth, b.hash);
  });
  for (const BlockTree::Suspect& suspect : all) {
    suspect_queue_[At(suspect.tier)].push_back(suspect);
  }
}

void Canonical::BoundSuspects() {
  for (const Tier tier : kAllTiers) {
    const std::uint64_t capacity = options_.capacity[At(tier)];
    auto& queue = suspect_queue_[At(tier)];
    if (totals_.suspects[At(tier)] == 0) queue = {};
    if (capacity == 0) continue;
    while (totals_.copies[At(tier)] > capacity && !queue.empty()) {
      const EngineHash hash = queue.back().hash;
      bool dropped = false;
      for (const Group& group : groups_) {
        if (group.tree != nullptr) dropped |= group.tree->DropSuspect(hash, tier);
      }
      // Out of date, or its last suspect copy is gone.
      if (!dropped) queue.pop_back();
    }
  }
}

bool Canonical::NothingFromBefore() const {
  if (suspects() != 0 || totals_.orphans != 0) return false;
  for (const Tier tier : kAllTiers) {
    const std::size_t t = At(tier);
    if (tier == Tier::kGpu ? cleared_since_loss_ : tier_groups_[t] == 0) continue;
    const std::uint64_t capacity = options_.capacity[t];
    if (capacity == 0) return false;
    const bool full = totals_.copies[t] >= capacity;
    const bool turned_over = loss_ == LossKind::kGap && stored_since_loss_[t] >= capacity;
    if (!full && !turned_over) return false;
  }
  return true;
}

void Canonical::UpdateLoss() {
  if (loss_.has_value() && NothingFromBefore()) loss_.reset();
}

FeedCauses Canonical::causes() const {
  FeedCauses causes;
  causes.Set(FeedCause::kGap, loss_ == LossKind::kGap);
  causes.Set(FeedCause::kMissedStart, loss_ == LossKind::kMissedStart);
  causes.Set(FeedCause::kHiddenDomain, totals_.hidden);
  causes.Set(FeedCause::kDrift, drift_ || totals_.drift);
  return causes;
}

std::uint64_t Canonical::suspects() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t n : totals_.suspects) sum += n;
  return sum;
}

std::size_t Canonical::bytes() const {
  std::size_t bytes = sizeof(*this) + totals_.payload_bytes;
  for (const Group& group : groups_) {
    if (group.tree != nullptr) bytes += sizeof(BlockTree) + group.tree->bytes();
  }
  for (std::size_t t = 0; t < kTierCount; ++t) {
    bytes += (holders_[t].capacity() + touched_[t].capacity()) * 17;
    bytes += suspect_queue_[t].capacity() * sizeof(BlockTree::Suspect);
  }
  return bytes;
}

}  // namespace warmpath
