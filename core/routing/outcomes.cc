// The other half of core/routing/picker.h: what became of picks.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/routing/picker.h"
#include "core/routing/picker_impl.h"

namespace warmpath {
namespace {

// Drift: so many of the last so many outcomes fell short of the prediction by more than one block.
constexpr std::size_t kDriftWindow = 100;
constexpr std::ptrdiff_t kDriftLimit = 20;
// A TTFT teaches the prefill rate by itself only if the predicted wait was this small a part of it.
constexpr double kLittleWait = 0.1;

absl::Status NotOpen(ReservationId id) {
  return absl::NotFoundError(
      absl::StrCat("reservation_id: ", id,
                   " is not open; an outcome, its lease, its stream's end or its target's loss has "
                   "closed it, or it was never given out"));
}

// The target that serves at the address; of several ranks behind one address the first.
TargetId TargetAt(const std::vector<TargetState>& targets, std::string_view address) {
  for (TargetId target = 0; target < targets.size(); ++target) {
    if (targets[target].in_use && targets[target].spec.address == address) return target;
  }
  return kNoTarget;
}

void NoteShortfall(bool fell_short, TargetState& target) {
  if (target.shortfalls.size() < kDriftWindow) {
    target.shortfalls.push_back(fell_short);
  } else {
    target.shortfalls[target.shortfall_next] = fell_short;
    target.shortfall_next = (target.shortfall_next + 1) % kDriftWindow;
  }
  target.drifting =
      target.spec.has_events &&
      std::count(target.shortfalls.begin(), target.shortfalls.end(), true) >= kDriftLimit;
}

// A request that began at once and most of whose first token was a copy tells how fast that was.
// What else the engine did meanwhile makes it look slower: errs slow. Where some of the copy came
// over a slower link than host memory's, the time says nothing of either.
void LearnCopy(const Reservation& reservation, double ttft_s, absl::Time now, Pool& pool)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool.mu()) {
  if (reservation.copied_tokens == 0 || reservation.far_tokens > 0) return;
  if (reservation.copy_s < reservation.prefill_s) return;
  if (reservation.wait_s > kLittleWait * ttft_s) return;
  pool.ObserveCopy(reservation.target, static_cast<double>(reservation.copied_tokens),
                   ttft_s - reservation.prefill_s, now);
}

// Blocks that a target turned out to hold although nobody had said so.
struct Healing {
  TargetId target = kNoTarget;
  Slot slot = kNoSlot;
  Epoch epoch = 0;
  std::size_t known_blocks = 0;
  std::vector<ChainHash> chain;  // the blocks that were cached
};

// Compares what was cached with what the pick believed.
std::optional<Healing> Compare(const Reservation& reservation, std::uint64_t actual_cached,
                               Pool& pool) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool.mu()) {
  // An estimate against a count: neither drift nor healing follows from their difference.
  if (reservation.chain_kind == ChainKind::kText) return std::nullopt;
  const std::uint32_t block_size = pool.routing_block_size();
  const bool fell_short = reservation.cached_tokens > actual_cached + block_size;
  pool.Edit(reservation.target,
            [fell_short](TargetState& target) { NoteShortfall(fell_short, target); });
  const TargetState& target = pool.targets()[reservation.target];
  // What outcomes had taught beside the events was wrong: the events alone know better.
  if (fell_short && target.spec.has_events) pool.ledger().ForgetPredicted(reservation.target);
  const std::size_t known = reservation.cached_tokens / block_size;
  const std::size_t cached =
      std::min<std::size_t>(actual_cached / block_size, reservation.chain_blocks);
  if (cached <= known) return std::nullopt;
  return Healing{.target = reservation.target,
                 .slot = target.slot,
                 .epoch = target.spec.epoch,
                 .known_blocks = known,
                 .chain = pool.ledger().ChainOf(reservation.id, cached)};
}

// The events may have come meanwhile, or the blocks lie in a tier from which copying was not
// thought to be worth its time.
bool IndexKnows(const Index& index, const Healing& healing) {
  if (healing.slot == kNoSlot) return false;
  for (std::size_t i = healing.known_blocks; i < healing.chain.size(); ++i) {
    const bool held = std::any_of(kAllTiers.begin(), kAllTiers.end(), [&](Tier tier) {
      return index.Holds(healing.slot, tier, healing.chain[i]);
    });
    if (!held) return false;
  }
  return true;
}

void Heal(Pool& pool, const Healing& healing) {
  if (IndexKnows(pool.index(), healing)) return;
  absl::MutexLock lock(&pool.mu());
  const TargetState& target = pool.targets()[healing.target];
  if (!target.in_use || target.spec.epoch != healing.epoch) return;
  pool.ledger().LearnPredicted(healing.target, healing.chain);
}

}  // namespace

absl::Status Picker::ReportOutcome(Fleet& fleet, const Outcome& outcome) {
  const ReservationId id = outcome.reservation_id;
  const std::shared_ptr<Pool> pool = fleet.PoolByNumber(PoolNumberOf(id));
  if (pool == nullptr || pool->routing_block_size() == 0) return NotOpen(id);
  std::optional<Healing> healing;
  std::optional<Reservation> closed;  // its memory is freed after the mutex
  {
    absl::MutexLock lock(&pool->mu());
    const absl::Time now = impl_->clock->Now();
    LoadLedger& ledger = pool->ledger();
    const std::vector<TargetState>& targets = pool->targets();
    const Reservation* reservation = ledger.Find(id);
    if (reservation == nullptr) return NotOpen(id);
    if (!outcome.served_by.empty() &&
        targets[reservation->target].spec.address != outcome.served_by) {
      const TargetId to = TargetAt(targets, outcome.served_by);
      if (to != kNoTarget) ledger.Move(id, to, now);
    }
    switch (outcome.kind) {
      case OutcomeKind::kFirstToken: {
        if (!reservation->first_token_seen) {
          LearnCopy(*reservation, absl::ToDoubleSeconds(now - reservation->picked_at), now, *pool);
        }
        const std::optional<PrefillSpan> span = ledger.FirstToken(id, now);
        if (span.has_value()) {
          pool->ObservePrefill(reservation->target, span->work, span->seconds);
        }
        ledger.RenewLease(id, now);
        break;
      }
      case OutcomeKind::kProgress:
        ledger.RenewLease(id, now);
        break;
      case OutcomeKind::kFinished:
        if (!reservation->first_token_seen && outcome.ttft.has_value()) {
          const double ttft_s = absl::ToDoubleSeconds(*outcome.ttft);
          // Not less the wait: that is an estimate, and too long a one would teach too high a rate.
          if (reservation->wait_s <= kLittleWait * ttft_s) {
            pool->ObservePrefill(reservation->target, reservation->prefill_work, ttft_s);
          }
          LearnCopy(*reservation, ttft_s, now, *pool);
        }
        if (outcome.actual_cached_tokens.has_value()) {
          pool->pick_state().actual_cached_tokens += *outcome.actual_cached_tokens;
          healing = Compare(*reservation, *outcome.actual_cached_tokens, *pool);
        }
        closed = ledger.Close(id, CloseCause::kFinished, now, outcome.output_tokens);
        break;
      case OutcomeKind::kFailed:
        closed = ledger.Close(id, CloseCause::kFailed, now, std::nullopt);
        break;
    }
  }
  if (healing.has_value()) Heal(*pool, *healing);
  return absl::OkStatus();
}

void Picker::ReleaseHolder(Fleet& fleet, HolderId holder, std::string_view client_instance) {
  for (const std::shared_ptr<Pool>& pool : fleet.Pools()) {
    absl::MutexLock lock(&pool->mu());
    if (pool->routing_block_size() == 0) continue;
    pool->ledger().ReleaseHolder(holder, client_instance, impl_->clock->Now());
  }
}

std::uint32_t Picker::AdoptHolder(Fleet& fleet, std::string_view client_instance,
                                  HolderId new_holder) {
  std::uint32_t adopted = 0;
  for (const std::shared_ptr<Pool>& pool : fleet.Pools()) {
    absl::MutexLock lock(&pool->mu());
    if (pool->routing_block_size() == 0) continue;
    adopted += pool->ledger().AdoptHolder(client_instance, new_holder, impl_->clock->Now());
  }
  return adopted;
}

}  // namespace warmpath
