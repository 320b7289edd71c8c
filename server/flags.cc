#include "server/flags.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "server/config/document.h"
#include "server/config/load.h"

namespace warmpath {
namespace {

// One flag: parsing, --help and the documentation all read this table.
struct Flag {
  std::string_view name;
  std::string_view value;  // what the value is called; empty: a switch
  std::string_view doc;
  std::function<void(RouterFlags&, std::string)> set;
};

const std::vector<Flag>& Flags() {
  static const auto* const flags = new std::vector<Flag>{
      {"config", "PATH", "The YAML configuration file. Without it, defaults.",
       [](RouterFlags& f, std::string v) { f.config = std::move(v); }},
      {"grpc-address", "HOST:PORT", "Overrides server.grpc_address.",
       [](RouterFlags& f, std::string v) { f.grpc_address = std::move(v); }},
      {"http-address", "HOST:PORT", "Overrides server.http_address.",
       [](RouterFlags& f, std::string v) { f.http_address = std::move(v); }},
      {"pick-address", "HOST:PORT", "Overrides server.pick_address.",
       [](RouterFlags& f, std::string v) { f.pick_address = std::move(v); }},
      {"log-level", "LEVEL", "Overrides log.level.",
       [](RouterFlags& f, std::string v) { f.log_level = std::move(v); }},
      {"ports-file", "PATH",
       "Once listening, writes {\"grpc\": PORT, \"http\": PORT, \"pick\": PORT} there, for scripts "
       "that use port 0.",
       [](RouterFlags& f, std::string v) { f.ports_file = std::move(v); }},
      {"check-config", "", "Checks the configuration and exits: 0 when it is right.",
       [](RouterFlags& f, std::string) { f.check_config = true; }},
      {"print-config", "", "Prints the configuration in force as YAML and exits.",
       [](RouterFlags& f, std::string) { f.print_config = true; }},
      {"print-config-docs", "", "Prints docs/configuration.md and exits.",
       [](RouterFlags& f, std::string) { f.print_config_docs = true; }},
      {"print-metrics-docs", "", "Prints docs/metrics.md and exits.",
       [](RouterFlags& f, std::string) { f.print_metrics_docs = true; }},
      {"version", "", "Prints the version and exits.",
       [](RouterFlags& f, std::string) { f.version = true; }},
      {"help", "", "Prints this and exits.", [](RouterFlags& f, std::string) { f.help = true; }},
  };
  return *flags;
}

absl::Status Override(std::string_view flag, const std::optional<std::string>& value,
                      const std::function<absl::Status(std::string_view)>& check,
                      std::string* setting) {
  if (!value.has_value()) return absl::OkStatus();
  WARMPATH_RETURN_IF_ERROR(Annotate(check(*value), absl::StrCat("--", ToAbsl(flag), " ", *value)));
  *setting = *value;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RouterFlags> ParseFlags(const std::vector<std::string>& arguments) {
  RouterFlags result;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", argument, "\" is no flag: see --help"));
    }
    const std::size_t equals = argument.find('=');
    std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '_', '-');
    const auto flag =
        std::find_if(Flags().begin(), Flags().end(), [&](const Flag& f) { return f.name == name; });
    if (flag == Flags().end()) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " is unknown: see --help"));
    }
    std::string value;
    if (flag->value.empty()) {
      if (equals != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      }
    } else if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " needs a value: ", ToAbsl(flag->value)));
    }
    flag->set(result, std::move(value));
  }
  return result;
}

absl::StatusOr<RouterConfig> ConfigFor(const RouterFlags& flags) {
  RouterConfig config;
  if (!flags.config.empty()) {
    WARMPATH_ASSIGN_OR_RETURN(config, LoadConfigFile(flags.config));
  }
  WARMPATH_RETURN_IF_ERROR(
      Override("grpc-address", flags.grpc_address, CheckAddress, &config.server.grpc_address));
  WARMPATH_RETURN_IF_ERROR(
      Override("http-address", flags.http_address, CheckAddress, &config.server.http_address));
  WARMPATH_RETURN_IF_ERROR(
      Override("pick-address", flags.pick_address, CheckAddress, &config.server.pick_address));
  WARMPATH_RETURN_IF_ERROR(Override(
      "log-level", flags.log_level,
      [](std::string_view level) { return ParseLogLevel(level).status(); }, &config.log.level));
  return config;
}

std::string HelpText() {
  std::string out =
      "warmpath-router: chooses for each LLM request the worker whose cache holds its prefix.\n\n"
      "usage: warmpath-router [--config PATH] [flags]\n\n";
  for (const Flag& flag : Flags()) {
    const std::string name =
        absl::StrCat("--", ToAbsl(flag.name), flag.value.empty() ? "" : " ", ToAbsl(flag.value));
    absl::StrAppendFormat(&out, "  %-26s %s\n", name, std::string(flag.doc));
  }
  return out;
}

std::string ConfigurationDocument() {
  std::string out =
      "# Configuration of warmpath-router\n\n"
      "This page is written by `warmpath-router --print-config-docs`; a test compares it with the\n"
      "program.\n\n"
      "One YAML file, given with `--config`. Every setting has a default, so the file may be empty "
      "or\nmissing. Unknown keys, repeated keys and values out of bounds are refused at start, all "
      "at once,\neach with its line and the remedy; `--check-config` does only that. Sizes take "
      "KiB, MiB, GiB;\ndurations take ms, s, m, h.\n\n"
      "```yaml\n"
      "server:\n"
      "  grpc_address: \"0.0.0.0:9002\"\n"
      "pool_defaults:\n"
      "  policy: marginal_cost\n"
      "pools:\n"
      "  - name: llama-3.1-8b\n"
      "    aliases: [llama]\n"
      "    index_bound_bytes: 4GiB\n"
      "```\n\n"
      "## Flags\n\n| flag | meaning |\n|---|---|\n";
  for (const Flag& flag : Flags()) {
    absl::StrAppend(&out, "| `--", ToAbsl(flag.name), flag.value.empty() ? "" : " ",
                    ToAbsl(flag.value), "` | ", ToAbsl(flag.doc), " |\n");
  }
  absl::StrAppend(&out, ConfigurationTables());
  return out;
}

}  // namespace warmpath
