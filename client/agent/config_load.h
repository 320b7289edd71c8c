// Configuration from a YAML file and the command line.
#ifndef WARMPATH_CLIENT_AGENT_CONFIG_LOAD_H_
#define WARMPATH_CLIENT_AGENT_CONFIG_LOAD_H_

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/agent/agent_config.h"

namespace warmpath {

// Reads YAML over *config: the agent's keys at the top, engines in the list `engines`.
// INVALID_ARGUMENT lists every problem as "name:line: ..."; unknown keys are problems.
// `name` is what to call the text in messages.
absl::Status ApplyYaml(std::string_view text, std::string_view name, AgentConfig* config);

// What the command line said.
struct CommandLine {
  AgentConfig config;       // complete (CompleteConfig) unless help or version is asked
  bool help = false;        // --help
  bool version = false;     // --version
  bool check = false;       // --check: read the configuration and stop
  bool print_keys = false;  // --print-keys: the documentation's table
};

// --key value or --key=value for every key, with dashes for underscores; --config FILE is read
// first, wherever it stands. Engine keys may be given when there is at most one engine.
absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments);

// The text of --help.
std::string HelpText();

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_CONFIG_LOAD_H_
