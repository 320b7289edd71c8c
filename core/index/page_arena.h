// Pages for the index's tables, taken from one reserved range of addresses.
//
// The index replaces its tables piece by piece, all day long. From the C library's heap the holes
// would stay resident; here a freed run of pages is merged with its neighbours and either reused
// or given back to the system, so that resident memory is what the account says.
//
// Between the first few megabytes and `roomy_bytes` the system is asked for huge pages. A table is
// read and written at random, and by small pages nearly every access first waits for its address to
// be translated: that is a sixth of a writer's time. The price is that memory comes and goes in
// regions of 2 MiB, and that up to an eighth lies idle in the holes between runs of all
// lengths. That is too much for a large index, whose memory comes in small pages. A region counts
// as held from its first page on; it is given back when all of it is free, or, when too much is
// free, cut into small pages, the emptiest regions first. What is freed in small pages is not used
// again before its region can be huge.
#ifndef WARMPATH_CORE_INDEX_PAGE_ARENA_H_
#define WARMPATH_CORE_INDEX_PAGE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/index/lock.h"
#include "core/index/memory_account.h"

namespace warmpath::index_internal {

// A range of addresses without memory behind it. Thread-safe: it holds no state that changes.
class AddressRange {
 public:
  // Takes less (by halves) where the system limits address space.
  explicit AddressRange(std::size_t bytes);
  ~AddressRange();
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  char* base() const { return base_; }
  std::size_t size() const { return size_; }

  // Makes [offset, offset + bytes) readable and writable; it reads as zeros. Offsets and sizes in
  // whole pages. False when it ends past the range or the system refuses.
  bool Enable(std::size_t offset, std::size_t bytes);

  // Gives the memory behind an enabled part back; it reads as zeros afterwards.
  void Discard(std::size_t offset, std::size_t bytes);

  // Whether the system may put huge pages behind an enabled part. A wish: where it has none, or
  // does not give them, small ones serve.
  void AllowHugePages(std::size_t offset, std::size_t bytes, bool allow);

 private:
  char* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  char* base_ = nullptr;  // on the border of a huge page
  std::size_t size_ = 0;
};

// Free runs of pages, merged with their neighbours; best fit, lowest address first.
class RunMap {
 public:
  // Returns the run that it became a part of.
  struct Run {
    std::uint32_t start;
    std::uint32_t pages;
  };
  Run Add(std::uint32_t start, std::uint32_t pages);
  // REQUIRES: `run` is one of the map's.
  void Remove(const Run& run);
  std::optional<std::uint32_t> Take(std::uint32_t pages);
  std::uint64_t pages() const { return pages_; }
  void Clear();

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const auto& [start, length] : by_start_) visit(start, length);
  }

 private:
  void Erase(std::map<std::uint32_t, std::uint32_t>::iterator it);
  void Insert(std::uint32_t start, std::uint32_t pages);

  std::map<std::uint32_t, std::uint32_t> by_start_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> by_length_;  // (length, start)
  std::uint64_t pages_ = 0;
};

// Thread-safe.
class PageArena {
 public:
  static constexpr std::size_t kPageBytes = 4096;

  // `account` must outlive the arena. Up to `roomy_bytes` in use it takes more memory than it must,
  // for speed.
  PageArena(std::size_t reserve_bytes, MemoryAccount* account, std::uint64_t roomy_bytes = 0);
  ~PageArena();

  // Content is arbitrary. nullptr when the account refuses.
  void* Allocate(std::uint32_t pages, MemoryUse use);
  void Free(void* memory, std::uint32_t pages);

  // Gives free pages back to the system, but for some between used ones in huge pages.
  void Trim();
  // Gives all of them back, cutting huge pages.
  void TrimAll();

 private:
  using Run = RunMap::Run;
  static constexpr std::uint32_t kRegionPages = (std::uint32_t{2} << 20) / kPageBytes;

  static std::uint32_t RegionsFor(std::uint32_t pages) {
    return (pages + kRegionPages - 1) / kRegionPages;
  }

  // Pages that nothing is behind, charged: nullopt when the account refuses or addresses end.
  std::optional<std::uint32_t> TakeHugeLocked(std::uint32_t pages)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<std::uint32_t> TakeSmallLocked(std::uint32_t pages, MemoryUse use)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // So many regions, enabled, never used or all given back; the number of the first.
  std::optional<std::uint32_t> TakeRegionsLocked(std::uint32_t regions, bool huge)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetHugeLocked(std::uint32_t region, std::uint32_t regions, bool huge)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives back what lies in small pages or wholly free regions; and cuts huge pages, those with the
  // fewest pages in use first, until no more than so many free pages are kept.
  void TrimLocked(std::uint64_t most_kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls visit(region, part of the run in it).
  template <typename Visit>
  static void ForEachRegion(const Run& run, Visit visit);
  // Keeps what is a part of a huge page; gives the rest back.
  void KeepHugeLocked(const Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveBackLocked(const Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddColdLocked(const Run& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WantsHugeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How many free pages are kept.
  std::uint64_t MostWarmPagesLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  MemoryAccount* const account_;
  const std::uint64_t roomy_bytes_;
  PlainMutex mu_;
  AddressRange range_;
  std::uint64_t used_pages_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<bool> huge_ ABSL_GUARDED_BY(mu_);  // of the regions that were ever used
  RunMap warm_ ABSL_GUARDED_BY(mu_);             // free, memory still behind it, charged
  RunMap cold_ ABSL_GUARDED_BY(mu_);             // free, given back, less than a region
  RunMap cold_regions_ ABSL_GUARDED_BY(mu_);     // in regions: whole ones that were given back
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_PAGE_ARENA_H_
