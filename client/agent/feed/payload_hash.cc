#include "client/agent/feed/payload_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace warmpath {

std::uint64_t PayloadHash(std::string_view payload) {
  return XXH3_64bits(payload.data(), payload.size());
}

}  // namespace warmpath
