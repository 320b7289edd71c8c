#include "core/index/page_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace warmpath::index_internal {
namespace {

// Enabled in steps, so that the system is asked rarely.
constexpr std::size_t kEnableStep = std::size_t{2} << 20;
constexpr std::size_t kLeastReserve = std::size_t{64} << 20;

// Free pages kept for reuse: a fault costs as much as filling the page.
constexpr std::uint64_t kWarmPages = 512;
constexpr std::uint64_t kWarmShare = 64;  // 1/64 of the pages in use

}  // namespace

AddressRange::AddressRange(std::size_t bytes) {
  size_ = std::max(bytes, kLeastReserve);
  for (;; size_ /= 2) {
    void* const memory =
        mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) {
      base_ = static_cast<char*>(memory);
      return;
    }
    if (size_ <= kLeastReserve) {
      // Nothing can be routed without an index, and no caller could do better.
      std::fputs("index: cannot reserve 64 MiB of address space; raise RLIMIT_AS\n", stderr);
      std::abort();
    }
  }
}

AddressRange::~AddressRange() { munmap(base_, size_); }

bool AddressRange::Enable(std::size_t offset, std::size_t bytes) {
  if (offset > size_ || bytes > size_ - offset) return false;
  return mprotect(base_ + offset, bytes, PROT_READ | PROT_WRITE) == 0;
}

void AddressRange::Discard(std::size_t offset, std::size_t bytes) {
  madvise(base_ + offset, bytes, MADV_DONTNEED);
}

void RunMap::Insert(std::uint32_t start, std::uint32_t pages) {
  by_start_.emplace(start, pages);
  by_length_.emplace(pages, start);
  pages_ += pages;
}

void RunMap::Erase(std::map<std::uint32_t, std::uint32_t>::iterator it) {
  by_length_.erase({it->second, it->first});
  pages_ -= it->second;
  by_start_.erase(it);
}

void RunMap::Add(std::uint32_t start, std::uint32_t pages) {
  auto next = by_start_.lower_bound(start);
  if (next != by_start_.end() && next->first == start + pages) {
    pages += next->second;
    const auto gone = next++;
    Erase(gone);
  }
  if (next != by_start_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == start) {
      start = before->first;
      pages += before->second;
      Erase(before);
    }
  }
  Insert(start, pages);
}

std::optional<std::uint32_t> RunMap::Take(std::uint32_t pages) {
  const auto it = by_length_.lower_bound({pages, 0});
  if (it == by_length_.end()) return std::nullopt;
  const auto [length, start] = *it;
  Erase(by_start_.find(start));
  if (length > pages) Insert(start + pages, length - pages);
  return start;
}

void RunMap::Clear() {
  by_start_.clear();
  by_length_.clear();
  pages_ = 0;
}

PageArena::PageArena(std::size_t reserve_bytes, MemoryAccount* account)
    : account_(account), range_(reserve_bytes) {}

PageArena::~PageArena() {
  PlainLock lock(&mu_);
  account_->Release((used_pages_ + warm_.pages()) * kPageBytes);
}

void* PageArena::Allocate(std::uint32_t pages, MemoryUse use) {
  PlainLock lock(&mu_);
  std::optional<std::uint32_t> start = warm_.Take(pages);
  if (!start.has_value()) {
    const std::uint64_t bytes = pages * kPageBytes;
    if (!account_->Charge(bytes, use)) {
      TrimLocked();
      if (!account_->Charge(bytes, use)) return nullptr;
    }
    start = cold_.Take(pages);
    if (!start.has_value()) {
      if (!ExtendLocked(pages)) {
        account_->Release(bytes);
        return nullptr;
      }
      start = next_page_;
      next_page_ += pages;
    }
  }
  used_pages_ += pages;
  return range_.base() + *start * kPageBytes;
}

bool PageArena::ExtendLocked(std::uint32_t pages) {
  const std::size_t needed = (std::size_t{next_page_} + pages) * kPageBytes;
  if (needed <= enabled_bytes_) return true;
  const std::size_t target = (needed + kEnableStep - 1) / kEnableStep * kEnableStep;
  if (!range_.Enable(enabled_bytes_, target - enabled_bytes_)) return false;
  enabled_bytes_ = target;
  return true;
}

void PageArena::Free(void* memory, std::uint32_t pages) {
  PlainLock lock(&mu_);
  const auto offset = static_cast<std::size_t>(static_cast<char*>(memory) - range_.base());
  warm_.Add(static_cast<std::uint32_t>(offset / kPageBytes), pages);
  used_pages_ -= pages;
  if (warm_.pages() > kWarmPages + used_pages_ / kWarmShare) TrimLocked();
}

void PageArena::Trim() {
  PlainLock lock(&mu_);
  TrimLocked();
}

void PageArena::TrimLocked() {
  account_->Release(warm_.pages() * kPageBytes);
  warm_.ForEach([this](std::uint32_t start, std::uint32_t pages) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    range_.Discard(start * kPageBytes, pages * kPageBytes);
    cold_.Add(start, pages);
  });
  warm_.Clear();
}

}  // namespace warmpath::index_internal
