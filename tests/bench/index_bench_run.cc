#include "tests/bench/index_bench_run.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <thread>

#include "core/base/random.h"
#include "tests/bench/index_bench_comparators.h"

namespace warmpath::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

// Calls Maintain as the router does, on a thread of its own.
class Maintainer {
 public:
  explicit Maintainer(Index* index) : thread_([this, index] { Run(index); }) {}
  ~Maintainer() {
    stop_ = true;
    thread_.join();
  }

 private:
  void Run(Index* index) {
    while (!stop_) {
      index->Maintain(100'000);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

void Settle(Index* index) {
  while (index->Maintain(std::size_t{1} << 20)) std::this_thread::yield();
}

// Runs fn(i) on `threads` threads that start together; returns the seconds until all are done.
double RunTogether(int threads, const std::function<void(int)>& fn) {
  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> all;
  all.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      ++ready;
      while (!go) std::this_thread::yield();
      fn(i);
    });
  }
  while (ready < threads) std::this_thread::yield();
  const auto start = SteadyClock::now();
  go = true;
  for (auto& thread : all) thread.join();
  return SecondsSince(start);
}

// Asks for the hashes of a chain or an event. In a router they have just been computed or decoded,
// and lie in the cache; here they would come from memory, which is no cost of the index.
void Warm(std::span<const ChainHash> hashes) {
  for (std::size_t i = 0; i < hashes.size(); i += 8) __builtin_prefetch(hashes.data() + i);
}

void WarmNext(const Corpus& corpus, std::size_t query, std::size_t step) {
  if (query + step < corpus.queries.size()) Warm(corpus.queries[query + step]);
}

// Calls apply(event) for the events of one of `writers`, in order.
template <typename Apply>
void ForEachEvent(const Corpus& corpus, int writer, int writers, Apply apply) {
  const auto mine = [&](std::size_t i) {
    return corpus.events[i].worker % static_cast<std::uint32_t>(writers) ==
           static_cast<std::uint32_t>(writer);
  };
  const auto next_from = [&](std::size_t i) {
    while (i < corpus.events.size() && !mine(i)) ++i;
    return i;
  };
  for (std::size_t i = next_from(0); i < corpus.events.size();) {
    const std::size_t next = next_from(i + 1);
    if (next < corpus.events.size()) {
      Warm(corpus.events[next].removed);
      Warm(corpus.events[next].stored);
    }
    apply(corpus.events[i]);
    i = next;
  }
}

// How long look_up(chain) takes for these queries. Chains are copied beforehand, some at a time: in
// a router they have just been computed and lie in the cache, where the corpus is too large for
// that.
template <typename LookUp>
double SecondsOfLookups(std::span<const std::span<const ChainHash>> queries, LookUp look_up) {
  constexpr std::size_t kAtATime = 32;
  std::vector<ChainHash> hashes;
  std::vector<std::size_t> ends;
  double seconds = 0;
  for (std::size_t q = 0; q < queries.size();) {
    hashes.clear();
    ends.clear();
    for (; ends.size() < kAtATime && q < queries.size(); ++q) {
      hashes.insert(hashes.end(), queries[q].begin(), queries[q].end());
      ends.push_back(hashes.size());
    }
    const auto start = SteadyClock::now();
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      look_up(std::span<const ChainHash>(hashes).subspan(begin, end - begin));
      begin = end;
    }
    seconds += SecondsSince(start);
  }
  return seconds;
}

void ApplyEvents(Index* index, const Corpus& corpus, const std::vector<Slot>& slots, int writer,
                 int writers) {
  ForEachEvent(corpus, writer, writers, [&](const Event& event) {
    index->Apply(slots[event.worker], Tier::kGpu, event.removed, event.stored);
  });
}

}  // namespace

std::vector<Slot> OpenSlots(Index* index, std::uint32_t workers) {
  std::vector<Slot> slots;
  for (std::uint32_t i = 0; i < workers; ++i) {
    slots.push_back(*index->OpenSlot());
    // The corpus stores and evicts as engines do: heads first in, tails first out.
    index->SetMayHaveHoles(slots.back(), false);
  }
  return slots;
}

double Percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1,
                         static_cast<std::size_t>(p * static_cast<double>(sorted.size())))];
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return Percentile(values, 0.5);
}

double CalibrateRandomRead(bool huge_pages) {
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  constexpr std::size_t kLines = kBytes / 64;
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  struct alignas(64) Line {
    std::uint32_t next;
  };
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(kHugePage, kBytes),
                                                           &std::free);
  if (memory == nullptr) return 0;
  // Where huge pages are given to all, small ones must be asked for, too.
  madvise(memory.get(), kBytes, huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  auto* const lines = new (memory.get()) Line[kLines];
  std::vector<std::uint32_t> order(kLines);
  std::iota(order.begin(), order.end(), 0u);
  Random random(1);
  for (std::size_t i = kLines - 1; i > 0; --i) std::swap(order[i], order[random.Below(i + 1)]);
  for (std::size_t i = 0; i < kLines; ++i) lines[order[i]].next = order[(i + 1) % kLines];
  constexpr std::size_t kSteps = 2'000'000;
  std::uint32_t at = 0;
  const auto start = SteadyClock::now();
  for (std::size_t i = 0; i < kSteps; ++i) at = lines[at].next;
  const double seconds = SecondsSince(start);
  // The walk's end is used, so that the walk is not left out.
  return seconds * 1e9 / static_cast<double>(kSteps) + (at == kLines ? 1 : 0);
}

std::uint64_t ResidentBytes() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long long total = 0;
  unsigned long long resident = 0;
  const int read = std::fscanf(file, "%llu %llu", &total, &resident);
  std::fclose(file);
  return read == 2 ? resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

std::uint32_t VerifiedLookup(const Index& index, std::span<const ChainHash> chain,
                             MatchSegments* segments, std::uint64_t* overcredited) {
  index.MatchGpu(chain, segments);
  std::uint32_t best = 0;  // verified depth of some slot
  bool wrong = false;
  for (std::size_t i = segments->segments.size(); i-- > 0;) {
    const auto& segment = segments->segments[i];
    // One slot at a time, deepest first, until one holds what was said of it.
    for (Slot slot = segments->FirstSlot(segment, 0); slot != kNoSlot && segment.depth > best;
         slot = segments->FirstSlot(segment, slot + 1)) {
      const auto depth = static_cast<std::uint32_t>(index.VerifiedGpuDepth(
          slot, chain, std::min<std::size_t>(segments->exact_to, segment.depth), segment.depth));
      best = std::max(best, depth);
      wrong = wrong || depth < segment.depth;
    }
    if (segment.depth <= best) break;
  }
  if (wrong) ++*overcredited;
  return best;
}

Round MeasureRound(const Corpus& corpus, const IndexOptions& options, std::uint32_t workers,
                   int writers, int readers) {
  Round round;
  const auto queries = static_cast<double>(corpus.queries.size());
  const auto events = static_cast<double>(corpus.stored_blocks + corpus.removed_blocks);
  std::atomic<std::uint64_t> sink{0};
  {  // Each operation once, in trace order, drained.
    const auto index = CreateIndex(options);
    const auto slots = OpenSlots(index.get(), workers);
    const Maintainer maintainer(index.get());
    const double seconds = RunTogether(writers + readers, [&](int i) {
      if (i < writers) {
        ApplyEvents(index.get(), corpus, slots, i, writers);
        return;
      }
      MatchSegments segments;
      std::uint64_t ignored = 0;
      std::uint64_t sum = 0;
      for (auto q = static_cast<std::size_t>(i - writers); q < corpus.queries.size();
           q += static_cast<std::size_t>(readers)) {
        WarmNext(corpus, q, static_cast<std::size_t>(readers));
        sum += VerifiedLookup(*index, corpus.queries[q], &segments, &ignored);
      }
      sink += sum;
    });
    round.block_ops_per_s = static_cast<double>(corpus.block_operations()) / seconds;
  }
  {  // Writers alone; then one reader on the final index.
    const auto index = CreateIndex(options);
    const auto slots = OpenSlots(index.get(), workers);
    double seconds = 0;
    {
      const Maintainer maintainer(index.get());
      seconds =
          RunTogether(writers, [&](int i) { ApplyEvents(index.get(), corpus, slots, i, writers); });
    }
    round.writer_block_events_per_s = events / seconds;
    Settle(index.get());
    MatchSegments segments;
    std::uint64_t sum = 0;
    const auto look_up = [&](std::span<const ChainHash> chain) {
      sum += VerifiedLookup(*index, chain, &segments, &round.overcredited_lookups);
    };
    SecondsOfLookups(corpus.queries,
                     look_up);  // the first pass finds sets that nobody has read yet
    round.overcredited_lookups = 0;
    round.lookups_per_s = queries / SecondsOfLookups(corpus.queries, look_up);
    const double match_s = SecondsOfLookups(corpus.queries, [&](std::span<const ChainHash> chain) {
      index->MatchGpu(chain, &segments);
      sum += segments.segments.size();
    });
    round.match_lookups_per_s = queries / match_s;
    MatchResult result;
    const double slot_s = SecondsOfLookups(corpus.queries, [&](std::span<const ChainHash> chain) {
      index->Match(chain, &result);
      if (result.slots.empty()) return;
      const auto best = std::max_element(
          result.slots.begin(), result.slots.end(),
          [](const SlotMatch& a, const SlotMatch& b) { return a.gpu_depth < b.gpu_depth; });
      sum += index->VerifiedGpuDepth(best->slot, chain,
                                     std::min<std::size_t>(result.exact_to, best->gpu_depth),
                                     best->gpu_depth);
    });
    round.slot_lookups_per_s = queries / slot_s;
    // A part of them will do: it is the slow one.
    const auto some = std::span(corpus.queries).first(corpus.queries.size() / 4);
    const double exact_s = SecondsOfLookups(some, [&](std::span<const ChainHash> chain) {
      index->MatchExact(chain, &result);
      sum += result.slots.size();
    });
    round.exact_lookups_per_s = static_cast<double>(some.size()) / exact_s;
    sink += sum;

    // Lookups beside writers that are always busy: they replay the trace into fresh slots.
    const auto more = OpenSlots(index.get(), workers);
    std::atomic<int> writing{writers};
    std::vector<std::vector<double>> latencies(static_cast<std::size_t>(readers));
    const Maintainer maintainer(index.get());
    RunTogether(writers + readers, [&](int i) {
      if (i < writers) {
        ApplyEvents(index.get(), corpus, more, i, writers);
        --writing;
        return;
      }
      auto& mine = latencies[static_cast<std::size_t>(i - writers)];
      mine.reserve(std::size_t{1} << 20);
      MatchSegments own;
      std::vector<ChainHash> chain;
      std::uint64_t ignored = 0;
      for (std::size_t q = 0; writing > 0; q = (q + 1) % corpus.queries.size()) {
        chain.assign(corpus.queries[q].begin(), corpus.queries[q].end());
        const auto begin = SteadyClock::now();
        const std::uint32_t depth = VerifiedLookup(*index, chain, &own, &ignored);
        mine.push_back(
            std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count());
        sink += depth;
      }
    });
    std::vector<double> merged;
    for (const auto& mine : latencies) merged.insert(merged.end(), mine.begin(), mine.end());
    std::sort(merged.begin(), merged.end());
    round.lookup_p50_us = Percentile(merged, 0.5);
    round.lookup_p99_us = Percentile(merged, 0.99);
  }
  return round;
}

MemoryFigures MeasureMemory(const Corpus& corpus, std::uint32_t workers) {
  MemoryFigures figures;
  // What the corpus and earlier rounds left behind in the heap must not be taken for the index.
  malloc_trim(0);
  const std::uint64_t resident_before = ResidentBytes();
  const auto index = CreateIndex({});
  const auto slots = OpenSlots(index.get(), workers);
  std::uint64_t final_pairs = 0;
  // Two passes: the first finds out how many pairs there will be, and from where to sample.
  final_pairs = corpus.stored_blocks - corpus.removed_blocks;
  const std::size_t step = std::max<std::size_t>(1, corpus.events.size() / 512);
  for (std::size_t i = 0; i < corpus.events.size(); ++i) {
    const Event& event = corpus.events[i];
    index->Apply(slots[event.worker], Tier::kGpu, event.removed, event.stored);
    if (i % step != 0) continue;
    IndexStats stats = index->Stats();
    if (stats.pairs * 2 < final_pairs) {
      index->Maintain(100'000);
      continue;
    }
    figures.bytes_per_pair_peak =
        std::max(figures.bytes_per_pair_peak,
                 static_cast<double>(stats.bytes) / static_cast<double>(stats.pairs));
    Settle(index.get());
    stats = index->Stats();
    figures.bytes_per_pair_max =
        std::max(figures.bytes_per_pair_max,
                 static_cast<double>(stats.bytes) / static_cast<double>(stats.pairs));
  }
  Settle(index.get());
  const IndexStats stats = index->Stats();
  figures.bytes_per_pair = static_cast<double>(stats.bytes) / static_cast<double>(stats.pairs);
  figures.distinct_sets = stats.sets;
  figures.resident_pairs = stats.pairs;
  figures.account_bytes = stats.bytes;
  figures.resident_bytes = ResidentBytes() - resident_before;
  return figures;
}

double MeasureComparator(const Corpus& corpus, std::uint32_t workers, int writers, int readers,
                         bool radix) {
  const auto index = radix ? MakeRadix(workers) : MakePositional(workers);
  std::atomic<std::uint64_t> sink{0};
  const double seconds = RunTogether(writers + readers, [&](int i) {
    if (i < writers) {
      ForEachEvent(corpus, i, writers, [&](const Event& event) { index->Apply(event); });
      return;
    }
    std::uint64_t sum = 0;
    for (auto q = static_cast<std::size_t>(i - writers); q < corpus.queries.size();
         q += static_cast<std::size_t>(readers)) {
      WarmNext(corpus, q, static_cast<std::size_t>(readers));
      sum += index->Query(corpus.queries[q]);
    }
    sink += sum;
  });
  return static_cast<double>(corpus.block_operations()) / seconds;
}

}  // namespace warmpath::bench
