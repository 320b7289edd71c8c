// What the agent is told by its operator: plain values, their defaults, and the one table of keys
// from which the YAML file, the command line, --help and the documentation are made.
#ifndef WARMPATH_CLIENT_AGENT_AGENT_CONFIG_H_
#define WARMPATH_CLIENT_AGENT_AGENT_CONFIG_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/agent/publish/router_channel.h"
#include "core/base/ids.h"
#include "core/base/log.h"

namespace warmpath {

// One engine: one worker of the router. Each field has a key of the same name.
struct EngineConfig {
  std::string worker_id;  // after CompleteConfig never empty
  std::string engine = "vllm";
  std::string http;
  std::string api_key_file;            // holds the key that the engine's /v1 wants; empty: none
  std::vector<std::string> advertise;  // one, or one per rank
  std::string model;
  std::uint32_t ranks = 1;
  std::string events;
  std::string replay;
  std::string topic;
  std::string state_file;
  std::uint32_t block_size = 0;
  std::uint64_t num_blocks = 0;
  std::uint32_t reserved_blocks = 1;
  std::uint32_t routing_block = 0;
  double prefill_tokens_per_s = 0;
  double host_copy_tokens_per_s = 0;
  bool reports_reuse = false;
  std::map<std::int64_t, std::string> lora_id_map;
  std::map<std::string, std::string> labels;
  std::uint32_t scrape_interval_ms = 500;
  std::uint32_t event_queue = 100000;
  std::uint64_t max_blocks = std::uint64_t{1} << 21;
  std::uint64_t max_pending = std::uint64_t{1} << 18;

  bool has_events() const { return !events.empty(); }
};

struct AgentConfig {
  std::vector<RouterOptions> routers;  // the TLS keys hold for all of them
  std::string metrics_host = "127.0.0.1";
  std::uint32_t metrics_port = 9092;
  std::string ports_file;
  LogLevel log_level = LogLevel::kInfo;
  std::vector<EngineConfig> engines;
};

enum class KeyScope : std::uint8_t { kAgent, kEngine };

// One setting. In YAML it is called `name`; on the command line --name with dashes.
struct ConfigKey {
  KeyScope scope;
  std::string_view name;           // "scrape_interval_ms"
  std::string_view kind;           // "host:port list", "count", ... for people
  std::string_view default_value;  // as text; a test compares it with the structs' defaults
  std::string_view help;
  bool is_list;  // several values; on the command line separated by commas (maps: k=v)
  // Items are never empty strings' worth of nothing: a scalar key gets exactly one item.
  absl::Status (*set)(std::span<const std::string> items, AgentConfig* agent, EngineConfig* engine);
};

// All keys, those of the agent first, in the order of the documentation.
std::span<const ConfigKey> ConfigKeys();
const ConfigKey* FindKey(KeyScope scope, std::string_view name);

// Fills in what follows from other values and checks the whole. INVALID_ARGUMENT lists every
// problem, each with its key and remedy.
absl::Status CompleteConfig(AgentConfig* config);

// The endpoint of one rank: port + rank for tcp, "_dp<rank>" appended for inproc, as vLLM does.
// INVALID_ARGUMENT when a rank above 0 has none.
absl::StatusOr<std::string> EndpointOfRank(std::string_view endpoint, Rank rank);

// The table of keys as Markdown, for docs/warmpath-agent.md.
std::string ConfigKeysAsMarkdown();

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_AGENT_CONFIG_H_
