#include "tests/bench/index_bench_comparators.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace warmpath::bench {
namespace {

using Workers = absl::flat_hash_set<std::uint32_t>;

class Radix final : public Comparator {
 public:
  explicit Radix(std::uint32_t workers) : by_worker_(workers) {}

  void Apply(const Event& event) override {
    const std::unique_lock lock(mu_);
    auto& nodes = by_worker_[event.worker];
    for (const ChainHash hash : event.removed) {
      const auto it = nodes.find(hash);
      if (it == nodes.end()) continue;
      it->second->workers.erase(event.worker);
      // Nobody holds the block: nobody holds what lies below it.
      if (it->second->workers.empty()) it->second->children.clear();
      nodes.erase(it);
    }
    if (event.stored.empty()) return;
    Node* node = &root_;
    if (event.parent != 0) {
      const auto it = nodes.find(event.parent);
      if (it == nodes.end()) return;
      node = it->second.get();
    }
    for (const ChainHash hash : event.stored) {
      auto& child = node->children[hash];
      if (child == nullptr) child = std::make_shared<Node>();
      child->workers.insert(event.worker);
      nodes[hash] = child;
      node = child.get();
    }
  }

  std::uint32_t Query(std::span<const ChainHash> chain) const override {
    const std::shared_lock lock(mu_);
    absl::flat_hash_map<std::uint32_t, std::uint32_t> scores;
    const Node* node = &root_;
    std::uint32_t depth = 0;
    for (const ChainHash hash : chain) {
      const auto it = node->children.find(hash);
      if (it == node->children.end()) break;
      node = it->second.get();
      ++depth;
      for (const std::uint32_t worker : node->workers) scores[worker] = depth;
    }
    std::uint32_t best = 0;
    for (const auto& [worker, score] : scores) best = std::max(best, score);
    return best;
  }

 private:
  struct Node {
    absl::flat_hash_map<ChainHash, std::shared_ptr<Node>> children;
    Workers workers;
  };
  mutable std::shared_mutex mu_;
  Node root_;
  std::vector<absl::flat_hash_map<ChainHash, std::shared_ptr<Node>>> by_worker_;
};

class Positional final : public Comparator {
 public:
  explicit Positional(std::uint32_t workers) : by_worker_(workers) {}

  void Apply(const Event& event) override {
    auto& positions = by_worker_[event.worker];
    for (const ChainHash hash : event.removed) {
      const auto it = positions.find(hash);
      if (it == positions.end()) continue;
      const Key key{it->second, hash};
      Shard& shard = ShardFor(key);
      {
        const std::unique_lock lock(shard.mu);
        const auto entry = shard.workers.find(key);
        if (entry != shard.workers.end()) {
          entry->second.erase(event.worker);
          if (entry->second.empty()) shard.workers.erase(entry);
        }
      }
      positions.erase(it);
    }
    std::uint32_t position = event.parent_position;
    for (const ChainHash hash : event.stored) {
      const Key key{position, hash};
      Shard& shard = ShardFor(key);
      {
        const std::unique_lock lock(shard.mu);
        shard.workers[key].insert(event.worker);
      }
      positions[hash] = position++;
    }
  }

  std::uint32_t Query(std::span<const ChainHash> chain) const override {
    if (chain.empty()) return 0;
    Workers active = At(chain, 0);
    absl::flat_hash_map<std::uint32_t, std::uint32_t> scores;
    std::uint32_t low = 0;
    while (!active.empty()) {
      const auto high =
          std::min<std::uint32_t>(low + kJump, static_cast<std::uint32_t>(chain.size()) - 1);
      if (high == low) break;
      // Unchanged across the jump: nothing to do between.
      if (Count(chain, high) != active.size()) {
        for (std::uint32_t i = low + 1; i <= high && !active.empty(); ++i) {
          const Workers here = At(chain, i);
          absl::erase_if(active, [&](std::uint32_t worker) {
            if (here.contains(worker)) return false;
            scores[worker] = i;
            return true;
          });
        }
      }
      low = high;
    }
    for (const std::uint32_t worker : active) {
      scores[worker] = static_cast<std::uint32_t>(chain.size());
    }
    std::uint32_t best = 0;
    for (const auto& [worker, score] : scores) best = std::max(best, score);
    return best;
  }

 private:
  static constexpr std::uint32_t kJump = 32;
  using Key = std::pair<std::uint32_t, ChainHash>;
  struct alignas(64) Shard {
    mutable std::shared_mutex mu;
    absl::flat_hash_map<Key, Workers> workers;
  };

  Shard& ShardFor(const Key& key) { return shards_[(key.second >> 20) % shards_.size()]; }
  const Shard& ShardFor(const Key& key) const {
    return shards_[(key.second >> 20) % shards_.size()];
  }
  Workers At(std::span<const ChainHash> chain, std::uint32_t position) const {
    const Key key{position, chain[position]};
    const Shard& shard = ShardFor(key);
    const std::shared_lock lock(shard.mu);
    const auto it = shard.workers.find(key);
    return it == shard.workers.end() ? Workers() : it->second;
  }
  std::size_t Count(std::span<const ChainHash> chain, std::uint32_t position) const {
    const Key key{position, chain[position]};
    const Shard& shard = ShardFor(key);
    const std::shared_lock lock(shard.mu);
    const auto it = shard.workers.find(key);
    return it == shard.workers.end() ? 0 : it->second.size();
  }

  std::array<Shard, 256> shards_;
  std::vector<absl::flat_hash_map<ChainHash, std::uint32_t>> by_worker_;
};

}  // namespace

std::unique_ptr<Comparator> MakeRadix(std::uint32_t workers) {
  return std::make_unique<Radix>(workers);
}
std::unique_ptr<Comparator> MakePositional(std::uint32_t workers) {
  return std::make_unique<Positional>(workers);
}

}  // namespace warmpath::bench
