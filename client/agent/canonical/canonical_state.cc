// Canonical and BlockTree to and from bytes, for the state file. The bytes come from a file, so
// nothing in them is trusted: a wrong one ends in an error, not in a wrong tree.
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/agent/canonical/block_tree.h"
#include "client/agent/canonical/byte_io.h"
#include "client/agent/canonical/canonical.h"

namespace warmpath {
namespace {

constexpr std::uint8_t kFormat = 1;

enum NodeFlag : std::uint8_t {
  kPlaceholder = 1,
  kResolved = 2,
  kHasBase = 4,
  kOpaque = 8,
  kUncredited = 16,
  kHasPayload = 32,
};

}  // namespace

void BlockTree::Serialize(ByteWriter& out) const {
  out.Put(static_cast<std::uint32_t>(hidden_keys_.size()));
  for (const std::uint64_t key : hidden_keys_) out.Put(key);

  // Parents before children, so that a reader can link as it goes and no cycle can be written.
  std::vector<Index> order;
  order.reserve(by_hash_.size());
  for (const auto& [hash, index] : by_hash_) {
    if (nodes_[index].parent == kNone) order.push_back(index);
  }
  std::vector<std::uint32_t> ordinal(nodes_.size(), kNone);
  for (std::size_t i = 0; i < order.size(); ++i) {
    ordinal[order[i]] = static_cast<std::uint32_t>(i);
    for (Index child = nodes_[order[i]].first_child; child != kNone;
         child = nodes_[child].next_sibling) {
      order.push_back(child);
    }
  }

  out.Put(static_cast<std::uint32_t>(order.size()));
  for (const Index index : order) {
    const Node& node = nodes_[index];
    out.Put(node.hash);
    out.Put(node.parent == kNone ? kNone : ordinal[node.parent]);
    out.Put(static_cast<std::uint8_t>(
        (node.placeholder ? kPlaceholder : 0) | (node.resolved ? kResolved : 0) |
        (node.has_base ? kHasBase : 0) | (node.opaque ? kOpaque : 0) |
        (node.uncredited ? kUncredited : 0) | (node.payload != nullptr ? kHasPayload : 0)));
    out.Put(node.key);
    out.Put(node.base);
    out.Put(node.seed);
    out.Put(node.size);
    out.Put(node.offset);
    for (std::size_t t = 0; t < kTierCount; ++t) {
      out.Put(node.copies[t]);
      out.Put(node.suspect[t]);
      out.Put(node.stamp[t]);
    }
    if (node.payload == nullptr) continue;
    for (const TokenId token : node.payload->tokens) out.Put(token);
    out.Put(static_cast<std::uint32_t>(node.payload->items.size()));
    for (const Item& item : node.payload->items) {
      out.PutBytes(item.id);
      out.Put(static_cast<std::uint64_t>(item.offset));
    }
  }
}

bool BlockTree::Restore(ByteReader& in) {
  std::uint32_t n = 0;
  if (!in.Get(&n) || n > in.remaining() / sizeof(std::uint64_t)) return false;
  for (std::uint32_t i = 0; i < n; ++i) {
    std::uint64_t key = 0;
    if (!in.Get(&key)) return false;
    hidden_keys_.insert(key);
  }
  if (!in.Get(&n)) return false;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (!RestoreNode(in, i)) return false;
  }
  for (Index index = 0; index < nodes_.size(); ++index) {
    for (const Tier tier : kAllTiers) {
      if (nodes_[index].copies[static_cast<std::size_t>(tier)] != 0) Settle(index, tier);
    }
  }
  return true;
}

bool BlockTree::RestoreNode(ByteReader& in, std::size_t ordinal) {
  EngineHash hash = 0;
  Index parent = kNone;
  std::uint8_t flags = 0;
  if (!in.Get(&hash) || !in.Get(&parent) || !in.Get(&flags)) return false;
  // Nodes are made in order, so an ordinal is an index.
  if (by_hash_.contains(hash) || (parent != kNone && parent >= ordinal)) return false;
  if (totals_->blocks >= totals_->max_blocks) return false;
  const Index index = Create(hash);
  if (parent != kNone) Link(index, parent);
  Node& node = nodes_[index];
  node.placeholder = (flags & kPlaceholder) != 0;
  node.resolved = (flags & kResolved) != 0;
  node.has_base = (flags & kHasBase) != 0;
  node.opaque = (flags & kOpaque) != 0;
  node.uncredited = (flags & kUncredited) != 0;
  if (!node.placeholder && !node.resolved) ++totals_->orphans;
  if (!in.Get(&node.key) || !in.Get(&node.base) || !in.Get(&node.seed) || !in.Get(&node.size) ||
      !in.Get(&node.offset)) {
    return false;
  }
  for (std::size_t t = 0; t < kTierCount; ++t) {
    if (!in.Get(&node.copies[t]) || !in.Get(&node.suspect[t]) || !in.Get(&node.stamp[t])) {
      return false;
    }
    totals_->copies[t] += node.copies[t];
    totals_->suspects[t] += node.suspect[t];
    if (node.suspect[t] > node.copies[t]) return false;
  }
  const bool has_payload = (flags & kHasPayload) != 0;
  if (has_payload) {
    auto payload = std::make_unique<Payload>();
    if (node.size > in.remaining() / sizeof(TokenId)) return false;
    payload->tokens.resize(node.size);
    for (TokenId& token : payload->tokens) in.Get(&token);
    std::uint32_t items = 0;
    if (!in.Get(&items)) return false;
    for (std::uint32_t i = 0; i < items; ++i) {
      std::string_view id;
      std::uint64_t offset = 0;
      if (!in.GetBytes(&id) || !in.Get(&offset)) return false;
      payload->items.push_back({std::string(id), static_cast<std::int64_t>(offset)});
    }
    SetPayload(node, std::move(payload));
  }

  // What the other functions rely on.
  if (node.placeholder) return parent == kNone && !node.resolved && !HasCopies(node);
  if (node.size == 0 || node.size > routing_block_) return false;
  if (!node.resolved) {
    return has_payload && parent != kNone && !nodes_[parent].resolved;
  }
  if (parent != kNone && !nodes_[parent].resolved) return false;
  node.depth = parent == kNone ? 0 : nodes_[parent].depth + 1;
  if (node.uncredited) return true;
  if (parent != kNone && nodes_[parent].uncredited) return false;
  const bool starts_block = parent == kNone || IsBoundary(nodes_[parent]);
  const std::uint32_t offset = starts_block ? 0 : nodes_[parent].offset + nodes_[parent].size;
  if (node.offset != offset || node.size > routing_block_ - offset) return false;
  return IsBoundary(node) || has_payload;
}

std::string Canonical::Serialize() const {
  std::string bytes;
  ByteWriter out(&bytes);
  out.Put(kFormat);
  out.Put(options_.routing_block);
  out.Put(seen_block_size_);
  out.Put(stamp_);
  out.Put(static_cast<std::uint8_t>(
      (drift_ || totals_.drift ? 1 : 0) | (totals_.hidden ? 2 : 0) | (loss_.has_value() ? 4 : 0) |
      (loss_ == LossKind::kMissedStart ? 8 : 0) | (cleared_since_loss_ ? 16 : 0)));
  for (std::size_t t = 0; t < kTierCount; ++t) {
    out.Put(tier_groups_[t]);
    out.Put(stored_since_loss_[t]);
  }
  out.Put(static_cast<std::uint32_t>(groups_.size()));
  for (const Group& group : groups_) {
    out.Put(group.index);
    out.Put(static_cast<std::uint8_t>(group.tree != nullptr ? 1 : 0));
    if (group.tree != nullptr) group.tree->Serialize(out);
  }
  return bytes;
}

absl::Status Canonical::Restore(std::string_view bytes) {
  Clear();
  ByteReader in(bytes);
  std::uint8_t format = 0;
  std::uint32_t routing_block = 0;
  if (!in.Get(&format) || format != kFormat) {
    return absl::InvalidArgumentError(absl::StrCat("state of format ", static_cast<int>(format),
                                                   ", this agent reads format ",
                                                   static_cast<int>(kFormat)));
  }
  if (!in.Get(&routing_block) || routing_block != options_.routing_block) {
    return absl::FailedPreconditionError(absl::StrCat("state for routing blocks of ", routing_block,
                                                      " tokens, the pool now has ",
                                                      options_.routing_block));
  }
  if (!RestoreFields(in)) {
    Clear();
    return absl::InvalidArgumentError("state is damaged");
  }
  for (auto& touched : touched_) touched = {};
  QueueSuspects();
  return absl::OkStatus();
}

bool Canonical::RestoreFields(ByteReader& in) {
  std::uint8_t flags = 0;
  std::uint32_t groups = 0;
  if (!in.Get(&seen_block_size_) || !in.Get(&stamp_) || !in.Get(&flags)) return false;
  drift_ = (flags & 1) != 0;
  totals_.hidden = (flags & 2) != 0;
  if ((flags & 4) != 0) loss_ = (flags & 8) != 0 ? LossKind::kMissedStart : LossKind::kGap;
  cleared_since_loss_ = (flags & 16) != 0;
  for (std::size_t t = 0; t < kTierCount; ++t) {
    if (!in.Get(&tier_groups_[t]) || !in.Get(&stored_since_loss_[t])) return false;
  }
  if (!in.Get(&groups) || groups > kMaxGroups) return false;
  for (std::uint32_t i = 0; i < groups; ++i) {
    Group group{0, nullptr};
    std::uint8_t counts = 0;
    if (!in.Get(&group.index) || !in.Get(&counts)) return false;
    if (counts != 0) group.tree = NewTree();
    groups_.push_back(std::move(group));
    if (counts != 0 && !groups_.back().tree->Restore(in)) return false;
  }
  return in.remaining() == 0;
}

}  // namespace warmpath
