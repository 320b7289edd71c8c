// What a Register must look like before anything is done with it.
#ifndef WARMPATH_CORE_FLEET_REGISTRATION_H_
#define WARMPATH_CORE_FLEET_REGISTRATION_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "core/fleet/fleet.h"
#include "core/fleet/worker.h"

namespace warmpath {

// The version of WorkerEvents that this router speaks.
inline constexpr std::uint32_t kProtocolVersion = 1;

inline constexpr std::size_t kMaxWorkerIdBytes = 128;
inline constexpr std::size_t kMaxNameBytes = 256;  // models, aliases, adapters
inline constexpr std::size_t kMaxAliases = 64;
inline constexpr std::size_t kMaxLoras = 1024;
inline constexpr std::size_t kMaxLabels = 64;
inline constexpr std::size_t kMaxRanks = 256;
// All strings of one Register together; adapters count once for each rank, as they are kept.
inline constexpr std::size_t kMaxTextBytes = 256 << 10;
inline constexpr std::uint32_t kMaxBlockSize = 1 << 20;
// A reservation's id has room for so many pools and so many open reservations of each.
inline constexpr std::uint32_t kMaxPools = 65'535;
inline constexpr std::uint32_t kMaxReservationsPerPool = (1u << 21) - 1;

// INVALID_ARGUMENT naming the field and the limit; FAILED_PRECONDITION for the protocol version.
absl::Status ValidateRegistration(const Registration& registration);

// INVALID_ARGUMENT for what is no Unix time in nanoseconds. One past the year 2262 would lock its
// worker's later epochs out.
absl::Status CheckEpoch(std::string_view field, Epoch epoch);

// INVALID_ARGUMENT naming the setting and its bounds.
absl::Status ValidateFleetConfig(const FleetConfig& config);

// B for a pool whose first worker registers this: the configured one, else the smallest multiple
// of the first rank's engine block that is >= 64. The registration must be valid.
std::uint32_t DeriveBlockSize(const PoolConfig& config, const Registration& registration);

// FAILED_PRECONDITION naming both sizes and the setting when a rank's engine block does not divide
// the pool's routing block.
absl::Status CheckBlockSizes(const PoolConfig& config, std::uint32_t routing_block_size,
                             const Registration& registration);

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_REGISTRATION_H_
