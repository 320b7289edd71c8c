// Measurements of the index on a corpus.
#ifndef WARMPATH_TESTS_BENCH_INDEX_BENCH_RUN_H_
#define WARMPATH_TESTS_BENCH_INDEX_BENCH_RUN_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/index/index.h"
#include "tests/bench/index_bench_corpus.h"

namespace warmpath::bench {

// What one round measures; a report takes medians over rounds.
struct Round {
  double block_ops_per_s = 0;            // each operation once, drained
  double writer_block_events_per_s = 0;  // the writers alone
  double lookups_per_s = 0;              // final index, one reader, winner verified, all queries
  double match_lookups_per_s = 0;        // the same, not verified
  double slot_lookups_per_s = 0;         // the same with an answer for each slot (Match)
  double exact_lookups_per_s = 0;        // MatchExact
  double lookup_p50_us = 0;              // beside busy writers, winner verified
  double lookup_p99_us = 0;
  std::uint64_t overcredited_lookups = 0;
};

struct MemoryFigures {
  double bytes_per_pair = 0;       // at the end, settled
  double bytes_per_pair_max = 0;   // largest of samples settled, from half of the pairs on
  double bytes_per_pair_peak = 0;  // largest of all samples from half of the pairs on
  std::uint64_t distinct_sets = 0;
  std::uint64_t resident_pairs = 0;
  std::uint64_t account_bytes = 0;   // at the end, settled, by the index's own account
  std::uint64_t resident_bytes = 0;  // and by what the process grew
};

// Nanoseconds of one dependent load of a cache line, over 256 MB of small pages, or of huge ones as
// far as the system has them: the difference is the price of address translation.
double CalibrateRandomRead(bool huge_pages);

// Resident memory of this process, in bytes.
std::uint64_t ResidentBytes();

// Looks the chain up and settles on a slot that truly holds its credited depth: the deepest one,
// corrected and compared again as often as it was over-credited. Adds to *overcredited.
std::uint32_t VerifiedLookup(const Index& index, std::span<const ChainHash> chain,
                             MatchSegments* segments, std::uint64_t* overcredited);

Round MeasureRound(const Corpus& corpus, const IndexOptions& options, std::uint32_t workers,
                   int writers, int readers);
MemoryFigures MeasureMemory(const Corpus& corpus, std::uint32_t workers);
double MeasureComparator(const Corpus& corpus, std::uint32_t workers, int writers, int readers,
                         bool radix);

// Percentile of a sorted vector.
double Percentile(const std::vector<double>& sorted, double p);
double Median(std::vector<double> values);

// One slot for each worker.
std::vector<Slot> OpenSlots(Index* index, std::uint32_t workers);

}  // namespace warmpath::bench

#endif  // WARMPATH_TESTS_BENCH_INDEX_BENCH_RUN_H_
