#include "core/routing/cost.h"

#include <algorithm>

#include "core/fleet/prefill_rate.h"

namespace warmpath {

double PoolPrice(double rho) { return rho >= kBusyRho ? kMaxPrice : rho / (1 - rho); }

CostTerms MarginalCost(const CostInput& input) {
  CostTerms terms;
  terms.wait_s = input.wait_s;
  terms.prefill_s =
      PrefillWork(input.prompt_tokens, input.cached_tokens, input.ctx_half) / input.rate;
  terms.pool_price_s = PoolPrice(input.rho) * terms.prefill_s;
  terms.decode_stall_s = kBeta * input.inflight * terms.prefill_s;
  if (input.kv_capacity == 0) return terms;
  const auto held = static_cast<double>(input.kv_tokens);
  const auto capacity = static_cast<double>(input.kv_capacity);
  const double needed = static_cast<double>(input.prompt_tokens) + input.output_tokens;
  terms.kv_pressure_s = kZetaSeconds * held / capacity;
  const double excess = held + needed - capacity;
  // Positive only if held or needed is.
  if (excess > 0) terms.kv_wait_s = input.residence_s * excess / std::max(held, needed);
  return terms;
}

}  // namespace warmpath
