#include "tests/fakes/engine/block_hasher.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "xxhash.h"

namespace warmpath::engine {

std::vector<BlockKey> HashBlocks(std::uint64_t seed, const HashDomain& domain,
                                 std::span<const TokenId> tokens, std::uint32_t block_size) {
  // Lengths first, so that no LoRA name and salt can be confused with another pair.
  const auto field = [](const std::optional<std::string>& value) {
    return value ? absl::StrCat(value->size(), ":", *value) : std::string("-");
  };
  const std::string root = field(domain.lora) + field(domain.salt);
  std::uint64_t hash = XXH3_64bits_withSeed(root.data(), root.size(), seed);
  std::vector<BlockKey> keys;
  keys.reserve(tokens.size() / block_size);
  for (std::size_t at = 0; at + block_size <= tokens.size(); at += block_size) {
    hash = XXH3_64bits_withSeed(&tokens[at], block_size * sizeof(TokenId), hash);
    keys.push_back(hash);
  }
  return keys;
}

}  // namespace warmpath::engine
