#include "core/index/epoch.h"

#include <thread>

namespace warmpath::index_internal {
namespace {

// Where this thread starts to look for a free record. Only a hint that keeps threads on records of
// their own; correctness does not depend on it, so one counter serves all domains.
std::size_t ThreadHint() {
  static std::atomic<std::size_t> next{0};
  thread_local const std::size_t hint = next.fetch_add(1, std::memory_order_relaxed);
  return hint;
}

}  // namespace

EpochDomain::Record* EpochDomain::Acquire() {
  const std::size_t hint = ThreadHint();
  for (std::size_t i = 0;; ++i) {
    const std::size_t index = (hint + i) % kRecords;
    Record& record = records_[index];
    if (record.epoch.load(std::memory_order_relaxed) == 0) {
      std::size_t used = used_records_.load(std::memory_order_relaxed);
      while (used <= index && !used_records_.compare_exchange_weak(used, index + 1)) {
      }
      // An epoch read too early only delays reclamation: the pin then claims to be older.
      EpochNumber free = 0;
      if (record.epoch.compare_exchange_strong(free, current_.load())) return &record;
    }
    if (i % kRecords == kRecords - 1) std::this_thread::yield();
  }
}

bool EpochDomain::AllLeft(EpochNumber epoch) {
  // Read-modify-writes, not loads: a pin that this scan misses is then ordered after the scan, and
  // with it after the unlinking, by the record's own modification order. (A fence would do the
  // same, but ThreadSanitizer does not understand fences.) The same holds for used_records_.
  const std::size_t used = used_records_.fetch_add(0);
  for (std::size_t i = 0; i < used; ++i) {
    const EpochNumber pinned = records_[i].epoch.fetch_add(0);
    if (pinned != 0 && pinned <= epoch) return false;
  }
  return true;
}

}  // namespace warmpath::index_internal
