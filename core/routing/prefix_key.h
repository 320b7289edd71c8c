// The key that prefix_aware routes by: the head of the prompt, cut as SageMaker cuts it.
#ifndef WARMPATH_CORE_ROUTING_PREFIX_KEY_H_
#define WARMPATH_CORE_ROUTING_PREFIX_KEY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/routing/query.h"

namespace warmpath {

struct PrefixKey {
  std::uint64_t hash = 0;
  std::string note;  // which unit it was cut in, for the explanation
};

// INVALID_ARGUMENT unless the id is empty or has SageMaker's form: at most 64 printable characters,
// the first of them no space. Characters beyond ASCII count as printable.
absl::Status CheckPrefixAwareId(std::string_view id);

// XXH3-64 of (prefix-aware id, the first `prefix_length` units): bytes of raw text, Unicode code
// points of chat text, token ids as 4 units each. A shorter prompt is used whole.
// INVALID_ARGUMENT: chain hashes without tokens or text; what CheckPrefixAwareId refuses.
absl::StatusOr<PrefixKey> MakePrefixKey(const Query& query, std::uint32_t prefix_length);

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_PREFIX_KEY_H_
