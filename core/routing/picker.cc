#include "core/routing/picker.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/base/status.h"
#include "core/routing/candidates.h"
#include "core/routing/endpoint_filter.h"
#include "core/routing/pick_stats.h"
#include "core/routing/picker_impl.h"
#include "core/routing/policy.h"

namespace warmpath {
namespace {

// Beyond any model's context; keeps sums of reservations far from overflow.
constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 32;

// Seconds; fine around the 20 us that a pick may hold its pool's mutex.
std::vector<double> LockHoldBounds() {
  return {0.5e-6, 1e-6,  2e-6,  3e-6,  4e-6,  5e-6,  6e-6,  8e-6,   10e-6, 12e-6, 14e-6,
          16e-6,  18e-6, 20e-6, 25e-6, 30e-6, 40e-6, 60e-6, 100e-6, 1e-3,  10e-3};
}

// One pick under the pool's mutex.
class LockedPick {
 public:
  LockedPick(Pool& pool, const Query& query, const PickInputs& inputs, const Policy& policy,
             const PolicyInput& policy_input, PickScratch& scratch)
      : pool_(pool),
        query_(query),
        inputs_(inputs),
        policy_(policy),
        policy_input_(policy_input),
        scratch_(scratch) {}

  // The winner, verified; null when no candidate's score is a number.
  Candidate* Choose() {
    pool_.mu().AssertHeld();
    const PolicyContext context{
        .config = pool_.config(), .state = pool_.pick_state(), .random = pool_.random()};
    reason_ = policy_.Score(policy_input_, context, scratch_.candidates);
    DropNotFinite();
    for (;;) {
      Candidate* best = Best();
      if (best == nullptr || !Correct(*best) || !policy_.ScoresMatch(policy_input_)) return best;
      policy_.Score(policy_input_, context, std::span(best, 1));
    }
  }

  PickReason Reason(const Candidate& chosen, std::uint64_t longest_match) const {
    if (reason_ != PickReason::kCost) return reason_;
    if (query_.chain.empty()) return PickReason::kShortPrompt;
    if (longest_match == 0) return PickReason::kNoPrefix;
    return chosen.input.cached_tokens >= longest_match ? PickReason::kPrefix : PickReason::kCost;
  }

 private:
  // A score that is no number is a bug here, and must not decide where requests go.
  void DropNotFinite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool_.mu()) {
    pool_.pick_state().not_finite += std::erase_if(
        scratch_.candidates, [](const Candidate& c) { return !std::isfinite(c.score); });
  }

  Candidate* Best() ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool_.mu()) {
    Candidate* best = nullptr;
    std::uint64_t ties = 0;
    for (Candidate& candidate : scratch_.candidates) {
      if (best == nullptr || candidate.score < best->score) {
        best = &candidate;
        ties = 1;
      } else if (candidate.score == best->score && pool_.random().Below(++ties) == 0) {
        best = &candidate;
      }
    }
    return best;
  }

  // Looks at every block that the match skipped, and beyond what picks wrote. True when h changed.
  bool Correct(Candidate& candidate) {
    if (candidate.verified || query_.chain.empty() || query_.chain_kind == ChainKind::kText) {
      return false;
    }
    candidate.verified = true;
    if (candidate.state->slot == kNoSlot) return false;
    const std::uint32_t before = std::max(candidate.event_blocks, candidate.written_blocks);
    const std::size_t limit = candidate.event_blocks > candidate.written_blocks
                                  ? candidate.event_blocks
                                  : query_.chain.size();
    const auto depth = static_cast<std::uint32_t>(pool_.index().VerifiedGpuDepth(
        candidate.state->slot, query_.chain, candidate.written_blocks, limit));
    if (depth == before) return false;
    SetCachedBlocks(depth, inputs_, &candidate);
    return true;
  }

  Pool& pool_;
  const Query& query_;
  const PickInputs& inputs_;
  const Policy& policy_;
  const PolicyInput& policy_input_;
  PickScratch& scratch_;
  PickReason reason_ = PickReason::kCost;
};

std::uint64_t LongestMatch(const PickScratch& scratch) {
  std::uint64_t most = 0;
  for (const Candidate& c : scratch.candidates) most = std::max(most, c.input.cached_tokens);
  return most;
}

EndpointRef EndpointOf(const TargetState& state) {
  return EndpointRef{.worker_id = state.worker_id,
                     .rank = state.spec.rank,
                     .address = state.spec.address,
                     .needs_rank_header = state.spec.shares_address};
}

CandidateTerms TermsOf(const TargetState& state) {
  CandidateTerms terms;
  terms.endpoint = EndpointOf(state);
  terms.kv_capacity_tokens = state.spec.kv_capacity_tokens;
  terms.freshness = state.freshness();
  terms.causes = state.AllCauses();
  return terms;
}

CandidateTerms TermsOf(const Candidate& candidate) {
  CandidateTerms terms = TermsOf(*candidate.state);
  terms.cached_tokens = candidate.input.cached_tokens;
  terms.uncached_tokens = candidate.input.prompt_tokens - candidate.input.cached_tokens;
  terms.wait_s = candidate.terms.wait_s;
  terms.prefill_s = candidate.terms.prefill_s;
  terms.pool_price_s = candidate.terms.pool_price_s;
  terms.decode_stall_s = candidate.terms.decode_stall_s;
  terms.kv_pressure_s = candidate.terms.kv_pressure_s;
  terms.kv_wait_s = candidate.terms.kv_wait_s;
  terms.cost_s = candidate.score;
  terms.inflight = candidate.load.inflight;
  terms.kv_tokens = candidate.load.kv_tokens;
  return terms;
}

// Positions of the best `count` candidates but the chosen one, best first; `with_limited` also of
// those that the policy would not have as fallbacks.
void OrderRest(const std::vector<Candidate>& candidates, const Candidate* chosen, std::size_t count,
               bool with_limited, std::vector<std::uint32_t>* order) {
  order->clear();
  for (std::uint32_t i = 0; i < candidates.size(); ++i) {
    if (&candidates[i] == chosen) continue;
    if (with_limited || !candidates[i].at_limit) order->push_back(i);
  }
  const auto middle = order->begin() + static_cast<std::ptrdiff_t>(std::min(count, order->size()));
  std::partial_sort(order->begin(), middle, order->end(),
                    [&candidates](std::uint32_t a, std::uint32_t b) {
                      return candidates[a].score < candidates[b].score;
                    });
  order->erase(middle, order->end());
}

void Explain(const std::vector<TargetState>& targets, const Candidate* chosen,
             const PolicyInput& policy_input, PickScratch& scratch, Decision& decision) {
  decision.explanation.push_back(TermsOf(*chosen));
  OrderRest(scratch.candidates, chosen, scratch.candidates.size(), /*with_limited=*/true,
            &scratch.order);
  for (const std::uint32_t i : scratch.order) {
    decision.explanation.push_back(TermsOf(scratch.candidates[i]));
  }
  for (LeftOut& left_out : scratch.left_out) {
    CandidateTerms terms = TermsOf(targets[left_out.target]);
    terms.excluded = std::move(left_out.why);
    decision.explanation.push_back(std::move(terms));
  }
  if (!policy_input.note.empty()) decision.notes.push_back(policy_input.note);
}

// All that has to be read from the targets.
void FillDecision(const Candidate* chosen, const Query& query, PickScratch& scratch,
                  Decision& decision) {
  decision.endpoint = EndpointOf(*chosen->state);
  OrderRest(scratch.candidates, chosen, query.max_fallbacks, /*with_limited=*/false,
            &scratch.order);
  decision.fallbacks.reserve(scratch.order.size());
  for (const std::uint32_t i : scratch.order) {
    decision.fallbacks.push_back(EndpointOf(*scratch.candidates[i].state));
  }
  decision.prompt_tokens = chosen->input.prompt_tokens;
  decision.predicted_cached_tokens = chosen->input.cached_tokens;
  decision.predicted_ttft_s = chosen->terms.TimeToFirstToken();
  decision.freshness = chosen->freshness;
  decision.causes = chosen->state->AllCauses();
}

void CountFreshness(const PickScratch& scratch, Decision& decision) {
  for (const Candidate& candidate : scratch.candidates) {
    switch (candidate.freshness) {
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

// What is known before the mutex is taken, so that copying it costs nobody else time.
Reservation Prepare(const Query& query, const PickInputs& inputs) {
  Reservation reservation;
  if (!query.reserve) return reservation;
  reservation.prompt_tokens = inputs.prompt_tokens;
  reservation.expected_output = std::min(query.expected_output_tokens, kMostTokens);
  reservation.chain.assign(query.chain.begin(), query.chain.end());
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
  scratch.events.Match(pool.index(), by_text ? std::span<const ChainHash>() : query.chain);

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
    LockedPick pick(pool, query, inputs, policy, policy_input, scratch);
    const Candidate* const chosen = pick.Choose();
    if (chosen == nullptr) {
      return absl::InternalError(
          absl::StrCat("pool ", pool.name(), ": no candidate's cost is a number"));
    }
    FillDecision(chosen, query, scratch, decision);
    const std::uint64_t longest_match = LongestMatch(scratch);
    reason = pick.Reason(*chosen, longest_match);
    if (query.explain) Explain(pool.targets(), chosen, policy_input, scratch, decision);
    if (query.reserve) {
      reservation.target = chosen->target;
      reservation.cached_tokens = chosen->input.cached_tokens;
      reservation.prefill_s = chosen->terms.prefill_s;
      reservation.prefill_work = chosen->terms.prefill_s * chosen->input.rate;
      reservation.wait_s = chosen->terms.wait_s;
      decision.reservation_id = ledger.Open(std::move(reservation), now);
      if (decision.reservation_id == 0) {
        return absl::ResourceExhaustedError(absl::StrCat(
            "pool ", pool.name(), ": ", ledger.open(),
            " reservations are open, as many as max_reservations_per_pool allows; report "
            "outcomes, or use shorter leases"));
      }
      state.last_turn = chosen->target;
      state.prompt_tokens += inputs.prompt_tokens;
      state.matched_tokens += longest_match;
      state.predicted_cached_tokens += chosen->input.cached_tokens;
      CountPick(policy_index, reason, decision.freshness, state);
    }
  }
  // The scratch is this thread's: what needs no target is made when others may pick again.
  CountFreshness(scratch, decision);
  if (by_text) ClaimNothing(decision);
  decision.policy = std::string(policy.name());
  decision.reason = std::string(PickReasonName(reason));
  decision.pool = pool.name();
  return decision;
}

}  // namespace warmpath
