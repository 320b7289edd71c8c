// What the agent must know of an engine before it can register it: from its configuration first,
// from the engine's own answers where that is silent. Pure.
#ifndef WARMPATH_CLIENT_AGENT_ENGINE_FACTS_H_
#define WARMPATH_CLIENT_AGENT_ENGINE_FACTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/agent/agent_config.h"
#include "client/agent/engine/load_scraper.h"
#include "client/agent/feed/state_journal.h"
#include "core/base/ids.h"
#include "warmpath/v1/worker_events.pb.h"

namespace warmpath {

struct RankFacts {
  std::uint32_t block_size = 0;  // tokens
  std::uint64_t num_blocks = 0;  // that can hold a prefix; 0 unknown

  std::uint64_t capacity_tokens() const { return num_blocks * block_size; }
  friend bool operator==(const RankFacts&, const RankFacts&) = default;
};

struct EngineFacts {
  std::string model;
  std::vector<std::string> aliases;
  std::vector<std::string> loras;
  std::string engine_version;
  std::vector<RankFacts> ranks;

  friend bool operator==(const EngineFacts&, const EngineFacts&) = default;
};

// UNAVAILABLE while something is missing; the message names it and the key that sets it.
absl::StatusOr<EngineFacts> FactsOf(const EngineConfig& config, const EngineReport& report);

// `epochs` has one entry per rank.
v1::Register MakeRegister(const EngineConfig& config, const EngineFacts& facts,
                          const AgentInstance& instance, std::span<const Epoch> epochs);

// The release of this agent, as it tells routers.
std::string_view AgentVersion();

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_ENGINE_FACTS_H_
