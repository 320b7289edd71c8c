// The targets that one pick may choose from, by column.
//
// A pick looks at one number of every target, then at the next one; columns keep those in few cache
// lines and let the compiler work on several targets at once. What only the chosen target is asked
// for (its names, its terms) is fetched when it has been chosen.
#ifndef WARMPATH_CORE_ROUTING_CANDIDATE_TABLE_H_
#define WARMPATH_CORE_ROUTING_CANDIDATE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/fleet/worker.h"
#include "core/routing/cost.h"

namespace warmpath {

// Lives for one pick, under the pool's mutex; its memory is used again by the next. Ordered by
// target. Numbers that costs are made of are doubles: all of them are whole numbers below 2^53.
class CandidateTable {
 public:
  // One candidate as it is found.
  struct Row {
    TargetId target = kNoTarget;
    Freshness freshness = Freshness::kNone;
    std::uint32_t blocks = 0;  // leading ones that it holds, as far as is known
    double cached_tokens = 0;  // h, which they come to
    double rate = 0;           // tokens/s
    double wait_s = 0;         // W
    double inflight = 0;       // D
    double kv_tokens = 0;      // X
    double kv_capacity = 0;    // C; infinity when it is not known
  };

  // Fills an empty table. Where the columns lie is kept in here, where the compiler knows that
  // writing a column does not change it.
  class Filler {
   public:
    // Empties `table` and makes room for `most` candidates.
    Filler(CandidateTable* table, std::size_t most);
    ~Filler() { table_->size_ = size_; }
    Filler(const Filler&) = delete;
    Filler& operator=(const Filler&) = delete;

    void Add(const Row& row) {
      const std::size_t i = size_++;
      target_[i] = row.target;
      freshness_[i] = row.freshness;
      blocks_[i] = row.blocks;
      cached_tokens_[i] = row.cached_tokens;
      rate_[i] = row.rate;
      wait_s_[i] = row.wait_s;
      inflight_[i] = row.inflight;
      kv_tokens_[i] = row.kv_tokens;
      kv_capacity_[i] = row.kv_capacity;
    }

   private:
    CandidateTable* const table_;
    std::size_t size_ = 0;
    TargetId* const target_;
    Freshness* const freshness_;
    std::uint32_t* const blocks_;
    double* const cached_tokens_;
    double* const rate_;
    double* const wait_s_;
    double* const inflight_;
    double* const kv_tokens_;
    double* const kv_capacity_;
  };
  // Takes out those whose score is no number; returns how many. A score that is none is a bug of
  // ours, and must not decide where requests go.
  std::size_t DropNotFinite();

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  TargetId target(std::size_t i) const { return target_[i]; }
  Freshness freshness(std::size_t i) const { return freshness_[i]; }
  std::uint32_t blocks(std::size_t i) const { return blocks_[i]; }
  std::uint32_t MostBlocks() const;
  double inflight(std::size_t i) const { return inflight_[i]; }
  double rate(std::size_t i) const { return rate_[i]; }
  CostColumns costs() const;

  // What the formulas need of one candidate.
  CostInput InputOf(std::size_t i, const CostShared& shared) const;
  void SetHeld(std::size_t i, std::uint32_t blocks, std::uint64_t cached_tokens) {
    blocks_[i] = blocks;
    cached_tokens_[i] = static_cast<double>(cached_tokens);
  }
  // What slower tiers hold of the prompt, copies included: for the few pools that have some.
  // Before the first SetCopied of a pick.
  void StartCopies();
  bool has_copies() const { return has_copies_; }
  // So many of the cached tokens are copied first, which takes copy_s; far_tokens of them from
  // slower tiers than host memory. REQUIRES: has_copies().
  void SetCopied(std::size_t i, std::uint64_t copied_tokens, std::uint64_t far_tokens,
                 double copy_s) {
    copied_tokens_[i] = static_cast<double>(copied_tokens);
    far_tokens_[i] = static_cast<double>(far_tokens);
    copy_s_[i] = copy_s;
    start_s_[i] = wait_s_[i] + copy_s;
  }
  std::uint64_t copied_tokens(std::size_t i) const {
    return has_copies_ ? static_cast<std::uint64_t>(copied_tokens_[i]) : 0;
  }
  std::uint64_t far_tokens(std::size_t i) const {
    return has_copies_ ? static_cast<std::uint64_t>(far_tokens_[i]) : 0;
  }
  double copy_s(std::size_t i) const { return has_copies_ ? copy_s_[i] : 0; }

  // Set by the policy. The least wins.
  std::span<double> scores() { return {score_.data(), size_}; }
  std::span<const double> scores() const { return {score_.data(), size_}; }
  // May be chosen when nobody else is left, but is no fallback.
  bool at_limit(std::size_t i) const { return at_limit_[i] != 0; }
  void SetAtLimit(std::size_t i, bool on) { at_limit_[i] = on ? 1 : 0; }

 private:
  CandidateTable* Reserve(std::size_t most);
  // Calls `visit` with each column.
  template <typename Visit>
  void ForEachColumn(Visit visit);

  std::size_t size_ = 0;
  bool has_copies_ = false;
  // All as long as the most candidates so far.
  std::vector<TargetId> target_;
  std::vector<Freshness> freshness_;
  std::vector<std::uint8_t> at_limit_;
  std::vector<std::uint32_t> blocks_;
  std::vector<double> cached_tokens_;
  std::vector<double> rate_;
  std::vector<double> wait_s_;
  std::vector<double> inflight_;
  std::vector<double> kv_tokens_;
  std::vector<double> kv_capacity_;
  // Of meaning only where has_copies_.
  std::vector<double> copied_tokens_;
  std::vector<double> far_tokens_;
  std::vector<double> copy_s_;   // T
  std::vector<double> start_s_;  // W + T
  std::vector<double> score_;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_CANDIDATE_TABLE_H_
