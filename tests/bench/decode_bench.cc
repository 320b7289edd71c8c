// What one engine message costs the agent: decoding, applying, and writing it to the state file.
// Messages are those of a full cache at work: each stores 8 chained blocks of 16 tokens and removes
// the 8 blocks stored longest ago.
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <unistd.h>

#include "client/agent/canonical/canonical.h"
#include "client/agent/events/vllm_decoder.h"
#include "client/agent/feed/payload_hash.h"
#include "client/agent/feed/state_journal.h"
#include "core/base/random.h"
#include "tests/client/agent/events/msgpack_writer.h"

namespace warmpath {
namespace {

constexpr std::uint32_t kBlock = 16;
constexpr std::size_t kBlocksPerMessage = 8;
constexpr std::size_t kCacheMessages = 2000;  // 16,000 blocks, 256k tokens
constexpr std::size_t kMessages = 3 * kCacheMessages;

std::vector<std::string> MakePayloads() {
  Random random(1);
  std::vector<std::string> payloads;
  std::vector<std::vector<EngineHash>> stored;
  for (std::size_t i = 0; i < kMessages; ++i) {
    BlockStored store;
    store.block_size = kBlock;
    for (std::size_t b = 0; b < kBlocksPerMessage; ++b) store.block_hashes.push_back(random());
    for (std::size_t t = 0; t < kBlocksPerMessage * kBlock; ++t) {
      store.token_ids.push_back(static_cast<TokenId>(random.Below(150000)));
    }
    stored.push_back(store.block_hashes);
    std::vector<EngineEvent> events;
    if (i >= kCacheMessages) {
      BlockRemoved removed;
      removed.block_hashes = stored[i - kCacheMessages];
      events.emplace_back(std::move(removed));
    }
    events.emplace_back(std::move(store));
    payloads.push_back(testing::EncodeBatch(events, static_cast<double>(i)));
  }
  return payloads;
}

const std::vector<std::string>& Payloads() {
  static const auto* const payloads = new std::vector<std::string>(MakePayloads());
  return *payloads;
}

CanonicalOptions Options(std::int64_t routing_block) {
  CanonicalOptions options;
  options.routing_block = static_cast<std::uint32_t>(routing_block);
  return options;
}

void BM_Decode(benchmark::State& state) {
  std::size_t i = kCacheMessages;
  for (auto _ : state) {
    benchmark::DoNotOptimize(DecodeKvEvents(Payloads()[i]));
    if (++i == kMessages) i = kCacheMessages;
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Decode);

// Argument: routing block. The stream starts over when it ends, on a cleared map.
void BM_DecodeAndApply(benchmark::State& state) {
  Canonical canonical(Options(state.range(0)));
  std::size_t i = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(canonical.Apply(*DecodeKvEvents(Payloads()[i])));
    if (++i == kMessages) {
      state.PauseTiming();
      canonical.Clear();
      i = 0;
      state.ResumeTiming();
    }
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["bytes_per_block"] =
      static_cast<double>(canonical.bytes()) / static_cast<double>(canonical.blocks() + 1);
}
BENCHMARK(BM_DecodeAndApply)->Arg(16)->Arg(64);

void BM_WithStateFile(benchmark::State& state) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("decode_bench." + std::to_string(::getpid()));
  Canonical canonical(Options(16));
  FeedPosition position;
  auto journal = StateJournal::Open(path, {}, 1, position, canonical);
  if (!journal.ok()) {
    state.SkipWithError(std::string(journal.status().message()).c_str());
    return;
  }
  std::size_t i = 0;
  for (auto _ : state) {
    const std::string& payload = Payloads()[i];
    canonical.Apply(*DecodeKvEvents(payload));
    if (!(*journal)->AppendBatch(i, PayloadHash(payload), payload).ok()) {
      state.SkipWithError("can not write");
      break;
    }
    if ((*journal)->WantsCompaction() && !(*journal)->Reset(1, position, canonical).ok()) {
      state.SkipWithError("can not rewrite");
      break;
    }
    if (++i == kMessages) {
      canonical.Clear();
      i = 0;
    }
  }
  state.SetItemsProcessed(state.iterations());
  std::filesystem::remove(path);
}
BENCHMARK(BM_WithStateFile);

}  // namespace
}  // namespace warmpath

BENCHMARK_MAIN();
