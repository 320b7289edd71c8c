// Who writes the bucket table just now: one thread alone, or several at once?
//
// A lock is an atomic read-modify-write, which costs as much as the rest of what is done to a
// bucket. So a writer that finds itself alone keeps the others out for a few hundred blocks (some
// microseconds) and takes no locks meanwhile. Others that come wait for that, once; then, and as
// long as two or more are at work, all lock the buckets they change and nobody waits for the gate.
#ifndef WARMPATH_CORE_INDEX_WRITER_GATE_H_
#define WARMPATH_CORE_INDEX_WRITER_GATE_H_

#include <atomic>
#include <cstdint>

#include "core/index/lock.h"

namespace warmpath::index_internal {

enum class Writing {
  kAlone,   // nobody else changes the table
  kShared,  // each bucket is locked before it is changed
};

// Thread-safe. Not recursive.
class WriterGate {
 public:
  // Passes in the mode that is to be given to Leave.
  Writing Enter() {
    std::uint32_t state = 0;
    if (state_.compare_exchange_strong(state, kAlone, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
      return Writing::kAlone;
    }
    // Counted first: the next to come shares, too, even if the one that is alone has left by then.
    state_.fetch_add(1, std::memory_order_acquire);
    SpinWait wait;
    while ((state_.load(std::memory_order_acquire) & kAlone) != 0) wait.Once();
    return Writing::kShared;
  }
  void Leave(Writing mode) {
    state_.fetch_sub(mode == Writing::kAlone ? kAlone : 1, std::memory_order_release);
  }

  class Pass {
   public:
    explicit Pass(WriterGate* gate) : gate_(gate), mode_(gate->Enter()) {}
    ~Pass() { gate_->Leave(mode_); }
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;
    Writing mode() const { return mode_; }

   private:
    WriterGate* const gate_;
    const Writing mode_;
  };

 private:
  static constexpr std::uint32_t kAlone = 1u << 31;
  alignas(64) std::atomic<std::uint32_t> state_{0};  // kAlone, plus the number of those that share
};

}  // namespace warmpath::index_internal

#endif  // WARMPATH_CORE_INDEX_WRITER_GATE_H_
