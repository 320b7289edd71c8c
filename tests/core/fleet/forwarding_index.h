// An index that hands every call on to the plain model, for tests that change or watch a few.
#ifndef WARMPATH_TESTS_CORE_FLEET_FORWARDING_INDEX_H_
#define WARMPATH_TESTS_CORE_FLEET_FORWARDING_INDEX_H_

#include <cstddef>
#include <span>

#include "core/index/index.h"
#include "core/index/reference_index.h"

namespace warmpath::testing {

class ForwardingIndex : public Index {
 public:
  absl::StatusOr<Slot> OpenSlot() override { return index_.OpenSlot(); }
  void CloseSlot(Slot slot) override { index_.CloseSlot(slot); }
  void SetMayHaveHoles(Slot slot, bool may) override { index_.SetMayHaveHoles(slot, may); }
  ApplyResult Apply(Slot slot, Tier tier, std::span<const ChainHash> removed,
                    std::span<const ChainHash> stored) override {
    return index_.Apply(slot, tier, removed, stored);
  }
  void Match(std::span<const ChainHash> chain, MatchResult* result) const override {
    index_.Match(chain, result);
  }
  bool MatchGpu(std::span<const ChainHash> chain, MatchSegments* result) const override {
    return index_.MatchGpu(chain, result);
  }
  void MatchExact(std::span<const ChainHash> chain, MatchResult* result) const override {
    index_.MatchExact(chain, result);
  }
  std::size_t VerifiedGpuDepth(Slot slot, std::span<const ChainHash> chain, std::size_t from,
                               std::size_t limit) const override {
    return index_.VerifiedGpuDepth(slot, chain, from, limit);
  }
  SlotMatch VerifiedMatch(Slot slot, std::span<const ChainHash> chain,
                          std::size_t from) const override {
    return index_.VerifiedMatch(slot, chain, from);
  }
  bool Holds(Slot slot, Tier tier, ChainHash hash) const override {
    return index_.Holds(slot, tier, hash);
  }
  HoldingsDigest Digest(Slot slot, Tier tier) const override { return index_.Digest(slot, tier); }
  void ForEach(Slot slot, Tier tier, absl::FunctionRef<void(ChainHash)> visit) const override {
    index_.ForEach(slot, tier, visit);
  }
  IndexStats Stats() const override { return index_.Stats(); }
  bool Maintain(std::size_t budget) override { return index_.Maintain(budget); }

 private:
  ReferenceIndex index_{{.bound_bytes = 1 << 20}};
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CORE_FLEET_FORWARDING_INDEX_H_
