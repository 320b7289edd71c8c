#include "core/routing/slow_tiers.h"

#include <algorithm>

#include "core/fleet/prefill_rate.h"

namespace warmpath {
namespace {

std::uint32_t Count(const SlotMatch& match, Tier tier) {
  return match.by_tier[static_cast<std::size_t>(tier)];
}

// True when that changes anything.
bool Set(const HeldPrefix& held, std::size_t candidate, CandidateTable& candidates) {
  if (candidates.blocks(candidate) == held.blocks &&
      candidates.copied_tokens(candidate) == held.copied_tokens &&
      candidates.copy_s(candidate) == held.copy_s) {
    return false;
  }
  candidates.SetHeld(candidate, held.blocks, held.cached_tokens);
  candidates.SetCopied(candidate, held.copied_tokens, held.far_tokens, held.copy_s);
  return true;
}

HeldPrefix HeldBy(Pool& pool, const PickInputs& inputs, const SlotMatch& match,
                  std::uint32_t written, std::size_t candidate, absl::Time now,
                  const CandidateTable& candidates) ABSL_EXCLUSIVE_LOCKS_REQUIRED(pool.mu()) {
  const TargetState& target = pool.targets()[candidates.target(candidate)];
  const double rate = candidates.rate(candidate);
  return HeldWithSlowTiers(
      match, written, rate,
      CopyRateInUse(target.copy_rate.tokens_per_s(now), target.spec.host_copy_tokens_per_s, rate),
      inputs);
}

}  // namespace

HeldPrefix HeldWithSlowTiers(const SlotMatch& match, std::uint32_t written_blocks,
                             double prefill_rate, double copy_rate, const PickInputs& inputs) {
  HeldPrefix held;
  held.blocks = std::max(match.gpu_depth, written_blocks);
  held.cached_tokens = CachedTokens(held.blocks, inputs);
  if (match.usable_depth <= held.blocks) return held;
  const std::uint64_t cached = CachedTokens(match.usable_depth, inputs);
  const std::uint64_t copied = cached - held.cached_tokens;
  // Of the blocks between the GPU's and those that picks wrote, how many are among the far ones is
  // not known without looking at each. As many as can be: the winner's are looked at, so that a
  // price too low is found, and one too high would never be.
  const std::uint64_t in_flight = held.blocks - match.gpu_depth;
  const std::uint64_t far_found = Count(match, Tier::kDisk) + Count(match, Tier::kExternal);
  const std::uint64_t far_blocks = far_found - std::min(far_found, in_flight);
  const std::uint64_t far_tokens = std::min(copied, far_blocks * inputs.block_size);
  const double copy_s =
      (static_cast<double>(copied) + (kFarTiers - 1) * static_cast<double>(far_tokens)) / copy_rate;
  const double saved_s = (PrefillWork(inputs.prompt_tokens, held.cached_tokens, kDefaultCtxHalf) -
                          PrefillWork(inputs.prompt_tokens, cached, kDefaultCtxHalf)) /
                         prefill_rate;
  if (copied == 0 || !(copy_s < saved_s)) return held;
  return {.blocks = match.usable_depth,
          .cached_tokens = cached,
          .copied_tokens = copied,
          .far_tokens = far_tokens,
          .copy_s = copy_s};
}

void AddSlowTiers(Pool& pool, const PickInputs& inputs, absl::Time now, PickScratch* scratch) {
  CandidateTable& candidates = scratch->candidates;
  candidates.StartCopies();
  const std::span<const PickRow> rows = pool.rows();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const TargetId target = candidates.target(i);
    const SlotMatch* match = scratch->events.TiersOf(rows[target].slot);
    if (match == nullptr) continue;
    Set(HeldBy(pool, inputs, *match, scratch->written[target], i, now, candidates), i, candidates);
  }
}

bool CorrectSlowTiers(Pool& pool, const Query& query, const PickInputs& inputs,
                      std::size_t candidate, absl::Time now, PickScratch* scratch) {
  CandidateTable& candidates = scratch->candidates;
  const TargetId target = candidates.target(candidate);
  const std::uint32_t written = scratch->written[target];
  const SlotMatch match =
      pool.index().VerifiedMatch(pool.rows()[target].slot, query.chain, written);
  return Set(HeldBy(pool, inputs, match, written, candidate, now, candidates), candidate,
             candidates);
}

}  // namespace warmpath
