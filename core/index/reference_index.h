// The plain model of the index: one hash set for each (slot, tier) under one mutex. It is slow and
// obviously right; differential tests and fuzzers compare the real index against it.
//
// Unlike the real index, Match is exact here: a slot that lost the middle of a chain and kept its
// tail is never over-credited. Readers wait for writers.
#ifndef WARMPATH_CORE_INDEX_REFERENCE_INDEX_H_
#define WARMPATH_CORE_INDEX_REFERENCE_INDEX_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/index/index.h"

namespace warmpath {

// Thread-safe.
class ReferenceIndex final : public Index {
 public:
  // Slot numbers lie in [0, kMaxSlots).
  static constexpr Slot kMaxSlots = 1 << 16;
  // The model charges this much for each (block, slot, tier), so that its bound can be reached.
  static constexpr std::uint64_t kBytesPerPair = 32;

  explicit ReferenceIndex(const IndexOptions& options) : bound_bytes_(options.bound_bytes) {}

  absl::StatusOr<Slot> OpenSlot() override;
  void CloseSlot(Slot slot) override;
  // Only counted: the model looks at every block anyway.
  void SetMayHaveHoles(Slot slot, bool may) override;
  ApplyResult Apply(Slot slot, Tier tier, std::span<const ChainHash> removed,
                    std::span<const ChainHash> stored) override;
  void Match(std::span<const ChainHash> chain, MatchResult* result) const override;
  bool MatchGpu(std::span<const ChainHash> chain, MatchSegments* result) const override;
  void MatchExact(std::span<const ChainHash> chain, MatchResult* result) const override {
    Match(chain, result);
  }
  std::size_t VerifiedGpuDepth(Slot slot, std::span<const ChainHash> chain, std::size_t from,
                               std::size_t limit) const override;
  SlotMatch VerifiedMatch(Slot slot, std::span<const ChainHash> chain,
                          std::size_t from) const override;
  bool Holds(Slot slot, Tier tier, ChainHash hash) const override;
  HoldingsDigest Digest(Slot slot, Tier tier) const override;
  void ForEach(Slot slot, Tier tier, absl::FunctionRef<void(ChainHash)> visit) const override;
  IndexStats Stats() const override;
  bool Maintain(std::size_t budget_blocks) override;

 private:
  using Holdings = std::array<absl::flat_hash_set<ChainHash>, kTierCount>;

  const std::uint64_t bound_bytes_;
  mutable absl::Mutex mu_;
  std::map<Slot, Holdings> open_ ABSL_GUARDED_BY(mu_);
  // Closed and not yet given back: numbers return to use in Maintain() only, as in the real index.
  std::set<Slot> closed_ ABSL_GUARDED_BY(mu_);
  std::set<Slot> may_have_holes_ ABSL_GUARDED_BY(mu_);
  std::uint64_t pairs_ ABSL_GUARDED_BY(mu_) = 0;
  std::uint64_t refused_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_INDEX_REFERENCE_INDEX_H_
