// The command line of warmpath-router.
#ifndef WARMPATH_SERVER_FLAGS_H_
#define WARMPATH_SERVER_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/schema.h"

namespace warmpath {

struct RouterFlags {
  std::string config;      // path; empty: defaults only
  std::string ports_file;  // empty: none
  std::optional<std::string> grpc_address;
  std::optional<std::string> http_address;
  std::optional<std::string> pick_address;
  std::optional<std::string> log_level;
  bool check_config = false;
  bool print_config = false;
  bool print_config_docs = false;
  bool print_metrics_docs = false;
  bool version = false;
  bool help = false;
};

// `arguments` without the program's name: --name=value, --name value, --switch. Dashes and
// underscores in names are the same. INVALID_ARGUMENT for what is unknown.
absl::StatusOr<RouterFlags> ParseFlags(const std::vector<std::string>& arguments);

// The configuration file, if any, with the flags that override it.
absl::StatusOr<RouterConfig> ConfigFor(const RouterFlags& flags);

std::string HelpText();

// docs/configuration.md.
std::string ConfigurationDocument();

}  // namespace warmpath

#endif  // WARMPATH_SERVER_FLAGS_H_
