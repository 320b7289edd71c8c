// What an engine says about its KV cache, as plain values, in the engine's own terms: its opaque
// block hashes, its block size, its tiers. Decoders produce these; Canonical consumes them.
//
// Wire source: vLLM vllm/distributed/kv_events.py (2025-04 to 2026-09) and SGLang
// disaggregation/kv_events.py. client/agent/events/vllm_decoder.h lists the eras.
#ifndef WARMPATH_CLIENT_AGENT_EVENTS_ENGINE_EVENT_H_
#define WARMPATH_CLIENT_AGENT_EVENTS_ENGINE_EVENT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/ids.h"

namespace warmpath {

// An engine's own name of a block: the low 64 bits of its digest, as the engine sends them.
// Opaque; means something only within one (engine process, rank).
using EngineHash = std::uint64_t;

// One entry of a block's extra_keys: what besides the tokens went into the engine's hash.
struct ExtraKey {
  enum class Kind : std::uint8_t {
    kBare,     // a bare string: the LoRA name (every block) or the cache salt (block at token 0)
    kLora,     // ("lora", name, ...)
    kSalt,     // ("cache_salt", salt)
    kItem,     // (identifier, offset): a multimodal item
    kUnknown,  // bytes (prompt embeddings) or a shape this reader does not know
  };
  Kind kind = Kind::kUnknown;
  std::string text;         // the string, name, salt or identifier; empty for kUnknown
  std::int64_t offset = 0;  // kItem: item start minus block start, tokens; may be negative

  friend bool operator==(const ExtraKey&, const ExtraKey&) = default;
};

struct BlockStored {
  std::vector<EngineHash> block_hashes;
  std::optional<EngineHash> parent_block_hash;  // absent: the first block starts at token 0
  std::vector<TokenId> token_ids;               // of all blocks, in order
  std::uint32_t block_size = 0;                 // tokens; 0 in offload placeholders
  std::optional<std::int64_t> lora_id;
  std::optional<std::string> medium;  // as sent
  Tier tier = Tier::kGpu;             // medium and locality, normalised
  std::optional<std::string> lora_name;
  // One entry per block hash, or none at all when the engine sends no extra keys.
  std::optional<std::vector<std::vector<ExtraKey>>> extra_keys;
  std::optional<std::uint32_t> group_idx;
  std::optional<std::string> kv_cache_spec_kind;
  std::optional<std::int64_t> kv_cache_spec_sliding_window;
  std::optional<std::string> locality;
  std::optional<std::string> ownership;
  std::optional<std::string> session_id;
  std::optional<std::string> cache_salt;  // SGLang names it; vLLM puts it into extra_keys
  std::optional<std::string> origin;      // "NEW" or "REUSED" where the engine says so
};

// One physical copy of each hash went; other copies may remain.
struct BlockRemoved {
  std::vector<EngineHash> block_hashes;
  std::optional<std::string> medium;
  Tier tier = Tier::kGpu;
  std::optional<std::uint32_t> group_idx;
  std::optional<std::string> locality;
  std::optional<std::string> ownership;
};

// The GPU tier of the rank was reset. Says nothing of other tiers.
struct AllBlocksCleared {};

using EngineEvent = std::variant<BlockStored, BlockRemoved, AllBlocksCleared>;

// Why something an engine said was not applied. Label values of
// warmpath_events_skipped_total{cause}.
enum class SkipCause : std::uint8_t {
  kMalformed = 0,  // an event that is not shaped as any known era
  kUnknownType,    // a well-formed event with a tag this reader does not know
  kUnknownMedium,  // a storage medium that maps to no tier
  kGroup,          // a KV group other than full or MLA attention
  kPlaceholder,    // an offload store without tokens
  kMasked,         // more tokens than hashes cover: blocks can not be aligned
  kBlockSize,      // block size does not divide the routing block, or changes inside one
  kBadParent,      // a block that is its own ancestor, or changes its parent
  kOrphanBound,    // unknown parent, and the room for such blocks is full
  kBlockBound,     // more blocks than the memory bound allows
  kUnderflow,      // removal of a copy that was not held
  kHiddenDomain,   // two hashes for one content: an unreported LoRA, salt or item
  kUnknownKey,     // extra keys that this reader can not name (prompt embeddings)
  kCount
};
inline constexpr std::size_t kSkipCauseCount = static_cast<std::size_t>(SkipCause::kCount);

// "malformed", "unknown_type", ...
std::string_view SkipCauseName(SkipCause cause);

// Per cause, how many events (decoder, kGroup, kPlaceholder, kMasked) or blocks (the rest).
struct SkipCounts {
  std::array<std::uint64_t, kSkipCauseCount> by_cause{};

  void Add(SkipCause cause, std::uint64_t n = 1) { by_cause[static_cast<std::size_t>(cause)] += n; }
  std::uint64_t Of(SkipCause cause) const { return by_cause[static_cast<std::size_t>(cause)]; }
  std::uint64_t Total() const {
    std::uint64_t total = 0;
    for (const std::uint64_t n : by_cause) total += n;
    return total;
  }
  SkipCounts& operator+=(const SkipCounts& other) {
    for (std::size_t i = 0; i < kSkipCauseCount; ++i) by_cause[i] += other.by_cause[i];
    return *this;
  }
  friend bool operator==(const SkipCounts&, const SkipCounts&) = default;
};

// One message of an engine: what happened in one scheduler step.
struct EngineBatch {
  double ts = 0;  // Unix seconds on the engine's clock
  // What the payload says; the socket's own rank rules, this is a cross-check.
  std::optional<std::int64_t> rank;
  std::vector<EngineEvent> events;
  SkipCounts skipped;  // events that were left out
};

// Medium (any case, absent = GPU) and locality ("REMOTE" is external) to a tier. False: unknown.
bool ParseTier(std::optional<std::string_view> medium, std::optional<std::string_view> locality,
               Tier* tier);

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_EVENTS_ENGINE_EVENT_H_
