#include "core/fleet/registration.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/fleet/reservation_table.h"

namespace warmpath {
namespace {

constexpr std::uint32_t kMinRoutingBlock = 64;
constexpr double kMinPrefillRate = 1;  // tokens per second
constexpr double kMaxPrefillRate = 1e9;

static_assert(kMaxReservationsPerPool == ReservationTable::kMaxPlaces);

bool IsWorkerIdChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == ':' || c == '-';
}

// Names and values end up in logs, labels and headers.
bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
}

absl::Status CheckText(std::string_view field, std::string_view text, std::size_t max_bytes,
                       bool required) {
  if (required && text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": must not be empty"));
  }
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(field), ": ", text.size(), " bytes; at most ", max_bytes));
  }
  if (!IsPrintable(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(field), ": must not contain control characters"));
  }
  return absl::OkStatus();
}

// Addresses are handed to load balancers, which put them into headers and connect to them.
bool IsHostAndPort(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view digits = address.substr(colon + 1);
  std::uint32_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  return error == std::errc() && end == digits.data() + digits.size() && port >= 1 &&
         port <= 65'535 && std::none_of(address.begin(), address.end(), [](char c) {
           return c == ' ' || c == '/' || c == ',' || c == '"' || c == '@';
         });
}

absl::Status CheckCount(std::string_view field, std::size_t count, std::size_t max) {
  if (count <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(field), ": ", count, " entries; at most ", max));
}

absl::Status CheckRank(std::size_t i, const RankSpec& spec) {
  const std::string field = absl::StrCat("ranks[", i, "]");
  WARMPATH_RETURN_IF_ERROR(CheckText(field + ".address", spec.address, kMaxNameBytes, true));
  if (!IsHostAndPort(spec.address)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".address: '", spec.address,
                     "' is not of the form ip:port with a port of 1..65535"));
  }
  WARMPATH_RETURN_IF_ERROR(CheckEpoch(field + ".epoch", spec.epoch));
  if (spec.engine_block_size > kMaxBlockSize || (spec.engine_block_size == 0 && spec.has_events)) {
    return absl::InvalidArgumentError(absl::StrCat(field,
                                                   ".engine_block_size: ", spec.engine_block_size,
                                                   "; must be 1..", kMaxBlockSize, " tokens"));
  }
  // Times are divisions by it: a rate near 0 makes them infinite.
  if (spec.prefill_tokens_per_s != 0 && !(spec.prefill_tokens_per_s >= kMinPrefillRate &&
                                          spec.prefill_tokens_per_s <= kMaxPrefillRate)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".prefill_tokens_per_s: ", spec.prefill_tokens_per_s, "; must be ",
                     kMinPrefillRate, "..", kMaxPrefillRate, ", or 0 for unknown"));
  }
  if (spec.host_copy_tokens_per_s != 0 && !(spec.host_copy_tokens_per_s >= kMinPrefillRate &&
                                            spec.host_copy_tokens_per_s <= kMaxPrefillRate)) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ".host_copy_tokens_per_s: ", spec.host_copy_tokens_per_s, "; must be ",
                     kMinPrefillRate, "..", kMaxPrefillRate, ", or 0 for unknown"));
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const std::vector<RankSpec>& ranks) {
  if (ranks.empty()) {
    return absl::InvalidArgumentError("ranks: must list at least one rank");
  }
  WARMPATH_RETURN_IF_ERROR(CheckCount("ranks", ranks.size(), kMaxRanks));
  std::vector<bool> seen(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    WARMPATH_RETURN_IF_ERROR(CheckRank(i, ranks[i]));
    if (ranks[i].rank >= ranks.size() || seen[ranks[i].rank]) {
      return absl::InvalidArgumentError(absl::StrCat("ranks[", i, "].rank: ", ranks[i].rank,
                                                     "; ranks must be 0..", ranks.size() - 1,
                                                     ", each once"));
    }
    seen[ranks[i].rank] = true;
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const Registration& registration) {
  WARMPATH_RETURN_IF_ERROR(CheckText("model", registration.model, kMaxNameBytes, true));
  WARMPATH_RETURN_IF_ERROR(CheckCount("aliases", registration.aliases.size(), kMaxAliases));
  WARMPATH_RETURN_IF_ERROR(CheckCount("loras", registration.loras.size(), kMaxLoras));
  for (const std::string& alias : registration.aliases) {
    WARMPATH_RETURN_IF_ERROR(CheckText("aliases", alias, kMaxNameBytes, true));
  }
  StringSet served(registration.aliases.begin(), registration.aliases.end());
  served.insert(registration.model);
  for (const std::string& lora : registration.loras) {
    WARMPATH_RETURN_IF_ERROR(CheckText("loras", lora, kMaxNameBytes, true));
    if (served.contains(lora)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "loras: '", lora,
          "' is also the model's own name or an alias; an adapter needs a name of its own"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTotalText(const Registration& registration) {
  std::size_t bytes = registration.model.size();
  for (const std::string& alias : registration.aliases) bytes += alias.size();
  for (const std::string& lora : registration.loras) {
    bytes += lora.size() * registration.ranks.size();
  }
  for (const RankSpec& rank : registration.ranks) bytes += rank.address.size();
  for (const auto& [key, value] : registration.labels) bytes += key.size() + value.size();
  if (bytes <= kMaxTextBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("register: names, addresses and labels need ",
                                                 bytes, " bytes; at most ", kMaxTextBytes));
}

absl::Status CheckPoolConfig(const PoolConfig& pool) {
  if (pool.routing_block_size > kMaxBlockSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("routing_block_size: ", pool.routing_block_size, "; at most ", kMaxBlockSize));
  }
  if (pool.policy.empty()) return absl::InvalidArgumentError("policy: must not be empty");
  if (pool.index_bound_bytes == 0) {
    return absl::InvalidArgumentError("index_bound_bytes: must be larger than 0");
  }
  if (pool.predicted_bound_blocks == 0) {
    return absl::InvalidArgumentError("predicted_bound_blocks: must be larger than 0");
  }
  if (pool.max_wait < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("max_wait_ms: must not be negative; 0 switches it off");
  }
  if (pool.prefix_aware.prefix_length < 1024 || pool.prefix_aware.prefix_length > 65'536) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prefix_aware.prefix_length: ", pool.prefix_aware.prefix_length, "; must be 1024..65536"));
  }
  if (pool.prefix_aware.concurrency_threshold < 1 ||
      pool.prefix_aware.concurrency_threshold > 1024) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prefix_aware.concurrency_threshold: ", pool.prefix_aware.concurrency_threshold,
        "; must be 1..1024"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckEpoch(std::string_view field, Epoch epoch) {
  if (epoch != 0 && epoch <= Epoch{std::numeric_limits<std::int64_t>::max()})
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(field), ": must be the Unix time in nanoseconds, not ", epoch));
}

absl::Status ValidateRegistration(const Registration& registration) {
  if (registration.protocol_min > kProtocolVersion ||
      registration.protocol_max < kProtocolVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("protocol: the agent speaks versions ", registration.protocol_min, " to ",
                     registration.protocol_max, ", this router speaks ", kProtocolVersion,
                     "; upgrade the older of the two"));
  }
  if (registration.agent_instance.size() != 16) {
    return absl::InvalidArgumentError(
        absl::StrCat("agent_instance: ", registration.agent_instance.size(), " bytes; must be 16"));
  }
  const std::string& id = registration.worker_id;
  if (id.empty() || id.size() > kMaxWorkerIdBytes ||
      !std::all_of(id.begin(), id.end(), IsWorkerIdChar)) {
    return absl::InvalidArgumentError(absl::StrCat("worker_id: must be 1 to ", kMaxWorkerIdBytes,
                                                   " letters, digits and the characters . _ : -"));
  }
  WARMPATH_RETURN_IF_ERROR(CheckNames(registration));
  WARMPATH_RETURN_IF_ERROR(CheckText("engine", registration.engine, kMaxNameBytes, false));
  WARMPATH_RETURN_IF_ERROR(
      CheckText("engine_version", registration.engine_version, kMaxNameBytes, false));
  WARMPATH_RETURN_IF_ERROR(
      CheckText("agent_version", registration.agent_version, kMaxNameBytes, false));
  WARMPATH_RETURN_IF_ERROR(CheckCount("labels", registration.labels.size(), kMaxLabels));
  for (const auto& [key, value] : registration.labels) {
    WARMPATH_RETURN_IF_ERROR(CheckText("labels", key, kMaxNameBytes, true));
    WARMPATH_RETURN_IF_ERROR(CheckText("labels", value, kMaxNameBytes, false));
  }
  WARMPATH_RETURN_IF_ERROR(CheckRanks(registration.ranks));
  return CheckTotalText(registration);
}

absl::Status ValidateFleetConfig(const FleetConfig& config) {
  StringSet names;
  for (const PoolConfig& pool : config.pools) {
    const std::string field = absl::StrCat("pools['", pool.name, "']");
    if (pool.name.empty() || pool.name.size() > kMaxNameBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("pools: a name must have 1 to ", kMaxNameBytes, " bytes"));
    }
    WARMPATH_RETURN_IF_ERROR(Annotate(CheckPoolConfig(pool), field));
    if (!names.insert(pool.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": the name stands for another pool already"));
    }
    for (const std::string& alias : pool.aliases) {
      if (alias.empty() || !names.insert(alias).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            field, ".aliases: '", alias, "' is empty or stands for another name already"));
      }
    }
  }
  WARMPATH_RETURN_IF_ERROR(Annotate(CheckPoolConfig(config.defaults), "defaults"));
  if (config.max_pools < 1 || config.max_pools > kMaxPools ||
      config.pools.size() > config.max_pools) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_pools: ", config.max_pools, "; must be 1..", kMaxPools,
                     " and at least the number of configured pools, ", config.pools.size()));
  }
  if (config.max_workers < 1) {
    return absl::InvalidArgumentError("max_workers: must be at least 1");
  }
  if (config.worker_lease <= absl::ZeroDuration() || config.heartbeat <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("worker_lease and heartbeat: must be larger than 0");
  }
  if (config.max_concurrent_snapshots < 1) {
    return absl::InvalidArgumentError("max_concurrent_snapshots: must be at least 1");
  }
  if (config.max_reservations_per_pool < 1 ||
      config.max_reservations_per_pool > kMaxReservationsPerPool) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_reservations_per_pool: ", config.max_reservations_per_pool,
                     "; must be 1..", kMaxReservationsPerPool));
  }
  return absl::OkStatus();
}

std::uint32_t DeriveBlockSize(const PoolConfig& config, const Registration& registration) {
  if (config.routing_block_size != 0) return config.routing_block_size;
  for (const RankSpec& rank : registration.ranks) {
    const std::uint32_t block = rank.engine_block_size;
    if (block == 0) continue;
    return block >= kMinRoutingBlock ? block : block * ((kMinRoutingBlock + block - 1) / block);
  }
  return kMinRoutingBlock;
}

absl::Status CheckBlockSizes(const PoolConfig& config, std::uint32_t routing_block_size,
                             const Registration& registration) {
  for (const RankSpec& rank : registration.ranks) {
    if (rank.engine_block_size == 0 || routing_block_size % rank.engine_block_size == 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks.engine_block_size: rank ", rank.rank, " has engine blocks of ",
        rank.engine_block_size, " tokens, which do not divide the routing block of pool '",
        config.name, "', ", routing_block_size,
        " tokens; set routing_block_size of this pool in the router's configuration to a multiple "
        "of all its engines' block sizes, or start the engine with a block size that divides it"));
  }
  return absl::OkStatus();
}

}  // namespace warmpath
