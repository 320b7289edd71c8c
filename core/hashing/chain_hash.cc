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
#if defined(__GNUC__) && defined(__x86_64__)
  // What is below, but that g++ 12 moves halves of products through memory, and each step of a
  // chain would wait for it.
  std::uint64_t high;
  asm("mulq %2" : "+a"(a), "=d"(high) : "rm"(b) : "cc");
  return a ^ high;
#else
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
#endif
}

// XXH3-64 of one block of tokens (or text) after another, all of one size and seed. What depends on
// the seed alone is computed once for a prompt instead of once for a block.
//
// For blocks of kLanes times 16 bytes, an even number of lanes up to 8 (XXH3_len_17to128_64b): each
// lane is one folded product, and the secret words with the seed mixed in are known beforehand.
template <std::size_t kLanes>
class LaneHasher {
 public:
  explicit LaneHasher(std::uint64_t seed) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      // XXH3 takes pairs of lanes, the first and the last, then the next ones towards the middle.
      const std::size_t offset = lane < kLanes / 2 ? 32 * lane : 32 * (kLanes - 1 - lane) + 16;
      words_[lane][0] = LoadWord(XXH3_kSecret + offset) + seed;
      words_[lane][1] = LoadWord(XXH3_kSecret + offset + 8) - seed;
    }
  }
  std::uint64_t Hash(const char* block) const {
    std::uint64_t sum = 16 * kLanes * XXH_PRIME64_1;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sum += FoldedProduct(LoadWord(block + 16 * lane) ^ words_[lane][0],
                           LoadWord(block + 16 * lane + 8) ^ words_[lane][1]);
    }
    return XXH3_avalanche(sum);
  }

 private:
  std::uint64_t words_[kLanes][2];
};

// Any size. Above 240 bytes it is the 192-byte secret that XXH3 derives from the seed.
class AnyHasher {
 public:
  AnyHasher(std::uint64_t seed, std::size_t block_bytes) : seed_(seed), bytes_(block_bytes) {
    if (bytes_ > kMidSizeMax) XXH3_generateSecret_fromSeed(secret_, seed);
  }
  std::uint64_t Hash(const char* block) const {
    if (bytes_ <= kMidSizeMax) return XXH3_64bits_withSeed(block, bytes_, seed_);
    return XXH3_64bits_withSecretandSeed(block, bytes_, secret_, sizeof(secret_), seed_);
  }

 private:
  static constexpr std::size_t kMidSizeMax = 240;  // XXH3_MIDSIZE_MAX

  const std::uint64_t seed_;
  const std::size_t bytes_;
  alignas(64) char secret_[XXH3_SECRET_DEFAULT_SIZE];
};

// Writes the chain over `blocks` blocks, the first of which is a root, to `out`.
//
// Each step waits for the one before it, and their latencies alone take most of the time; local
// hashes are computed in their shadow. So the steps are written out (XXH3_len_9to16_64b with
// kHashSeed): what can be done before the parent is known is, and the parent's last mixing,
// h ^ h >> 32, and the first use of it, which is another xor, are one.
template <typename Hasher>
[[gnu::always_inline]] inline void WriteChain(const Hasher& hasher, const char* data,
                                              std::size_t block_bytes, std::size_t blocks,
                                              ChainHash* out) {
  const std::uint64_t low = (LoadWord(XXH3_kSecret + 24) ^ LoadWord(XXH3_kSecret + 32)) + kHashSeed;
  const std::uint64_t high =
      (LoadWord(XXH3_kSecret + 40) ^ LoadWord(XXH3_kSecret + 48)) - kHashSeed;
  out[0] = hasher.Hash(data);
  std::uint64_t low_word = out[0] ^ low;
  for (std::size_t i = 1; i < blocks; ++i) {
    const std::uint64_t high_word = hasher.Hash(data + i * block_bytes) ^ high;
    std::uint64_t h = FoldedProduct(low_word, high_word) +
                      (__builtin_bswap64(low_word) + (high_word + 2 * sizeof(ChainHash)));
    h = (h ^ h >> 37) * 0x165667919E3779F9ULL;  // as XXH3_avalanche
    low_word = (h ^ low) ^ h >> 32;
    out[i] = h ^ h >> 32;
  }
}

// REQUIRES: blocks > 0.
void WriteChain(std::uint64_t seed, const char* data, std::size_t block_bytes, std::size_t blocks,
                ChainHash* out) {
  switch (block_bytes) {
    case 64:
      return WriteChain(LaneHasher<4>(seed), data, block_bytes, blocks, out);
    case 128:
      return WriteChain(LaneHasher<8>(seed), data, block_bytes, blocks, out);
    default:
      return WriteChain(AnyHasher(seed, block_bytes), data, block_bytes, blocks, out);
  }
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
  const std::size_t chunks = text.size() / chunk_bytes;
  if (chunks == 0) return;
  const std::size_t old_size = chain->size();
  chain->resize(old_size + chunks);
  WriteChain(text_domain_seed, text.data(), chunk_bytes, chunks, chain->data() + old_size);
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
    WriteChain(domain_seed, reinterpret_cast<const char*>(tokens.data()),
               std::size_t{block_size} * sizeof(TokenId), blocks, out);
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
