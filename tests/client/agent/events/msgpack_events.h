// Event payloads as an engine sends them, for tests of the agent's impure half.
#ifndef WARMPATH_TESTS_CLIENT_AGENT_EVENTS_MSGPACK_EVENTS_H_
#define WARMPATH_TESTS_CLIENT_AGENT_EVENTS_MSGPACK_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "tests/fakes/engine/kv_events.h"
#include "tests/fakes/engine/msgpack_writer.h"

namespace warmpath::testing {

inline constexpr double kEventTs = 1700000000.5;

// One chain from token 0 whose blocks are named first_hash, first_hash + 1, ...
inline std::string StoredBatch(std::uint64_t first_hash, std::size_t blocks,
                               std::vector<TokenId> tokens, std::uint32_t block_size) {
  engine::BlockStored stored;
  for (std::size_t i = 0; i < blocks; ++i) stored.hashes.push_back(first_hash + i);
  stored.tokens = std::move(tokens);
  stored.block_size = block_size;
  stored.extra_keys.resize(blocks);  // nil for each
  return engine::EncodeBatch(kEventTs, {stored}, 0, engine::EventFormat::kMap);
}

inline std::string RemovedBatch(const std::vector<std::uint64_t>& hashes) {
  std::vector<engine::KvEvent> events;
  for (const std::uint64_t hash : hashes) events.emplace_back(engine::BlockRemoved{hash});
  return engine::EncodeBatch(kEventTs, events, 0, engine::EventFormat::kMap);
}

inline std::string ClearedBatch() {
  return engine::EncodeBatch(kEventTs, {engine::AllBlocksCleared{}}, 0, engine::EventFormat::kMap);
}

// The same stores as StoredBatch between three events that nobody can read.
inline std::string BatchWithBadEvents(std::uint64_t first_hash, std::size_t blocks,
                                      const std::vector<TokenId>& tokens,
                                      std::uint32_t block_size) {
  std::string bytes;
  engine::MsgpackWriter writer(&bytes);
  writer.Array(3);
  writer.Double(kEventTs);
  writer.Array(4);
  writer.Uint(7);  // no event at all
  writer.Map(1);
  writer.Str("type");
  writer.Str("BlockTurnedInsideOut");
  // Positional: tag, hashes, parent, tokens, block size, LoRA number.
  writer.Array(6);
  writer.Str("BlockStored");
  writer.Array(blocks);
  for (std::size_t i = 0; i < blocks; ++i) writer.Uint(first_hash + i);
  writer.Nil();
  writer.Array(tokens.size());
  for (const TokenId token : tokens) writer.Uint(token);
  writer.Uint(block_size);
  writer.Nil();
  writer.Array(2);
  writer.Str("BlockRemoved");
  writer.Str("not a list");
  writer.Uint(0);
  return bytes;
}

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CLIENT_AGENT_EVENTS_MSGPACK_EVENTS_H_
