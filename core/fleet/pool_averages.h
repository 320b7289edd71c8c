// What finished requests teach about a pool: o, R and rho of docs/policy.md, and the mean prefill.
#ifndef WARMPATH_CORE_FLEET_POOL_AVERAGES_H_
#define WARMPATH_CORE_FLEET_POOL_AVERAGES_H_

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace warmpath {

// Averages over the pool's finished requests, as scores use them.
struct PoolAverages {
  double output_tokens = 256;  // o
  double residence_s = 10;     // R: finish - arrival
  double rho = 0;              // 30 s EWMA of the share of targets with pend_w not empty
  std::uint64_t finished = 0;  // below kWarmAfter the three above are the cold-start values
  double prefill_s = 0;        // mean P of picks; what one external request is charged in W

  static constexpr std::uint64_t kWarmAfter = 20;
  bool cold() const { return finished < kWarmAfter; }
};

// Not thread-safe.
class AveragesKeeper {
 public:
  void OnPick(double prefill_s);
  void OnFinish(std::optional<std::uint64_t> output_tokens, double residence_s);
  // `busy` of `targets` have a pend_w that is not empty, from `now` on. Call it at each change, and
  // from time to time so that rho stays fresh.
  void SetBusy(std::uint32_t busy, std::uint32_t targets, absl::Time now);

  PoolAverages Get() const;
  std::uint64_t finished() const { return finished_; }

 private:
  double output_tokens_ = 0;
  std::uint64_t outputs_ = 0;  // finishes whose output length was known
  double residence_s_ = 0;
  std::uint64_t finished_ = 0;
  double prefill_s_ = 0;
  std::uint64_t picks_ = 0;
  double rho_ = 0;
  double share_ = 0;  // since since_
  absl::Time since_ = absl::InfinitePast();
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_POOL_AVERAGES_H_
