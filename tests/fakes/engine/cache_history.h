// What one rank's cache holds, block by block, and what it held after each recent event batch:
// the truth against which routers and agents are tested. Kept from the cache's own changes, not
// from the messages that were sent.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_CACHE_HISTORY_H_
#define WARMPATH_TESTS_FAKES_ENGINE_CACHE_HISTORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"

namespace warmpath::engine {

// What separates prompts with equal tokens.
struct HashDomain {
  std::optional<std::string> lora;
  std::optional<std::string> salt;
};

struct BlockInfo {
  std::uint64_t hash = 0;
  std::optional<std::uint64_t> parent;
  std::vector<TokenId> tokens;
  std::shared_ptr<const HashDomain> domain;
};
using BlockInfoPtr = std::shared_ptr<const BlockInfo>;

// Not thread-safe. Memory: the resident blocks and the changes of the last `max_batches` batches.
class CacheHistory {
 public:
  explicit CacheHistory(std::size_t max_batches) : max_batches_(max_batches) {}

  // One copy more or fewer. A block is in the cache while it has a copy.
  void Stored(BlockInfoPtr block);
  void Evicted(std::uint64_t hash);
  void Cleared();
  // All changes since the last commit belong to batch `seq`. Batches come in order, from 0.
  void Commit(std::uint64_t seq);

  std::optional<std::uint64_t> last_seq() const { return last_seq_; }
  // Distinct blocks now, committed or not.
  std::size_t size() const { return blocks_.size(); }
  bool Contains(std::uint64_t hash) const { return blocks_.contains(hash); }

  // The blocks held after batch `seq`; without one, after the last batch. NOT_FOUND: no such batch
  // yet. OUT_OF_RANGE: too long ago.
  absl::StatusOr<std::vector<BlockInfoPtr>> At(std::optional<std::uint64_t> seq) const;

 private:
  struct Change {
    BlockInfoPtr block;
    bool appeared = false;
  };
  using Changes = std::vector<Change>;
  struct Held {
    BlockInfoPtr block;
    std::uint32_t copies = 0;
  };

  const std::size_t max_batches_;
  absl::flat_hash_map<std::uint64_t, Held> blocks_;
  Changes pending_;
  std::deque<Changes> batches_;  // The last one is that of last_seq_.
  std::optional<std::uint64_t> last_seq_;
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_CACHE_HISTORY_H_
