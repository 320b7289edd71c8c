#include "core/routing/picker.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/base/status.h"
#include "core/routing/candidate_table.h"
#include "core/routing/candidates.h"
#include "core/routing/cost.h"
#include "core/routing/endpoint_filter.h"
#include "core/routing/pick_stats.h"
#include "core/routing/picker_impl.h"
#include "core/routing/policy.h"
#include "core/routing/slow_tiers.h"

namespace warmpath {
namespace {

// Beyond any model's context; keeps sums of reservations far from overflow.
constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 32;

// Seconds; fine around the 20 us that a pick may hold its pool's mutex.
std::vector<double> LockHoldBounds() {
  return {0.5e-6, 1e-6,  2e-6,  3e-6,  4e-6,  5e-6,  6e-6,  8e-6,   10e-6, 12e-6, 14e-6,
          16e-6,  18e-6, 20e-6, 25e-6, 30e-6, 40e-6, 60e-6, 100e-6, 1e-3,  10e-3};
}

void FillEndpoint(const TargetState& state, EndpointRef* endpoint) {
  endpoint->worker_id = state.worker_id;
  endpoint->rank = state.spec.rank;
  endpoint->address = state.spec.address;
  endpoint->needs_rank_header = state.spec.shares_address;
}

// One pick under the pool's mutex.
class LockedPick {
 public:
  LockedPick(Pool& pool, const Query& query, const PickInputs& inputs, const Policy& policy,
             const PolicyInput& policy_input, absl::Time now, PickScratch& scratch)
      : pool_(pool),
        query_(query),
        inputs_(inputs),
        policy_(policy),
        policy_input_(policy_input),
        now_(now),
        scratch_(scratch),
        candidates_(scratch.candidates) {}

  // The winner's place, verified; nothing when no candidate's score is a number.
  std::optional<std::size_t> Choose() {
    pool_.mu().AssertHeld();
    const PolicyContext context{.config = pool_.config(),
                                .targets = pool_.targets(),
                                .costs = inputs_.costs(),
                                .state = pool_.pick_state(),
                                .random = pool_.random(),
                                .tenant = inputs_.tenant};
    reason_ = policy_.Score(policy_input_, context, candidates_);
    pool_.pick_state().not_finite += candidates_.DropNotFinite();
    if (candidates_.empty()) return std::nullopt;
    // Once more for each that is found to hold less, or more, than its match said: at most all.
    std::vector<std::uint32_t>& verified = scratch_.order;
    for (verified.clear();;) {
      const std::size_t best = Best();
      if (std::find(verified.begin(), verified.end(), best) != verified.end()) return best;
      verified.push_back(static_cast<std::uint32_t>(best));
      if (!Correct(best) || !policy_.ScoresMatch(policy_input_)) return best;
      policy_.Rescore(context, best, candidates_);
    }
  }

  PickReason Reason(std::uint64_t cached_tokens, std::uint64_t longest_match) const {
    if (reason_ != PickReason::kCost) return reason_;
    if (query_.chain.empty()) return PickReason::kShortPrompt;
    if (longest_match == 0) return PickReason::kNoPrefix;
    return cached_tokens >= longest_match ? PickReason::kPrefix : PickReason::kCost;
  }

 private:
  // The least score; of equal ones each with the same probability.
  std::size_t Best() ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool_.mu()) {
    const std::span<const double> scores = std::as_const(candidates_).scores();
    std::size_t best = 0;
    std::uint64_t ties = 1;
    for (std::size_t i = 1; i < scores.size(); ++i) {
      if (scores[i] < scores[best]) {
        best = i;
        ties = 1;
      } else if (scores[i] == scores[best] && pool_.random().Below(++ties) == 0) {
        best = i;
      }
    }
    return best;
  }

  // Looks at the blocks that the match skipped, and beyond what picks wrote. True when h changed.
  bool Correct(std::size_t candidate) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool_.mu()) {
    if (query_.chain.empty() || query_.chain_kind == ChainKind::kText) return false;
    const TargetId target = candidates_.target(candidate);
    const Slot slot = pool_.rows()[target].slot;
    if (slot == kNoSlot) return false;
    if (scratch_.events.has_slow_tiers()) {
      return CorrectSlowTiers(pool_, query_, inputs_, candidate, now_, &scratch_);
    }
    const std::uint32_t event_blocks = scratch_.events.Of(slot);
    const std::uint32_t written_blocks = scratch_.written[target];
    std::size_t from = written_blocks;
    std::size_t limit = query_.chain.size();
    if (event_blocks > written_blocks) {
      // What the match has seen a moment ago is looked at once more by its last block, which is
      // the first that an engine evicts.
      from = std::max<std::size_t>(from, std::max(scratch_.events.SeenOf(slot), 1u) - 1);
      limit = event_blocks;
    }
    const auto depth =
        static_cast<std::uint32_t>(pool_.index().VerifiedGpuDepth(slot, query_.chain, from, limit));
    if (depth == candidates_.blocks(candidate)) return false;
    candidates_.SetHeld(candidate, depth, CachedTokens(depth, inputs_));
    return true;
  }

  Pool& pool_;
  const Query& query_;
  const PickInputs& inputs_;
  const Policy& policy_;
  const PolicyInput& policy_input_;
  const absl::Time now_;
  PickScratch& scratch_;
  CandidateTable& candidates_;
  PickReason reason_ = PickReason::kCost;
};

CandidateTerms TermsOf(const TargetState& state) {
  CandidateTerms terms;
  FillEndpoint(state, &terms.endpoint);
  terms.kv_capacity_tokens = state.spec.kv_capacity_tokens;
  terms.freshness = state.freshness();
  terms.causes = state.AllCauses();
  return terms;
}

CandidateTerms TermsOf(const std::vector<TargetState>& targets, const CandidateTable& candidates,
                       std::size_t i, const PickInputs& inputs) {
  CandidateTerms terms = TermsOf(targets[candidates.target(i)]);
  const CostInput input = candidates.InputOf(i, inputs.costs());
  const CostTerms costs = MarginalCost(input);
  terms.cached_tokens = input.cached_tokens;
  terms.uncached_tokens = input.prompt_tokens - input.cached_tokens;
  terms.copied_tokens = candidates.copied_tokens(i);
  terms.wait_s = costs.wait_s;
  terms.copy_s = costs.copy_s;
  terms.prefill_s = costs.prefill_s;
  terms.pool_price_s = costs.pool_price_s;
  terms.decode_stall_s = costs.decode_stall_s;
  terms.kv_pressure_s = costs.kv_pressure_s;
  terms.kv_wait_s = costs.kv_wait_s;
  terms.tenant_s = inputs.tenant.Seconds(candidates.target(i), input);
  terms.cost_s = candidates.scores()[i];
  terms.inflight = input.inflight;
  terms.kv_tokens = input.kv_tokens;
  return terms;
}

// Places of the best `count` candidates but the chosen one, best first; `with_limited` also of
// those that the policy would not have as fallbacks. Equal ones come as they follow the chosen one,
// round about: in an idle pool not everybody's fallback is then the same target.
void OrderRest(const CandidateTable& candidates, std::size_t chosen, std::size_t count,
               bool with_limited, std::vector<std::uint32_t>* order) {
  const std::span<const double> scores = candidates.scores();
  order->clear();
  count = std::min(count, candidates.size());
  if (count == 0) return;
  double worst = 0;  // of order
  const auto size = static_cast<std::uint32_t>(candidates.size());
  auto i = static_cast<std::uint32_t>(chosen);
  for (std::uint32_t seen = 1; seen < size; ++seen) {
    i = i + 1 == size ? 0 : i + 1;
    // Few are asked for: most candidates end here.
    if (order->size() == count && scores[i] >= worst) continue;
    if (!with_limited && candidates.at_limit(i)) continue;
    const auto place = std::upper_bound(
        order->begin(), order->end(), i,
        [scores](std::uint32_t a, std::uint32_t b) { return scores[a] < scores[b]; });
    order->insert(place, i);
    if (order->size() > count) order->pop_back();
    worst = scores[order->back()];
  }
}

void Explain(const std::vector<TargetState>& targets, std::size_t chosen, const PickInputs& inputs,
             const PolicyInput& policy_input, PickScratch& scratch, Decision& decision) {
  const CandidateTable& candidates = scratch.candidates;
  decision.explanation.push_back(TermsOf(targets, candidates, chosen, inputs));
  OrderRest(candidates, chosen, candidates.size(), /*with_limited=*/true, &scratch.order);
  for (const std::uint32_t i : scratch.order) {
    decision.explanation.push_back(TermsOf(targets, candidates, i, inputs));
  }
  for (const LeftOut& left_out : scratch.left_out) {
    CandidateTerms terms = TermsOf(targets[left_out.target]);
    terms.excluded = left_out.why;
    decision.explanation.push_back(std::move(terms));
  }
  if (!policy_input.note.empty()) decision.notes.push_back(policy_input.note);
}

// Copies the names of the chosen target and its fallbacks to the scratch, whose strings have their
// memory already.
void TakeEndpoints(const std::vector<TargetState>& targets, std::size_t chosen,
                   std::size_t max_fallbacks, PickScratch* scratch) {
  const CandidateTable& candidates = scratch->candidates;
  OrderRest(candidates, chosen, max_fallbacks, /*with_limited=*/false, &scratch->order);
  if (scratch->endpoints.size() <= scratch->order.size()) {
    scratch->endpoints.resize(scratch->order.size() + 1);
  }
  FillEndpoint(targets[candidates.target(chosen)], &scratch->endpoints[0]);
  for (std::size_t i = 0; i < scratch->order.size(); ++i) {
    FillEndpoint(targets[candidates.target(scratch->order[i])], &scratch->endpoints[i + 1]);
  }
}

// What follows from the scratch alone, when others may pick again.
void FillDecision(const PickScratch& scratch, Decision& decision) {
  decision.endpoint = scratch.endpoints[0];
  const auto fallbacks = scratch.endpoints.begin() + 1;
  decision.fallbacks.assign(fallbacks,
                            fallbacks + static_cast<std::ptrdiff_t>(scratch.order.size()));
  for (std::size_t i = 0; i < scratch.candidates.size(); ++i) {
    switch (scratch.candidates.freshness(i)) {
      case Freshness::kExact:
        ++decision.candidates_exact;
        break;
      case Freshness::kDegraded:
        ++decision.candidates_degraded;
        break;
      case Freshness::kNone:
        ++decision.candidates_none;
        break;
    }
  }
}

// However fresh the targets' events are: none of them says anything about a chain of text.
void ClaimNothing(Decision& decision) {
  decision.causes = CauseSet();
  for (CandidateTerms& terms : decision.explanation) {
    terms.freshness = Freshness::kNone;
    terms.causes = CauseSet();
  }
}

// Token equivalents to which the time until the first token is compared. A copy takes time at a
// rate of its own: where it is more than a little of the whole, that says nothing of the prefill's.
double WorkThatTeaches(const CostTerms& terms, double rate) {
  constexpr double kLittle = 0.1;
  if (terms.copy_s > kLittle * terms.prefill_s) return -std::numeric_limits<double>::infinity();
  return (terms.prefill_s + terms.copy_s) * rate;
}

// What is known before the mutex is taken, so that copying it costs nobody else time.
Reservation Prepare(const Query& query, const PickInputs& inputs) {
  Reservation reservation;
  if (!query.reserve) return reservation;
  reservation.prompt_tokens = inputs.prompt_tokens;
  reservation.expected_output = std::min(query.expected_output_tokens, kMostTokens);
  reservation.chain_kind = query.chain_kind;
  reservation.request_id = std::string(query.request_id);
  reservation.holder = query.holder;
  reservation.lease = query.lease;
  return reservation;
}

}  // namespace

Picker::Impl::Impl(const Clock* c) : clock(c), lock_hold(LockHoldBounds()) {}

Picker::Picker(const Clock* clock) : impl_(std::make_unique<Impl>(clock)) {}
Picker::~Picker() = default;

HistogramSnapshot Picker::LockHold() const { return impl_->lock_hold.Snapshot(); }

absl::StatusOr<Decision> Picker::Pick(Pool& pool, const Query& query, absl::Duration* retry_after) {
  if (retry_after != nullptr) *retry_after = absl::ZeroDuration();
  const PoolConfig& config = pool.config();
  WARMPATH_ASSIGN_OR_RETURN(
      const std::size_t policy_index,
      FindPolicy(query.policy.empty() ? std::string_view(config.policy) : query.policy));
  const Policy& policy = *AllPolicies()[policy_index];
  if (query.prompt_tokens > kMostTokens) {
    return absl::InvalidArgumentError(absl::StrCat("prompt: a length of ", query.prompt_tokens,
                                                   " tokens; at most ", kMostTokens));
  }
  WARMPATH_ASSIGN_OR_RETURN(const PolicyInput policy_input, policy.Prepare(query, config));
  PickInputs inputs;
  inputs.block_size = pool.routing_block_size();
  if (inputs.block_size == 0) {
    return absl::UnavailableError(
        absl::StrCat("pool ", pool.name(), " has no ready worker; 0 joining"));
  }
  inputs.prompt_tokens = query.prompt_tokens;
  inputs.max_wait = query.max_wait > absl::ZeroDuration() ? query.max_wait : config.max_wait;

  static thread_local PickScratch scratch;
  const EndpointFilter filter(query);
  Reservation reservation = Prepare(query, inputs);
  const bool by_text = query.chain_kind == ChainKind::kText;
  scratch.events.Match(pool.index(), by_text ? std::span<const ChainHash>() : query.chain,
                       config.slow_tiers);

  Decision decision;
  PickReason reason;
  {
    absl::MutexLock lock(&pool.mu());
    const absl::Time now = impl_->clock->Now();
    const auto observe = absl::MakeCleanup([this, now] {
      impl_->lock_hold.Observe(absl::ToDoubleSeconds(impl_->clock->Now() - now));
    });
    LoadLedger& ledger = pool.ledger();
    PickState& state = pool.pick_state();
    inputs.averages = ledger.Averages();
    inputs.pool_rate = pool.mean_rate();
    inputs.unequal = pool.unequal();
    TenantNumber tenant = 0;
    if (config.tenant_fairness && !query.tenant.empty()) {
      TenantTable& tenants = ledger.tenants();
      tenant = query.reserve ? tenants.Enter(query.tenant) : tenants.Find(query.tenant);
      inputs.tenant = TenantCharge(&tenants, tenant, now);
    }
    inputs.output_tokens =
        inputs.averages.cold() && query.expected_output_tokens > 0
            ? static_cast<double>(std::min(query.expected_output_tokens, kMostTokens))
            : inputs.averages.output_tokens;
    absl::Duration wait;
    if (absl::Status status = FindCandidates(pool, query, filter, inputs, now, &scratch, &wait);
        !status.ok()) {
      if (wait > absl::ZeroDuration()) {
        if (retry_after != nullptr) *retry_after = wait;
        if (query.reserve) ++state.shed;
      }
      return status;
    }
    LockedPick pick(pool, query, inputs, policy, policy_input, now, scratch);
    const std::optional<std::size_t> best = pick.Choose();
    if (!best.has_value()) {
      return absl::InternalError(
          absl::StrCat("pool ", pool.name(), ": no candidate's cost is a number"));
    }
    const std::size_t chosen = *best;
    const CandidateTable& candidates = scratch.candidates;
    const TargetId target = candidates.target(chosen);
    const CostInput input = candidates.InputOf(chosen, inputs.costs());
    const CostTerms terms = MarginalCost(input);
    const std::uint64_t longest_match = CachedTokens(candidates.MostBlocks(), inputs);
    reason = pick.Reason(input.cached_tokens, longest_match);
    decision.prompt_tokens = input.prompt_tokens;
    decision.predicted_cached_tokens = input.cached_tokens;
    decision.predicted_ttft_s = terms.TimeToFirstToken();
    decision.freshness = candidates.freshness(chosen);
    decision.causes = pool.targets()[target].AllCauses();
    if (query.explain) {
      Explain(pool.targets(), chosen, inputs, policy_input, scratch, decision);
    }
    TakeEndpoints(pool.targets(), chosen, query.max_fallbacks, &scratch);
    if (query.reserve) {
      reservation.target = target;
      reservation.cached_tokens = input.cached_tokens;
      reservation.prefill_s = terms.prefill_s;
      reservation.prefill_work = WorkThatTeaches(terms, input.rate);
      reservation.copied_tokens = candidates.copied_tokens(chosen);
      reservation.far_tokens = candidates.far_tokens(chosen);
      reservation.copy_s = terms.copy_s;
      reservation.wait_s = terms.wait_s;
      reservation.tenant = tenant;
      decision.reservation_id = ledger.Open(std::move(reservation), query.chain, now);
      if (decision.reservation_id == 0) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "pool ", pool.name(), ": ", ledger.open(),
            " reservations are open, as many as max_reservations_per_pool allows; report "
            "outcomes, or use shorter leases"));
      }
      ledger.tenants().Use(tenant, terms.prefill_s, now);
      state.last_turn = target;
      state.prompt_tokens += inputs.prompt_tokens;
      state.matched_tokens += longest_match;
      state.predicted_cached_tokens += input.cached_tokens;
      CountPick(policy_index, reason, decision.freshness, state);
    }
  }
  // The scratch is this thread's.
  FillDecision(scratch, decision);
  if (by_text) ClaimNothing(decision);
  decision.policy = std::string(policy.name());
  decision.reason = std::string(PickReasonName(reason));
  decision.pool = pool.name();
  return decision;
}

}  // namespace warmpath
