// Bridges between std::string_view and Debian's abseil, whose absl::string_view is
// a type of its own that neither converts to nor from the standard one.
#ifndef WARMPATH_CORE_BASE_STRINGS_H_
#define WARMPATH_CORE_BASE_STRINGS_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"

namespace warmpath {

inline absl::string_view ToAbsl(std::string_view s) {
  return absl::string_view(s.data(), s.size());
}
inline std::string_view ToStd(absl::string_view s) { return std::string_view(s.data(), s.size()); }

// Transparent hash and equality: maps keyed by std::string, looked up by string_view.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
};

template <typename V>
using StringMap = absl::flat_hash_map<std::string, V, StringHash, std::equal_to<>>;
using StringSet = absl::flat_hash_set<std::string, StringHash, std::equal_to<>>;

}  // namespace warmpath

#endif  // WARMPATH_CORE_BASE_STRINGS_H_
