// Memory of chains that are gone, for those to come. A pick makes a copy of its chain, of
// about a kilobyte, which is given back by another thread much later: for the allocator the worst
// case, and half of that under the pool's mutex.
#ifndef WARMPATH_CORE_FLEET_SPARE_CHAINS_H_
#define WARMPATH_CORE_FLEET_SPARE_CHAINS_H_

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "core/base/ids.h"

namespace warmpath {

// Not thread-safe. Keeps half a megabyte at most.
class SpareChains {
 public:
  static constexpr std::size_t kMost = 64;
  static constexpr std::size_t kMostBlocks = 1024;  // longer ones go back to the allocator

  // A copy of `chain` in the memory of `spare`, if that is large enough and not so large that
  // chains would take much more memory than they are counted for.
  static std::vector<ChainHash> Copy(std::span<const ChainHash> chain,
                                     std::vector<ChainHash> spare) {
    constexpr std::size_t kSlack = 32;
    if (spare.capacity() < chain.size() || spare.capacity() > 2 * chain.size() + kSlack)
      spare = std::vector<ChainHash>();
    spare.assign(chain.begin(), chain.end());
    return spare;
  }

  // Empty, with the memory of an earlier one if there is any.
  std::vector<ChainHash> Take() {
    if (spare_.empty()) return {};
    std::vector<ChainHash> chain = std::move(spare_.back());
    spare_.pop_back();
    return chain;
  }
  void Give(std::vector<ChainHash> chain) {
    if (chain.capacity() == 0 || chain.capacity() > kMostBlocks || spare_.size() == kMost) return;
    chain.clear();
    spare_.push_back(std::move(chain));
  }
  std::size_t size() const { return spare_.size(); }

 private:
  std::vector<std::vector<ChainHash>> spare_;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_SPARE_CHAINS_H_
