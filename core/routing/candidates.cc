#include "core/routing/candidates.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "core/base/strings.h"
#include "core/fleet/prefill_rate.h"

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

std::string WhyNotEligible(const TargetState& state) {
  if (state.draining) return "draining";
  if (!state.engine_reachable) return "engine unreachable for its agent";
  return std::string(LifecycleName(state.lifecycle));
}

bool Serves(const TargetState& state, const std::optional<std::string_view>& lora) {
  return !lora.has_value() ||
         std::find(state.loras.begin(), state.loras.end(), *lora) != state.loras.end();
}

// Upper median, so that one of two capacities is the larger: capacity is what is not scarce.
std::uint64_t MedianCapacity(std::span<const TargetState> targets) {
  std::vector<std::uint64_t> known;
  for (const TargetState& target : targets) {
    if (target.in_use && target.spec.kv_capacity_tokens > 0) {
      known.push_back(target.spec.kv_capacity_tokens);
    }
  }
  if (known.empty()) return 0;
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>(known.size() / 2);
  std::nth_element(known.begin(), middle, known.end());
  return *middle;
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

}  // namespace

void EventDepths::Match(const Index& index, std::span<const ChainHash> chain) {
  for (const MatchSegments::Segment& segment : match_.segments) {
    match_.ForEachSlot(segment, [this](Slot slot) { depth_[slot] = 0; });
  }
  match_.segments.clear();
  if (!chain.empty()) index.MatchGpu(chain, &match_);
  for (const MatchSegments::Segment& segment : match_.segments) {
    match_.ForEachSlot(segment, [this, &segment](Slot slot) {
      if (slot >= depth_.size()) depth_.resize(slot + 1);
      depth_[slot] = segment.depth;
    });
  }
}

std::uint64_t CachedTokens(std::uint32_t blocks, const PickInputs& inputs) {
  if (inputs.prompt_tokens == 0) return 0;
  return std::min(std::uint64_t{blocks} * inputs.block_size, inputs.prompt_tokens - 1);
}

void SetCachedBlocks(std::uint32_t blocks, const PickInputs& inputs, Candidate* candidate) {
  candidate->input.cached_tokens = CachedTokens(blocks, inputs);
  candidate->terms = MarginalCost(candidate->input);
}

absl::Status FindCandidates(Pool& pool, const Query& query, const EndpointFilter& filter,
                            const PickInputs& inputs, absl::Time now, PickScratch* scratch,
                            absl::Duration* retry_after) {
  const std::vector<TargetState>& targets = pool.targets();
  LoadLedger& ledger = pool.ledger();
  scratch->candidates.clear();
  scratch->left_out.clear();
  scratch->written.assign(targets.size(), 0);
  if (!query.chain.empty()) ledger.KnownDepths(query.chain_kind, query.chain, scratch->written);
  ledger.Loads(now, &scratch->loads);

  Sieve sieve;
  const auto leave_out = [&](TargetId target, auto why) {
    if (query.explain) scratch->left_out.push_back(LeftOut{.target = target, .why = why()});
  };
  const double max_wait_s = absl::ToDoubleSeconds(inputs.max_wait);
  bool capacity_missing = false;
  for (TargetId target = 0; target < targets.size(); ++target) {
    const TargetState& state = targets[target];
    if (!state.in_use) continue;
    if (state.lifecycle == Lifecycle::kJoining) ++sieve.joining;
    if (!state.eligible()) {
      leave_out(target, [&] { return WhyNotEligible(state); });
      continue;
    }
    ++sieve.eligible;
    if (!filter.InSubset(state)) {
      leave_out(target, [] { return std::string("not in the request's subset"); });
      continue;
    }
    ++sieve.in_subset;
    if (!Serves(state, query.lora)) {
      leave_out(target, [] { return std::string("has not registered the LoRA adapter"); });
      continue;
    }
    ++sieve.with_lora;
    if (filter.Excluded(state)) {
      leave_out(target, [] { return std::string("excluded by the request"); });
      continue;
    }
    ++sieve.not_excluded;
    const std::uint64_t capacity = state.spec.kv_capacity_tokens;
    sieve.largest_capacity = std::max(sieve.largest_capacity, capacity);
    // Only what is known refuses: an estimated length may be wrong several times over, and the
    // output is an average of what clients reported or the most that one will take. It has its
    // cost, K.
    if (capacity > 0 && !query.length_is_estimate && inputs.prompt_tokens > capacity) {
      leave_out(target, [] { return std::string("the prompt does not fit its KV cache"); });
      continue;
    }
    ++sieve.large_enough;
    const TargetLoad& load = scratch->loads[target];
    sieve.least_wait_s = std::min(sieve.least_wait_s, load.wait_s);
    if (max_wait_s > 0 && load.wait_s > max_wait_s) {
      leave_out(target, [] { return std::string("predicted wait is over max_wait_ms"); });
      continue;
    }
    capacity_missing = capacity_missing || capacity == 0;
    Candidate& candidate = scratch->candidates.emplace_back();
    candidate.target = target;
    candidate.state = &state;
    candidate.load = load;
    candidate.freshness =
        query.chain_kind == ChainKind::kText ? Freshness::kNone : state.freshness();
    candidate.event_blocks = state.slot == kNoSlot ? 0 : scratch->events.Of(state.slot);
    candidate.written_blocks = scratch->written[target];
  }
  if (scratch->candidates.empty()) return NoCandidate(pool, query, inputs, sieve, retry_after);

  const PeerRates& peers = pool.peer_rates();
  const std::uint64_t median_capacity = capacity_missing ? MedianCapacity(targets) : 0;
  for (Candidate& candidate : scratch->candidates) {
    const TargetState& state = *candidate.state;
    const std::uint64_t capacity = state.spec.kv_capacity_tokens;
    candidate.input =
        CostInput{.prompt_tokens = inputs.prompt_tokens,
                  .output_tokens = inputs.output_tokens,
                  .residence_s = inputs.averages.residence_s,
                  .rho = inputs.averages.rho,
                  .rate = RateInUse(state.rate, state.spec.prefill_tokens_per_s, peers),
                  .ctx_half = state.rate.ctx_half(),
                  .wait_s = candidate.load.wait_s,
                  .inflight = candidate.load.inflight,
                  .kv_tokens = candidate.load.kv_tokens,
                  .kv_capacity = capacity > 0 ? capacity : median_capacity};
    SetCachedBlocks(std::max(candidate.event_blocks, candidate.written_blocks), inputs, &candidate);
  }
  return absl::OkStatus();
}

}  // namespace warmpath
