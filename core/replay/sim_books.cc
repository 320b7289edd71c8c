#include "core/replay/sim_books.h"

namespace warmpath {

void SimBooks::Open(std::size_t worker, std::uint32_t tenant, std::span<const ChainHash> chain,
                    std::uint64_t prompt_tokens, std::uint64_t uncached_tokens) {
  Worker& w = workers_[worker];
  OfTenant& of_tenant = tenants_[worker][tenant];
  ++of_tenant.inflight;
  ++of_tenant.pending;
  w.pending_uncached_tokens += uncached_tokens;
  w.prompt_tokens += prompt_tokens;
  for (const ChainHash hash : chain) ++w.blocks[hash];
}

void SimBooks::FirstToken(std::size_t worker, std::uint32_t tenant, std::uint64_t uncached_tokens) {
  --tenants_[worker][tenant].pending;
  workers_[worker].pending_uncached_tokens -= uncached_tokens;
}

void SimBooks::Close(std::size_t worker, std::uint32_t tenant, std::span<const ChainHash> chain,
                     std::uint64_t prompt_tokens) {
  Worker& w = workers_[worker];
  --tenants_[worker][tenant].inflight;
  w.prompt_tokens -= prompt_tokens;
  for (const ChainHash hash : chain) {
    const auto it = w.blocks.find(hash);
    if (--it->second == 0) w.blocks.erase(it);
  }
}

std::uint64_t SimBooks::NewBlocks(std::size_t worker, std::span<const ChainHash> chain) const {
  const auto& blocks = workers_[worker].blocks;
  // Who has a block has all before it.
  std::size_t have = 0;
  while (have < chain.size() && blocks.contains(chain[have])) ++have;
  return chain.size() - have;
}

}  // namespace warmpath
