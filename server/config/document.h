// Prints the configuration: as YAML with the values in force, and as docs/configuration.md.
#ifndef WARMPATH_SERVER_CONFIG_DOCUMENT_H_
#define WARMPATH_SERVER_CONFIG_DOCUMENT_H_

#include <string>

#include "server/config/schema.h"

namespace warmpath {

// Every setting with its value; LoadConfig reads it back to the same configuration.
std::string EffectiveYaml(const RouterConfig& config);

// The whole of docs/configuration.md but its table of flags.
std::string ConfigurationTables();

}  // namespace warmpath

#endif  // WARMPATH_SERVER_CONFIG_DOCUMENT_H_
