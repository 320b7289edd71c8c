// The books of a pool's targets: which reservations are open at each, in what order they wait for
// their prefill (pend_w), what its engine reported; and the pool's averages, which follow from
// them. Symbols in brackets are those of docs/policy.md.
//
// What picks read of each target is in a LoadLine and nowhere else, but for the number of open
// reservations and of their distinct blocks, which the list and the overlay know too.
//
// Not thread-safe: part of the ledger, guarded by Pool::mu().
#ifndef WARMPATH_CORE_FLEET_TARGET_BOOKS_H_
#define WARMPATH_CORE_FLEET_TARGET_BOOKS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "core/fleet/engine_report.h"
#include "core/fleet/load_ledger.h"
#include "core/fleet/pool_averages.h"
#include "core/fleet/reservation_table.h"
#include "core/fleet/target_load.h"
#include "core/fleet/worker.h"

namespace warmpath {

class TargetBooks {
 public:
  // `table` must outlive the books. The others are those of LoadLedger::Options.
  TargetBooks(ReservationTable* table, std::uint32_t block_size, bool infer_first_tokens);

  void Add(TargetId target, bool has_events, std::uint64_t predicted_bound);
  // REQUIRES: nothing is open there.
  void Remove(TargetId target, absl::Time now);
  bool Known(TargetId target) const { return target < lines_.size() && lines_[target].in_use; }
  bool has_events(TargetId target) const { return books_[target].has_events; }
  std::uint64_t predicted_bound(TargetId target) const { return books_[target].predicted_bound; }
  // By the order of picks; 0 when none is open. OpenReservation::at_target leads to the next.
  Place FirstOpen(TargetId target) const { return books_[target].open.front(); }

  // Puts an open reservation on its target's books, and takes it off.
  void Attach(Place place, absl::Time now);
  void Detach(Place place, absl::Time now);
  // Distinct blocks of the target's open reservations, after a change of them.
  void SetOpenBlocks(TargetId target, std::uint64_t blocks) { lines_[target].open_blocks = blocks; }

  // As LoadLedger says. REQUIRES: not seen before.
  std::optional<PrefillSpan> FirstToken(Place place, absl::Time now);
  // Returns since when the engine is known to be empty, if it is.
  std::optional<absl::Time> OnEngineLoad(TargetId target, const EngineLoad& load);
  // A new engine process: the old one's reports and spans say nothing about it.
  void ForgetEngine(TargetId target);

  void OnPick(double prefill_s) { averages_.OnPick(prefill_s); }
  void OnFinish(const Reservation& reservation, std::optional<std::uint64_t> output_tokens,
                absl::Time now);
  // Work that time alone makes due; rho.
  void Tick(absl::Time now);

  LoadsNow Loads(absl::Time now) const;
  PoolAverages Averages() const { return averages_.Get(); }

 private:
  struct Book {
    bool has_events = false;
    std::uint64_t predicted_bound = 0;
    PlaceList<&OpenReservation::at_target> open;
    PlaceList<&OpenReservation::pending> pending;  // pend_w, in the order of picks
    OpenHistory history;
    EngineReports reports;
    std::optional<PrefillSpan> span;  // the last one, until its engine step is over for sure
    std::uint32_t span_requests = 0;  // in it
    absl::Time span_end = absl::InfinitePast();  // the last first token
  };

  bool silent() const;
  // In a silent pool, lets those go whose prefill must be over.
  void DrainSilent(TargetId target, absl::Time now);
  void LeavePending(Place place, absl::Time now);
  // Whoever comes to the head of pend_w.
  void SetHead(TargetId target);
  void SetBusy(absl::Time now) { averages_.SetBusy(busy_count_, target_count_, now); }

  ReservationTable& table_;
  const std::uint32_t block_size_;
  const bool infer_first_tokens_;
  AveragesKeeper averages_;
  std::vector<LoadLine> lines_;  // both by TargetId
  std::vector<Book> books_;
  std::uint32_t target_count_ = 0;
  std::uint32_t busy_count_ = 0;  // targets whose pending is not empty
  double silent_share_ = 0;       // of finished reservations: no first token was told
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_TARGET_BOOKS_H_
