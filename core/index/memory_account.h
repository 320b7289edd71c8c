// What the index has taken from the system, against its hard bound.
#ifndef WARMPATH_CORE_INDEX_MEMORY_ACCOUNT_H_
#define WARMPATH_CORE_INDEX_MEMORY_ACCOUNT_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace warmpath::index_internal {

// Why memory is wanted. Stores stop short of the bound, because removals need memory too (the set
// without the target may be a new one) and must never be refused. Fixed is what was
// provided for otherwise: the first tables of an index of any bound, and copies made to save
// memory.
enum class MemoryUse { kStore, kRemoval, kFixed };

// Thread-safe. Sizes in bytes.
class MemoryAccount {
 public:
  // bound_bytes 0: no bound.
  explicit MemoryAccount(std::uint64_t bound_bytes)
      : bound_(bound_bytes == 0 ? ~std::uint64_t{0} : bound_bytes),
        store_limit_(bound_bytes == 0 ? bound_ : bound_ - Reserve(bound_)) {}

  bool Charge(std::uint64_t bytes, MemoryUse use) {
    if (use == MemoryUse::kFixed) {
      ForceCharge(bytes);
      return true;
    }
    const std::uint64_t limit = use == MemoryUse::kStore ? store_limit_ : bound_;
    std::uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (used > limit || bytes > limit - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }

  // What removals had to take beyond the stores' limit. While it is not zero, stores may use what
  // is charged but idle only as far as this much of it is left: it is what removals count on now.
  std::uint64_t overdraft() const {
    const std::uint64_t now = used();
    return now > store_limit_ ? now - store_limit_ : 0;
  }

  // For what cannot be refused: fixed parts at construction, and book-keeping of what is freed.
  void ForceCharge(std::uint64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }

  void Release(std::uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  std::uint64_t used() const { return used_.load(std::memory_order_relaxed); }
  std::uint64_t store_limit() const { return store_limit_; }
  std::uint64_t bound() const { return bound_; }

 private:
  static std::uint64_t Reserve(std::uint64_t bound) {
    return std::min(bound / 16, std::uint64_t{64} << 20);
  }

  const std::uint64_t bound_;
  const std::uint64_t store_limit_;
  std::atomic<std::uint64_t> used_{0};
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_MEMORY_ACCOUNT_H_
