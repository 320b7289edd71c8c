// The load ledger of one pool: what is in flight where, in requests and tokens, what the engines
// last said, and what finished requests taught about the pool. Symbols in brackets are
// those of docs/policy.md.
//
// A reservation counts from the pick on in the load and the overlay of exactly one target and is
// closed exactly once, with a cause. opened - closed = open at every instant.
//
// Not thread-safe: guarded by Pool::mu().
#ifndef WARMPATH_CORE_FLEET_LOAD_LEDGER_H_
#define WARMPATH_CORE_FLEET_LOAD_LEDGER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "core/base/ids.h"
#include "core/fleet/pool_averages.h"
#include "core/fleet/target_load.h"
#include "core/fleet/tenant_table.h"
#include "core/fleet/worker.h"

namespace warmpath {

enum class CloseCause : std::uint8_t {
  kFinished,
  kFailed,
  kStreamEnded,  // the holder's stream ended and nobody re-adopted in time
  kSuperseded,   // a second pick with the same request id
  kTargetLost,
  kNewEpoch,
  kLeaseExpired,
  kReconciled,  // two engine reports of an empty engine
};
inline constexpr std::size_t kCloseCauseCount = 8;
std::string_view CloseCauseName(CloseCause cause);  // "finished", ...

// The pool whose ledger gave out the id.
constexpr std::uint32_t PoolNumberOf(ReservationId id) {
  return static_cast<std::uint32_t>(id >> 48);
}

struct Reservation {
  ReservationId id = 0;
  TargetId target = kNoTarget;
  std::uint64_t prompt_tokens = 0;  // L
  std::uint64_t cached_tokens = 0;  // h at the pick; nothing is known of where it was moved to
  double prefill_s = 0;             // P at the pick
  // Token equivalents, core/fleet/prefill_rate.h; minus infinity when its time teaches no rate.
  double prefill_work = 0;
  std::uint64_t copied_tokens = 0;    // of cached_tokens: in slower tiers than the GPU's
  std::uint64_t far_tokens = 0;       // of these: in slower tiers than host memory
  double copy_s = 0;                  // T at the pick
  double wait_s = 0;                  // W at the pick
  std::uint64_t expected_output = 0;  // tokens
  std::uint32_t chain_blocks = 0;     // of its chain, as far as that counts as in flight
  ChainKind chain_kind = ChainKind::kTokens;
  std::string request_id;
  std::uint64_t holder = 0;  // 0: lease
  absl::Time picked_at;
  absl::Time lease_until = absl::InfiniteFuture();
  absl::Duration lease;
  bool first_token_seen = false;
  TenantNumber tenant = 0;
};

// How long a target prefilled, as first tokens tell: from the one before, or from the pick if that
// was later.
struct PrefillSpan {
  double seconds = 0;
  // What was done meanwhile, in token equivalents: requests whose first tokens came in the same
  // engine step are taken together.
  double work = 0;
};

class LoadLedger {
 public:
  struct Options {
    std::uint32_t block_size = 0;   // B, tokens
    std::uint32_t pool_number = 0;  // upper 16 bits of each reservation id
    // Where generations of ids begin: random, so that an outcome for a reservation of an earlier
    // router process names none of this one.
    std::uint64_t id_seed = 0;
    std::uint32_t max_reservations = 1u << 20;
    // Blocks of the chains of all reservations, open or lingering. Beyond it a reservation counts
    // as load only: its blocks are not known to be in flight.
    std::uint64_t max_chain_blocks = std::uint64_t{1} << 25;
    absl::Duration default_lease = absl::Milliseconds(120'000);
    absl::Duration max_lease = absl::Milliseconds(3'600'000);
    // How long a closed reservation's chain stays in the overlay of a target with events.
    absl::Duration overlay_linger = absl::Milliseconds(500);
    absl::Duration readopt_window = absl::Seconds(5);
    // When most finished reservations never had a first token told (gateways that do not look at
    // responses, clients that only report the end), requests leave pend_w once their prefill time
    // is over, or W would count each until its end. Off: only first tokens and ends are believed.
    bool infer_first_tokens = true;
  };
  static std::unique_ptr<LoadLedger> Create(const Options& options);
  virtual ~LoadLedger() = default;

  // Targets are added by the fleet. `has_events` decides between linger and PREDICTED for chains of
  // tokens; `predicted_bound_blocks` bounds what the target is PREDICTED to hold, of either kind.
  virtual void AddTarget(TargetId target, bool has_events,
                         std::uint64_t predicted_bound_blocks) = 0;
  // Closes everything open there with the cause and forgets overlay and PREDICTED knowledge.
  virtual void ClearTarget(TargetId target, CloseCause cause, absl::Time now) = 0;
  virtual void RemoveTarget(TargetId target, absl::Time now) = 0;

  // Opens a reservation and returns its id; a second one with the same request_id closes the first
  // (superseded). 0 when max_reservations are open. `chain` is the prompt's, of the reservation's
  // chain_kind. REQUIRES: the target was added.
  virtual ReservationId Open(Reservation reservation, std::span<const ChainHash> chain,
                             absl::Time now) = 0;
  virtual const Reservation* Find(ReservationId id) const = 0;
  // The first `limit` blocks of an open reservation's chain, or all chain_blocks of them.
  virtual std::vector<ChainHash> ChainOf(ReservationId id, std::size_t limit) const = 0;
  // Starts the decode phase: pend_w loses the request and is re-anchored. Returns what the target's
  // speed can be learned from: the span before this one, for only now it is known that no other
  // request shared its step.
  virtual std::optional<PrefillSpan> FirstToken(ReservationId id, absl::Time now) = 0;
  virtual void RenewLease(ReservationId id, absl::Time now) = 0;
  // served_by: in one step to another target.
  virtual void Move(ReservationId id, TargetId to, absl::Time now) = 0;
  // Exactly once; nothing is returned, and nothing happens, when the id is not open. FINISHED
  // teaches o and R (output_tokens may be unknown) and, for a target without events, PREDICTED. A
  // chain of text is PREDICTED at any target by any end but failure, loss and a second pick: no
  // events will ever speak of it.
  virtual std::optional<Reservation> Close(ReservationId id, CloseCause cause, absl::Time now,
                                           std::optional<std::uint64_t> output_tokens) = 0;

  // A stream ended. With an instance its reservations wait for AdoptHolder, else (or when the
  // window has passed) they are closed. Call it after the holder's last pick has returned; a second
  // call is harmless.
  virtual void ReleaseHolder(std::uint64_t holder, std::string_view client_instance,
                             absl::Time now) = 0;
  virtual std::uint32_t AdoptHolder(std::string_view client_instance, std::uint64_t new_holder,
                                    absl::Time now) = 0;

  // An engine's own report; docs/semantics.md says what it may and may not do.
  virtual void OnEngineLoad(TargetId target, const EngineLoad& load, absl::Time now) = 0;

  virtual TargetLoad Load(TargetId target, absl::Time now) const = 0;
  // Of all targets at once: what a pick asks for.
  virtual LoadsNow Loads(absl::Time now) const = 0;
  virtual PoolAverages Averages() const = 0;
  // Knows where the requests of each tenant are, by the reservations' tenant.
  virtual TenantTable& tenants() = 0;

  // Leases, lingering overlay entries, re-adoption windows, rho. Does a bounded amount of work and
  // returns true while more is due, so that a caller can let picks in between.
  virtual bool Tick(absl::Time now) = 0;

  // --- Knowledge that picks wrote: IN_FLIGHT and PREDICTED.
  // Depth in blocks to which `target` is known to (be about to) hold the chain by either source.
  // Fills depth[target] for every target with a depth > 0; entries beyond are left alone.
  // `depth` is indexed by TargetId and sized by the caller.
  virtual void KnownDepths(ChainKind kind, std::span<const ChainHash> chain,
                           std::span<std::uint32_t> depth) const = 0;
  // Outcomes heal: the target turned out to hold these first blocks, of tokens.
  virtual void LearnPredicted(TargetId target, std::span<const ChainHash> chain) = 0;
  // What was learned so proved wrong. Chains of text stay.
  virtual void ForgetPredicted(TargetId target) = 0;
  virtual std::uint64_t InFlightBlocks() const = 0;
  virtual std::uint64_t PredictedBlocks(TargetId target) const = 0;
  virtual void ForEachInFlight(TargetId target, std::vector<ChainHash>* out) const = 0;
  virtual void ForEachPredicted(TargetId target, std::vector<ChainHash>* out) const = 0;

  virtual std::uint64_t opened() const = 0;
  virtual std::uint64_t open() const = 0;
  virtual std::array<std::uint64_t, kCloseCauseCount> closed() const = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_LOAD_LEDGER_H_
