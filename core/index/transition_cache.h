// One writer's memory of "set S with (or without) member M is set S'".
//
// The blocks of one event nearly always take the same step, so the last one is kept apart; the
// rest lies in a small direct-mapped table that forgets by overwriting. Ids in it are good for one
// generation of the sweep: everything it names was interned, and so marked, in that generation.
#ifndef WARMPATH_CORE_INDEX_TRANSITION_CACHE_H_
#define WARMPATH_CORE_INDEX_TRANSITION_CACHE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/index/bucket.h"
#include "core/index/worker_set.h"

namespace warmpath::index_internal {

// Not thread-safe.
class TransitionCache {
 public:
  TransitionCache() { entries_.fill({kNothing, kEmptySet}); }

  // Forgets everything if `generation` is not that of the last call.
  void Begin(std::uint64_t generation) {
    if (generation == generation_) return;
    entries_.fill({kNothing, kEmptySet});
    generation_ = generation;
  }

  static std::uint64_t Key(SetId from, Member member, bool add) {
    return (std::uint64_t{from} << 17) | (std::uint64_t{member} << 1) | (add ? 1 : 0);
  }
  // nullptr if not known.
  const SetId* Find(std::uint64_t key) const {
    const Entry& entry = entries_[Place(key)];
    return entry.key == key ? &entry.to : nullptr;
  }
  void Put(std::uint64_t key, SetId to) { entries_[Place(key)] = {key, to}; }

 private:
  struct Entry {
    std::uint64_t key;
    SetId to;
  };
  static constexpr int kLogEntries = 12;
  static constexpr std::uint64_t kNothing = ~std::uint64_t{0};

  static std::size_t Place(std::uint64_t key) {
    return (key * 0x9E3779B97F4A7C15ULL) >> (64 - kLogEntries);
  }

  std::uint64_t generation_ = 0;
  std::array<Entry, std::size_t{1} << kLogEntries> entries_;
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_TRANSITION_CACHE_H_
