#include "tests/bench/index_bench_cells.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <span>
#include <thread>

#include "core/base/random.h"
#include "core/hashing/chain_hash.h"
#include "core/index/index.h"
#include "tests/bench/index_bench_run.h"

namespace warmpath::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::uint64_t kMillion = 1'000'000;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

void Settle(Index* index) {
  while (index->Maintain(std::size_t{1} << 20)) std::this_thread::yield();
}

// Block i of a made-up corpus.
ChainHash BlockAt(std::uint64_t i) {
  std::uint64_t z = i * 0x9E3779B97F4A7C15ULL + 1;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

std::vector<ChainHash> BlocksAt(std::uint64_t first, std::uint64_t count) {
  std::vector<ChainHash> hashes(count);
  for (std::uint64_t i = 0; i < count; ++i) hashes[i] = BlockAt(first + i);
  return hashes;
}

// Memory by the index's account and as the system sees it, at sample points.
class MemorySampler {
 public:
  explicit MemorySampler(Index* index) : index_(index), resident_before_(ResidentBytes()) {}

  // Raw: as found. Settled: after the background work is done.
  void Sample() {
    const IndexStats raw = index_->Stats();
    Raise(&peak_, raw.bytes, raw.pairs);
    Settle(index_);
    const IndexStats stats = index_->Stats();
    Raise(&largest_, stats.bytes, stats.pairs);
    const std::uint64_t resident = ResidentBytes() - resident_before_;
    Raise(&largest_resident_, resident, stats.pairs);
    disagreement_ =
        std::max(disagreement_,
                 std::abs(static_cast<double>(resident) / static_cast<double>(stats.bytes) - 1));
    peak_bytes_ = std::max(peak_bytes_, raw.bytes);
  }

  void Add(Report* report) const {
    report->Add("bytes_per_pair_max", largest_);
    report->Add("bytes_per_pair_peak", peak_);
    report->Add("resident_bytes_per_pair_max", largest_resident_);
    report->Add("resident_vs_account_max_percent", disagreement_ * 100);
  }
  std::uint64_t peak_bytes() const { return peak_bytes_; }
  std::uint64_t resident_before() const { return resident_before_; }

 private:
  static void Raise(double* most, std::uint64_t bytes, std::uint64_t pairs) {
    *most = std::max(*most, static_cast<double>(bytes) / static_cast<double>(pairs));
  }

  Index* const index_;
  const std::uint64_t resident_before_;
  double largest_ = 0;
  double peak_ = 0;
  double largest_resident_ = 0;
  double disagreement_ = 0;
  std::uint64_t peak_bytes_ = 0;
};

// Stores blocks [0, blocks) for `holders` of `workers` slots each, `step` blocks at a time, and
// samples from `sample_from` pairs on; then removes nine blocks of ten.
void MeasureHolders(std::uint32_t workers, std::uint32_t holders, std::uint64_t blocks,
                    std::uint64_t sample_from, Report* report) {
  const auto index = CreateIndex({});
  MemorySampler sampler(index.get());
  const auto slots = OpenSlots(index.get(), workers);
  // Small on purpose: the bench's own memory must not count as the index's.
  constexpr std::uint64_t kStep = 10'000;
  const auto holder = [&](std::uint64_t block, std::uint32_t which) {
    // Three different ones: a third of the workers each.
    const std::uint64_t random = BlockAt(block * 8 + which + (std::uint64_t{1} << 60));
    const std::uint64_t share = workers / holders;
    return static_cast<std::uint32_t>(which * share + random % share);
  };
  std::vector<std::vector<ChainHash>> per_slot(workers);
  const auto for_each_slot = [&](std::uint64_t first, std::uint64_t count, bool all,
                                 const std::function<void(Slot, std::span<const ChainHash>)>& fn) {
    for (auto& hashes : per_slot) hashes.clear();
    for (std::uint64_t block = first; block < first + count; ++block) {
      if (!all && block % 10 == 0) continue;
      for (std::uint32_t which = 0; which < holders; ++which) {
        per_slot[holder(block, which)].push_back(BlockAt(block));
      }
    }
    for (std::uint32_t i = 0; i < workers; ++i) {
      if (!per_slot[i].empty()) fn(slots[i], per_slot[i]);
    }
  };
  for (std::uint64_t first = 0; first < blocks; first += kStep) {
    for_each_slot(first, kStep, true, [&](Slot slot, std::span<const ChainHash> hashes) {
      index->Apply(slot, Tier::kGpu, {}, hashes);
    });
    if ((first + kStep) * holders >= sample_from) {
      sampler.Sample();
    } else {
      index->Maintain(100'000);
    }
  }
  report->Add("pairs", static_cast<double>(index->Stats().pairs));
  report->Add("distinct_sets", static_cast<double>(index->Stats().sets));
  sampler.Add(report);
  for (std::uint64_t first = 0; first < blocks; first += kStep) {
    for_each_slot(first, kStep, false, [&](Slot slot, std::span<const ChainHash> hashes) {
      index->Apply(slot, Tier::kGpu, hashes, {});
    });
    index->Maintain(100'000);
  }
  const auto start = SteadyClock::now();
  Settle(index.get());
  report->Add("seconds_to_settle_after_removal", SecondsSince(start));
  report->Add("percent_of_peak_after_removing_90_percent",
              100.0 * static_cast<double>(index->Stats().bytes) /
                  static_cast<double>(sampler.peak_bytes()));
  report->Add("resident_percent_of_peak",
              100.0 * static_cast<double>(ResidentBytes() - sampler.resident_before()) /
                  static_cast<double>(sampler.peak_bytes()));
}

void MemoryCell(Report* report) {
  report->BeginGroup("one_holder");
  MeasureHolders(64, 1, 12 * kMillion, 5 * kMillion, report);
  report->EndGroup();
  report->BeginGroup("three_random_holders_of_1000");
  MeasureHolders(999, 3, 4 * kMillion, 5 * kMillion, report);
  report->EndGroup();
}

void BoundCell(Report* report) {
  constexpr std::uint64_t kBound = std::uint64_t{64} << 20;
  const std::uint64_t resident_before = ResidentBytes();
  const auto index = CreateIndex({.bound_bytes = kBound});
  const auto slots = OpenSlots(index.get(), 16);
  std::uint64_t refused_after = 0;
  std::uint64_t most = 0;
  for (std::uint64_t first = 0; first < 8 * kMillion; first += 1000) {
    const auto result =
        index->Apply(slots[first / 1000 % 16], Tier::kGpu, {}, BlocksAt(first, 1000));
    if (result.refused > 0 && refused_after == 0) refused_after = first;
    if (first % 100'000 == 0) index->Maintain(100'000);
    most = std::max(most, index->Stats().bytes);
  }
  report->Add("bound_bytes", kBound);
  report->Add("most_bytes", static_cast<double>(most));
  report->Add("most_resident_bytes", static_cast<double>(ResidentBytes() - resident_before));
  report->Add("pairs_at_first_refusal", static_cast<double>(refused_after));
  report->Add("pairs", static_cast<double>(index->Stats().pairs));
}

void LeaveCell(Report* report) {
  constexpr std::uint32_t kWorkers = 64;
  constexpr std::uint64_t kBlocks = 100'000;
  constexpr std::size_t kChain = 200;
  const auto index = CreateIndex({});
  const auto slots = OpenSlots(index.get(), kWorkers);
  for (std::uint32_t worker = 0; worker < kWorkers; ++worker) {
    // Each shares half of its blocks with its neighbour.
    index->Apply(slots[worker], Tier::kGpu, {}, BlocksAt(worker * kBlocks / 2, kBlocks));
  }
  const auto read = [&](const std::function<bool()>& more) {
    std::vector<double> latencies;
    latencies.reserve(std::size_t{1} << 22);
    MatchSegments segments;
    Random random(3);
    std::uint64_t wrong = 0;
    while (more()) {
      const auto chain = BlocksAt(random.Below(kWorkers * kBlocks / 2 - kChain), kChain);
      const auto begin = SteadyClock::now();
      VerifiedLookup(*index, chain, &segments, &wrong);
      latencies.push_back(
          std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count());
    }
    std::sort(latencies.begin(), latencies.end());
    return latencies;
  };
  int left = 200'000;
  const auto quiet = read([&] { return --left > 0; });
  std::atomic<bool> swept{false};
  std::vector<double> masked;
  double sweep_seconds = 0;
  std::thread leaver([&] {
    const auto start = SteadyClock::now();
    for (int i = 0; i < 16; ++i) {
      const auto begin = SteadyClock::now();
      index->CloseSlot(slots[static_cast<std::size_t>(i)]);
      masked.push_back(
          std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count());
      while (index->Maintain(100'000)) std::this_thread::yield();
    }
    sweep_seconds = SecondsSince(start) / 16;
    swept = true;
  });
  const auto during = read([&] { return !swept; });
  leaver.join();
  std::sort(masked.begin(), masked.end());
  report->Add("mask_us_median", Percentile(masked, 0.5));
  report->Add("mask_us_max", masked.back());
  report->Add("sweep_ms_mean", sweep_seconds * 1e3);
  report->Add("lookup_p50_us_quiet", Percentile(quiet, 0.5));
  report->Add("lookup_p99_us_quiet", Percentile(quiet, 0.99));
  report->Add("lookup_p50_us_during_sweep", Percentile(during, 0.5));
  report->Add("lookup_p99_us_during_sweep", Percentile(during, 0.99));
}

void ScaleCell(std::uint64_t pairs, std::uint32_t exact_blocks, Report* report) {
  constexpr std::uint32_t kWorkers = 1000;
  constexpr std::size_t kHead = 16;    // blocks that all workers hold
  constexpr std::size_t kChain = 750;  // blocks of one prompt
  constexpr std::size_t kShared = 4;   // workers that hold each prompt's first half
  const std::uint64_t resident_before = ResidentBytes();
  const auto index = CreateIndex({.exact_blocks = exact_blocks});
  const auto slots = OpenSlots(index.get(), kWorkers);
  const auto head = BlocksAt(std::uint64_t{1} << 50, kHead);
  for (const Slot slot : slots) index->Apply(slot, Tier::kGpu, {}, head);
  // Prompt p: the head, then its own blocks; held whole by one worker, and half by three others.
  const auto prompt = [&](std::uint64_t p) {
    std::vector<ChainHash> chain = head;
    for (std::size_t i = kHead; i < kChain; ++i) chain.push_back(BlockAt(p * kChain + i));
    return chain;
  };
  const std::uint64_t per_prompt = (kChain - kHead) + (kShared - 1) * (kChain / 2 - kHead);
  const std::uint64_t prompts = pairs / per_prompt;
  std::uint64_t events = 0;
  const auto start = SteadyClock::now();
  for (std::uint64_t p = 0; p < prompts; ++p) {
    const auto chain = prompt(p);
    const std::span<const ChainHash> all(chain);
    for (std::size_t k = 0; k < kShared; ++k) {
      const auto part = all.subspan(kHead, (k == 0 ? kChain : kChain / 2) - kHead);
      index->Apply(slots[BlockAt(p * 16 + k) % kWorkers], Tier::kGpu, {}, part);
      events += part.size();
    }
    if (p % 64 == 0) index->Maintain(100'000);
  }
  report->Add("stores_per_s", static_cast<double>(events) / SecondsSince(start));
  Settle(index.get());
  const IndexStats stats = index->Stats();
  report->Add("pairs", static_cast<double>(stats.pairs));
  report->Add("blocks", static_cast<double>(stats.blocks));
  report->Add("sets", static_cast<double>(stats.sets));
  report->Add("bytes", static_cast<double>(stats.bytes));
  report->Add("resident_bytes", static_cast<double>(ResidentBytes() - resident_before));
  report->Add("bytes_per_pair",
              static_cast<double>(stats.bytes) / static_cast<double>(stats.pairs));
  report->Add("bytes_per_block",
              static_cast<double>(stats.bytes) / static_cast<double>(stats.blocks));
  Random random(5);
  std::uint64_t wrong = 0;
  std::vector<double> segments_us;
  std::vector<double> match_us;
  std::vector<double> slots_us;
  MatchSegments segments;
  MatchResult result;
  for (int i = 0; i < 50'000; ++i) {
    const auto chain = prompt(random.Below(prompts));
    auto begin = SteadyClock::now();
    VerifiedLookup(*index, chain, &segments, &wrong);
    segments_us.push_back(
        std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count());
    auto other = prompt(random.Below(prompts));
    begin = SteadyClock::now();
    index->MatchGpu(other, &segments);
    match_us.push_back(
        std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count());
    other = prompt(random.Below(prompts));
    begin = SteadyClock::now();
    index->Match(other, &result);
    slots_us.push_back(
        std::chrono::duration<double, std::micro>(SteadyClock::now() - begin).count());
  }
  std::sort(segments_us.begin(), segments_us.end());
  std::sort(match_us.begin(), match_us.end());
  std::sort(slots_us.begin(), slots_us.end());
  report->Add("verified_lookup_p50_us", Percentile(segments_us, 0.5));
  report->Add("verified_lookup_p99_us", Percentile(segments_us, 0.99));
  report->Add("match_p50_us", Percentile(match_us, 0.5));
  report->Add("match_p99_us", Percentile(match_us, 0.99));
  report->Add("match_all_slots_p50_us", Percentile(slots_us, 0.5));
  report->Add("match_all_slots_p99_us", Percentile(slots_us, 0.99));
  report->Add("calib_random_read_ns", CalibrateRandomRead(/*huge_pages=*/false));
  report->Add("calib_random_read_huge_ns", CalibrateRandomRead(/*huge_pages=*/true));
}

void HashCell(Report* report) {
  constexpr std::size_t kTokens = 100'000;
  std::vector<TokenId> tokens(kTokens);
  for (std::size_t i = 0; i < kTokens; ++i) tokens[i] = static_cast<TokenId>(BlockAt(i));
  const auto index = CreateIndex({});
  const auto slots = OpenSlots(index.get(), 64);
  for (const std::uint32_t block : {16u, 32u, 64u, 128u}) {
    std::vector<ChainHash> chain;
    std::vector<double> hashed;
    for (int i = 0; i < 500; ++i) {
      chain.clear();
      const auto begin = SteadyClock::now();
      AppendChain(kHashSeed, block, tokens, {}, &chain);
      hashed.push_back(SecondsSince(begin));
    }
    for (std::size_t worker = 0; worker < slots.size(); ++worker) {
      const std::size_t depth = chain.size() * (worker + 1) / slots.size();
      index->Apply(slots[worker], Tier::kGpu, {}, std::span(chain).first(depth));
    }
    std::vector<double> matched;
    std::vector<double> verified;
    MatchSegments segments;
    std::uint64_t wrong = 0;
    for (int i = 0; i < 1000; ++i) {
      chain.clear();
      const auto begin = SteadyClock::now();
      AppendChain(kHashSeed, block, tokens, {}, &chain);
      if (i % 2 == 0) {
        index->MatchGpu(chain, &segments);
      } else {
        VerifiedLookup(*index, chain, &segments, &wrong);
      }
      (i % 2 == 0 ? matched : verified).push_back(SecondsSince(begin));
    }
    report->BeginGroup("block_" + std::to_string(block));
    report->Add("hash_gigabytes_per_s", kTokens * 4 / Median(hashed) / 1e9);
    report->Add("hash_100k_tokens_us", Median(hashed) * 1e6);
    report->Add("hash_match_100k_tokens_us", Median(matched) * 1e6);
    report->Add("hash_match_verify_100k_tokens_us", Median(verified) * 1e6);
    report->EndGroup();
  }
}

}  // namespace

void Report::Add(std::string_view name, double value) {
  lines_.push_back({Kind::kValue, std::string(name), value});
}
void Report::BeginGroup(std::string_view name) {
  lines_.push_back({Kind::kBegin, std::string(name), 0});
}
void Report::EndGroup() { lines_.push_back({Kind::kEnd, "", 0}); }

void Report::Print(bool json) const {
  int depth = 0;
  bool first = true;
  if (json) std::fputs("{", stdout);
  for (const Line& line : lines_) {
    if (line.kind == Kind::kEnd) {
      --depth;
      if (json) std::fputs("}", stdout);
      first = false;
      continue;
    }
    if (json) {
      std::printf("%s\"%s\": ", first ? "" : ", ", line.name.c_str());
    } else {
      std::printf("%*s%-*s", depth * 2, "", 44 - depth * 2, line.name.c_str());
    }
    if (line.kind == Kind::kBegin) {
      std::fputs(json ? "{" : "\n", stdout);
      ++depth;
      first = true;
      continue;
    }
    const bool whole = std::floor(line.value) == line.value || std::abs(line.value) >= 1e5;
    std::printf(whole ? "%.0f" : "%.3f", line.value);
    if (!json) std::fputs("\n", stdout);
    first = false;
  }
  if (json) std::fputs("}\n", stdout);
}

bool RunCell(std::string_view cell, std::uint64_t pairs, std::uint32_t exact_blocks,
             Report* report) {
  if (cell == "memory") {
    MemoryCell(report);
  } else if (cell == "bound") {
    BoundCell(report);
  } else if (cell == "leave") {
    LeaveCell(report);
  } else if (cell == "scale") {
    ScaleCell(pairs, exact_blocks, report);
  } else if (cell == "hash") {
    HashCell(report);
  } else {
    return false;
  }
  return true;
}

}  // namespace warmpath::bench
