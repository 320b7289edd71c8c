#include "client/agent/canonical/block_tree.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "core/hashing/chain_hash.h"

namespace warmpath {
namespace {

constexpr std::size_t At(Tier tier) { return static_cast<std::size_t>(tier); }
constexpr std::uint8_t Bit(Tier tier) { return static_cast<std::uint8_t>(1U << At(tier)); }

// How far up a cycle is searched among blocks whose chain is not known. A chain of more orphans
// than this is refused rather than walked again and again.
constexpr int kMaxOrphanDepth = 4096;

// Contents known to be ambiguous; beyond this only the flag remains.
constexpr std::size_t kMaxHiddenKeys = 65536;

}  // namespace

BlockTree::BlockTree(std::uint32_t routing_block, HeldObserver* observer, TreeTotals* totals)
    : routing_block_(routing_block), observer_(observer), totals_(totals) {}

BlockTree::~BlockTree() {
  for (const auto& [hash, index] : by_hash_) {
    const Node& node = nodes_[index];
    --totals_->blocks;
    if (!node.placeholder && !node.resolved) --totals_->orphans;
    if (node.payload != nullptr) totals_->payload_bytes -= PayloadBytes(*node.payload);
    if ((node.held & Bit(Tier::kGpu)) == 0) totals_->holes -= node.held_below;
    for (std::size_t t = 0; t < kTierCount; ++t) {
      totals_->copies[t] -= node.copies[t];
      totals_->suspects[t] -= node.suspect[t];
    }
  }
}

bool BlockTree::HasCopies(const Node& node) const {
  return std::any_of(node.copies.begin(), node.copies.end(), [](auto n) { return n != 0; });
}

BlockTree::Index BlockTree::Find(EngineHash hash) const {
  const auto it = by_hash_.find(hash);
  return it == by_hash_.end() ? kNone : it->second;
}

BlockTree::Index BlockTree::Create(EngineHash hash) {
  Index index = kNone;
  if (free_.empty()) {
    index = static_cast<Index>(nodes_.size());
    nodes_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  nodes_[index].hash = hash;
  by_hash_.emplace(hash, index);
  ++totals_->blocks;
  return index;
}

void BlockTree::Link(Index child, Index parent) {
  Node& node = nodes_[child];
  Node& above = nodes_[parent];
  node.parent = parent;
  node.prev_sibling = kNone;
  node.next_sibling = above.first_child;
  if (above.first_child != kNone) nodes_[above.first_child].prev_sibling = child;
  above.first_child = child;
}

void BlockTree::Unlink(Index child) {
  Node& node = nodes_[child];
  if (node.parent == kNone) return;
  if (node.prev_sibling != kNone) {
    nodes_[node.prev_sibling].next_sibling = node.next_sibling;
  } else {
    nodes_[node.parent].first_child = node.next_sibling;
  }
  if (node.next_sibling != kNone) nodes_[node.next_sibling].prev_sibling = node.prev_sibling;
  node.parent = kNone;
}

void BlockTree::ReleaseIfUnused(Index index) {
  while (index != kNone) {
    Node& node = nodes_[index];
    if (node.first_child != kNone || HasCopies(node)) return;
    const Index parent = node.parent;
    Unlink(index);
    SetPayload(node, nullptr);
    by_hash_.erase(node.hash);
    if (!node.placeholder && !node.resolved) --totals_->orphans;
    --totals_->blocks;
    node = Node();
    free_.push_back(index);
    index = parent;
  }
}

std::size_t BlockTree::PayloadBytes(const Payload& payload) {
  std::size_t bytes = sizeof(Payload) + payload.tokens.capacity() * sizeof(TokenId);
  for (const Item& item : payload.items) bytes += sizeof(Item) + item.id.capacity();
  return bytes;
}

void BlockTree::SetPayload(Node& node, std::unique_ptr<Payload> payload) {
  if (node.payload != nullptr) totals_->payload_bytes -= PayloadBytes(*node.payload);
  node.payload = std::move(payload);
  if (node.payload != nullptr) totals_->payload_bytes += PayloadBytes(*node.payload);
}

bool BlockTree::IsAncestor(Index ancestor, Index of) const {
  for (int depth = 0; of != kNone; ++depth) {
    // Above a resolved block everything is resolved: `ancestor`, which is not, can not be there.
    if (of == ancestor || depth > kMaxOrphanDepth) return true;
    if (nodes_[of].resolved) return false;
    of = nodes_[of].parent;
  }
  return false;
}

bool BlockTree::SameParent(const Node& node, const NewBlock& block) const {
  if (node.parent == kNone) return !block.parent.has_value();
  return block.parent.has_value() && nodes_[node.parent].hash == *block.parent;
}

std::optional<SkipCause> BlockTree::Store(const NewBlock& block, Tier tier, bool new_copy,
                                          std::uint32_t stamp) {
  if (block.parent == block.hash) return SkipCause::kBadParent;
  Index index = Find(block.hash);
  if (index != kNone && !nodes_[index].placeholder) {
    if (!SameParent(nodes_[index], block)) return SkipCause::kBadParent;
  } else if (const std::optional<SkipCause> refused = Insert(block, &index)) {
    return refused;
  }
  AddCopy(nodes_[index], tier, new_copy, stamp);
  Settle(index, tier);
  return std::nullopt;
}

std::optional<SkipCause> BlockTree::Insert(const NewBlock& block, Index* index) {
  Index parent = kNone;
  bool resolvable = true;
  if (block.parent.has_value()) {
    parent = Find(*block.parent);
    resolvable = parent != kNone && nodes_[parent].resolved;
    // Only a block that something already waits for can close a cycle.
    if (!resolvable && *index != kNone && parent != kNone && IsAncestor(*index, parent)) {
      return SkipCause::kBadParent;
    }
  }
  if (!resolvable && totals_->orphans >= totals_->max_orphans) return SkipCause::kOrphanBound;
  const std::size_t needed = (*index == kNone ? 1 : 0) + (resolvable || parent != kNone ? 0 : 1);
  if (totals_->blocks + needed > totals_->max_blocks) return SkipCause::kBlockBound;

  if (block.parent.has_value() && parent == kNone) {
    parent = Create(*block.parent);
    nodes_[parent].placeholder = true;
  }
  if (*index == kNone) *index = Create(block.hash);
  if (parent != kNone) Link(*index, parent);
  Node& node = nodes_[*index];
  node.placeholder = false;
  node.size = static_cast<std::uint32_t>(block.tokens.size());
  node.seed = block.seed;
  node.opaque = block.opaque;
  auto payload = std::make_unique<Payload>();
  payload->tokens.assign(block.tokens.begin(), block.tokens.end());
  payload->items = block.items;
  SetPayload(node, std::move(payload));
  ++totals_->orphans;  // until Resolve
  if (resolvable) Resolve(*index);
  return std::nullopt;
}

void BlockTree::Resolve(Index top) {
  std::vector<Index> todo = {top};
  while (!todo.empty()) {
    const Index index = todo.back();
    todo.pop_back();
    Node& node = nodes_[index];
    ResolveOne(node);
    if (!node.uncredited && !hidden_keys_.empty() && hidden_keys_.contains(node.key)) {
      Uncredit(index, SkipCause::kHiddenDomain);
    }
    for (const Tier tier : kAllTiers) {
      if (node.copies[At(tier)] != 0) Settle(index, tier);
    }
    for (Index child = node.first_child; child != kNone; child = nodes_[child].next_sibling) {
      todo.push_back(child);
    }
  }
}

void BlockTree::ResolveOne(Node& node) {
  node.resolved = true;
  --totals_->orphans;
  if (node.parent != kNone) {
    const Node& parent = nodes_[node.parent];
    node.seed = parent.seed;
    node.depth = parent.depth + 1;
    node.uncredited = parent.uncredited;
    if (IsBoundary(parent)) {
      node.offset = 0;
      node.base = parent.key;
      node.has_base = true;
    } else {
      node.offset = parent.offset + parent.size;
      node.base = parent.base;
      node.has_base = parent.has_base;
    }
  }
  if (!node.uncredited && node.offset + node.size > routing_block_) {
    totals_->skipped.Add(SkipCause::kBlockSize);
    totals_->drift = true;
    node.uncredited = true;
  }
  if (!node.uncredited && node.opaque) {
    totals_->skipped.Add(SkipCause::kUnknownKey);
    node.uncredited = true;
  }
  if (!node.uncredited) HashOne(node);
  if (node.uncredited || IsBoundary(node)) SetPayload(node, nullptr);
}

void BlockTree::HashOne(Node& node) {
  if (IsBoundary(node)) {
    const std::uint64_t local = RoutingBlockHash(node);
    node.key = node.has_base ? ExtendChain(node.base, local) : local;
    return;
  }
  std::vector<MultimodalItem> items;
  for (const Item& item : node.payload->items) items.push_back({item.id, item.offset, 0});
  const std::uint64_t local = LocalHash(node.seed, node.payload->tokens, items);
  // The key of a block inside a routing block never leaves this tree: it only has to tell
  // contents apart, the routing block's start included.
  if (node.offset != 0) {
    node.key = ExtendChain(nodes_[node.parent].key, local);
  } else {
    node.key = node.has_base ? ExtendChain(node.base, local) : local;
  }
}

std::uint64_t BlockTree::RoutingBlockHash(const Node& last) const {
  if (last.offset == 0 && last.payload->items.empty()) {
    return LocalHash(last.seed, last.payload->tokens);
  }
  tokens_.resize(routing_block_);
  struct Placed {
    const Item* item;
    std::int64_t start;
  };
  std::vector<Placed> placed;
  for (const Node* node = &last;; node = &nodes_[node->parent]) {
    std::copy(node->payload->tokens.begin(), node->payload->tokens.end(),
              tokens_.begin() + node->offset);
    for (const Item& item : node->payload->items) {
      placed.push_back({&item, item.offset + static_cast<std::int64_t>(node->offset)});
    }
    if (node->offset == 0) break;
  }
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) {
    return a.start != b.start ? a.start < b.start : a.item->id < b.item->id;
  });
  std::vector<MultimodalItem> items;
  for (std::size_t i = 0; i < placed.size(); ++i) {
    // An item that spans several engine blocks is reported with each of them.
    if (i > 0 && placed[i].start == placed[i - 1].start &&
        placed[i].item->id == placed[i - 1].item->id) {
      continue;
    }
    items.push_back({placed[i].item->id, placed[i].start, 0});
  }
  return LocalHash(last.seed, tokens_, items);
}

bool BlockTree::Claim(Index index, Tier tier) {
  const std::uint64_t key = nodes_[index].key;
  const auto [it, inserted] = by_key_[At(tier)].emplace(key, index);
  if (inserted || it->second == index) return true;
  // Two engine hashes for one content: the engine keeps apart what its events do not.
  totals_->hidden = true;
  if (hidden_keys_.size() < kMaxHiddenKeys) hidden_keys_.insert(key);
  for (const auto& by_key : by_key_) {
    const auto other = by_key.find(key);
    if (other != by_key.end()) Uncredit(other->second, SkipCause::kHiddenDomain);
  }
  Uncredit(index, SkipCause::kHiddenDomain);
  return false;
}

void BlockTree::Disclaim(Index index, Tier tier) {
  auto& by_key = by_key_[At(tier)];
  const auto it = by_key.find(nodes_[index].key);
  if (it != by_key.end() && it->second == index) by_key.erase(it);
}

void BlockTree::Uncredit(Index top, SkipCause cause) {
  stack_.assign(1, top);
  while (!stack_.empty()) {
    const Index index = stack_.back();
    stack_.pop_back();
    Node& node = nodes_[index];
    if (!node.resolved || node.uncredited) continue;
    node.uncredited = true;
    totals_->skipped.Add(cause);
    for (const Tier tier : kAllTiers) {
      Disclaim(index, tier);
      SetHeld(node, tier, false);
    }
    SetPayload(node, nullptr);
    for (Index child = node.first_child; child != kNone; child = nodes_[child].next_sibling) {
      stack_.push_back(child);
    }
  }
}

void BlockTree::AddCopy(Node& node, Tier tier, bool new_copy, std::uint32_t stamp) {
  std::uint16_t& copies = node.copies[At(tier)];
  std::uint16_t& suspect = node.suspect[At(tier)];
  node.stamp[At(tier)] = stamp;
  if (copies != 0 && !new_copy) {
    // A report of reuse proves one copy; it is the suspect one if there is no other.
    if (copies == suspect) {
      --suspect;
      --totals_->suspects[At(tier)];
    }
    return;
  }
  if (copies == std::numeric_limits<std::uint16_t>::max()) return;
  ++copies;
  ++totals_->copies[At(tier)];
}

bool BlockTree::Remove(EngineHash hash, Tier tier) {
  const Index index = Find(hash);
  if (index == kNone || nodes_[index].copies[At(tier)] == 0) return false;
  // What was seen after the loss goes first: should the suspect copy have gone unnoticed, it is
  // the suspect that must be left over, to be squeezed out later.
  const Node& node = nodes_[index];
  TakeCopy(index, tier, node.copies[At(tier)] == node.suspect[At(tier)]);
  return true;
}

void BlockTree::TakeCopy(Index index, Tier tier, bool suspect) {
  Node& node = nodes_[index];
  --node.copies[At(tier)];
  --totals_->copies[At(tier)];
  if (suspect) {
    --node.suspect[At(tier)];
    --totals_->suspects[At(tier)];
  }
  if (node.copies[At(tier)] != 0) return;
  Settle(index, tier);
  ReleaseIfUnused(index);
}

void BlockTree::SetHeld(Node& node, Tier tier, bool held) {
  if (((node.held & Bit(tier)) != 0) == held) return;
  node.held ^= Bit(tier);
  if (tier == Tier::kGpu) CountHoles(node);
  observer_->OnHeld(tier, node.key, held);
}

BlockTree::Index BlockTree::EndBefore(const Node& node) const {
  const Node* at = &node;
  while (at->offset != 0) at = &nodes_[at->parent];
  return at->parent;
}

void BlockTree::CountHoles(const Node& node) {
  const bool held = (node.held & Bit(Tier::kGpu)) != 0;
  totals_->holes += held ? -std::uint64_t{node.held_below} : node.held_below;
  const Index before = EndBefore(node);
  if (before == kNone) return;
  Node& above = nodes_[before];
  const bool hole = (above.held & Bit(Tier::kGpu)) == 0;
  if (held) {
    ++above.held_below;
    if (hole) ++totals_->holes;
  } else {
    --above.held_below;
    if (hole) --totals_->holes;
  }
}

bool BlockTree::CoveredUpTo(const Node& node, Tier tier) const {
  for (const Node* at = &node; at->offset != 0;) {
    at = &nodes_[at->parent];
    if (at->copies[At(tier)] == 0) return false;
  }
  return true;
}

void BlockTree::Settle(Index index, Tier tier) {
  const Node& changed = nodes_[index];
  if (!changed.resolved || changed.uncredited) return;
  const bool present = changed.copies[At(tier)] != 0;
  if (!present) {
    Disclaim(index, tier);
  } else if (!Claim(index, tier)) {
    return;
  }
  if (IsBoundary(changed)) {
    SetHeld(nodes_[index], tier, present && CoveredUpTo(changed, tier));
    return;
  }
  if (!CoveredUpTo(changed, tier)) return;  // not held before, nor now
  // Routing blocks that end below, over blocks that are all present.
  stack_.assign(1, index);
  while (!stack_.empty()) {
    const Node& above = nodes_[stack_.back()];
    stack_.pop_back();
    for (Index child = above.first_child; child != kNone; child = nodes_[child].next_sibling) {
      Node& node = nodes_[child];
      if (!node.resolved || node.uncredited || node.copies[At(tier)] == 0) continue;
      if (IsBoundary(node)) {
        SetHeld(node, tier, present);
      } else {
        stack_.push_back(child);
      }
    }
  }
}

void BlockTree::ClearTier(Tier tier) {
  std::vector<EngineHash> present;
  for (const auto& [hash, index] : by_hash_) {
    if (nodes_[index].copies[At(tier)] != 0) present.push_back(hash);
  }
  for (const EngineHash hash : present) {
    const Index index = Find(hash);
    Node& node = nodes_[index];
    totals_->copies[At(tier)] -= node.copies[At(tier)];
    totals_->suspects[At(tier)] -= node.suspect[At(tier)];
    node.copies[At(tier)] = 0;
    node.suspect[At(tier)] = 0;
    Settle(index, tier);
    ReleaseIfUnused(index);
  }
}

void BlockTree::MarkSuspects() {
  for (const auto& [hash, index] : by_hash_) {
    Node& node = nodes_[index];
    for (std::size_t t = 0; t < kTierCount; ++t) {
      totals_->suspects[t] += node.copies[t] - node.suspect[t];
      node.suspect[t] = node.copies[t];
    }
  }
}

void BlockTree::ListSuspects(std::vector<Suspect>* suspects) const {
  for (const auto& [hash, index] : by_hash_) {
    const Node& node = nodes_[index];
    for (const Tier tier : kAllTiers) {
      if (node.suspect[At(tier)] != 0)
        suspects->push_back({node.stamp[At(tier)], node.depth, hash, tier});
    }
  }
}

bool BlockTree::DropSuspect(EngineHash hash, Tier tier) {
  const Index index = Find(hash);
  if (index == kNone || nodes_[index].suspect[At(tier)] == 0) return false;
  TakeCopy(index, tier, true);
  return true;
}

std::size_t BlockTree::bytes() const {
  std::size_t keys = 0;
  for (const auto& by_key : by_key_) keys += by_key.capacity();
  return nodes_.capacity() * sizeof(Node) + free_.capacity() * sizeof(Index) +
         by_hash_.capacity() * (sizeof(EngineHash) + sizeof(Index) + 4) +
         keys * (sizeof(std::uint64_t) + sizeof(Index) + 4) +
         hidden_keys_.capacity() * sizeof(std::uint64_t);
}

}  // namespace warmpath
