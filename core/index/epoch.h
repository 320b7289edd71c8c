// Epoch-based reclamation: who may still look at what was just unlinked?
//
// A thread pins the domain while it follows pointers or set ids that it read without a lock.
// Whoever unlinks something calls Advance() afterwards and may reuse it once AllLeft() says so of
// the epoch that Advance() ended: every pin held then was taken after the unlinking, and so cannot
// have seen the unlinked thing.
#ifndef WARMPATH_CORE_INDEX_EPOCH_H_
#define WARMPATH_CORE_INDEX_EPOCH_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace warmpath::index_internal {

using EpochNumber = std::uint64_t;

// Thread-safe. Pins may nest. Enter costs one uncontended compare-and-swap.
class EpochDomain {
  struct alignas(64) Record {
    std::atomic<EpochNumber> epoch{0};  // 0: free
  };

 public:
  // Pins held at once; a thread that finds all in use yields until one is given back.
  static constexpr std::size_t kRecords = 256;

  class Pin {
   public:
    explicit Pin(EpochDomain* domain) : record_(domain->Acquire()) {}
    ~Pin() { record_->epoch.store(0, std::memory_order_release); }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;

   private:
    Record* const record_;
  };

  // Ends the current epoch and returns its number.
  EpochNumber Advance() { return current_.fetch_add(1); }

  // Whether every pin taken in `epoch` or before has been given back.
  bool AllLeft(EpochNumber epoch);

 private:
  Record* Acquire();

  std::atomic<EpochNumber> current_{1};
  // Records at and past this index were never used, so that AllLeft looks at few.
  std::atomic<std::size_t> used_records_{0};
  std::array<Record, kRecords> records_;
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_EPOCH_H_
