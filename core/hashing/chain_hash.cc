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
constexpr char kTextDomainPrefix[] = "warmpath-text-v1";
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

// Item positions come from outside: differences wrap instead of overflowing.
std::int64_t Difference(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b));
}

// Whether the item, which starts before the block's end, covers a token at or after `start`.
bool EndsAfter(const MultimodalItem& item, std::int64_t start) {
  if (item.length <= 0) return false;
  if (item.start >= start) return true;
  return static_cast<std::uint64_t>(item.length) >
         static_cast<std::uint64_t>(start) - static_cast<std::uint64_t>(item.start);
}

std::uint64_t LoadWord(const void* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// Low half of the 128-bit product, xor its high half.
std::uint64_t FoldedProduct(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// XXH3-64 of one block of tokens (or text) after another, all of one size and seed. What depends on
// the seed alone is computed once for a prompt instead of once for a block:
//  - above 240 bytes, the 192-byte secret that XXH3 derives from the seed;
//  - at exactly 64 bytes (16 tokens, the usual engine block), the secret words with the seed
//    mixed in. XXH3 hashes such an input as four 16-byte lanes, each one folded product.
class LocalHasher {
 public:
  LocalHasher(std::uint64_t seed, std::size_t block_bytes) : seed_(seed), bytes_(block_bytes) {
    if (bytes_ > kMidSizeMax) XXH3_generateSecret_fromSeed(secret_, seed);
    if (bytes_ != kFourLanes) return;
    // Byte offset in the default secret of each lane's pair of words (XXH3_len_17to128_64b).
    constexpr int kSecretOffset[4] = {0, 32, 48, 16};
    for (int lane = 0; lane < 4; ++lane) {
      lane_[lane][0] = LoadWord(XXH3_kSecret + kSecretOffset[lane]) + seed;
      lane_[lane][1] = LoadWord(XXH3_kSecret + kSecretOffset[lane] + 8) - seed;
    }
  }

  std::uint64_t Hash(const void* block) const {
    if (bytes_ == kFourLanes) {
      const auto* input = static_cast<const char*>(block);
      std::uint64_t sum = kFourLanes * XXH_PRIME64_1;
      for (int lane = 0; lane < 4; ++lane) {
        sum += FoldedProduct(LoadWord(input + 16 * lane) ^ lane_[lane][0],
                             LoadWord(input + 16 * lane + 8) ^ lane_[lane][1]);
      }
      return XXH3_avalanche(sum);
    }
    if (bytes_ <= kMidSizeMax) return XXH3_64bits_withSeed(block, bytes_, seed_);
    return XXH3_64bits_withSecretandSeed(block, bytes_, secret_, sizeof(secret_), seed_);
  }

 private:
  static constexpr std::size_t kMidSizeMax = 240;  // XXH3_MIDSIZE_MAX
  static constexpr std::size_t kFourLanes = 64;

  const std::uint64_t seed_;
  const std::size_t bytes_;
  std::uint64_t lane_[4][2];
  alignas(64) char secret_[XXH3_SECRET_DEFAULT_SIZE];
};

}  // namespace

std::uint64_t DomainSeed(std::optional<std::string_view> lora,
                         std::optional<std::string_view> salt) {
  if (!lora.has_value() && !salt.has_value()) return kHashSeed;
  std::string input(kDomainPrefix, sizeof(kDomainPrefix));
  AppendName(lora, &input);
  AppendName(salt, &input);
  return XXH3_64bits_withSeed(input.data(), input.size(), kHashSeed);
}

std::uint64_t TextDomainSeed(std::string_view model, std::optional<std::string_view> lora,
                             std::optional<std::string_view> salt) {
  std::string input(kTextDomainPrefix, sizeof(kTextDomainPrefix));
  AppendName(model, &input);
  AppendName(lora, &input);
  AppendName(salt, &input);
  return XXH3_64bits_withSeed(input.data(), input.size(), kHashSeed);
}

void AppendTextChain(std::uint64_t text_domain_seed, std::size_t chunk_bytes, std::string_view text,
                     std::vector<ChainHash>* chain) {
  const LocalHasher hasher(text_domain_seed, chunk_bytes);
  chain->reserve(chain->size() + text.size() / chunk_bytes);
  ChainHash parent = 0;
  for (std::size_t at = 0; text.size() - at >= chunk_bytes; at += chunk_bytes) {
    const std::uint64_t local = hasher.Hash(text.data() + at);
    parent = at == 0 ? local : ExtendChain(parent, local);
    chain->push_back(parent);
  }
}

std::uint64_t LocalHash(std::uint64_t domain_seed, std::span<const TokenId> tokens,
                        std::span<const MultimodalItem> items, std::int64_t block_start) {
  if (items.empty()) {
    return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), domain_seed);
  }
  std::string input(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  for (const MultimodalItem& item : items) {
    AppendName(item.id, &input);
    AppendWord(Difference(item.start, block_start), &input);
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
  if (blocks == 0) return;
  const std::size_t old_size = chain->size();
  chain->resize(old_size + blocks);
  ChainHash* const out = chain->data() + old_size;
  if (items.empty()) {
    const LocalHasher hasher(domain_seed, std::size_t{block_size} * sizeof(TokenId));
    ChainHash parent = out[0] = hasher.Hash(tokens.data());
    for (std::size_t i = 1; i < blocks; ++i) {
      parent = out[i] = ExtendChain(parent, hasher.Hash(tokens.data() + i * block_size));
    }
    return;
  }
  std::vector<MultimodalItem> overlapping;
  std::size_t first = 0;  // items before this one end before every later block
  ChainHash parent = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    const auto start = static_cast<std::int64_t>(i * block_size);
    const std::int64_t end = start + block_size;
    overlapping.clear();
    while (first < items.size() && items[first].start < end && !EndsAfter(items[first], start)) {
      ++first;
    }
    for (std::size_t k = first; k < items.size() && items[k].start < end; ++k) {
      if (EndsAfter(items[k], start)) overlapping.push_back(items[k]);
    }
    const std::uint64_t local =
        LocalHash(domain_seed, tokens.subspan(i * block_size, block_size), overlapping, start);
    parent = out[i] = i == 0 ? local : ExtendChain(parent, local);
  }
}

}  // namespace warmpath
