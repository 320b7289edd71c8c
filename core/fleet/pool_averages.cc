#include "core/fleet/pool_averages.h"

#include <algorithm>
#include <cmath>

namespace warmpath {
namespace {

constexpr double kOutputWeight = 0.002;
// What a client reports is not to be believed without bound: one number that is far off would be in
// every score for thousands of requests.
constexpr std::uint64_t kMostOutput = 131'072;
constexpr double kResidenceWeight = 0.005;
constexpr double kPrefillWeight = 0.005;
constexpr double kRhoSeconds = 30;

// The n-th sample weighs 1/n until that is less than `weight`: a plain mean that turns into an
// EWMA.
void Average(double sample, double weight, std::uint64_t n, double* mean) {
  *mean += std::max(weight, 1.0 / static_cast<double>(n)) * (sample - *mean);
}

}  // namespace

void AveragesKeeper::OnPick(double prefill_s) {
  Average(prefill_s, kPrefillWeight, ++picks_, &prefill_s_);
}

void AveragesKeeper::OnFinish(std::optional<std::uint64_t> output_tokens, double residence_s) {
  Average(std::max(0.0, residence_s), kResidenceWeight, ++finished_, &residence_s_);
  if (output_tokens.has_value()) {
    Average(static_cast<double>(std::min(*output_tokens, kMostOutput)), kOutputWeight, ++outputs_,
            &output_tokens_);
  }
}

void AveragesKeeper::SetBusy(std::uint32_t busy, std::uint32_t targets, absl::Time now) {
  if (since_ == absl::InfinitePast()) since_ = now;
  if (now > since_) {
    const double elapsed = absl::ToDoubleSeconds(now - since_);
    rho_ = share_ + (rho_ - share_) * std::exp(-elapsed / kRhoSeconds);
    since_ = now;
  }
  share_ = targets == 0 ? 0 : static_cast<double>(busy) / static_cast<double>(targets);
}

PoolAverages AveragesKeeper::Get() const {
  PoolAverages averages;
  averages.finished = finished_;
  averages.prefill_s = prefill_s_;
  if (averages.cold()) return averages;
  // Clients that never say how long their outputs are leave the cold-start value in place.
  if (outputs_ > 0) averages.output_tokens = output_tokens_;
  averages.residence_s = residence_s_;
  averages.rho = std::clamp(rho_, 0.0, 1.0);
  return averages;
}

}  // namespace warmpath
