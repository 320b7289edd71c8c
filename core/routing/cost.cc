#include "core/routing/cost.h"

#include <algorithm>
#include <cmath>

#include "core/fleet/prefill_rate.h"

namespace warmpath {

namespace {

// s
double Speed(double rate, double pool_rate) {
  return std::min(std::max(rate / pool_rate, kLeastSpeed), kMostSpeed);
}
double StallWeight(double speed) { return speed * speed * speed * std::sqrt(speed); }

}  // namespace

double PoolPrice(double rho) { return rho >= kBusyRho ? kMaxPrice : rho / (1 - rho); }

CostTerms MarginalCost(const CostInput& input) {
  CostTerms terms;
  terms.wait_s = input.wait_s;
  terms.copy_s = input.copy_s;
  const double work = PrefillWork(input.prompt_tokens, input.cached_tokens, input.ctx_half);
  terms.prefill_s = work / input.rate;
  const double pool_rate = input.pool_rate > 0 ? input.pool_rate : input.rate;
  terms.pool_price_s = PoolPrice(input.rho) / pool_rate * work;
  const double running = input.inflight;
  const bool unequal = input.unequal && input.pool_rate > 0;
  const double speed = unequal ? Speed(input.rate, input.pool_rate) : 1;
  terms.decode_stall_s = (kBeta + kBeta / kCrowd * running) * running * terms.prefill_s;
  if (unequal) terms.decode_stall_s *= StallWeight(speed);
  if (input.kv_capacity == 0) return terms;
  const auto held = static_cast<double>(input.kv_tokens);
  const auto capacity = static_cast<double>(input.kv_capacity);
  const double needed = static_cast<double>(input.prompt_tokens) + input.output_tokens;
  terms.kv_pressure_s = kZetaSeconds * (held / capacity) * (held / capacity);
  if (unequal) terms.kv_pressure_s /= speed * speed;
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

// Pools of alike targets, the usual ones, do not pay for s.
template <bool kUnequal>
void CostsOf(const CostShared& shared, const CostColumns& columns, std::size_t first,
             std::size_t last, double* cost_s) {
  const auto prompt = static_cast<double>(shared.prompt_tokens);
  const double needed = prompt + shared.output_tokens;
  const double price = PoolPrice(shared.rho);
  const double ctx_half = shared.ctx_half;
  const bool pool_known = shared.pool_rate > 0;
  const double pool_price = pool_known ? price / shared.pool_rate : 0;
  for (std::size_t i = first; i < last; ++i) {
    const double work = Work(prompt, columns.cached_tokens[i], ctx_half);
    const double prefill_s = work / columns.rate[i];
    const double pool_price_s = (pool_known ? pool_price : price / columns.rate[i]) * work;
    const double running = columns.inflight[i];
    double stall_s = (kBeta + kBeta / kCrowd * running) * running * prefill_s;
    const double held = columns.kv_tokens[i];
    const double capacity = columns.kv_capacity[i];
    const double excess = held + needed - capacity;
    const double lacking = excess > 0 ? excess : 0;
    // Where anything is lacking the larger of the two is above half a token, since C is above 1.
    // Elsewhere the divisor only must not be 0.
    const double larger = std::max(std::max(held, needed), 0.5);
    double pressure_s = kZetaSeconds * (held / capacity) * (held / capacity);
    if constexpr (kUnequal) {
      const double speed = Speed(columns.rate[i], shared.pool_rate);
      stall_s *= StallWeight(speed);
      pressure_s /= speed * speed;
    }
    cost_s[i] = columns.start_s[i] + prefill_s + pool_price_s + stall_s + pressure_s +
                shared.residence_s * lacking / larger;
  }
}

}  // namespace

void MarginalCosts(const CostShared& shared, const CostColumns& columns, std::size_t first,
                   std::size_t last, double* cost_s) {
  if (shared.unequal && shared.pool_rate > 0) {
    CostsOf<true>(shared, columns, first, last, cost_s);
  } else {
    CostsOf<false>(shared, columns, first, last, cost_s);
  }
}

void TimesToFirstToken(const CostShared& shared, const CostColumns& columns, std::size_t first,
                       std::size_t last, double* ttft_s) {
  const auto prompt = static_cast<double>(shared.prompt_tokens);
  for (std::size_t i = first; i < last; ++i) {
    ttft_s[i] = columns.start_s[i] +
                Work(prompt, columns.cached_tokens[i], shared.ctx_half) / columns.rate[i];
  }
}

}  // namespace warmpath
