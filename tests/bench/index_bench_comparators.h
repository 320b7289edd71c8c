// Two other designs of a prefix index, written plainly from their published descriptions, to
// measure on the same operations as ours:
//
//  radix       a tree of blocks, each with a hash map of children and a set of workers, and for
//              each worker a hash map from block hash to tree node; one shared mutex. (The first
//              published indexer of NVIDIA Dynamo.)
//  positional  a sharded hash map (position, local hash) -> workers, and for each worker a hash map
//              from block hash to position; a query jumps ahead by 32 positions and walks back
//              only where the workers have changed. (The later one.)
//
// They share the corpus's hashes: a block's chain hash serves as its local hash as well, which is
// in their favour (no two blocks of one parent collide).
#ifndef WARMPATH_TESTS_BENCH_INDEX_BENCH_COMPARATORS_H_
#define WARMPATH_TESTS_BENCH_INDEX_BENCH_COMPARATORS_H_

#include <cstdint>
#include <memory>
#include <span>

#include "core/base/ids.h"
#include "tests/bench/index_bench_corpus.h"

namespace warmpath::bench {

// Thread-safe; events of one worker come from one thread.
class Comparator {
 public:
  virtual ~Comparator() = default;
  virtual void Apply(const Event& event) = 0;
  // The depth of the deepest worker.
  virtual std::uint32_t Query(std::span<const ChainHash> chain) const = 0;
};

std::unique_ptr<Comparator> MakeRadix(std::uint32_t workers);
std::unique_ptr<Comparator> MakePositional(std::uint32_t workers);

}  // namespace warmpath::bench

#endif  // WARMPATH_TESTS_BENCH_INDEX_BENCH_COMPARATORS_H_
