// Any bytes as the router's configuration: refused with a message, or accepted, printed and read
// back the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/config/document.h"
#include "server/config/load.h"

namespace {

// Not assert: must also hold in optimised builds.
void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view yaml(reinterpret_cast<const char*>(data), size);
  const auto config = warmpath::LoadConfig(yaml, "fuzz");
  if (!config.ok()) {
    Require(!config.status().message().empty());
    return 0;
  }
  const std::string printed = warmpath::EffectiveYaml(*config);
  const auto again = warmpath::LoadConfig(printed, "printed");
  Require(again.ok());
  Require(warmpath::EffectiveYaml(*again) == printed);
  return 0;
}
