// Token ids -> chain hashes of routing blocks, exactly as docs/semantics.md ("Hash domain") and
// proto/README.md define them. Without LoRA and salt this is the definition that NVIDIA Dynamo, SMG
// and the Mooncake Conductor share: XXH3-64 with seed 1337 over u32le token ids, chained.
#ifndef WARMPATH_CORE_HASHING_CHAIN_HASH_H_
#define WARMPATH_CORE_HASHING_CHAIN_HASH_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/ids.h"

namespace warmpath {

inline constexpr std::uint64_t kHashSeed = 1337;

// Seed of local hashes: 1337 without LoRA and salt, else derived from both. An absent name and an
// empty one are different domains.
std::uint64_t DomainSeed(std::optional<std::string_view> lora,
                         std::optional<std::string_view> salt);

// One multimodal item of a prompt: `id` is the engine's content identifier; it covers tokens
// [start, start + length).
struct MultimodalItem {
  std::string_view id;
  std::int64_t start = 0;
  std::int64_t length = 0;
};

// Hash of one block's own content. `items` are those that overlap the block, ordered by start;
// `block_start` is the position of the block's first token in the prompt.
std::uint64_t LocalHash(std::uint64_t domain_seed, std::span<const TokenId> tokens,
                        std::span<const MultimodalItem> items = {}, std::int64_t block_start = 0);

// chain[0] = local[0]; chain[i] = XXH3-64, seed 1337, of chain[i-1] u64le || local[i] u64le.
ChainHash ExtendChain(ChainHash parent, std::uint64_t local);

// Hashes every full block of `block_size` tokens; the partial tail is not hashed. Appends to
// *chain. REQUIRES: block_size > 0. Items must be ordered by start.
void AppendChain(std::uint64_t domain_seed, std::uint32_t block_size,
                 std::span<const TokenId> tokens, std::span<const MultimodalItem> items,
                 std::vector<ChainHash>* chain);

// --- Text, while no tokenizer is at hand (core/prompt/canonical_text.h). Such chains never leave
// the router, and no engine's events contain them.

// Seed of text chunks; a seed of its own, so that no text is taken for tokens. `model` is the
// pool's name, not the alias that a request used: aliases share their caches.
std::uint64_t TextDomainSeed(std::string_view model, std::optional<std::string_view> lora,
                             std::optional<std::string_view> salt);

// Like AppendChain, for each full chunk of `chunk_bytes` bytes. REQUIRES: chunk_bytes > 0.
void AppendTextChain(std::uint64_t text_domain_seed, std::size_t chunk_bytes, std::string_view text,
                     std::vector<ChainHash>* chain);

}  // namespace warmpath

#endif  // WARMPATH_CORE_HASHING_CHAIN_HASH_H_
