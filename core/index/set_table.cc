#include "core/index/set_table.h"

#include <algorithm>
#include <cstring>

namespace warmpath::index_internal {
namespace {

// Above this share of its places a shard grows by half.
constexpr std::uint32_t kMaxShardPercent = 80;
constexpr std::uint32_t kMinShardPercent = 25;

constexpr std::uint32_t kPlacesPerPage = PageArena::kPageBytes / 8;

}  // namespace

SetTable::SetTable(PageArena* pages, MemoryAccount* account)
    : pages_(pages),
      account_(account),
      range_(kReserveBytes),
      base_(range_.base()),
      half_units_(static_cast<std::uint32_t>(range_.size() / kUnitBytes / 2)) {}

SetTable::~SetTable() {
  for (Shard& shard : shards_) {
    PlainLock lock(&shard.mu);
    if (shard.places != nullptr) pages_->Free(shard.places, shard.pages);
  }
  account_->Release(arena_bytes() + retired_charge_);
}

std::uint32_t SetTable::HomePlace(std::uint32_t hash, std::uint32_t capacity) {
  // Mixed again: all hashes of a shard agree in what ShardFor looks at.
  const std::uint32_t mixed = (hash ^ (hash >> 15)) * 0x85EBCA6Bu;
  return static_cast<std::uint32_t>((std::uint64_t{mixed} * capacity) >> 32);
}

SetId SetTable::Intern(const SetNode& content, MemoryUse use) {
  Shard& shard = ShardFor(content.hash);
  PlainLock lock(&shard.mu);
  if (shard.used * std::uint64_t{100} >= shard.capacity * std::uint64_t{kMaxShardPercent}) {
    const std::uint32_t pages = shard.pages == 0 ? 1 : shard.pages + (shard.pages + 1) / 2;
    // Without memory the rest of the places may still do; one must stay free.
    if (!ResizeShard(&shard, pages, use) && shard.used + 1 >= shard.capacity) {
      // A set that is there already needs no place.
      if (shard.capacity == 0) return kNoSet;
    }
  }
  std::uint32_t place = HomePlace(content.hash, shard.capacity);
  for (; shard.places[place].id != kEmptySet; place = place + 1 < shard.capacity ? place + 1 : 0) {
    if (shard.places[place].hash != content.hash) continue;
    SetId id = shard.places[place].id;
    const SetNode& node = Node(id);
    if (node.bytes() != content.bytes() || std::memcmp(&node, &content, node.bytes()) != 0) {
      continue;
    }
    if (Outdated(id)) {
      id = Store(content, MemoryUse::kFixed);
      if (id == kNoSet) return kNoSet;
      shard.places[place].id = id;
    }
    Mark(id);
    return id;
  }
  if (shard.used + 1 >= shard.capacity) return kNoSet;
  const SetId id = Store(content, use);
  if (id == kNoSet) return kNoSet;
  Mark(id);
  shard.places[place] = {id, content.hash};
  ++shard.used;
  sets_.fetch_add(1, std::memory_order_relaxed);
  created_.fetch_add(1, std::memory_order_relaxed);
  return id;
}

bool SetTable::ResizeShard(Shard* shard, std::uint32_t pages, MemoryUse use) {
  auto* const places = static_cast<Place*>(pages_->Allocate(pages, use));
  if (places == nullptr) return false;
  const std::uint32_t capacity = pages * kPlacesPerPage;
  std::fill_n(places, capacity, Place{kEmptySet, 0});
  for (std::uint32_t i = 0; i < shard->capacity; ++i) {
    if (shard->places[i].id == kEmptySet) continue;
    std::uint32_t to = HomePlace(shard->places[i].hash, capacity);
    while (places[to].id != kEmptySet) to = to + 1 < capacity ? to + 1 : 0;
    places[to] = shard->places[i];
  }
  if (shard->places != nullptr) pages_->Free(shard->places, shard->pages);
  shard->places = places;
  shard->pages = pages;
  shard->capacity = capacity;
  ++shard->rebuilds;
  return true;
}

void SetTable::ErasePlace(Shard* shard, std::uint32_t place) {
  // Later entries of the same run move up, so that no probe stops early.
  std::uint32_t hole = place;
  for (std::uint32_t i = place;;) {
    i = i + 1 < shard->capacity ? i + 1 : 0;
    if (shard->places[i].id == kEmptySet) break;
    const std::uint32_t home = HomePlace(shard->places[i].hash, shard->capacity);
    const bool may_move = hole <= i ? home <= hole || home > i : home <= hole && home > i;
    if (!may_move) continue;
    shard->places[hole] = shard->places[i];
    hole = i;
  }
  shard->places[hole] = {kEmptySet, 0};
  --shard->used;
}

bool SetTable::NewChunk(MemoryUse use, Cursor* cursor) {
  const std::size_t half_bytes = std::size_t{half_units_} * kUnitBytes;
  const std::size_t offset = chunks_ * kChunkBytes;
  if (offset + kChunkBytes > half_bytes) return false;
  if (use == MemoryUse::kFixed && set_aside_ >= kChunkBytes) {
    set_aside_ -= kChunkBytes;
  } else if (!account_->Charge(kChunkBytes, use)) {
    pages_->TrimAll();
    if (!account_->Charge(kChunkBytes, use)) return false;
  }
  if (!range_.Enable(half_ * half_bytes + offset, kChunkBytes)) {
    account_->Release(kChunkBytes);
    return false;
  }
  if (cursor->next != cursor->end) PushFree(cursor->next, cursor->end - cursor->next);
  const SetId begin = half_ * half_units_ + chunks_ * kChunkUnits;
  cursor->next = begin + kMarkUnits;
  cursor->end = begin + kChunkUnits;
  ++chunks_;
  arena_bytes_.fetch_add(kChunkBytes, std::memory_order_relaxed);
  return true;
}

void SetTable::PushFree(SetId id, std::uint32_t units) {
  // Only a chunk's rest can be longer than any set; it is then cut.
  while (units > 0) {
    const auto length = std::min<std::uint32_t>(units, kMaxUnits);
    std::memcpy(base_ + id * kUnitBytes, &free_[length], sizeof(SetId));
    free_[length] = id;
    ++free_count_[length];
    id += length;
    units -= length;
  }
}

SetId SetTable::PopFree(std::uint32_t units) {
  const SetId id = free_[units];
  if (id == kEmptySet) return id;
  std::memcpy(&free_[units], base_ + id * kUnitBytes, sizeof(SetId));
  --free_count_[units];
  return id;
}

std::uint64_t SetTable::FreeBytes(std::uint32_t units) const {
  std::uint64_t free = new_sets_.end - new_sets_.next;
  for (std::uint32_t length = units; length <= kMaxUnits; ++length) {
    free += std::uint64_t{length} * free_count_[length];
  }
  return free * kUnitBytes;
}

SetId SetTable::CutFree(std::uint32_t units) {
  for (std::uint32_t length = units + 1; length <= kMaxUnits; ++length) {
    const SetId id = PopFree(length);
    if (id == kEmptySet) continue;
    PushFree(id + units, length - units);
    return id;
  }
  return kEmptySet;
}

SetId SetTable::Store(const SetNode& content, MemoryUse use) {
  const std::uint32_t units = UnitsFor(content);
  SetId id;
  {
    PlainLock lock(&arena_mu_);
    Cursor* const cursor = use == MemoryUse::kFixed ? &copies_ : &new_sets_;
    if (use == MemoryUse::kStore) {
      const std::uint64_t overdraft = account_->overdraft();
      if (overdraft > 0 && overdraft > FreeBytes(units)) return kNoSet;
    }
    id = PopFree(units);
    if (id == kEmptySet) {
      if (cursor->end - cursor->next >= units || NewChunk(use, cursor)) {
        id = cursor->next;
        cursor->next += units;
      } else {
        id = CutFree(units);
        if (id == kEmptySet) return kNoSet;
      }
    }
    used_units_.fetch_add(units, std::memory_order_relaxed);
  }
  std::memcpy(base_ + id * kUnitBytes, &content, content.bytes());
  return id;
}

void SetTable::ClearMarks() {
  PlainLock lock(&arena_mu_);
  for (std::uint32_t chunk = 0; chunk < chunks_; ++chunk) {
    const SetId begin = half_ * half_units_ + chunk * kChunkUnits;
    for (std::uint32_t unit = 0; unit < kChunkUnits; unit += 64) {
      MarkWord(begin + unit).store(0, std::memory_order_relaxed);
    }
  }
}

bool SetTable::CanCompact() const {
  return account_->used() + RoomForCopies() <= account_->bound();
}

void SetTable::BeginCycle(bool compact) {
  sweep_shard_ = 0;
  sweep_place_ = 0;
  if (!compact) {
    ClearMarks();
    return;
  }
  PlainLock lock(&arena_mu_);
  outdated_begin_.store(half_ * half_units_, std::memory_order_relaxed);
  outdated_units_.store(chunks_ * kChunkUnits, std::memory_order_release);
  set_aside_ = RoomForCopies();
  account_->ForceCharge(set_aside_);
  half_ = 1 - half_;
  chunks_ = 0;
  new_sets_ = {};
  copies_ = {};
  free_.fill(kEmptySet);
  free_count_.fill(0);
  used_units_.store(0, std::memory_order_relaxed);
}

void SetTable::ChargeRetired() {
  const std::uint64_t bytes = retired_.capacity() * sizeof(SetId);
  account_->ForceCharge(bytes - retired_charge_);  // wraps around when it has become less
  retired_charge_ = bytes;
}

bool SetTable::Sweep(std::size_t* budget) {
  constexpr std::size_t kSlice = 4096;  // places looked at under one lock
  while (sweep_shard_ < kShards) {
    if (*budget == 0) return false;
    Shard& shard = shards_[sweep_shard_];
    PlainLock lock(&shard.mu);
    if (sweep_place_ != 0 && shard.rebuilds != sweep_rebuilds_) sweep_place_ = 0;
    sweep_rebuilds_ = shard.rebuilds;
    std::size_t slice = std::min(kSlice, *budget);
    *budget -= slice;
    while (slice > 0 && sweep_place_ < shard.capacity) {
      --slice;
      const SetId id = shard.places[sweep_place_].id;
      if (id == kEmptySet || (!Outdated(id) && Marked(id))) {
        ++sweep_place_;
        continue;
      }
      // The next one may move here: look again.
      ErasePlace(&shard, sweep_place_);
      sets_.fetch_sub(1, std::memory_order_relaxed);
      if (!Outdated(id)) retired_.push_back(id);
    }
    ChargeRetired();
    if (sweep_place_ < shard.capacity) continue;
    const std::uint64_t enough = std::uint64_t{shard.used} * 100 / kMinShardPercent;
    if (shard.pages > 1 && enough < shard.capacity) {
      const auto pages = static_cast<std::uint32_t>(enough / 2 / kPlacesPerPage) + 1;
      if (pages < shard.pages) ResizeShard(&shard, pages, MemoryUse::kRemoval);
    }
    ++sweep_shard_;
    sweep_place_ = 0;
  }
  return true;
}

void SetTable::EndCycle() {
  PlainLock lock(&arena_mu_);
  for (const SetId id : retired_) {
    const std::uint32_t units = UnitsFor(Node(id));
    used_units_.fetch_sub(units, std::memory_order_relaxed);
    PushFree(id, units);
  }
  retired_ = {};
  ChargeRetired();
  const std::uint32_t outdated = outdated_units_.load(std::memory_order_relaxed);
  if (outdated == 0) return;
  account_->Release(set_aside_);
  set_aside_ = 0;
  const std::size_t bytes = outdated * kUnitBytes;
  range_.Discard(outdated_begin_.load(std::memory_order_relaxed) * kUnitBytes, bytes);
  outdated_units_.store(0, std::memory_order_relaxed);
  arena_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  account_->Release(bytes);
}

}  // namespace warmpath::index_internal
