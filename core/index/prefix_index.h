// The index that the router runs: see docs/index.md for the design and its reasons.
//
// Writers: one that is alone keeps others out for some hundred blocks of an Apply; several lock a
// bucket each for one block (writer_gate.h). Readers lock nothing and wait for nobody.
#ifndef WARMPATH_CORE_INDEX_PREFIX_INDEX_H_
#define WARMPATH_CORE_INDEX_PREFIX_INDEX_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "core/index/bucket_table.h"
#include "core/index/epoch.h"
#include "core/index/index.h"
#include "core/index/lock.h"
#include "core/index/memory_account.h"
#include "core/index/page_arena.h"
#include "core/index/set_table.h"
#include "core/index/slot_map.h"
#include "core/index/sweeper.h"
#include "core/index/transition_cache.h"

namespace warmpath {

// Thread-safe, as Index says.
class PrefixIndex final : public Index {
 public:
  explicit PrefixIndex(const IndexOptions& options);
  ~PrefixIndex() override;

  absl::StatusOr<Slot> OpenSlot() override;
  void CloseSlot(Slot slot) override;
  void SetMayHaveHoles(Slot slot, bool may) override { slots_.SetMayHaveHoles(slot, may); }
  ApplyResult Apply(Slot slot, Tier tier, std::span<const ChainHash> removed,
                    std::span<const ChainHash> stored) override;
  void Match(std::span<const ChainHash> chain, MatchResult* result) const override;
  bool MatchGpu(std::span<const ChainHash> chain, MatchSegments* result) const override;
  void MatchExact(std::span<const ChainHash> chain, MatchResult* result) const override;
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
  // What a writer needs beside the table. One thread uses it at a time.
  struct Writer {
    index_internal::TransitionCache cache;
    index_internal::SetBuilder builder;
  };
  struct alignas(64) WriterPlace {
    index_internal::PlainMutex mu;
    std::unique_ptr<Writer> writer ABSL_GUARDED_BY(mu);
  };
  // More than threads that share in writing; beyond it they wait for each other.
  static constexpr std::size_t kWriters = 16;
  // Holds one of the places.
  class WriterLease;

  Writer* WriterIn(std::unique_ptr<Writer>* place);  // makes it if it is not there

  // What is left of an Apply.
  struct Changes {
    std::span<const ChainHash> removed;
    std::span<const ChainHash> stored;
  };
  // Applies some hundred of them under one pin and pass. False when it came to a removal for which
  // there is no memory, now the first in `left`.
  bool ApplyPinned(Slot slot, Tier tier, Changes* left, ApplyResult* result);
  template <index_internal::Writing kMode>
  bool ApplyBoth(Writer* writer, Slot slot, Tier tier, Changes* left, ApplyResult* result);
  // Removals that add up to fewer than were given stopped at one for which there is no memory.
  struct Batch {
    std::uint32_t changed = 0;
    std::uint32_t unchanged = 0;
    std::uint32_t refused = 0;  // stores
  };
  // `then` is what will be applied next: its buckets are asked for in time.
  template <bool kAdd, index_internal::Writing kMode>
  Batch ApplySome(Writer* writer, Slot slot, Tier tier, std::span<const ChainHash> hashes,
                  std::span<const ChainHash> then);
  index_internal::SetId Step(Writer* writer, index_internal::SetId from,
                             index_internal::Member member, bool add);
  void CollectNow();

  const std::size_t exact_blocks_;

  // Order of construction matters: each uses those before it.
  index_internal::MemoryAccount account_;
  mutable index_internal::EpochDomain epochs_;
  index_internal::PageArena pages_;
  index_internal::SetTable sets_;
  index_internal::BucketTable table_;
  index_internal::SlotMap slots_;

  index_internal::PlainMutex maintain_mu_;
  index_internal::Sweeper sweeper_;  // Step and CollectNow under maintain_mu_

  std::unique_ptr<Writer> alone_;  // for who is alone in the table's gate
  std::array<WriterPlace, kWriters> writers_;
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_INDEX_PREFIX_INDEX_H_
