#include "core/routing/candidates.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "core/base/strings.h"
#include "core/routing/slow_tiers.h"

namespace warmpath {
namespace {

// Why the targets that are not in the candidates are not: counted, for the error.
struct Sieve {
  std::uint32_t joining = 0;
  std::uint32_t eligible = 0;
  std::uint32_t in_subset = 0;
  std::uint32_t with_lora = 0;
  std::uint32_t not_excluded = 0;
  std::uint32_t large_enough = 0;
  std::uint64_t largest_capacity = 0;
  double least_wait_s = std::numeric_limits<double>::infinity();
};

// Through a signed number, which is one instruction. REQUIRES: x < 2^63.
double ToDouble(std::uint64_t x) { return static_cast<double>(static_cast<std::int64_t>(x)); }

// The tokens that a target's KV cache must have room for. Only what is known refuses: an estimated
// length may be wrong several times over, and the output is an average of what clients reported or
// the most that one will take. It has its cost, K.
std::uint64_t MustFit(const Query& query, const PickInputs& inputs) {
  return query.length_is_estimate ? 0 : inputs.prompt_tokens;
}

double MaxWaitSeconds(const PickInputs& inputs) {
  return inputs.max_wait > absl::ZeroDuration() ? absl::ToDoubleSeconds(inputs.max_wait)
                                                : std::numeric_limits<double>::infinity();
}

std::string_view WhyNotEligible(const TargetState& state) {
  if (state.draining) return "draining";
  if (!state.engine_reachable) return "engine unreachable for its agent";
  return LifecycleName(state.lifecycle);
}

bool Serves(const TargetState& state, const std::optional<std::string_view>& lora) {
  return !lora.has_value() ||
         std::find(state.loras.begin(), state.loras.end(), *lora) != state.loras.end();
}

absl::Status NoCandidate(const Pool& pool, const Query& query, const PickInputs& inputs,
                         const Sieve& sieve, absl::Duration* retry_after) {
  const std::string where = absl::StrCat("pool ", pool.name());
  if (sieve.eligible == 0) {
    return absl::UnavailableError(
        absl::StrCat(where, " has no ready worker; ", sieve.joining, " joining"));
  }
  if (sieve.in_subset == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("subset: none of its ", query.subset.size(), " endpoints is one of the ",
                     sieve.eligible, " ready targets of ", where,
                     "; send \"ip:port\" or \"ip\" as the workers registered them"));
  }
  if (sieve.with_lora == 0) {
    return absl::UnavailableError(
        absl::StrCat("lora: no ready worker of ", where, " has registered the adapter \"",
                     ToAbsl(query.lora->substr(0, 128)), "\"; load it on a worker"));
  }
  if (sieve.not_excluded == 0) {
    return absl::UnavailableError(absl::StrCat("exclude: the request excludes all ",
                                               sieve.with_lora, " ready targets of ", where));
  }
  if (sieve.large_enough == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("prompt: ", inputs.prompt_tokens, " tokens fit no KV cache of ", where,
                     ", the largest of which holds ", sieve.largest_capacity, " tokens"));
  }
  // Not sooner than a client can sensibly ask again.
  constexpr absl::Duration kLeastRetry = absl::Milliseconds(50);
  const absl::Duration wait = absl::Seconds(sieve.least_wait_s);
  if (retry_after != nullptr) *retry_after = std::max(kLeastRetry, wait - inputs.max_wait);
  return absl::ResourceExhaustedError(absl::StrCat(
      where, " is saturated: the least predicted wait is ", absl::ToInt64Milliseconds(wait),
      " ms, over max_wait_ms ", absl::ToInt64Milliseconds(inputs.max_wait)));
}

// Why the target is no candidate; empty if it is one. Counts how far it got. For the picks that are
// explained or find nobody: FillCandidates asks the same of the rows.
std::string_view WhyLeftOut(const TargetState& state, const TargetLoad& load, const Query& query,
                            const EndpointFilter& filter, const PickInputs& inputs, Sieve* sieve) {
  if (state.lifecycle == Lifecycle::kJoining) ++sieve->joining;
  if (!state.eligible()) return WhyNotEligible(state);
  ++sieve->eligible;
  if (!filter.InSubset(state)) return "not in the request's subset";
  ++sieve->in_subset;
  if (!Serves(state, query.lora)) return "has not registered the LoRA adapter";
  ++sieve->with_lora;
  if (filter.Excluded(state)) return "excluded by the request";
  ++sieve->not_excluded;
  const std::uint64_t capacity = state.spec.kv_capacity_tokens;
  sieve->largest_capacity = std::max(sieve->largest_capacity, capacity);
  if (capacity > 0 && MustFit(query, inputs) > capacity)
    return "the prompt does not fit its KV cache";
  ++sieve->large_enough;
  sieve->least_wait_s = std::min(sieve->least_wait_s, load.wait_s);
  if (load.wait_s > MaxWaitSeconds(inputs)) return "predicted wait is over max_wait_ms";
  return "";
}

bool PassesNames(const TargetState& state, const Query& query, const EndpointFilter& filter) {
  return filter.InSubset(state) && Serves(state, query.lora) && !filter.Excluded(state);
}

// The usual pick ends here: one pass over the rows and the loads.
void FillCandidates(Pool& pool, const Query& query, const EndpointFilter& filter,
                    const PickInputs& inputs, const LoadsNow& loads, PickScratch* scratch)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool.mu()) {
  const std::vector<TargetState>& targets = pool.targets();
  const std::span<const PickRow> rows = pool.rows();
  const std::span<const std::uint32_t> written = scratch->written;
  const EventDepths& events = scratch->events;
  const bool by_text = query.chain_kind == ChainKind::kText;
  const bool by_name = query.lora.has_value() || !filter.AllowsAll();
  const auto must_fit = static_cast<double>(MustFit(query, inputs));
  const double max_wait_s = MaxWaitSeconds(inputs);
  CandidateTable::Filler candidates(&scratch->candidates, rows.size());
  for (TargetId target = 0; target < rows.size(); ++target) {
    const PickRow& row = rows[target];
    if (!row.eligible || (row.capacity_known && must_fit > row.kv_capacity)) continue;
    if (by_name && !PassesNames(targets[target], query, filter)) continue;
    const TargetLoad load = loads.Of(target);
    if (load.wait_s > max_wait_s) continue;
    const std::uint32_t blocks = std::max(events.Of(row.slot), written[target]);
    candidates.Add({.target = target,
                    .freshness = by_text ? Freshness::kNone : row.freshness,
                    .blocks = blocks,
                    .cached_tokens = ToDouble(CachedTokens(blocks, inputs)),
                    .rate = row.rate,
                    .wait_s = load.wait_s,
                    .inflight = static_cast<double>(load.inflight),
                    .kv_tokens = ToDouble(load.kv_tokens),
                    .kv_capacity = row.kv_capacity});
  }
}

}  // namespace

void EventDepths::Match(const Index& index, std::span<const ChainHash> chain, bool slow_tiers) {
  for (const MatchSegments::Segment& segment : match_.segments) {
    match_.ForEachSlot(segment, [this](Slot slot) { depth_[slot] = 0; });
  }
  match_.segments.clear();
  has_slow_tiers_ = !chain.empty() && !index.MatchGpu(chain, &match_) && slow_tiers;
  if (has_slow_tiers_) MatchTiers(index, chain);
  for (const MatchSegments::Segment& segment : match_.segments) {
    match_.ForEachSlot(segment, [this, &segment](Slot slot) {
      if (slot >= depth_.size()) depth_.resize(slot + 1);
      depth_[slot] = segment.depth;
    });
  }
}

void EventDepths::MatchTiers(const Index& index, std::span<const ChainHash> chain) {
  index.Match(chain, &tiers_);
  for (std::size_t i = 0; i < tiers_.slots.size(); ++i) {
    const Slot slot = tiers_.slots[i].slot;
    if (slot >= place_.size()) place_.resize(slot + 1);
    place_[slot] = static_cast<std::uint32_t>(i);
  }
}

absl::Status FindCandidates(Pool& pool, const Query& query, const EndpointFilter& filter,
                            const PickInputs& inputs, absl::Time now, PickScratch* scratch,
                            absl::Duration* retry_after) {
  const std::vector<TargetState>& targets = pool.targets();
  const LoadsNow loads = pool.ledger().Loads(now);
  scratch->written.assign(targets.size(), 0);
  if (!query.chain.empty()) {
    pool.ledger().KnownDepths(query.chain_kind, query.chain, scratch->written);
  }
  FillCandidates(pool, query, filter, inputs, loads, scratch);
  if (scratch->events.has_slow_tiers()) AddSlowTiers(pool, inputs, now, scratch);
  const CandidateTable& candidates = scratch->candidates;
  scratch->left_out.clear();
  if (!candidates.empty() && !query.explain) return absl::OkStatus();
  Sieve sieve;
  for (TargetId target = 0; target < targets.size(); ++target) {
    if (!targets[target].in_use) continue;
    const std::string_view why =
        WhyLeftOut(targets[target], loads.Of(target), query, filter, inputs, &sieve);
    // Whoever sheds load asks for no explanation and should pay for none.
    if (why.empty() || !query.explain) continue;
    scratch->left_out.push_back(LeftOut{.target = target, .why = why});
  }
  return candidates.empty() ? NoCandidate(pool, query, inputs, sieve, retry_after)
                            : absl::OkStatus();
}

}  // namespace warmpath
