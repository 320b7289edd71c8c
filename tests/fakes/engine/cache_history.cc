#include "tests/fakes/engine/cache_history.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace warmpath::engine {

void CacheHistory::Stored(BlockInfoPtr block) {
  Held& held = blocks_[block->hash];
  if (++held.copies > 1) return;
  held.block = block;
  pending_.push_back({std::move(block), /*appeared=*/true});
}

void CacheHistory::Evicted(std::uint64_t hash) {
  const auto it = blocks_.find(hash);
  if (it == blocks_.end() || --it->second.copies > 0) return;
  pending_.push_back({std::move(it->second.block), /*appeared=*/false});
  blocks_.erase(it);
}

void CacheHistory::Cleared() {
  for (auto& [hash, held] : blocks_) {
    pending_.push_back({std::move(held.block), /*appeared=*/false});
  }
  blocks_.clear();
}

void CacheHistory::Commit(std::uint64_t seq) {
  last_seq_ = seq;
  batches_.push_back(std::exchange(pending_, {}));
  if (batches_.size() > max_batches_) batches_.pop_front();
}

absl::StatusOr<std::vector<BlockInfoPtr>> CacheHistory::At(std::optional<std::uint64_t> seq) const {
  if (seq && (!last_seq_ || *seq > *last_seq_)) {
    return absl::NotFoundError(
        absl::StrCat("batch ", *seq, " does not exist yet; the last is ",
                     last_seq_ ? absl::StrCat(*last_seq_) : std::string("none")));
  }
  const std::uint64_t undo = seq ? *last_seq_ - *seq : 0;
  if (undo > batches_.size()) {
    return absl::OutOfRangeError(absl::StrCat("batch ", *seq, " is too old; the oldest kept is ",
                                              *last_seq_ - batches_.size()));
  }
  absl::flat_hash_map<std::uint64_t, BlockInfoPtr> held;
  held.reserve(blocks_.size());
  for (const auto& [hash, entry] : blocks_) held.emplace(hash, entry.block);
  const auto revert = [&held](const Changes& changes) {
    for (auto it = changes.rbegin(); it != changes.rend(); ++it) {
      if (it->appeared) {
        held.erase(it->block->hash);
      } else {
        held.emplace(it->block->hash, it->block);
      }
    }
  };
  revert(pending_);
  for (std::uint64_t i = 0; i < undo; ++i) revert(batches_[batches_.size() - 1 - i]);
  std::vector<BlockInfoPtr> result;
  result.reserve(held.size());
  for (auto& [hash, block] : held) result.push_back(std::move(block));
  return result;
}

}  // namespace warmpath::engine
