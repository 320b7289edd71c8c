#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/agent/agent_config.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

using Items = std::span<const std::string>;

absl::Status ParseNumber(const std::string& text, std::uint64_t min, std::uint64_t max,
                         std::uint64_t* value) {
  if (!absl::SimpleAtoi(text, value) || *value < min || *value > max) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a number from ", min, " to ", max));
  }
  return absl::OkStatus();
}

// A setter for a number member of either struct.
template <auto kMember, std::uint64_t kMin, std::uint64_t kMax>
absl::Status SetNumber(Items items, AgentConfig* agent, EngineConfig* engine) {
  std::uint64_t value = 0;
  if (absl::Status status = ParseNumber(items[0], kMin, kMax, &value); !status.ok()) return status;
  const auto assign = [value](auto& field) {
    field = static_cast<std::remove_reference_t<decltype(field)>>(value);
  };
  if constexpr (std::is_invocable_v<decltype(kMember), EngineConfig*>) {
    assign(engine->*kMember);
  } else {
    assign(agent->*kMember);
  }
  return absl::OkStatus();
}

template <auto kMember>
absl::Status SetString(Items items, AgentConfig* agent, EngineConfig* engine) {
  if constexpr (std::is_invocable_v<decltype(kMember), EngineConfig*>) {
    engine->*kMember = items[0];
  } else {
    agent->*kMember = items[0];
  }
  return absl::OkStatus();
}

// TLS settings hold for every router; CompleteConfig copies them from a first, nameless entry.
RouterOptions& Tls(AgentConfig* agent) {
  if (agent->routers.empty()) agent->routers.emplace_back();
  return agent->routers.front();
}

template <std::string RouterOptions::*kMember>
absl::Status SetTls(Items items, AgentConfig* agent, EngineConfig*) {
  for (RouterOptions& router : agent->routers) router.*kMember = items[0];
  Tls(agent).*kMember = items[0];
  return absl::OkStatus();
}

absl::Status SetRouters(Items items, AgentConfig* agent, EngineConfig*) {
  const RouterOptions tls = Tls(agent);
  agent->routers.clear();
  for (const std::string& address : items) {
    RouterOptions router = tls;
    router.address = address;
    agent->routers.push_back(std::move(router));
  }
  return absl::OkStatus();
}

absl::Status SetLogLevel(Items items, AgentConfig* agent, EngineConfig*) {
  const absl::StatusOr<LogLevel> level = ParseLogLevel(items[0]);
  if (level.ok()) agent->log_level = *level;
  return level.status();
}

absl::Status SetAdvertise(Items items, AgentConfig*, EngineConfig* engine) {
  engine->advertise.assign(items.begin(), items.end());
  return absl::OkStatus();
}

absl::Status SplitPair(const std::string& item, std::string* key, std::string* value) {
  const std::size_t equals = item.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", item, "\" is not KEY=VALUE"));
  }
  *key = item.substr(0, equals);
  *value = item.substr(equals + 1);
  return absl::OkStatus();
}

absl::Status SetLoraIds(Items items, AgentConfig*, EngineConfig* engine) {
  engine->lora_id_map.clear();
  for (const std::string& item : items) {
    std::string key;
    std::string value;
    if (absl::Status status = SplitPair(item, &key, &value); !status.ok()) return status;
    std::int64_t id = 0;
    if (!absl::SimpleAtoi(key, &id)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is not a LoRA number"));
    }
    engine->lora_id_map[id] = value;
  }
  return absl::OkStatus();
}

absl::Status SetLabels(Items items, AgentConfig*, EngineConfig* engine) {
  engine->labels.clear();
  for (const std::string& item : items) {
    std::string key;
    std::string value;
    if (absl::Status status = SplitPair(item, &key, &value); !status.ok()) return status;
    engine->labels[key] = value;
  }
  return absl::OkStatus();
}

absl::Status SetReportsReuse(Items items, AgentConfig*, EngineConfig* engine) {
  const std::string text = absl::AsciiStrToLower(items[0]);
  if (text != "true" && text != "false") {
    return absl::InvalidArgumentError(absl::StrCat("\"", items[0], "\" is not true or false"));
  }
  engine->reports_reuse = text == "true";
  return absl::OkStatus();
}

template <double EngineConfig::*kRate>
absl::Status SetRate(Items items, AgentConfig*, EngineConfig* engine) {
  double rate = 0;
  // The bounds of what a router takes.
  if (!absl::SimpleAtod(items[0], &rate) || !(rate == 0 || (rate >= 1 && rate <= 1e9))) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", items[0], "\" is not a rate from 1 to 1e9, or 0 for none"));
  }
  engine->*kRate = rate;
  return absl::OkStatus();
}

constexpr KeyScope kA = KeyScope::kAgent;
constexpr KeyScope kE = KeyScope::kEngine;
constexpr std::uint64_t kMax32 = std::numeric_limits<std::uint32_t>::max();

constexpr ConfigKey kKeys[] = {
    {kA, "router", "host:port list", "(required)",
     "Routers to register at. The agent keeps an independent session with each.", true,
     &SetRouters},
    {kA, "router_ca", "file", "",
     "PEM file with the certificate authority of the routers: use TLS. Empty: plaintext.", false,
     &SetTls<&RouterOptions::ca_file>},
    {kA, "router_cert", "file", "",
     "PEM file with the agent's own certificate, if the routers ask for one.", false,
     &SetTls<&RouterOptions::cert_file>},
    {kA, "router_key", "file", "", "PEM file with the private key of `router_cert`.", false,
     &SetTls<&RouterOptions::key_file>},
    {kA, "router_name", "name", "",
     "Name in the routers' certificate, when it is not the host of `router`.", false,
     &SetTls<&RouterOptions::server_name>},
    {kA, "metrics_host", "address", "127.0.0.1",
     "Address on which /metrics, /healthz and /readyz are served.", false,
     &SetString<&AgentConfig::metrics_host>},
    {kA, "metrics_port", "port", "9092", "Port for them; 0 takes a free one.", false,
     &SetNumber<&AgentConfig::metrics_port, 0, 65535>},
    {kA, "ports_file", "file", "",
     "Write the ports in use there as JSON, {\"metrics\": N}, once they are bound.", false,
     &SetString<&AgentConfig::ports_file>},
    {kA, "log_level", "level", "info", "debug, info, warn or error.", false, &SetLogLevel},

    {kE, "worker_id", "name", "",
     "The worker's name, unique in the router: letters, digits and `._:-`, at most 128. Empty: the "
     "first address of `advertise`.",
     false, &SetString<&EngineConfig::worker_id>},
    {kE, "engine", "name", "vllm", "The engine's kind, as operators should see it.", false,
     &SetString<&EngineConfig::engine>},
    {kE, "engine_http", "URL", "(required)",
     "Base URL of the engine's HTTP server, for /metrics, /health and /v1/models.", false,
     &SetString<&EngineConfig::http>},
    {kE, "api_key_file", "file", "",
     "File with the engine's API key (vLLM's --api-key), sent with each request to `engine_http`. "
     "Read at start. Empty: none.",
     false, &SetString<&EngineConfig::api_key_file>},
    {kE, "advertise", "host:port list", "",
     "Address at which callers reach the engine: one for all ranks (they then need the header "
     "X-data-parallel-rank) or one per rank. Empty: host and port of `engine_http`.",
     true, &SetAdvertise},
    {kE, "model", "name", "",
     "Base model: the router's pool. Empty: the first base model of /v1/models.", false,
     &SetString<&EngineConfig::model>},
    {kE, "ranks", "count", "1", "Data-parallel ranks.", false,
     &SetNumber<&EngineConfig::ranks, 1, 256>},
    {kE, "events", "ZeroMQ endpoint", "",
     "Where rank 0 publishes its KV events, e.g. tcp://127.0.0.1:5557; rank r uses port + r. "
     "Empty: "
     "no events; the router then only guesses what the engine holds.",
     false, &SetString<&EngineConfig::events>},
    {kE, "replay", "ZeroMQ endpoint", "",
     "The engine's replay_endpoint, e.g. tcp://127.0.0.1:5657; rank r uses port + r. Empty: lost "
     "messages can not be recovered.",
     false, &SetString<&EngineConfig::replay>},
    {kE, "topic", "prefix", "", "Only messages whose topic begins so. Empty: all.", false,
     &SetString<&EngineConfig::topic>},
    {kE, "state_file", "file", "",
     "Prefix of the files that let a restarted agent go on where it was: FILE.id, FILE.block and "
     "FILE.rank<r>. They hold prompt tokens, hence mode 0600. Empty: start from the engine's "
     "replay.",
     false, &SetString<&EngineConfig::state_file>},
    {kE, "block_size", "tokens", "0",
     "The engine's block size. 0: from its /metrics (cache_config_info).", false,
     &SetNumber<&EngineConfig::block_size, 0, 65536>},
    {kE, "num_blocks", "count", "0", "KV blocks of one rank. 0: from its /metrics.", false,
     &SetNumber<&EngineConfig::num_blocks, 0, std::uint64_t{1} << 40>},
    {kE, "reserved_blocks", "count", "1",
     "Blocks of `num_blocks` that never hold a prefix. vLLM keeps one null block.", false,
     &SetNumber<&EngineConfig::reserved_blocks, 0, kMax32>},
    {kE, "routing_block", "tokens", "0",
     "The router's routing block, if it should be known before the first registration. 0: the "
     "router tells, and until then events wait in the socket.",
     false, &SetNumber<&EngineConfig::routing_block, 0, 65536>},
    {kE, "prefill_tokens_per_s", "rate", "0",
     "Hint for the router's cost model, used until it has learnt better. 0: none.", false,
     &SetRate<&EngineConfig::prefill_tokens_per_s>},
    {kE, "host_copy_tokens_per_s", "rate", "0",
     "How fast the engine copies KV from host memory into the GPU, in tokens: a hint for the "
     "router's cost model, used until it has learnt better. Of meaning where the engine offloads "
     "KV and says so in its events. 0: none.",
     false, &SetRate<&EngineConfig::host_copy_tokens_per_s>},
    {kE, "reports_reuse", "true or false", "false",
     "The engine re-reports blocks that it reuses (kv_cache_report_mode=full): a store of a held "
     "block is then no new copy.",
     false, &SetReportsReuse},
    {kE, "lora_id_map", "ID=NAME list", "",
     "Names of LoRA adapters for engines whose events carry only the number. Unnamed ones are kept "
     "apart as lora-id:<n>.",
     true, &SetLoraIds},
    {kE, "labels", "KEY=VALUE list", "", "Labels shown to operators.", true, &SetLabels},
    {kE, "scrape_interval_ms", "milliseconds", "500",
     "Time between two looks at the engine's /health and /metrics.", false,
     &SetNumber<&EngineConfig::scrape_interval_ms, 50, 60000>},
    {kE, "event_queue", "count", "100000",
     "Event messages that may wait in a rank's socket. More are lost, which shows as a gap.", false,
     &SetNumber<&EngineConfig::event_queue, 16, 10000000>},
    {kE, "max_blocks", "count", "2097152",
     "Hard bound on engine blocks remembered per rank (215 to 270 bytes each).", false,
     &SetNumber<&EngineConfig::max_blocks, 1024, std::uint64_t{1} << 32>},
    {kE, "max_pending", "count", "262144",
     "Changes per rank and router that may wait while a router does not read; beyond it they are "
     "thrown away and a snapshot follows.",
     false, &SetNumber<&EngineConfig::max_pending, 4096, std::uint64_t{1} << 32>},
};

}  // namespace

std::span<const ConfigKey> ConfigKeys() { return kKeys; }

const ConfigKey* FindKey(KeyScope scope, std::string_view name) {
  for (const ConfigKey& key : kKeys) {
    if (key.scope == scope && key.name == name) return &key;
  }
  return nullptr;
}

std::string ConfigKeysAsMarkdown() {
  std::string text;
  for (const KeyScope scope : {kA, kE}) {
    absl::StrAppend(&text, scope == kA ? "### Of the agent\n\n" : "\n### Of an engine\n\n",
                    "| key | value | default | meaning |\n|---|---|---|---|\n");
    for (const ConfigKey& key : kKeys) {
      if (key.scope != scope) continue;
      const std::string shown = key.default_value.empty() || key.default_value.front() == '('
                                    ? std::string(key.default_value)
                                    : absl::StrCat("`", ToAbsl(key.default_value), "`");
      absl::StrAppend(&text, "| `", ToAbsl(key.name), "` | ", ToAbsl(key.kind), " | ", shown, " | ",
                      ToAbsl(key.help), " |\n");
    }
  }
  return text;
}

}  // namespace warmpath
