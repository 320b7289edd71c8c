#include "core/index/matcher.h"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace warmpath::index_internal {
namespace {

bool AnyBit(const std::uint64_t* mask, std::size_t words) {
  for (std::size_t i = 0; i < words; ++i) {
    if (mask[i] != 0) return true;
  }
  return false;
}

bool Contains(const std::uint64_t* mask, Slot slot) {
  return ((mask[slot / 64] >> (slot % 64)) & 1) != 0;
}

template <typename Visit>
void ForEachSlot(const std::uint64_t* mask, std::size_t words, Visit visit) {
  for (std::size_t word = 0; word < words; ++word) {
    for (std::uint64_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      visit(static_cast<Slot>(word * 64 + static_cast<std::size_t>(std::countr_zero(bits))));
    }
  }
}

}  // namespace

Matcher::Walk::Walk(const BucketTable& table, std::span<const ChainHash> chain, std::size_t from,
                    std::size_t end)
    : table_(table),
      chain_(chain.data() + from),
      left_(end - from),
      asked_(std::min(left_, kFirstBatch)) {
  for (std::size_t i = 0; i < asked_; ++i) homes_[i] = table.PlaceToRead(chain_[i]).home;
}

void Matcher::Walk::Fill() {
  const std::size_t count = asked_;
  const Bucket* const* const homes = homes_.data() + half_;
  half_ = kBatch - half_;
  const Bucket** const next_homes = homes_.data() + half_;
  const std::size_t next_count = std::min(left_ - count, batch_);
  std::array<std::uint32_t, kBatch> controls;
  std::array<std::uint8_t, kBatch> later;  // positions to be looked for after the home bucket
  std::size_t laters = 0;
  const auto look = [&](std::size_t i) {
    const Bucket& home = *homes[i];
    controls[i] = home.Control();
    ids_[i] = home.Find(controls[i], chain_[i]);
    if (ids_[i] == kEmptySet && Bucket::MayLieLater(controls[i], chain_[i])) {
      BucketTable::PrefetchLater(&home, controls[i]);
      later[laters++] = static_cast<std::uint8_t>(i);
    }
  };
  const auto ask = [&](std::size_t i) {
    next_homes[i] = table_.PlaceToRead(chain_[count + i]).home;
  };
  const std::size_t both = std::min(count, next_count);
  std::size_t i = 0;
  for (; i < both; ++i) {
    ask(i);
    look(i);
  }
  for (std::size_t k = i; k < next_count; ++k) ask(k);
  for (; i < count; ++i) look(i);
  for (std::size_t k = 0; k < laters; ++k) {
    i = later[k];
    ids_[i] = BucketTable::FindLater(homes[i], controls[i], chain_[i]);
  }
  chain_ += count;
  left_ -= count;
  asked_ = next_count;
  batch_ = kBatch;
  next_ = 0;
  ready_ = count;
}

void Matcher::LoseAll(std::size_t position, MatchSegments* result) const {
  const std::size_t first_word = result->words.size();
  result->segments.push_back({static_cast<std::uint32_t>(position), first_word});
  result->words.resize(first_word + words_);
  std::copy_n(result->words.data(), words_, result->words.data() + first_word);
}

bool Matcher::Start(SetId id, MatchSegments* result) {
  if (id == kEmptySet) return false;
  const SetNode& first = sets_.Node(id);
  std::uint64_t* const held = result->words.data();
  gpu_only_ = first.GpuOnly();
  first.TierMask(0, held, words_);
  slots_.KeepOpen(held, words_);
  return AnyBit(held, words_);
}

bool Matcher::Restrict(std::size_t position, SetId id, MatchSegments* result) {
  if (id == kEmptySet) {
    LoseAll(position, result);
    return false;
  }
  const SetNode& node = sets_.Node(id);
  gpu_only_ = gpu_only_ && node.GpuOnly();
  const std::size_t first_word = result->words.size();
  result->words.resize(first_word + words_);
  std::uint64_t* const held = result->words.data();
  std::uint64_t* const lost = held + first_word;
  node.IntersectTier(0, held, lost, words_);
  std::uint64_t any_lost = 0;
  std::uint64_t any_held = 0;
  for (std::size_t i = 0; i < words_; ++i) {
    const std::uint64_t kept = lost[i];
    lost[i] = held[i] ^ kept;
    held[i] = kept;
    any_lost |= lost[i];
    any_held |= kept;
  }
  if (any_lost == 0) {
    result->words.resize(first_word);
  } else {
    result->segments.push_back({static_cast<std::uint32_t>(position), first_word});
  }
  return any_held != 0;
}

bool Matcher::HoldTheSame(SetId a, SetId b, const MatchSegments& result) const {
  if (a == kEmptySet || b == kEmptySet) return false;
  std::array<std::uint64_t, kMaxWords> held_by_a;
  std::array<std::uint64_t, kMaxWords> held_by_b;
  sets_.Node(a).IntersectTier(0, result.words.data(), held_by_a.data(), words_);
  sets_.Node(b).IntersectTier(0, result.words.data(), held_by_b.data(), words_);
  return std::equal(held_by_a.data(), held_by_a.data() + words_, held_by_b.data());
}

void Matcher::LookAt(Round* round) const {
  std::array<const Bucket*, kMostPositions> homes;
  const std::size_t count = round->count;
  for (std::size_t i = 0; i < count; ++i) {
    homes[i] = table_.PlaceToRead(chain_[round->positions[i]]).home;
  }
  struct Later {
    std::size_t i;
    std::uint32_t control;
  };
  std::array<Later, kMostPositions> later;  // to be looked for after the home bucket
  std::size_t laters = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const ChainHash hash = chain_[round->positions[i]];
    const std::uint32_t control = homes[i]->Control();
    round->ids[i] = homes[i]->Find(control, hash);
    if (round->ids[i] == kEmptySet && Bucket::MayLieLater(control, hash)) {
      BucketTable::PrefetchLater(homes[i], control);
      later[laters++] = {i, control};
    }
  }
  for (std::size_t k = 0; k < laters; ++k) {
    const std::size_t i = later[k].i;
    round->ids[i] = BucketTable::FindLater(homes[i], later[k].control, chain_[round->positions[i]]);
  }
}

bool Matcher::WalkTo(std::size_t end, SetId* id, MatchSegments* result) {
  Walk walk(table_, chain_, 0, end);
  *id = walk.Next();
  if (!Start(*id, result)) return false;
  for (std::size_t i = 1; i < end; ++i) {
    const SetId next = walk.Next();
    if (next == *id) continue;
    if (!Restrict(i, next, result)) return false;
    *id = next;
  }
  return true;
}

bool Matcher::SearchFrom(std::size_t walked, SetId id, MatchSegments* result) {
  // What is found between a round's positions, from left to right.
  std::array<Interval, 2 * kMostPositions> found;
  std::size_t found_count = 0;
  Interval now;  // from the position looked at last
  const auto note = [&](std::uint32_t position, SetId there) {
    if (there != now.low_id) {
      found[found_count++] = {now.low, position, now.low_id, there};
      if (there != kEmptySet) sets_.Prefetch(there);
    }
    now.low = position;
    now.low_id = there;
  };

  const auto n = static_cast<std::uint32_t>(chain_.size());
  const auto begin_at = static_cast<std::uint32_t>(walked == 0 ? 0 : walked - 1);
  Round round;
  if (walked == 0) round.Add(0);
  for (std::uint64_t step = kFirstStep; begin_at + step + 1 < n; step *= kStepGrowth) {
    round.Add(static_cast<std::uint32_t>(begin_at + step));
  }
  if (n - begin_at > 1) round.Add(n - 1);
  LookAt(&round);
  if (walked == 0) {
    id = round.ids[0];
    if (!Start(id, result)) return false;
  }
  now = {.low = begin_at, .high = begin_at, .low_id = id, .high_id = kEmptySet};
  for (std::size_t i = walked == 0 ? 1 : 0; i < round.count && now.low_id != kEmptySet; ++i) {
    note(round.positions[i], round.ids[i]);
  }

  const bool sweeping = slots_.AnyUnswept();
  std::array<Interval, kIntervals> left;  // to be resolved, the leftmost last
  std::size_t left_count = 0;
  for (;;) {
    while (found_count > 0) {
      const Interval& change = found[--found_count];
      if (sweeping && HoldTheSame(change.low_id, change.high_id, *result)) continue;
      left[left_count++] = change;
    }
    for (; left_count > 0 && left[left_count - 1].high - left[left_count - 1].low == 1;
         --left_count) {
      const Interval& change = left[left_count - 1];
      if (!Restrict(change.high, change.high_id, result)) return false;
    }
    if (left_count == 0) return true;
    round.count = 0;
    std::size_t begin = left_count;
    do {
      const Interval& wide = left[--begin];
      const std::uint32_t step = (wide.high - wide.low + kFan) / (kFan + 1);
      for (std::uint64_t at = std::uint64_t{wide.low} + step; at < wide.high; at += step) {
        round.Add(static_cast<std::uint32_t>(at));
      }
      // One at a time when there is little room: its parts are resolved before the next.
    } while (begin > 0 && round.count < kRoundPositions && left_count - begin < kRoundPositions &&
             left_count < kIntervals / 2);
    LookAt(&round);
    std::size_t i = 0;
    for (; left_count > begin; --left_count) {
      now = left[left_count - 1];
      const std::uint32_t high = now.high;
      const SetId high_id = now.high_id;
      for (; i < round.count && round.positions[i] < high; ++i) {
        note(round.positions[i], round.ids[i]);
      }
      note(high, high_id);
    }
  }
}

bool Matcher::Gpu(std::size_t exact, MatchSegments* result) {
  const std::size_t n = chain_.size();
  result->segments.clear();
  result->words_per_segment = words_;
  result->words.resize(words_);  // the running mask, then those of the segments
  const std::uint64_t with_holes = slots_.holes_count();
  const bool search = with_holes <= slots_.open_count() / kSearchShare;
  const std::size_t walked = search ? 0 : std::min(n, exact);
  if (n > 0 && words_ > 0) {
    SetId id = kEmptySet;
    const bool some =
        (walked == 0 || WalkTo(walked, &id, result)) && SearchFrom(walked, id, result);
    if (some) LoseAll(n, result);
  }
  // Asked again, since a slot may have been declared meanwhile.
  const bool no_holes = with_holes == 0 && slots_.holes_count() == 0;
  result->exact_to = search && no_holes ? n : walked;
  return gpu_only_;
}

void Matcher::AllTiers(std::size_t exact, MatchResult* result) {
  result->slots.clear();
  const std::size_t n = chain_.size();
  result->exact_to = std::min(n, exact);
  if (n == 0 || words_ == 0) return;
  // Masks: usable and GPU runs, then for each tier the slots whose fastest it is, here and at the
  // position that is compared; then each slot's place in the result.
  result->scratch.assign((2 + 2 * kTierCount) * words_ + words_ * 64, 0);
  std::uint64_t* const usable = result->scratch.data();
  std::uint64_t* const gpu = usable + words_;
  std::uint64_t* fastest = gpu + words_;
  std::uint64_t* other = fastest + kTierCount * words_;
  std::uint64_t* const place = result->scratch.data() + (2 + 2 * kTierCount) * words_;

  // For each tier, the usable slots whose fastest tier it is in set `id`.
  const auto load = [&](SetId id, std::uint64_t* to) {
    std::fill_n(to, kTierCount * words_, 0);
    if (id == kEmptySet) return;
    const SetNode& node = sets_.Node(id);
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      std::uint64_t* const mask = to + tier * words_;
      node.TierMask(tier, mask, words_);
      for (std::size_t i = 0; i < words_; ++i) {
        mask[i] &= usable[i];
        for (std::size_t faster = 0; faster < tier; ++faster) mask[i] &= ~to[faster * words_ + i];
      }
    }
  };
  const auto restrict_to_usable = [&](std::uint64_t* masks) {
    for (std::size_t i = 0; i < kTierCount * words_; ++i) masks[i] &= usable[i % words_];
  };

  std::fill_n(usable, words_, ~std::uint64_t{0});
  slots_.KeepOpen(usable, words_);
  Walk walk(table_, chain_, 0, result->exact_to);
  std::size_t walked = 1;
  SetId id = walk.Next();
  load(id, fastest);
  std::fill_n(usable, words_, 0);
  for (std::size_t i = 0; i < kTierCount * words_; ++i) usable[i % words_] |= fastest[i];
  std::copy_n(fastest, words_, gpu);
  ForEachSlot(usable, words_, [&](Slot slot) {
    place[slot] = result->slots.size();
    result->slots.push_back({.slot = slot});
  });

  std::size_t begin = 0;
  while (AnyBit(usable, words_)) {
    // [begin, end): every usable slot keeps its fastest tier, as far as was looked at.
    std::size_t end = n;
    SetId end_id = kEmptySet;
    const auto differs = [&](std::size_t position, SetId there) {
      if (there == id) return false;
      load(there, other);
      if (std::equal(fastest, fastest + kTierCount * words_, other)) return false;
      end = position;
      end_id = there;
      return true;
    };
    std::size_t low = begin;
    while (walked < result->exact_to && end == n) {
      differs(walked, walk.Next());
      low = walked++;
    }
    for (std::size_t step = 1; end == n && low + 1 < n; step *= 2) {
      const std::size_t high = std::min(low + step, n - 1);
      if (!differs(high, At(high))) low = high;
    }
    // Nothing to bisect where each block was looked at.
    while (end < n && end > result->exact_to && end - low > 1) {
      const std::size_t middle = low + (end - low) / 2;
      if (!differs(middle, At(middle))) low = middle;
    }
    for (std::size_t tier = 0; tier < kTierCount; ++tier) {
      ForEachSlot(fastest + tier * words_, words_, [&](Slot slot) {
        SlotMatch& match = result->slots[place[slot]];
        match.by_tier[tier] += static_cast<std::uint32_t>(end - begin);
        match.usable_depth = static_cast<std::uint32_t>(end);
        if (Contains(gpu, slot)) match.gpu_depth = static_cast<std::uint32_t>(end);
      });
    }
    if (end == n) break;
    load(end_id, fastest);
    for (std::size_t i = 0; i < words_; ++i) {
      std::uint64_t any = 0;
      for (std::size_t tier = 0; tier < kTierCount; ++tier) any |= fastest[tier * words_ + i];
      usable[i] &= any;
      gpu[i] &= fastest[i];
    }
    restrict_to_usable(fastest);
    begin = end;
    id = end_id;
  }
}

bool Matcher::HoldsGpu(Slot slot, std::size_t position) const {
  if (!slots_.IsOpen(slot)) return false;
  const SetId id = At(position);
  return id != kEmptySet && sets_.Node(id).Contains(MakeMember(slot, Tier::kGpu));
}

std::size_t Matcher::VerifiedGpuDepth(Slot slot, std::size_t from, std::size_t limit) const {
  limit = std::min(limit, chain_.size());
  if (from >= limit || !slots_.IsOpen(slot)) return from;
  const Member member = MakeMember(slot, Tier::kGpu);
  Walk walk(table_, chain_, from, limit);
  SetId good = kEmptySet;  // a set that was seen to hold the member
  for (std::size_t i = from; i < limit; ++i) {
    const SetId id = walk.Next();
    if (id == good && id != kEmptySet) continue;
    if (id == kEmptySet || !sets_.Node(id).Contains(member)) return i;
    good = id;
  }
  return limit;
}

SlotMatch Matcher::VerifiedMatch(Slot slot, std::size_t from) const {
  SlotMatch match = {.slot = slot,
                     .gpu_depth = static_cast<std::uint32_t>(from),
                     .usable_depth = static_cast<std::uint32_t>(from)};
  if (from >= chain_.size() || !slots_.IsOpen(slot)) return match;
  Walk walk(table_, chain_, from, chain_.size());
  SetId known = kEmptySet;  // a set whose fastest tier of this slot is `fastest`
  std::size_t fastest = 0;
  bool gpu_run = true;
  for (std::size_t i = from; i < chain_.size(); ++i) {
    const SetId id = walk.Next();
    if (id == kEmptySet) break;
    if (id != known) {
      const SetNode& node = sets_.Node(id);
      fastest = 0;
      while (fastest < kTierCount && !node.Contains(MakeMember(slot, kAllTiers[fastest])))
        ++fastest;
      if (fastest == kTierCount) break;
      known = id;
    }
    ++match.usable_depth;
    ++match.by_tier[fastest];
    gpu_run = gpu_run && fastest == 0;
    if (gpu_run) ++match.gpu_depth;
  }
  return match;
}

}  // namespace warmpath::index_internal
