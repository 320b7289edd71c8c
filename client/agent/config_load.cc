#include "client/agent/config_load.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

constexpr std::size_t kMaxYamlBytes = 1 << 20;

std::string KnownKeys(KeyScope scope) {
  std::vector<std::string> names;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.scope == scope) names.emplace_back(key.name);
  }
  if (scope == KeyScope::kAgent) names.emplace_back("engines");
  return absl::StrJoin(names, ", ");
}

class YamlReader {
 public:
  YamlReader(std::string_view name, AgentConfig* config) : name_(name), config_(config) {}

  void Read(const YAML::Node& root) {
    if (root.IsNull()) return;
    if (!root.IsMap()) return Problem(root, "the file must be a map of keys");
    std::set<std::string> seen;
    for (const auto& entry : root) {
      const std::string key = KeyOf(entry.first, &seen);
      if (key == "engines") {
        ReadEngines(entry.second);
      } else if (!key.empty()) {
        ReadKey(KeyScope::kAgent, key, entry.first, entry.second, nullptr);
      }
    }
  }

  absl::Status ToStatus() const {
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void Problem(const YAML::Node& node, std::string_view what) {
    problems_.push_back(absl::StrCat(name_, ":", node.Mark().line + 1, ": ", ToAbsl(what)));
  }

  // Empty, with a problem noted, when it is no usable key.
  std::string KeyOf(const YAML::Node& node, std::set<std::string>* seen) {
    if (!node.IsScalar()) {
      Problem(node, "a key must be a plain word");
      return "";
    }
    if (!seen->insert(node.Scalar()).second) {
      Problem(node, absl::StrCat("\"", node.Scalar(), "\" is there twice"));
      return "";
    }
    return node.Scalar();
  }

  void ReadEngines(const YAML::Node& list) {
    if (!list.IsSequence()) return Problem(list, "engines: must be a list");
    config_->engines.clear();
    for (const YAML::Node& item : list) {
      EngineConfig& engine = config_->engines.emplace_back();
      if (!item.IsMap()) {
        Problem(item, "engines: each entry must be a map of keys");
        continue;
      }
      std::set<std::string> seen;
      for (const auto& entry : item) {
        const std::string key = KeyOf(entry.first, &seen);
        if (!key.empty()) ReadKey(KeyScope::kEngine, key, entry.first, entry.second, &engine);
      }
    }
  }

  void ReadKey(KeyScope scope, const std::string& name, const YAML::Node& at,
               const YAML::Node& value, EngineConfig* engine) {
    const ConfigKey* key = FindKey(scope, name);
    if (key == nullptr) {
      const KeyScope other = scope == KeyScope::kAgent ? KeyScope::kEngine : KeyScope::kAgent;
      if (FindKey(other, name) != nullptr) {
        return Problem(at, absl::StrCat("\"", name, "\" belongs ",
                                        scope == KeyScope::kAgent ? "into an entry of engines"
                                                                  : "to the top of the file"));
      }
      return Problem(at, absl::StrCat("unknown key \"", name, "\"; known: ", KnownKeys(scope)));
    }
    std::vector<std::string> items;
    if (!ItemsOf(*key, value, &items)) return;
    if (const absl::Status status = key->set(items, config_, engine); !status.ok()) {
      Problem(value, absl::StrCat(name, ": ", status.message()));
    }
  }

  bool ItemsOf(const ConfigKey& key, const YAML::Node& value, std::vector<std::string>* items) {
    bool good = true;
    if (value.IsScalar()) {
      items->push_back(value.Scalar());
    } else if (key.is_list && value.IsSequence()) {
      for (const YAML::Node& item : value) {
        good = good && item.IsScalar();
        if (good) items->push_back(item.Scalar());
      }
    } else if (key.is_list && value.IsMap()) {
      for (const auto& entry : value) {
        good = good && entry.first.IsScalar() && entry.second.IsScalar();
        if (good) items->push_back(absl::StrCat(entry.first.Scalar(), "=", entry.second.Scalar()));
      }
    } else {
      good = false;
    }
    if (!good) {
      Problem(value, absl::StrCat(ToAbsl(key.name), ": must be ",
                                  key.is_list ? "one value, a list or a map" : "one value", " (",
                                  ToAbsl(key.kind), ")"));
    }
    return good;
  }

  const std::string name_;
  AgentConfig* const config_;
  std::vector<std::string> problems_;
};

struct Flag {
  std::string name;  // with underscores
  std::string value;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (file) text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("config: can not read \"", path, "\""));
  return text.str();
}

bool IsSwitch(std::string_view name) {
  return name == "help" || name == "version" || name == "check" || name == "print_keys";
}

absl::StatusOr<std::vector<Flag>> SplitFlags(std::span<const std::string> arguments) {
  std::vector<Flag> flags;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.size() < 3 || argument.compare(0, 2, "--") != 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", argument, "\" is no flag; see --help"));
    }
    const std::size_t equals = argument.find('=');
    Flag flag;
    const std::size_t length = equals == std::string::npos ? equals : equals - 2;
    flag.name = absl::StrReplaceAll(argument.substr(2, length), {{"-", "_"}});
    if (equals != std::string::npos) {
      flag.value = argument.substr(equals + 1);
    } else if (!IsSwitch(flag.name)) {
      if (++i == arguments.size()) {
        return absl::InvalidArgumentError(absl::StrCat(argument, ": its value is missing"));
      }
      flag.value = arguments[i];
    }
    flags.push_back(std::move(flag));
  }
  return flags;
}

absl::Status ApplyFlag(const Flag& flag, AgentConfig* config) {
  const std::string shown = absl::StrCat("--", absl::StrReplaceAll(flag.name, {{"_", "-"}}));
  const ConfigKey* key = FindKey(KeyScope::kAgent, flag.name);
  EngineConfig* engine = nullptr;
  if (key == nullptr) {
    key = FindKey(KeyScope::kEngine, flag.name);
    if (key == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(shown, ": unknown flag; see --help"));
    }
    if (config->engines.size() > 1) {
      return absl::InvalidArgumentError(absl::StrCat(shown, ": the configuration file has ",
                                                     config->engines.size(), " engines; set ",
                                                     ToAbsl(key->name), " there"));
    }
    if (config->engines.empty()) config->engines.emplace_back();
    engine = &config->engines.front();
  }
  std::vector<std::string> items;
  if (key->is_list) {
    items = absl::StrSplit(flag.value, ',', absl::SkipWhitespace());
  } else {
    items.push_back(flag.value);
  }
  return Annotate(key->set(items, config, engine), shown);
}

}  // namespace

absl::Status ApplyYaml(std::string_view text, std::string_view name, AgentConfig* config) {
  if (text.size() > kMaxYamlBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(name), ": larger than ", kMaxYamlBytes, " bytes"));
  }
  // yaml-cpp reports through exceptions; none may pass this function.
  try {
    YamlReader reader(name, config);
    reader.Read(YAML::Load(std::string(text)));
    return reader.ToStatus();
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(name), ":", error.mark.line + 1, ": ", error.msg));
  }
}

absl::StatusOr<CommandLine> ParseCommandLine(std::span<const std::string> arguments) {
  WARMPATH_ASSIGN_OR_RETURN(const std::vector<Flag> flags, SplitFlags(arguments));
  CommandLine line;
  for (const Flag& flag : flags) {
    if (flag.name == "config") {
      WARMPATH_ASSIGN_OR_RETURN(const std::string text, ReadFile(flag.value));
      WARMPATH_RETURN_IF_ERROR(ApplyYaml(text, flag.value, &line.config));
    }
  }
  for (const Flag& flag : flags) {
    if (flag.name == "config") continue;
    if (flag.name == "help") {
      line.help = true;
    } else if (flag.name == "version") {
      line.version = true;
    } else if (flag.name == "check") {
      line.check = true;
    } else if (flag.name == "print_keys") {
      line.print_keys = true;
    } else {
      WARMPATH_RETURN_IF_ERROR(ApplyFlag(flag, &line.config));
    }
  }
  if (line.help || line.version || line.print_keys) return line;
  WARMPATH_RETURN_IF_ERROR(CompleteConfig(&line.config));
  return line;
}

std::string HelpText() {
  std::string text =
      "usage: warmpath-agent --router HOST:PORT --engine-http URL [flags]\n"
      "       warmpath-agent --config FILE [flags]\n\n"
      "Reads the KV-cache events and the load of engines on this node and streams them to\n"
      "Warmpath routers.\n\n"
      "  --config FILE   YAML with the same keys (underscores for dashes), engines in the list\n"
      "                  `engines`; flags rule over it\n"
      "  --check         read the configuration and stop\n"
      "  --print-keys    the keys as a Markdown table\n"
      "  --version       print the version\n"
      "  --help          this text\n";
  for (const KeyScope scope : {KeyScope::kAgent, KeyScope::kEngine}) {
    absl::StrAppend(&text, scope == KeyScope::kAgent ? "\nThe agent:\n" : "\nThe engine:\n");
    for (const ConfigKey& key : ConfigKeys()) {
      if (key.scope != scope) continue;
      absl::StrAppend(&text, "  --", absl::StrReplaceAll(ToAbsl(key.name), {{"_", "-"}}), "  (",
                      ToAbsl(key.kind), key.default_value.empty() ? "" : ", default ",
                      ToAbsl(key.default_value), ")\n      ", ToAbsl(key.help), "\n");
    }
  }
  return text;
}

}  // namespace warmpath
