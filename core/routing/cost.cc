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
  const double running = input.inflight;
  terms.decode_stall_s = kBeta * running * (1 + running / kCrowd) * terms.prefill_s;
  if (input.kv_capacity == 0) return terms;
  const auto held = static_cast<double>(input.kv_tokens);
  const auto capacity = static_cast<double>(input.kv_capacity);
  const double needed = static_cast<double>(input.prompt_tokens) + input.output_tokens;
  terms.kv_pressure_s = kZetaSeconds * (held / capacity) * (held / capacity);
  const double excess = held + needed - capacity;
  // Positive only if held or needed is.
  if (excess > 0) terms.kv_wait_s = input.residence_s * excess / std::max(held, needed);
  return terms;
}

namespace {

// PrefillWork, for a cached prefix that is not longer than the prompt.
double Work(double prompt, double cached, double ctx_half) {
  return (prompt - cached) * (1 + (cached + prompt) / 2 / ctx_half);
}

}  // namespace

void MarginalCosts(const CostShared& shared, const CostColumns& columns, std::size_t first,
                   std::size_t last, double* cost_s) {
  const auto prompt = static_cast<double>(shared.prompt_tokens);
  const double needed = prompt + shared.output_tokens;
  const double price = PoolPrice(shared.rho);
  const double ctx_half = shared.ctx_half;
  for (std::size_t i = first; i < last; ++i) {
    const double prefill_s = Work(prompt, columns.cached_tokens[i], ctx_half) / columns.rate[i];
    const double held = columns.kv_tokens[i];
    const double capacity = columns.kv_capacity[i];
    const double excess = held + needed - capacity;
    const double lacking = excess > 0 ? excess : 0;
    // Where anything is lacking the larger of the two is above half a token, since C is above 1.
    // Elsewhere the divisor only must not be 0.
    const double larger = std::max(std::max(held, needed), 0.5);
    cost_s[i] = columns.wait_s[i] + prefill_s + price * prefill_s +
                kBeta * columns.inflight[i] * prefill_s + kZetaSeconds * held / capacity +
                shared.residence_s * lacking / larger;
  }
}

void TimesToFirstToken(const CostShared& shared, const CostColumns& columns, std::size_t first,
                       std::size_t last, double* ttft_s) {
  const auto prompt = static_cast<double>(shared.prompt_tokens);
  for (std::size_t i = first; i < last; ++i) {
    ttft_s[i] = columns.wait_s[i] +
                Work(prompt, columns.cached_tokens[i], shared.ctx_half) / columns.rate[i];
  }
}

}  // namespace warmpath
