// The small value types that name things in every room.
#ifndef WARMPATH_CORE_BASE_IDS_H_
#define WARMPATH_CORE_BASE_IDS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace warmpath {

// The name of one full routing block together with everything before it
// (core/hashing/chain_hash.h). Equal hashes mean equal prefixes.
using ChainHash = std::uint64_t;

using TokenId = std::uint32_t;

// What the hashes of a chain were made of. Chains of text are an estimate of what an engine will
// see, are known to this router only, and are never compared with chains of tokens.
enum class ChainKind : std::uint8_t { kTokens, kText };
inline constexpr std::size_t kChainKindCount = 2;

// Where a cached block lies, fastest first. Values are those of proto Tier minus one.
enum class Tier : std::uint8_t { kGpu = 0, kHost = 1, kDisk = 2, kExternal = 3 };
inline constexpr std::size_t kTierCount = 4;
inline constexpr std::array<Tier, kTierCount> kAllTiers = {Tier::kGpu, Tier::kHost, Tier::kDisk,
                                                           Tier::kExternal};

constexpr std::string_view TierName(Tier tier) {
  switch (tier) {
    case Tier::kGpu:
      return "gpu";
    case Tier::kHost:
      return "host";
    case Tier::kDisk:
      return "disk";
    case Tier::kExternal:
      return "external";
  }
  return "unknown";
}

// Draws of the agent: Unix nanoseconds when it first met an engine process.
// A larger epoch of one target is a newer engine process with an empty cache.
using Epoch = std::uint64_t;

// Drawn by the router for each accepted Register; updates of other sessions are dropped.
using SessionId = std::uint64_t;

// Data-parallel rank inside a worker. Target = (worker, rank).
using Rank = std::uint32_t;

// A reservation's name, unique in one router process. Never 0.
using ReservationId = std::uint64_t;

}  // namespace warmpath

#endif  // WARMPATH_CORE_BASE_IDS_H_
