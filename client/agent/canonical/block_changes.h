// Changes of the set of routing blocks that one rank holds in one tier, and the digest by which
// agent and router compare such sets.
#ifndef WARMPATH_CLIENT_AGENT_CANONICAL_BLOCK_CHANGES_H_
#define WARMPATH_CLIENT_AGENT_CANONICAL_BLOCK_CHANGES_H_

#include <cstdint>
#include <vector>

#include "core/base/ids.h"

namespace warmpath {

// Net changes of one tier: apply removed, then stored. A hash appears at most once.
struct BlockChanges {
  Tier tier = Tier::kGpu;
  std::vector<ChainHash> removed;
  std::vector<ChainHash> stored;

  bool empty() const { return removed.empty() && stored.empty(); }
};

// Number and xor of the hashes of a set: two numbers that both sides keep as they go.
struct SetDigest {
  std::uint64_t count = 0;
  std::uint64_t xor_hash = 0;

  void Insert(ChainHash hash) { ++count, xor_hash ^= hash; }
  void Erase(ChainHash hash) { --count, xor_hash ^= hash; }
  friend bool operator==(const SetDigest&, const SetDigest&) = default;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_CANONICAL_BLOCK_CHANGES_H_
