// YAML -> RouterConfig. Unknown keys, repeated keys and bad values are refused, all of them in one
// error, each with its line and the remedy. Never throws.
#ifndef WARMPATH_SERVER_CONFIG_LOAD_H_
#define WARMPATH_SERVER_CONFIG_LOAD_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/config/schema.h"

namespace warmpath {

// `source` names the text in messages, e.g. the file's path. INVALID_ARGUMENT otherwise.
absl::StatusOr<RouterConfig> LoadConfig(std::string_view yaml, std::string_view source);

// NOT_FOUND, PERMISSION_DENIED or what LoadConfig says. Files above 1 MiB are refused.
absl::StatusOr<RouterConfig> LoadConfigFile(const std::string& path);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_CONFIG_LOAD_H_
