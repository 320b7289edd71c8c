// Engine events of small blocks, and the chain hashes that they should become.
#ifndef WARMPATH_TESTS_CLIENT_AGENT_EVENTS_ENGINE_EVENTS_H_
#define WARMPATH_TESTS_CLIENT_AGENT_EVENTS_ENGINE_EVENTS_H_

#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "client/agent/canonical/canonical.h"
#include "client/agent/events/engine_event.h"
#include "core/hashing/chain_hash.h"

namespace warmpath::testing {

// Tests use engine blocks of 4 tokens: small enough to write down.
inline constexpr std::uint32_t kBlock = 4;

inline std::vector<TokenId> Tokens(TokenId first, std::size_t n) {
  std::vector<TokenId> tokens(n);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

inline BlockStored Store(std::vector<EngineHash> hashes, std::optional<EngineHash> parent,
                         TokenId first_token, Tier tier = Tier::kGpu) {
  BlockStored event;
  event.token_ids = Tokens(first_token, hashes.size() * kBlock);
  event.block_hashes = std::move(hashes);
  event.parent_block_hash = parent;
  event.block_size = kBlock;
  event.tier = tier;
  return event;
}

inline BlockRemoved Remove(std::vector<EngineHash> hashes, Tier tier = Tier::kGpu) {
  BlockRemoved event;
  event.block_hashes = std::move(hashes);
  event.tier = tier;
  return event;
}

inline EngineBatch Batch(std::vector<EngineEvent> events) {
  EngineBatch batch;
  batch.events = std::move(events);
  return batch;
}

// The chain hashes of `n` routing blocks of `routing_block` tokens counted up from `first`.
inline std::vector<ChainHash> Chain(TokenId first, std::size_t n,
                                    std::uint32_t routing_block = kBlock,
                                    std::optional<std::string_view> lora = std::nullopt,
                                    std::optional<std::string_view> salt = std::nullopt) {
  std::vector<ChainHash> chain;
  AppendChain(DomainSeed(lora, salt), routing_block, Tokens(first, n * routing_block), {}, &chain);
  return chain;
}

inline CanonicalOptions Options(std::uint32_t routing_block = kBlock) {
  CanonicalOptions options;
  options.routing_block = routing_block;
  return options;
}

inline std::vector<ChainHash> Held(const Canonical& canonical, Tier tier = Tier::kGpu) {
  return canonical.Held(tier);
}

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CLIENT_AGENT_EVENTS_ENGINE_EVENTS_H_
