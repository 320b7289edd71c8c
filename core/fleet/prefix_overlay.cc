#include "core/fleet/prefix_overlay.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace warmpath {

PrefixOverlay::PerTarget& PrefixOverlay::Of(TargetId target) {
  if (target >= targets_.size()) targets_.resize(target + 1);
  return targets_[target];
}

PrefixOverlay::NodeId PrefixOverlay::Find(NodeId parent, ChainHash first) const {
  const auto it = children_.find({parent, first});
  return it == children_.end() ? kRoot : it->second;
}

PrefixOverlay::NodeId PrefixOverlay::FindSeen(std::size_t step, NodeId parent,
                                              ChainHash first) const {
  if (step < seen_.size()) {
    // It may have gone since, be another one, or have another parent; by invariant 1 nothing else
    // needs to be asked.
    const Node& node = nodes_[seen_[step]];
    if (node.parent == parent && !node.run.empty() && node.run.front() == first) {
      return seen_[step];
    }
  }
  return Find(parent, first);
}

std::size_t PrefixOverlay::CommonLength(std::span<const ChainHash> run,
                                        std::span<const ChainHash> chain) {
  const std::size_t limit = std::min(run.size(), chain.size());
  // Most often all of it: memcmp is several times faster than a loop that looks for the difference.
  if (std::memcmp(run.data(), chain.data(), limit * sizeof(ChainHash)) == 0) return limit;
  std::size_t n = 0;
  while (run[n] == chain[n]) ++n;
  return n;
}

PrefixOverlay::Holder* PrefixOverlay::FindHolder(Node& node, TargetId target) {
  const auto it = std::lower_bound(node.holders.begin(), node.holders.end(), target,
                                   [](const Holder& h, TargetId t) { return h.target < t; });
  return it != node.holders.end() && it->target == target ? &*it : nullptr;
}

PrefixOverlay::Holder& PrefixOverlay::HolderOf(Node& node, TargetId target) {
  const auto it = std::lower_bound(node.holders.begin(), node.holders.end(), target,
                                   [](const Holder& h, TargetId t) { return h.target < t; });
  if (it != node.holders.end() && it->target == target) return *it;
  return *node.holders.insert(it, Holder{.target = target});
}

PrefixOverlay::NodeId PrefixOverlay::NewNode(NodeId parent, std::span<const ChainHash> run) {
  NodeId id;
  if (free_nodes_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    id = free_nodes_.back();
    free_nodes_.pop_back();
  }
  Node& node = nodes_[id];
  node.parent = parent;
  node.run = SpareChains::Copy(run, spare_runs_.Take());
  children_[{parent, run.front()}] = id;
  return id;
}

PrefixOverlay::NodeId PrefixOverlay::Split(NodeId id, std::size_t keep) {
  const std::vector<ChainHash> run = std::move(nodes_[id].run);
  // Takes the place of `id` in children_; the references into nodes_ below stay valid in a deque.
  const NodeId head = NewNode(nodes_[id].parent, std::span(run).first(keep));
  Node& node = nodes_[id];
  node.run.assign(run.begin() + static_cast<std::ptrdiff_t>(keep), run.end());
  node.parent = head;
  children_[{head, node.run.front()}] = id;
  nodes_[head].holders = node.holders;
  for (Holder& holder : nodes_[head].holders) {
    if (holder.mark == kNone) continue;
    const std::uint32_t tail_mark = holder.mark;
    holder.mark = NewMark(head);
    LinkNewerThan(targets_[holder.target], holder.mark, tail_mark);
  }
  return head;
}

void PrefixOverlay::MakePath(std::span<const ChainHash> chain, std::vector<NodeId>* path) {
  path->clear();
  NodeId parent = kRoot;
  while (!chain.empty()) {
    NodeId node = FindSeen(path->size(), parent, chain.front());
    std::size_t common = chain.size();
    if (node == kRoot) {
      node = NewNode(parent, chain);
    } else {
      common = CommonLength(nodes_[node].run, chain);
      if (common < nodes_[node].run.size()) node = Split(node, common);
    }
    path->push_back(node);
    chain = chain.subspan(common);
    parent = node;
  }
}

PrefixOverlay::PathEnd PrefixOverlay::Open(TargetId target, std::span<const ChainHash> chain) {
  Of(target);
  MakePath(chain, &path_);
  for (const NodeId id : path_) OpenAt(target, id);
  return path_.empty() ? kEmpty : path_.back();
}

void PrefixOverlay::OpenAgain(TargetId target, PathEnd path) {
  Of(target);
  for (NodeId id = path; id != kRoot; id = nodes_[id].parent) OpenAt(target, id);
}

void PrefixOverlay::OpenAt(TargetId target, NodeId id) {
  Node& node = nodes_[id];
  Holder& holder = HolderOf(node, target);
  if (!holder.in_flight()) in_flight_blocks_ += node.run.size();
  if (holder.open++ == 0) targets_[target].open_blocks += node.run.size();
}

template <typename Change>
void PrefixOverlay::ForPath(TargetId target, PathEnd path, Change change) {
  for (NodeId id = path; id != kRoot;) {
    Node& node = nodes_[id];
    const NodeId next = node.parent;
    Holder* const holder = FindHolder(node, target);
    // Only for a Close without its Open, which the ledger never makes.
    if (holder == nullptr) return;
    const std::size_t length = node.run.size();
    const bool was_in_flight = holder->in_flight();
    change(*holder, length);
    if (was_in_flight && !holder->in_flight()) in_flight_blocks_ -= length;
    DropIfEmpty(id, holder);
    id = next;
  }
}

void PrefixOverlay::Close(TargetId target, PathEnd path, bool linger) {
  PerTarget& of = Of(target);
  ForPath(target, path, [&of, linger](Holder& holder, std::size_t length) {
    if (holder.open == 0) return;
    if (--holder.open == 0) of.open_blocks -= length;
    if (linger) ++holder.lingering;
  });
}

void PrefixOverlay::EndLinger(TargetId target, PathEnd path) {
  ForPath(target, path, [](Holder& holder, std::size_t /*length*/) {
    if (holder.lingering > 0) --holder.lingering;
  });
}

std::vector<ChainHash> PrefixOverlay::ChainOf(PathEnd path, std::size_t limit) const {
  std::size_t length = 0;
  for (NodeId id = path; id != kRoot; id = nodes_[id].parent) length += nodes_[id].run.size();
  std::vector<ChainHash> chain(length);
  auto place = chain.end();
  for (NodeId id = path; id != kRoot; id = nodes_[id].parent) {
    place = std::copy_backward(nodes_[id].run.begin(), nodes_[id].run.end(), place);
  }
  chain.resize(std::min(length, limit));
  return chain;
}

void PrefixOverlay::DropIfEmpty(NodeId id, Holder* holder) {
  if (!holder->empty()) return;
  Node& node = nodes_[id];
  node.holders.erase(node.holders.begin() + (holder - node.holders.data()));
  if (!node.holders.empty()) return;
  children_.erase({node.parent, node.run.front()});
  spare_runs_.Give(std::exchange(node.run, {}));
  free_nodes_.push_back(id);
}

void PrefixOverlay::Predict(TargetId target, std::span<const ChainHash> chain,
                            std::uint64_t bound_blocks) {
  if (chain.size() > bound_blocks) chain = chain.first(bound_blocks);
  MakePath(chain, &path_);
  PredictPath(target, bound_blocks);
}

void PrefixOverlay::Predict(TargetId target, PathEnd path, std::uint64_t bound_blocks) {
  path_.clear();
  std::size_t length = 0;
  for (NodeId id = path; id != kRoot; id = nodes_[id].parent) {
    path_.push_back(id);
    length += nodes_[id].run.size();
  }
  if (length > bound_blocks) {
    Predict(target, ChainOf(path, bound_blocks), bound_blocks);
    return;
  }
  std::reverse(path_.begin(), path_.end());
  PredictPath(target, bound_blocks);
}

void PrefixOverlay::PredictPath(TargetId target, std::uint64_t bound_blocks) {
  if (path_.empty()) return;
  PerTarget& of = Of(target);
  // From the tail to the head, so that a block is always more recent than what follows it and the
  // oldest mark is never in the middle of a chain.
  for (auto it = path_.rbegin(); it != path_.rend(); ++it) {
    Node& node = nodes_[*it];
    Holder& holder = HolderOf(node, target);
    if (holder.mark == kNone) {
      holder.mark = NewMark(*it);
      of.predicted_blocks += node.run.size();
    } else {
      Unlink(of, holder.mark);
    }
    LinkNewest(of, holder.mark);
  }
  while (of.predicted_blocks > bound_blocks) {
    const std::uint64_t excess = of.predicted_blocks - bound_blocks;
    const std::uint32_t oldest = of.oldest;
    const std::size_t length = nodes_[marks_[oldest].node].run.size();
    // The first part gets a newer mark of its own; the oldest stays with the rest.
    if (excess < length) Split(marks_[oldest].node, length - excess);
    DropMark(target, oldest);
  }
}

void PrefixOverlay::ForgetPredicted(TargetId target) {
  PerTarget& of = Of(target);
  while (of.oldest != kNone) DropMark(target, of.oldest);
}

void PrefixOverlay::Depths(std::span<const ChainHash> chain, std::span<std::uint32_t> depth) const {
  seen_.clear();
  NodeId parent = kRoot;
  std::size_t position = 0;
  while (position < chain.size()) {
    const NodeId id = Find(parent, chain[position]);
    if (id == kRoot) return;
    seen_.push_back(id);
    const Node& node = nodes_[id];
    const std::size_t common = CommonLength(node.run, chain.subspan(position));
    position += common;
    for (const Holder& holder : node.holders) {
      if (holder.target >= depth.size()) break;
      depth[holder.target] = static_cast<std::uint32_t>(position);
    }
    if (common < node.run.size()) return;
    parent = id;
  }
}

std::uint64_t PrefixOverlay::OpenBlocks(TargetId target) const {
  return target < targets_.size() ? targets_[target].open_blocks : 0;
}

std::uint64_t PrefixOverlay::PredictedBlocks(TargetId target) const {
  return target < targets_.size() ? targets_[target].predicted_blocks : 0;
}

void PrefixOverlay::ForEachInFlight(TargetId target, std::vector<ChainHash>* out) const {
  for (const auto& [key, id] : children_) {
    for (const Holder& holder : nodes_[id].holders) {
      if (holder.target != target || !holder.in_flight()) continue;
      out->insert(out->end(), nodes_[id].run.begin(), nodes_[id].run.end());
    }
  }
}

void PrefixOverlay::ForEachPredicted(TargetId target, std::vector<ChainHash>* out) const {
  if (target >= targets_.size()) return;
  for (std::uint32_t mark = targets_[target].oldest; mark != kNone; mark = marks_[mark].newer) {
    const std::vector<ChainHash>& run = nodes_[marks_[mark].node].run;
    out->insert(out->end(), run.begin(), run.end());
  }
}

std::uint32_t PrefixOverlay::NewMark(NodeId node) {
  if (free_marks_.empty()) {
    marks_.push_back(Mark{.node = node});
    return static_cast<std::uint32_t>(marks_.size() - 1);
  }
  const std::uint32_t mark = free_marks_.back();
  free_marks_.pop_back();
  marks_[mark] = Mark{.node = node};
  return mark;
}

void PrefixOverlay::LinkNewest(PerTarget& of, std::uint32_t mark) {
  marks_[mark].older = of.newest;
  marks_[mark].newer = kNone;
  (of.newest == kNone ? of.oldest : marks_[of.newest].newer) = mark;
  of.newest = mark;
}

void PrefixOverlay::LinkNewerThan(PerTarget& of, std::uint32_t mark, std::uint32_t older) {
  const std::uint32_t newer = marks_[older].newer;
  marks_[mark].older = older;
  marks_[mark].newer = newer;
  marks_[older].newer = mark;
  (newer == kNone ? of.newest : marks_[newer].older) = mark;
}

void PrefixOverlay::Unlink(PerTarget& of, std::uint32_t mark) {
  const Mark& m = marks_[mark];
  (m.older == kNone ? of.oldest : marks_[m.older].newer) = m.newer;
  (m.newer == kNone ? of.newest : marks_[m.newer].older) = m.older;
}

void PrefixOverlay::DropMark(TargetId target, std::uint32_t mark) {
  PerTarget& of = targets_[target];
  const NodeId id = marks_[mark].node;
  of.predicted_blocks -= nodes_[id].run.size();
  Unlink(of, mark);
  free_marks_.push_back(mark);
  Holder* const holder = FindHolder(nodes_[id], target);  // a mark is its holder's
  holder->mark = kNone;
  DropIfEmpty(id, holder);
}

}  // namespace warmpath
