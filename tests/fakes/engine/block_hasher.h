// Engine block hashes: opaque 64-bit names of a full block and all before it, seeded so that they
// differ between processes and ranks, as vLLM's do when NONE_HASH is random.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_BLOCK_HASHER_H_
#define WARMPATH_TESTS_FAKES_ENGINE_BLOCK_HASHER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/ids.h"
#include "core/replay/block_cache.h"
#include "tests/fakes/engine/cache_history.h"

namespace warmpath::engine {

// Hashes of all full blocks of `tokens`. Distinct domains never share a hash.
std::vector<BlockKey> HashBlocks(std::uint64_t seed, const HashDomain& domain,
                                 std::span<const TokenId> tokens, std::uint32_t block_size);

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_BLOCK_HASHER_H_
