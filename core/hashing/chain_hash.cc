#include "core/hashing/chain_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace warmpath {
namespace {

// Hash inputs are little-endian by definition; on such machines arrays are hashed in place.
static_assert(std::endian::native == std::endian::little,
              "chain hashes are defined over little-endian words");

// The terminating zero of the literal is part of the prefix.
constexpr char kDomainPrefix[] = "warmpath-domain-v1";
constexpr std::uint32_t kAbsent = 0xFFFFFFFF;

template <typename T>
void AppendWord(T value, std::string* out) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out->append(bytes, sizeof(T));
}

void AppendName(std::optional<std::string_view> name, std::string* out) {
  if (!name.has_value()) {
    AppendWord(kAbsent, out);
    return;
  }
  AppendWord(static_cast<std::uint32_t>(name->size()), out);
  out->append(*name);
}

}  // namespace

std::uint64_t DomainSeed(std::optional<std::string_view> lora,
                         std::optional<std::string_view> salt) {
  if (!lora.has_value() && !salt.has_value()) return kHashSeed;
  std::string input(kDomainPrefix, sizeof(kDomainPrefix));
  AppendName(lora, &input);
  AppendName(salt, &input);
  return XXH3_64bits_withSeed(input.data(), input.size(), kHashSeed);
}

std::uint64_t LocalHash(std::uint64_t domain_seed, std::span<const TokenId> tokens,
                        std::span<const MultimodalItem> items, std::int64_t block_start) {
  if (items.empty()) {
    return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), domain_seed);
  }
  std::string input(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  for (const MultimodalItem& item : items) {
    AppendName(item.id, &input);
    AppendWord(item.start - block_start, &input);
  }
  return XXH3_64bits_withSeed(input.data(), input.size(), domain_seed);
}

ChainHash ExtendChain(ChainHash parent, std::uint64_t local) {
  const std::uint64_t words[2] = {parent, local};
  return XXH3_64bits_withSeed(words, sizeof(words), kHashSeed);
}

void AppendChain(std::uint64_t domain_seed, std::uint32_t block_size,
                 std::span<const TokenId> tokens, std::span<const MultimodalItem> items,
                 std::vector<ChainHash>* chain) {
  const std::size_t blocks = tokens.size() / block_size;
  chain->reserve(chain->size() + blocks);
  std::vector<MultimodalItem> overlapping;
  std::size_t first = 0;  // items before this one end before every later block
  ChainHash parent = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const auto start = static_cast<std::int64_t>(i * block_size);
    const std::int64_t end = start + block_size;
    overlapping.clear();
    while (first < items.size() && items[first].start + items[first].length <= start) ++first;
    for (std::size_t k = first; k < items.size() && items[k].start < end; ++k) {
      if (items[k].start + items[k].length > start) overlapping.push_back(items[k]);
    }
    const std::uint64_t local =
        LocalHash(domain_seed, tokens.subspan(i * block_size, block_size), overlapping, start);
    parent = i == 0 ? local : ExtendChain(parent, local);
    chain->push_back(parent);
  }
}

}  // namespace warmpath
