// The one score, in seconds, each term of its own. docs/policy.md has the reasons.
//
//   P    = t0 + (L - h) / rate * (1 + (h + L) / 2 / ctx_half)
//
//   K    = R * max(0, X + L + o - C) / max(X, L + o)
//
//   a    = 3 if rho >= 0.75, else rho / (1 - rho)
//
//   s    = rate / mean rate of the pool, within [0.4, 2]; 1 in pools that are not unequal
//
//   cost = W + T + P + a * P' + beta * D * (1 + D / D0) * P * s^3.5 + zeta * (X / C)^2 / s^2 + K
//
// T: copy of what a slower tier than the GPU's holds; core/routing/slow_tiers.h. P: prefill here,
// attention included; t0 = 0. K: wait for KV space. a: price of a second taken
// from others; P' is P at the rate of the mean target, as a slow one's second does less for others.
// s: a slow target decodes slowly too, whoever is put there. What decodes on a fast one has most to
// lose from a stall; and contexts lie longer in a slow one's cache.
#ifndef WARMPATH_CORE_ROUTING_COST_H_
#define WARMPATH_CORE_ROUTING_COST_H_

#include <cstddef>
#include <cstdint>

namespace warmpath {

inline constexpr double kBeta = 0.02;  // stall per running request and second of prefill
// D0: so many requests double the price of each one's stall, for the more decode together, the
// nearer all of them are to being too slow.
inline constexpr double kCrowd = 100;
inline constexpr double kZetaSeconds = 1.4;  // price of a full KV cache
inline constexpr double kBusyRho = 0.75;     // from here on a is kMaxPrice
inline constexpr double kMaxPrice = 3.0;
inline constexpr double kLeastSpeed = 0.4;  // bounds of s, so that one target's speed, right or
inline constexpr double kMostSpeed = 2.0;   // wrong, never outweighs all else

struct CostInput {
  std::uint64_t prompt_tokens = 0;  // L
  std::uint64_t cached_tokens = 0;  // h, at most L - 1
  double output_tokens = 0;         // o
  double residence_s = 0;           // R
  double rho = 0;
  double pool_rate = 0;           // of the mean target, tokens/s; 0: as this one
  bool unequal = false;           // Pool::unequal(): s counts
  double rate = 0;                // tokens/s
  double ctx_half = 0;            // tokens
  double wait_s = 0;              // W
  double copy_s = 0;              // T
  std::uint32_t inflight = 0;     // D
  std::uint64_t kv_tokens = 0;    // X
  std::uint64_t kv_capacity = 0;  // C; 0 leaves out the terms that need it
};

struct CostTerms {
  double wait_s = 0;
  double copy_s = 0;          // T
  double prefill_s = 0;       // P
  double pool_price_s = 0;    // a * P'
  double decode_stall_s = 0;  // beta * D * (1 + D / D0) * P * s^3.5
  double kv_pressure_s = 0;   // zeta * (X / C)^2 / s^2
  double kv_wait_s = 0;       // K

  double Sum() const {
    return wait_s + copy_s + prefill_s + pool_price_s + decode_stall_s + kv_pressure_s + kv_wait_s;
  }
  double TimeToFirstToken() const { return wait_s + copy_s + prefill_s; }
};

double PoolPrice(double rho);  // a
CostTerms MarginalCost(const CostInput& input);

// What all candidates of one pick have in common.
struct CostShared {
  std::uint64_t prompt_tokens = 0;  // L
  double output_tokens = 0;         // o
  double residence_s = 0;           // R
  double rho = 0;
  double pool_rate = 0;  // as in CostInput
  bool unequal = false;  // likewise
  double ctx_half = 0;   // tokens
};

// The rest of CostInput, one entry per candidate. C is infinity where it is not known; W + T stand
// in one column, since few pools have a T and every pick reads each column.
struct CostColumns {
  const double* cached_tokens = nullptr;
  const double* rate = nullptr;
  const double* start_s = nullptr;  // W + T
  const double* inflight = nullptr;
  const double* kv_tokens = nullptr;
  const double* kv_capacity = nullptr;
};

// MarginalCost(...).Sum() and MarginalCost(...).TimeToFirstToken() of the candidates in
// [first, last), bit for bit, several at once.
void MarginalCosts(const CostShared& shared, const CostColumns& columns, std::size_t first,
                   std::size_t last, double* cost_s);
void TimesToFirstToken(const CostShared& shared, const CostColumns& columns, std::size_t first,
                       std::size_t last, double* ttft_s);

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_COST_H_
