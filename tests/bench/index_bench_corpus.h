// The operations that index_bench replays, made from a request trace.
//
// The rule, so that others can build the same:
//  - Each trace hash id stands for `length_factor` consecutive blocks; block j of id h in copy c is
//    one 64-bit hash of (c, h, j). The trace is repeated in `duplication` copies that share no
//    block: request r of copy 0, of copy 1, ..., then request r + 1.
//  - Each request is a query for its whole chain, and goes to a worker drawn uniformly (seed 1).
//  - That worker's cache is an LRU of `blocks_per_worker` blocks. It stores the blocks that are
//    not resident, as one event, and evicts as many as needed, before it; blocks of a request are
//    touched from the chain's end to its head, as engines free them, so that tails go first.
//    Evictions are one event (`batched`) or one event each (`single`).
// A block operation is a block of a query (at full length), a stored block or a removed block.
#ifndef WARMPATH_TESTS_BENCH_INDEX_BENCH_CORPUS_H_
#define WARMPATH_TESTS_BENCH_INDEX_BENCH_CORPUS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"

namespace warmpath::bench {

struct CorpusOptions {
  std::string trace;
  std::uint32_t workers = 128;
  std::uint32_t length_factor = 4;
  std::uint32_t duplication = 4;
  std::uint32_t blocks_per_worker = 16384;
  bool batched_removals = true;
};

// Removals apply before stores. `parent` is the block before the first stored one; 0 at a root.
struct Event {
  std::uint32_t worker = 0;
  ChainHash parent = 0;
  std::uint32_t parent_position = 0;  // of the first stored block in its chain
  std::span<const ChainHash> removed;
  std::span<const ChainHash> stored;
};

struct Corpus {
  std::vector<std::span<const ChainHash>> queries;
  std::vector<Event> events;
  std::vector<std::size_t> events_of_queries;  // events up to and including those of query i
  std::uint64_t query_blocks = 0;
  std::uint64_t stored_blocks = 0;
  std::uint64_t removed_blocks = 0;
  std::vector<std::vector<ChainHash>> storage;  // what the spans point into

  std::uint64_t block_operations() const { return query_blocks + stored_blocks + removed_blocks; }
};

absl::StatusOr<Corpus> BuildCorpus(const CorpusOptions& options);

// Plain operations in trace order, all integers little-endian:
//   8 bytes  "WPOPS001"
//   u64      number of records
//   records  u8 kind (0 store, 1 remove, 2 query), u32 worker (0 for a query), u64 parent hash (of
//            the first stored block; 0 otherwise), u32 n, n x u64 chain hashes
absl::Status WriteOperations(const Corpus& corpus, const std::string& path);

}  // namespace warmpath::bench

#endif  // WARMPATH_TESTS_BENCH_INDEX_BENCH_CORPUS_H_
