// Pages for the index's tables, taken from one reserved range of addresses.
//
// The index replaces its tables piece by piece, all day long. From the C library's heap the holes
// would stay resident; here a freed run of pages is merged with its neighbours and either reused
// or given back to the system, so that resident memory is what the account says.
#ifndef WARMPATH_CORE_INDEX_PAGE_ARENA_H_
#define WARMPATH_CORE_INDEX_PAGE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

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

 private:
  char* base_ = nullptr;
  std::size_t size_ = 0;
};

// Free runs of pages, merged with their neighbours; best fit, lowest address first.
class RunMap {
 public:
  void Add(std::uint32_t start, std::uint32_t pages);
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

  // `account` must outlive the arena.
  PageArena(std::size_t reserve_bytes, MemoryAccount* account);
  ~PageArena();

  // Content is arbitrary. nullptr when the account refuses.
  void* Allocate(std::uint32_t pages, MemoryUse use);
  void Free(void* memory, std::uint32_t pages);

  // Gives all free pages back to the system.
  void Trim();

 private:
  bool ExtendLocked(std::uint32_t pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TrimLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  MemoryAccount* const account_;
  PlainMutex mu_;
  AddressRange range_;
  std::size_t enabled_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // from the start of range_
  std::uint32_t next_page_ ABSL_GUARDED_BY(mu_) = 0;    // never used from here on
  std::uint64_t used_pages_ ABSL_GUARDED_BY(mu_) = 0;
  RunMap warm_ ABSL_GUARDED_BY(mu_);  // free, memory still behind it, charged
  RunMap cold_ ABSL_GUARDED_BY(mu_);  // free, given back
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_PAGE_ARENA_H_
