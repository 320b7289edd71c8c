// What some published rules count per worker beside the router's own ledger. Fed by the same picks
// and by the same, late, signals of first tokens and finishes.
#ifndef WARMPATH_CORE_REPLAY_SIM_BOOKS_H_
#define WARMPATH_CORE_REPLAY_SIM_BOOKS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/ids.h"

namespace warmpath {

// Not thread-safe.
class SimBooks {
 public:
  struct Worker {
    std::uint64_t pending_uncached_tokens = 0;             // of requests without first token
    std::uint64_t prompt_tokens = 0;                       // of requests in flight
    absl::flat_hash_map<ChainHash, std::uint32_t> blocks;  // prompt blocks in flight, with counts
  };

  // One tenant's requests on one worker.
  struct OfTenant {
    std::uint32_t inflight = 0;
    std::uint32_t pending = 0;  // of them without first token
  };

  explicit SimBooks(std::size_t workers) : workers_(workers), tenants_(workers) {}

  void Open(std::size_t worker, std::uint32_t tenant, std::span<const ChainHash> chain,
            std::uint64_t prompt_tokens, std::uint64_t uncached_tokens);
  void FirstToken(std::size_t worker, std::uint32_t tenant, std::uint64_t uncached_tokens);
  void Close(std::size_t worker, std::uint32_t tenant, std::span<const ChainHash> chain,
             std::uint64_t prompt_tokens);

  const Worker& Of(std::size_t worker) const { return workers_[worker]; }
  OfTenant Of(std::size_t worker, std::uint32_t tenant) const {
    const auto it = tenants_[worker].find(tenant);
    return it == tenants_[worker].end() ? OfTenant() : it->second;
  }
  // Blocks of the chain that no request in flight on the worker has.
  std::uint64_t NewBlocks(std::size_t worker, std::span<const ChainHash> chain) const;

 private:
  std::vector<Worker> workers_;
  std::vector<absl::flat_hash_map<std::uint32_t, OfTenant>> tenants_;  // by worker
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_SIM_BOOKS_H_
