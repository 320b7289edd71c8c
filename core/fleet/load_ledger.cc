#include "core/fleet/load_ledger.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "core/base/strings.h"
#include "core/fleet/prefix_overlay.h"
#include "core/fleet/reservation_table.h"
#include "core/fleet/target_books.h"

namespace warmpath {
namespace {

// Work that one Tick may do, in reservations or chains: about 0.2 ms under the pool's mutex.
constexpr int kTickBudget = 256;
// Lingering chains that each close retires, more than it adds, so that a busy pool needs no long
// Tick.
constexpr int kLingerPerCall = 2;

std::int64_t ToNanoseconds(double seconds) {
  constexpr double kLongest = 1e6;  // s; keeps sums of a million of them far from overflow
  if (!(seconds > 0)) return 0;
  return static_cast<std::int64_t>(std::min(seconds, kLongest) * 1e9);
}

class Ledger final : public LoadLedger {
 public:
  explicit Ledger(const Options& options)
      : options_(options),
        table_(options.pool_number, options.id_seed, options.max_reservations),
        books_(&table_, options.block_size, options.infer_first_tokens) {}

  void AddTarget(TargetId target, bool has_events, std::uint64_t predicted_bound_blocks) override {
    books_.Add(target, has_events, predicted_bound_blocks);
  }

  void ClearTarget(TargetId target, CloseCause cause, absl::Time now) override {
    if (!books_.Known(target)) return;
    while (const Place place = books_.FirstOpen(target)) CloseAt(place, cause, now, std::nullopt);
    for (Lingering& lingering : lingering_) {
      if (lingering.target != target) continue;
      EndLinger(lingering);
    }
    for (PrefixOverlay& overlay : overlays_) overlay.ForgetPredicted(target);
    books_.ForgetEngine(target);
  }

  void RemoveTarget(TargetId target, absl::Time now) override {
    if (!books_.Known(target)) return;
    ClearTarget(target, CloseCause::kTargetLost, now);
    books_.Remove(target, now);
  }

  ReservationId Open(Reservation reservation, std::span<const ChainHash> chain,
                     absl::Time now) override {
    if (!books_.Known(reservation.target)) return 0;
    if (!reservation.request_id.empty()) {
      const auto it = by_request_.find(reservation.request_id);
      if (it != by_request_.end()) {
        CloseAt(table_.Find(it->second), CloseCause::kSuperseded, now, std::nullopt);
      }
    }
    reservation.picked_at = now;
    reservation.first_token_seen = false;
    reservation.lease_until = absl::InfiniteFuture();
    const Place place = table_.Add(std::move(reservation));
    if (place == 0) return 0;
    OpenReservation& entry = table_[place];
    Reservation& r = entry.reservation;
    ++opened_;
    if (chain_blocks_ + chain.size() > options_.max_chain_blocks) chain = {};
    r.chain_blocks = static_cast<std::uint32_t>(chain.size());
    chain_blocks_ += chain.size();
    const std::uint64_t blocked = chain.size() * std::uint64_t{options_.block_size};
    entry.loose_tokens = r.prompt_tokens - std::min(r.prompt_tokens, blocked);
    entry.prefill_ns = ToNanoseconds(r.prefill_s);
    books_.OnPick(static_cast<double>(entry.prefill_ns) * 1e-9);
    if (!r.request_id.empty()) by_request_[r.request_id] = r.id;
    if (r.holder != 0) {
      holders_[r.holder].PushBack(table_, place);
    } else {
      r.lease = r.lease > absl::ZeroDuration() ? std::min(r.lease, options_.max_lease)
                                               : options_.default_lease;
      table_.SetLease(place, now + r.lease);
    }
    entry.path = Overlay(r.chain_kind).Open(r.target, chain);
    Attach(place, now);
    return r.id;
  }

  const Reservation* Find(ReservationId id) const override {
    const Place place = table_.Find(id);
    return place == 0 ? nullptr : &table_[place].reservation;
  }

  std::vector<ChainHash> ChainOf(ReservationId id, std::size_t limit) const override {
    const Place place = table_.Find(id);
    if (place == 0) return {};
    const OpenReservation& entry = table_[place];
    return Overlay(entry.reservation.chain_kind).ChainOf(entry.path, limit);
  }

  std::optional<PrefillSpan> FirstToken(ReservationId id, absl::Time now) override {
    const Place place = table_.Find(id);
    if (place == 0 || table_[place].reservation.first_token_seen) return std::nullopt;
    return books_.FirstToken(place, now);
  }

  void RenewLease(ReservationId id, absl::Time now) override {
    const Place place = table_.Find(id);
    if (place == 0 || table_[place].reservation.holder != 0) return;
    table_.SetLease(place, now + table_[place].reservation.lease);
  }

  void Move(ReservationId id, TargetId to, absl::Time now) override {
    const Place place = table_.Find(id);
    if (place == 0 || !books_.Known(to) || table_[place].reservation.target == to) return;
    // First, so that the path stays.
    Overlay(table_[place].reservation.chain_kind).OpenAgain(to, table_[place].path);
    // It was never sent to the old target: nothing lingers there.
    Detach(place, /*linger=*/false, now);
    table_[place].reservation.target = to;
    table_[place].reservation.cached_tokens = 0;
    table_[place].reservation.copied_tokens = 0;
    table_[place].reservation.far_tokens = 0;
    Attach(place, now);
  }

  std::optional<Reservation> Close(ReservationId id, CloseCause cause, absl::Time now,
                                   std::optional<std::uint64_t> output_tokens) override {
    const Place place = table_.Find(id);
    if (place == 0) return std::nullopt;
    Reservation closed = CloseAt(place, cause, now, output_tokens);
    RetireLingering(now, kLingerPerCall);
    return closed;
  }

  void ReleaseHolder(std::uint64_t holder, std::string_view client_instance,
                     absl::Time now) override {
    const auto it = holders_.find(holder);
    if (it == holders_.end()) return;
    if (client_instance.empty()) {
      CloseHolder(holder, now, it->second.size());
    } else {
      orphans_.push_back(Orphan{.holder = holder,
                                .client_instance = std::string(client_instance),
                                .until = now + options_.readopt_window});
    }
  }

  std::uint32_t AdoptHolder(std::string_view client_instance, std::uint64_t new_holder,
                            absl::Time now) override {
    std::uint32_t adopted = 0;
    for (Orphan& orphan : orphans_) {
      if (orphan.client_instance != client_instance || orphan.until <= now) continue;
      const auto it = holders_.find(orphan.holder);
      if (it != holders_.end() && orphan.holder != new_holder) {
        HolderList from = std::exchange(it->second, HolderList());
        holders_.erase(it);
        HolderList& to = holders_[new_holder];
        while (!from.empty()) {
          const Place place = from.front();
          from.Erase(table_, place);
          table_[place].reservation.holder = new_holder;
          to.PushBack(table_, place);
          ++adopted;
        }
      }
      orphan.holder = 0;
    }
    std::erase_if(orphans_, [](const Orphan& orphan) { return orphan.holder == 0; });
    return adopted;
  }

  void OnEngineLoad(TargetId target, const EngineLoad& load, absl::Time now) override {
    if (!books_.Known(target)) return;
    const std::optional<absl::Time> empty_since = books_.OnEngineLoad(target, load);
    if (!empty_since.has_value()) return;
    for (Place place = books_.FirstOpen(target); place != 0;) {
      const Place next = table_[place].at_target.next;
      if (table_[place].reservation.picked_at < *empty_since) {
        CloseAt(place, CloseCause::kReconciled, now, std::nullopt);
      }
      place = next;
    }
  }

  TargetLoad Load(TargetId target, absl::Time now) const override {
    return books_.Known(target) ? books_.Loads(now).Of(target) : TargetLoad{};
  }
  LoadsNow Loads(absl::Time now) const override { return books_.Loads(now); }
  PoolAverages Averages() const override { return books_.Averages(); }
  TenantTable& tenants() override { return tenants_; }

  bool Tick(absl::Time now) override {
    books_.Tick(now);
    int budget = kTickBudget;
    while (budget > 0 && !orphans_.empty() && orphans_.front().until <= now) {
      const auto it = holders_.find(orphans_.front().holder);
      if (it == holders_.end()) {
        orphans_.pop_front();
        continue;
      }
      budget -= static_cast<int>(
          CloseHolder(orphans_.front().holder, now, static_cast<std::uint32_t>(budget)));
    }
    while (budget > 0 && table_.FirstLease() != 0 &&
           table_[table_.FirstLease()].reservation.lease_until <= now) {
      CloseAt(table_.FirstLease(), CloseCause::kLeaseExpired, now, std::nullopt);
      --budget;
    }
    budget -= RetireLingering(now, budget);
    return budget <= 0;
  }

  void KnownDepths(ChainKind kind, std::span<const ChainHash> chain,
                   std::span<std::uint32_t> depth) const override {
    Overlay(kind).Depths(chain, depth);
  }
  void LearnPredicted(TargetId target, std::span<const ChainHash> chain) override {
    if (!books_.Known(target)) return;
    Overlay(ChainKind::kTokens).Predict(target, chain, books_.predicted_bound(target));
  }
  void ForgetPredicted(TargetId target) override {
    if (books_.Known(target)) Overlay(ChainKind::kTokens).ForgetPredicted(target);
  }
  std::uint64_t InFlightBlocks() const override {
    std::uint64_t blocks = 0;
    for (const PrefixOverlay& overlay : overlays_) blocks += overlay.InFlightBlocks();
    return blocks;
  }
  std::uint64_t PredictedBlocks(TargetId target) const override {
    std::uint64_t blocks = 0;
    for (const PrefixOverlay& overlay : overlays_) blocks += overlay.PredictedBlocks(target);
    return blocks;
  }
  void ForEachInFlight(TargetId target, std::vector<ChainHash>* out) const override {
    for (const PrefixOverlay& overlay : overlays_) overlay.ForEachInFlight(target, out);
  }
  void ForEachPredicted(TargetId target, std::vector<ChainHash>* out) const override {
    for (const PrefixOverlay& overlay : overlays_) overlay.ForEachPredicted(target, out);
  }

  std::uint64_t opened() const override { return opened_; }
  std::uint64_t open() const override { return table_.size(); }
  std::array<std::uint64_t, kCloseCauseCount> closed() const override { return closed_; }

 private:
  using HolderList = PlaceList<&OpenReservation::at_holder>;

  struct Lingering {
    absl::Time until;
    TargetId target = kNoTarget;
    PrefixOverlay::PathEnd path = PrefixOverlay::kEmpty;
    std::uint32_t blocks = 0;
  };
  struct Orphan {
    std::uint64_t holder = 0;
    std::string client_instance;
    absl::Time until;
  };

  PrefixOverlay& Overlay(ChainKind kind) { return overlays_[static_cast<std::size_t>(kind)]; }
  const PrefixOverlay& Overlay(ChainKind kind) const {
    return overlays_[static_cast<std::size_t>(kind)];
  }
  std::uint64_t OpenBlocks(TargetId target) const {
    std::uint64_t blocks = 0;
    for (const PrefixOverlay& overlay : overlays_) blocks += overlay.OpenBlocks(target);
    return blocks;
  }

  // Whether the target has most likely computed the prompt of a reservation that ended so. Callers
  // without a way to report let leases end.
  static bool WasComputed(CloseCause cause) {
    switch (cause) {
      case CloseCause::kFinished:
      case CloseCause::kStreamEnded:
      case CloseCause::kLeaseExpired:
      case CloseCause::kReconciled:
        return true;
      case CloseCause::kFailed:
      case CloseCause::kSuperseded:
      case CloseCause::kTargetLost:
      case CloseCause::kNewEpoch:
        return false;
    }
    return false;
  }

  void Attach(Place place, absl::Time now) {
    const TargetId target = table_[place].reservation.target;
    books_.Attach(place, now);
    tenants_.Open(table_[place].reservation.tenant, target);
    books_.SetOpenBlocks(target, OpenBlocks(target));
  }

  void Detach(Place place, bool linger, absl::Time now) {
    const Reservation& r = table_[place].reservation;
    Overlay(r.chain_kind).Close(r.target, table_[place].path, linger);
    books_.Detach(place, now);
    tenants_.Close(r.tenant, r.target);
    books_.SetOpenBlocks(r.target, OpenBlocks(r.target));
  }

  Reservation CloseAt(Place place, CloseCause cause, absl::Time now,
                      std::optional<std::uint64_t> output_tokens) {
    const Reservation& r = table_[place].reservation;
    const bool has_events = books_.has_events(r.target);
    const bool target_gone = cause == CloseCause::kTargetLost || cause == CloseCause::kNewEpoch;
    const bool text = r.chain_kind == ChainKind::kText;
    const bool linger = has_events && !text && !target_gone && r.chain_blocks > 0;
    // Before the overlay lets go of the chain, which would then be taken apart and built again.
    if (text ? WasComputed(cause) : cause == CloseCause::kFinished && !has_events) {
      Overlay(r.chain_kind).Predict(r.target, table_[place].path, books_.predicted_bound(r.target));
    }
    Detach(place, linger, now);
    if (cause == CloseCause::kFinished) books_.OnFinish(r, output_tokens, now);
    if (r.holder != 0) {
      const auto holder = holders_.find(r.holder);
      holder->second.Erase(table_, place);
      if (holder->second.empty()) holders_.erase(holder);
    }
    if (!r.request_id.empty()) by_request_.erase(r.request_id);
    table_.DropLease(place);
    ++closed_[static_cast<std::size_t>(cause)];
    const PrefixOverlay::PathEnd path = table_[place].path;
    Reservation closed = table_.Remove(place);
    if (linger) {
      lingering_.push_back(Lingering{.until = now + options_.overlay_linger,
                                     .target = closed.target,
                                     .path = path,
                                     .blocks = closed.chain_blocks});
      // A bound on what waits, whatever the rate: the oldest linger less.
      if (lingering_.size() > options_.max_reservations) RetireOldest();
    } else {
      chain_blocks_ -= closed.chain_blocks;
    }
    return closed;
  }

  // Closes up to `limit` reservations of a holder; returns how many.
  std::uint32_t CloseHolder(std::uint64_t holder, absl::Time now, std::uint32_t limit) {
    std::uint32_t closed = 0;
    for (auto it = holders_.find(holder); closed < limit && it != holders_.end();
         it = holders_.find(holder)) {
      CloseAt(it->second.front(), CloseCause::kStreamEnded, now, std::nullopt);
      ++closed;
    }
    return closed;
  }

  void EndLinger(Lingering& lingering) {
    Overlay(ChainKind::kTokens).EndLinger(lingering.target, lingering.path);
    chain_blocks_ -= lingering.blocks;
    lingering.path = PrefixOverlay::kEmpty;
    lingering.blocks = 0;
  }

  void RetireOldest() {
    EndLinger(lingering_.front());
    lingering_.pop_front();
  }

  int RetireLingering(absl::Time now, int limit) {
    int retired = 0;
    for (; retired < limit && !lingering_.empty() && lingering_.front().until <= now; ++retired) {
      RetireOldest();
    }
    return retired;
  }

  const Options options_;
  ReservationTable table_;
  std::array<PrefixOverlay, kChainKindCount> overlays_;
  TargetBooks books_;
  TenantTable tenants_;
  StringMap<ReservationId> by_request_;
  absl::flat_hash_map<std::uint64_t, HolderList> holders_;  // none of them empty
  std::deque<Orphan> orphans_;                              // by the end of their windows
  std::deque<Lingering> lingering_;                         // by the end of their time
  std::uint64_t chain_blocks_ = 0;                          // of reservations, open or lingering
  std::uint64_t opened_ = 0;
  std::array<std::uint64_t, kCloseCauseCount> closed_{};
};

}  // namespace

std::string_view CloseCauseName(CloseCause cause) {
  switch (cause) {
    case CloseCause::kFinished:
      return "finished";
    case CloseCause::kFailed:
      return "failed";
    case CloseCause::kStreamEnded:
      return "stream_ended";
    case CloseCause::kSuperseded:
      return "superseded";
    case CloseCause::kTargetLost:
      return "target_lost";
    case CloseCause::kNewEpoch:
      return "new_epoch";
    case CloseCause::kLeaseExpired:
      return "lease_expired";
    case CloseCause::kReconciled:
      return "reconciled";
  }
  return "unknown";
}

std::unique_ptr<LoadLedger> LoadLedger::Create(const Options& options) {
  return std::make_unique<Ledger>(options);
}

}  // namespace warmpath
