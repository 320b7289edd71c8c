// KV-event payloads of vLLM and SGLang (the msgpack frame of a ZeroMQ message) -> EngineBatch.
//
// Eras of vLLM's wire, all accepted (N: slots of a positional event, tag included):
//   2025-04  [ts, events]; BlockStored 6, BlockRemoved 2, AllBlocksCleared 1
//   2025-06  batch slot 2: the publisher's rank
//   2025-09  medium: stored 7, removed 3; hashes may be digests as bytes
//   2025-12  lora_name: 8;  2026-02 extra_keys: 9;  2026-04 group_idx: 10, removed 4
//   2026-05  kv_cache_spec_kind and _sliding_window: 12
//   2026-06  events are maps tagged "type" inside the array; fields that are unset may be missing
// SGLang: as 2025-04 and 2025-09, hashes signed; 0.5.18 has a map with cache_salt in the slot of
// lora_name; since 2026-09 tagged maps.
#ifndef WARMPATH_CLIENT_AGENT_EVENTS_VLLM_DECODER_H_
#define WARMPATH_CLIENT_AGENT_EVENTS_VLLM_DECODER_H_

#include <cstddef>
#include <string_view>

#include "absl/status/statusor.h"
#include "client/agent/events/engine_event.h"

namespace warmpath {

// Bounds on one payload. A payload above them is refused whole; an event above them is skipped.
struct DecodeLimits {
  std::size_t max_payload_bytes = 16 << 20;
  std::size_t max_events = 1 << 16;
  std::size_t max_string_bytes = 1 << 16;
  // Blocks with extra keys plus extra keys, over all events: what a few bytes could blow up.
  std::size_t max_extra_keys = 1 << 18;
};

// Accepts every era: a batch as array or map; each event as positional array or tagged map, in
// any mixture; keys in any order; unknown keys and extra slots ignored. An event that can not be
// read is left out and counted in EngineBatch::skipped; the others stand.
//
// INVALID_ARGUMENT when the payload is no batch at all: then nothing of it is known.
// Stateless and thread-safe.
absl::StatusOr<EngineBatch> DecodeKvEvents(std::string_view payload,
                                           const DecodeLimits& limits = {});

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_EVENTS_VLLM_DECODER_H_
