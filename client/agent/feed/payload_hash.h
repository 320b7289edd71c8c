// XXH3-64 of a message's payload: by it the agent recognises a message it has applied before.
#ifndef WARMPATH_CLIENT_AGENT_FEED_PAYLOAD_HASH_H_
#define WARMPATH_CLIENT_AGENT_FEED_PAYLOAD_HASH_H_

#include <cstdint>
#include <string_view>

namespace warmpath {

std::uint64_t PayloadHash(std::string_view payload);

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_FEED_PAYLOAD_HASH_H_
