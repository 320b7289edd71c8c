// Measures the prefix index on a request trace. docs/index.md explains what they mean.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/strings.h"
#include "tests/bench/index_bench_cells.h"
#include "tests/bench/index_bench_corpus.h"
#include "tests/bench/index_bench_run.h"

namespace warmpath::bench {
namespace {

constexpr char kUsage[] =
    "usage: index_bench --trace FILE [options]     the trace cell\n"
    "       index_bench --cell NAME [options]      another cell: memory, bound, leave, scale, "
    "hash\n"
    "\n"
    "  --trace FILE             requests, one JSON object a line (Mooncake format)\n"
    "  --workers N              [128]\n"
    "  --length-factor N        blocks for each hash id of the trace [4]\n"
    "  --duplication N          disjoint copies of the trace [4]\n"
    "  --blocks-per-worker N    LRU capacity [16384]\n"
    "  --removals KIND          batched: evictions of one request are one event; single: one each\n"
    "                           [batched]\n"
    "  --writers N              [1]\n"
    "  --readers M              [1]\n"
    "  --rounds N               medians are taken over them; of comparators at most 3 [5]\n"
    "  --pairs N                of the scale cell [100000000]\n"
    "  --exact-blocks N         leading blocks of a chain looked at one by one [1024]\n"
    "  --no-comparators         leaves out the two slow designs\n"
    "  --write-ops FILE         stores the operations (format: index_bench_corpus.h) and ends\n"
    "  --json                   prints one JSON object instead of a table\n";

struct Options {
  CorpusOptions corpus;
  std::string cell;
  std::string write_operations;
  int writers = 1;
  int readers = 1;
  int rounds = 5;
  std::uint64_t pairs = 100'000'000;
  std::uint32_t exact_blocks = IndexOptions().exact_blocks;
  bool comparators = true;
  bool json = false;
};

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "index_bench: %s\n", message.c_str());
  std::exit(2);
}

std::uint64_t Number(std::string_view name, std::string_view text, std::uint64_t most) {
  char* end = nullptr;
  const std::string copy(text);
  const unsigned long long value = std::strtoull(copy.c_str(), &end, 10);
  if (copy.empty() || *end != '\0' || copy.front() == '-' || value == 0 || value > most) {
    Die(std::string(name) + " takes a number from 1 to " + std::to_string(most));
  }
  return value;
}

Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    const auto value = [&]() -> std::string_view {
      if (i + 1 >= argc) Die(std::string(name) + " needs a value");
      return argv[++i];
    };
    const auto number = [&](std::uint64_t most) { return Number(name, value(), most); };
    if (name == "--help" || name == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    } else if (name == "--trace") {
      options.corpus.trace = value();
    } else if (name == "--cell") {
      options.cell = value();
    } else if (name == "--workers") {
      options.corpus.workers = static_cast<std::uint32_t>(number(8000));
    } else if (name == "--length-factor") {
      options.corpus.length_factor = static_cast<std::uint32_t>(number(512));
    } else if (name == "--duplication") {
      options.corpus.duplication = static_cast<std::uint32_t>(number(255));
    } else if (name == "--blocks-per-worker") {
      options.corpus.blocks_per_worker = static_cast<std::uint32_t>(number(1u << 30));
    } else if (name == "--removals") {
      const std::string_view kind = value();
      if (kind != "batched" && kind != "single") Die("--removals takes batched or single");
      options.corpus.batched_removals = kind == "batched";
    } else if (name == "--writers") {
      options.writers = static_cast<int>(number(64));
    } else if (name == "--readers") {
      options.readers = static_cast<int>(number(64));
    } else if (name == "--rounds") {
      options.rounds = static_cast<int>(number(100));
    } else if (name == "--pairs") {
      options.pairs = number(1'000'000'000);
    } else if (name == "--exact-blocks") {
      options.exact_blocks = static_cast<std::uint32_t>(number(1u << 30));
    } else if (name == "--no-comparators") {
      options.comparators = false;
    } else if (name == "--write-ops") {
      options.write_operations = value();
    } else if (name == "--json") {
      options.json = true;
    } else {
      Die("unknown option '" + std::string(name) + "'; see --help");
    }
  }
  return options;
}

void RunTrace(const Options& options, Report* report) {
  const auto corpus = BuildCorpus(options.corpus);
  if (!corpus.ok()) Die(std::string(ToStd(corpus.status().message())));
  if (!options.write_operations.empty()) {
    const auto status = WriteOperations(*corpus, options.write_operations);
    if (!status.ok()) Die(std::string(ToStd(status.message())));
    std::exit(0);
  }
  report->Add("workers", options.corpus.workers);
  report->Add("queries", static_cast<double>(corpus->queries.size()));
  report->Add("query_blocks", static_cast<double>(corpus->query_blocks));
  report->Add("stored_blocks", static_cast<double>(corpus->stored_blocks));
  report->Add("removed_blocks", static_cast<double>(corpus->removed_blocks));
  report->Add("writers", options.writers);
  report->Add("readers", options.readers);
  report->Add("rounds", options.rounds);

  // The comparators take their turns between ours, so that all see the same machine.
  constexpr int kComparatorRounds = 3;
  std::vector<Round> rounds;
  std::vector<double> radix;
  std::vector<double> positional;
  std::vector<double> radix_ratio;
  std::vector<double> positional_ratio;
  for (int i = 0; i < options.rounds; ++i) {
    rounds.push_back(MeasureRound(*corpus, {.exact_blocks = options.exact_blocks},
                                  options.corpus.workers, options.writers, options.readers));
    if (!options.comparators || i >= kComparatorRounds) continue;
    for (const bool is_radix : {true, false}) {
      const double rate = MeasureComparator(*corpus, options.corpus.workers, options.writers,
                                            options.readers, is_radix);
      (is_radix ? radix : positional).push_back(rate);
      (is_radix ? radix_ratio : positional_ratio).push_back(rounds.back().block_ops_per_s / rate);
    }
  }
  const auto median = [&](auto Round::*field) {
    std::vector<double> values;
    for (const Round& round : rounds) values.push_back(static_cast<double>(round.*field));
    return Median(values);
  };
  report->Add("block_ops_per_s", median(&Round::block_ops_per_s));
  report->Add("writer_block_events_per_s", median(&Round::writer_block_events_per_s));
  report->Add("lookups_per_s", median(&Round::lookups_per_s));
  report->Add("match_lookups_per_s", median(&Round::match_lookups_per_s));
  report->Add("slot_lookups_per_s", median(&Round::slot_lookups_per_s));
  report->Add("exact_lookups_per_s", median(&Round::exact_lookups_per_s));
  report->Add("overcredited_lookups", median(&Round::overcredited_lookups));
  report->Add("lookup_p50_us", median(&Round::lookup_p50_us));
  report->Add("lookup_p99_us", median(&Round::lookup_p99_us));
  const MemoryFigures memory = MeasureMemory(*corpus, options.corpus.workers);
  report->Add("bytes_per_pair", memory.bytes_per_pair);
  report->Add("bytes_per_pair_max", memory.bytes_per_pair_max);
  report->Add("bytes_per_pair_peak", memory.bytes_per_pair_peak);
  report->Add("distinct_sets", static_cast<double>(memory.distinct_sets));
  report->Add("resident_pairs", static_cast<double>(memory.resident_pairs));
  report->Add("account_bytes", static_cast<double>(memory.account_bytes));
  report->Add("resident_bytes", static_cast<double>(memory.resident_bytes));
  report->Add("calib_random_read_ns", CalibrateRandomRead(/*huge_pages=*/false));
  report->Add("calib_random_read_huge_ns", CalibrateRandomRead(/*huge_pages=*/true));
  if (!options.comparators) return;
  report->BeginGroup("comparators");
  report->BeginGroup("radix");
  report->Add("block_ops_per_s", Median(radix));
  report->Add("times_less", Median(radix_ratio));
  report->EndGroup();
  report->BeginGroup("positional");
  report->Add("block_ops_per_s", Median(positional));
  report->Add("times_less", Median(positional_ratio));
  report->EndGroup();
  report->EndGroup();
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  Report report;
  if (options.cell.empty()) {
    if (options.corpus.trace.empty()) Die("--trace FILE or --cell NAME is needed; see --help");
    RunTrace(options, &report);
  } else if (!RunCell(options.cell, options.pairs, options.exact_blocks, &report)) {
    Die("--cell takes memory, bound, leave, scale or hash");
  }
  report.Print(options.json);
  return 0;
}

}  // namespace
}  // namespace warmpath::bench

int main(int argc, char** argv) { return warmpath::bench::Main(argc, argv); }
