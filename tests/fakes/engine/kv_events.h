// vLLM's KV cache events and their two wire forms.
//  - kMap: vLLM since June 2026 (#42892): an outer array of tagged maps, unset defaults omitted.
//  - kPositional: the last form before it (May 2026, #40984): arrays of all slots, nil when unset.
// Field order and tags are those of vllm/distributed/kv_events.py.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_KV_EVENTS_H_
#define WARMPATH_TESTS_FAKES_ENGINE_KV_EVENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/ids.h"

namespace warmpath::engine {

enum class EventFormat : std::uint8_t { kMap, kPositional };

// "map" or "positional".
absl::StatusOr<EventFormat> ParseEventFormat(std::string_view name);

// Consecutive full blocks of one request.
struct BlockStored {
  std::vector<std::uint64_t> hashes;
  std::optional<std::uint64_t> parent;  // Hash of the block before the first; none at token 0.
  std::vector<TokenId> tokens;
  std::uint32_t block_size = 0;
  std::optional<std::uint32_t> lora_id;
  std::optional<std::string> lora_name;
  // One entry per block: LoRA name, then the cache salt on the block at token 0; empty means nil.
  std::vector<std::vector<std::string>> extra_keys;
};

struct BlockRemoved {
  std::uint64_t hash = 0;
};

struct AllBlocksCleared {};

using KvEvent = std::variant<BlockStored, BlockRemoved, AllBlocksCleared>;

// The payload of one message: KVEventBatch(ts, events, data_parallel_rank). `ts` is Unix seconds.
// All events are of the GPU tier and of cache group 0, full attention.
std::string EncodeBatch(double ts, const std::vector<KvEvent>& events, Rank rank,
                        EventFormat format);

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_KV_EVENTS_H_
