#include "tests/bench/index_bench_corpus.h"

#include <algorithm>
#include <cstdio>
#include <list>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/base/random.h"
#include "core/replay/trace.h"

namespace warmpath::bench {
namespace {

ChainHash BlockOf(std::uint64_t copy, std::uint64_t id, std::uint64_t part) {
  std::uint64_t z = (copy << 56) ^ (id << 16) ^ part;
  z = (z ^ (z >> 31)) * 0x7FB5D329728EA185ULL;
  z = (z ^ (z >> 27)) * 0x81DADEF4BC2DD44DULL;
  z ^= z >> 33;
  return z == 0 ? 1 : z;
}

// An LRU cache of block hashes.
class WorkerCache {
 public:
  explicit WorkerCache(std::size_t capacity) : capacity_(capacity) {}

  // Stored blocks in chain order; evicted ones in the order of their eviction.
  void Take(std::span<const ChainHash> chain, std::vector<ChainHash>* stored,
            std::vector<ChainHash>* evicted) {
    // Blocks beyond the capacity cannot be held along with those before them.
    chain = chain.first(std::min(chain.size(), capacity_));
    for (const ChainHash hash : chain) {
      if (!places_.contains(hash)) stored->push_back(hash);
    }
    for (std::size_t i = chain.size(); i-- > 0;) {
      const auto [it, fresh] = places_.try_emplace(chain[i]);
      if (!fresh) order_.erase(it->second);
      order_.push_front(chain[i]);
      it->second = order_.begin();
    }
    while (places_.size() > capacity_) {
      evicted->push_back(order_.back());
      places_.erase(order_.back());
      order_.pop_back();
    }
  }

 private:
  const std::size_t capacity_;
  std::list<ChainHash> order_;  // last used first
  absl::flat_hash_map<ChainHash, std::list<ChainHash>::iterator> places_;
};

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

}  // namespace

absl::StatusOr<Corpus> BuildCorpus(const CorpusOptions& options) {
  const auto rows = ReadTrace(options.trace, 0);
  if (!rows.ok()) return rows.status();
  Corpus corpus;
  std::vector<WorkerCache> caches(options.workers, WorkerCache(options.blocks_per_worker));
  Random random(1);
  const auto keep = [&corpus](std::vector<ChainHash> hashes) -> std::span<const ChainHash> {
    if (hashes.empty()) return {};
    corpus.storage.push_back(std::move(hashes));
    return corpus.storage.back();
  };
  for (const TraceRow& row : *rows) {
    for (std::uint32_t copy = 0; copy < options.duplication; ++copy) {
      std::vector<ChainHash> chain;
      chain.reserve(row.hash_ids.size() * options.length_factor);
      for (const std::uint64_t id : row.hash_ids) {
        for (std::uint32_t part = 0; part < options.length_factor; ++part) {
          chain.push_back(BlockOf(copy, id, part));
        }
      }
      if (chain.empty()) continue;
      const auto worker = static_cast<std::uint32_t>(random.Below(options.workers));
      std::vector<ChainHash> stored;
      std::vector<ChainHash> evicted;
      caches[worker].Take(chain, &stored, &evicted);
      corpus.query_blocks += chain.size();
      corpus.stored_blocks += stored.size();
      corpus.removed_blocks += evicted.size();
      // What is stored is the chain's end: whole prefixes are resident. (A cache smaller than the
      // chain apart, which the position only informs.)
      std::uint32_t position = 0;
      while (!stored.empty() && chain[position] != stored.front()) ++position;
      const ChainHash parent = position == 0 ? 0 : chain[position - 1];
      corpus.queries.push_back(keep(std::move(chain)));
      const auto removed = keep(std::move(evicted));
      if (options.batched_removals) {
        if (!removed.empty() || !stored.empty()) {
          corpus.events.push_back({worker, parent, position, removed, keep(std::move(stored))});
        }
      } else {
        for (std::size_t i = 0; i < removed.size(); ++i) {
          corpus.events.push_back({worker, 0, 0, removed.subspan(i, 1), {}});
        }
        if (!stored.empty()) {
          corpus.events.push_back({worker, parent, position, {}, keep(std::move(stored))});
        }
      }
      corpus.events_of_queries.push_back(corpus.events.size());
    }
  }
  return corpus;
}

absl::Status WriteOperations(const Corpus& corpus, const std::string& path) {
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr) return absl::UnavailableError("--write-ops: cannot create " + path);
  const auto put = [&file](const void* data, std::size_t bytes) {
    return std::fwrite(data, 1, bytes, file.get()) == bytes;
  };
  std::uint64_t records = corpus.queries.size();
  for (const Event& event : corpus.events) {
    records += (event.removed.empty() ? 0u : 1u) + (event.stored.empty() ? 0u : 1u);
  }
  const auto record = [&](std::uint8_t kind, std::uint32_t worker, ChainHash parent,
                          std::span<const ChainHash> hashes) {
    const auto n = static_cast<std::uint32_t>(hashes.size());
    return put(&kind, 1) && put(&worker, 4) && put(&parent, 8) && put(&n, 4) &&
           put(hashes.data(), hashes.size_bytes());
  };
  bool good = put("WPOPS001", 8) && put(&records, 8);
  std::size_t next = 0;
  for (std::size_t query = 0; query < corpus.queries.size(); ++query) {
    good = good && record(2, 0, 0, corpus.queries[query]);
    for (; next < corpus.events_of_queries[query]; ++next) {
      const Event& event = corpus.events[next];
      if (!event.removed.empty()) good = good && record(1, event.worker, 0, event.removed);
      if (!event.stored.empty()) good = good && record(0, event.worker, event.parent, event.stored);
    }
  }
  if (!good || std::fflush(file.get()) != 0) {
    return absl::UnavailableError("--write-ops: cannot write all of " + path);
  }
  return absl::OkStatus();
}

}  // namespace warmpath::bench
