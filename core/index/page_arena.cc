#include "core/index/page_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace warmpath::index_internal {
namespace {

constexpr std::size_t kRegionBytes = std::size_t{2} << 20;  // a huge page
constexpr std::size_t kLeastReserve = std::size_t{64} << 20;
// Small pages up to here: about what a processor keeps the translations of; and a small index
// should not grow by megabytes.
constexpr std::uint32_t kSmallRegions = 4;

// Free pages kept for reuse: a fault costs as much as filling the page; and a huge page is worth
// some that are idle.
constexpr std::uint64_t kWarmPages = 512;
constexpr std::uint64_t kWarmShare = 64;  // and 1/64 of the pages in use
constexpr std::uint64_t kHugeWarmShare = 8;

}  // namespace

AddressRange::AddressRange(std::size_t bytes) {
  size_ = std::max(bytes, kLeastReserve);
  for (;; size_ /= 2) {
    // One region more, so that there is a place in it at which regions begin.
    mapped_bytes_ = size_ + kRegionBytes;
    void* const memory =
        mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) {
      mapped_ = static_cast<char*>(memory);
      // Where the system gives huge pages unasked, too: what is held must be what is charged.
      madvise(memory, mapped_bytes_, MADV_NOHUGEPAGE);
      const std::size_t past = reinterpret_cast<std::uintptr_t>(memory) % kRegionBytes;
      base_ = mapped_ + (past == 0 ? 0 : kRegionBytes - past);
      return;
    }
    if (size_ <= kLeastReserve) {
      // Nothing can be routed without an index, and no caller could do better.
      std::fputs("index: cannot reserve 64 MiB of address space; raise RLIMIT_AS\n", stderr);
      std::abort();
    }
  }
}

AddressRange::~AddressRange() { munmap(mapped_, mapped_bytes_); }

bool AddressRange::Enable(std::size_t offset, std::size_t bytes) {
  if (offset > size_ || bytes > size_ - offset) return false;
  return mprotect(base_ + offset, bytes, PROT_READ | PROT_WRITE) == 0;
}

void AddressRange::Discard(std::size_t offset, std::size_t bytes) {
  madvise(base_ + offset, bytes, MADV_DONTNEED);
}

void AddressRange::AllowHugePages(std::size_t offset, std::size_t bytes, bool allow) {
  madvise(base_ + offset, bytes, allow ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
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

RunMap::Run RunMap::Add(std::uint32_t start, std::uint32_t pages) {
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
  return {start, pages};
}

void RunMap::Remove(const Run& run) { Erase(by_start_.find(run.start)); }

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

PageArena::PageArena(std::size_t reserve_bytes, MemoryAccount* account, std::uint64_t roomy_bytes)
    : account_(account), roomy_bytes_(roomy_bytes), range_(reserve_bytes) {}

PageArena::~PageArena() {
  PlainLock lock(&mu_);
  account_->Release((used_pages_ + warm_.pages()) * kPageBytes);
}

void* PageArena::Allocate(std::uint32_t pages, MemoryUse use) {
  PlainLock lock(&mu_);
  std::optional<std::uint32_t> start;
  if (use != MemoryUse::kStore || account_->overdraft() <= warm_.pages() * kPageBytes) {
    start = warm_.Take(pages);
  }
  if (!start.has_value() && WantsHugeLocked()) start = TakeHugeLocked(pages);
  if (!start.has_value()) start = TakeSmallLocked(pages, use);
  if (!start.has_value()) return nullptr;
  used_pages_ += pages;
  return range_.base() + *start * kPageBytes;
}

std::optional<std::uint32_t> PageArena::TakeHugeLocked(std::uint32_t pages) {
  const std::uint32_t region_pages = RegionsFor(pages) * kRegionPages;
  // As a store, whatever it is for: the rest of a region is for stores, too.
  if (!account_->Charge(region_pages * kPageBytes, MemoryUse::kStore)) return std::nullopt;
  const auto region = TakeRegionsLocked(RegionsFor(pages), /*huge=*/true);
  if (!region.has_value()) {
    account_->Release(region_pages * kPageBytes);
    return std::nullopt;
  }
  const std::uint32_t start = *region * kRegionPages;
  if (pages < region_pages) warm_.Add(start + pages, region_pages - pages);
  return start;
}

std::optional<std::uint32_t> PageArena::TakeSmallLocked(std::uint32_t pages, MemoryUse use) {
  const std::uint64_t bytes = pages * kPageBytes;
  if (!account_->Charge(bytes, use)) {
    TrimLocked(0);
    if (!account_->Charge(bytes, use)) return std::nullopt;
  }
  if (const auto start = cold_.Take(pages)) return start;
  const auto region = TakeRegionsLocked(RegionsFor(pages), /*huge=*/false);
  if (!region.has_value()) {
    account_->Release(bytes);
    return std::nullopt;
  }
  const std::uint32_t start = *region * kRegionPages;
  const std::uint32_t region_pages = RegionsFor(pages) * kRegionPages;
  if (pages < region_pages) cold_.Add(start + pages, region_pages - pages);
  return start;
}

std::optional<std::uint32_t> PageArena::TakeRegionsLocked(std::uint32_t regions, bool huge) {
  std::optional<std::uint32_t> region = cold_regions_.Take(regions);
  if (!region.has_value()) {
    region = static_cast<std::uint32_t>(huge_.size());
    if (!range_.Enable(*region * kRegionBytes, regions * kRegionBytes)) return std::nullopt;
    huge_.resize(huge_.size() + regions);
  }
  SetHugeLocked(*region, regions, huge);
  return region;
}

void PageArena::SetHugeLocked(std::uint32_t region, std::uint32_t regions, bool huge) {
  range_.AllowHugePages(region * kRegionBytes, regions * kRegionBytes, huge);
  for (std::uint32_t i = 0; i < regions; ++i) huge_[region + i] = huge;
}

void PageArena::Free(void* memory, std::uint32_t pages) {
  PlainLock lock(&mu_);
  const auto offset = static_cast<std::size_t>(static_cast<char*>(memory) - range_.base());
  const auto start = static_cast<std::uint32_t>(offset / kPageBytes);
  used_pages_ -= pages;
  if (WantsHugeLocked()) {
    // What lies in small pages is to move to huge ones by and by.
    KeepHugeLocked({start, pages});
  } else {
    warm_.Add(start, pages);
  }
  // Some way below the limit, so that not each of the next calls does it again.
  const std::uint64_t most = MostWarmPagesLocked();
  if (warm_.pages() > most) TrimLocked(most / 4 * 3);
}

bool PageArena::WantsHugeLocked() const {
  return huge_.size() >= kSmallRegions && used_pages_ * kPageBytes < roomy_bytes_;
}

std::uint64_t PageArena::MostWarmPagesLocked() const {
  return kWarmPages + used_pages_ / (WantsHugeLocked() ? kHugeWarmShare : kWarmShare);
}

void PageArena::Trim() {
  PlainLock lock(&mu_);
  TrimLocked(WantsHugeLocked() ? used_pages_ / kHugeWarmShare : 0);
}

void PageArena::TrimAll() {
  PlainLock lock(&mu_);
  TrimLocked(0);
}

void PageArena::TrimLocked(std::uint64_t most_kept) {
  if (warm_.pages() == 0) return;  // the usual case at the bound
  std::vector<Run> runs;
  warm_.ForEach([&](std::uint32_t start, std::uint32_t pages) { runs.push_back({start, pages}); });
  // Huge pages with free parts, the emptiest first.
  struct Region {
    std::uint32_t region;
    std::uint32_t free_pages;
  };
  std::vector<Region> regions;
  for (const Run& run : runs) {
    ForEachRegion(run, [&](std::uint32_t region, const Run& part) {
      if (regions.empty() || regions.back().region != region) regions.push_back({region, 0});
      regions.back().free_pages += part.pages;
    });
  }
  std::erase_if(regions, [this](const Region& at) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return !huge_[at.region] || at.free_pages == kRegionPages;
  });
  std::sort(regions.begin(), regions.end(),
            [](const Region& a, const Region& b) { return a.free_pages > b.free_pages; });
  std::uint64_t kept = 0;
  for (const Region& at : regions) kept += at.free_pages;
  for (std::size_t i = 0; i < regions.size() && kept > most_kept; ++i) {
    kept -= regions[i].free_pages;
    SetHugeLocked(regions[i].region, 1, false);
  }
  warm_.Clear();
  for (const Run& run : runs) KeepHugeLocked(run);
}

void PageArena::KeepHugeLocked(const Run& run) {
  ForEachRegion(run, [this](std::uint32_t region, const Run& part) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (huge_[region] && part.pages < kRegionPages) {
      warm_.Add(part.start, part.pages);
    } else {
      GiveBackLocked(part);
    }
  });
}

template <typename Visit>
void PageArena::ForEachRegion(const Run& run, Visit visit) {
  const std::uint32_t end = run.start + run.pages;
  for (std::uint32_t start = run.start; start < end;) {
    const std::uint32_t region = start / kRegionPages;
    const std::uint32_t part_end = std::min((region + 1) * kRegionPages, end);
    visit(region, Run{start, part_end - start});
    start = part_end;
  }
}

void PageArena::GiveBackLocked(const Run& run) {
  range_.Discard(run.start * kPageBytes, run.pages * kPageBytes);
  account_->Release(run.pages * kPageBytes);
  AddColdLocked(run);
}

void PageArena::AddColdLocked(const Run& run) {
  const Run merged = cold_.Add(run.start, run.pages);
  const std::uint32_t end = merged.start + merged.pages;
  const std::uint32_t first = (merged.start + kRegionPages - 1) / kRegionPages;
  const std::uint32_t past = end / kRegionPages;
  if (first >= past) return;
  // Whole regions, which can be huge pages again.
  cold_.Remove(merged);
  if (merged.start < first * kRegionPages) {
    cold_.Add(merged.start, first * kRegionPages - merged.start);
  }
  if (past * kRegionPages < end) cold_.Add(past * kRegionPages, end - past * kRegionPages);
  cold_regions_.Add(first, past - first);
}

}  // namespace warmpath::index_internal
