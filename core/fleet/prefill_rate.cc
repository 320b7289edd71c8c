#include "core/fleet/prefill_rate.h"

#include <algorithm>
#include <cmath>

namespace warmpath {

double PrefillWork(std::uint64_t prompt, std::uint64_t cached, double ctx_half) {
  const auto total = static_cast<double>(prompt);
  const auto hit = static_cast<double>(std::min(prompt, cached));
  return (total - hit) * (1 + (hit + total) / 2 / ctx_half);
}

void LearnedRate::Observe(double work, double seconds) {
  if (!(work >= kMinWork) || !(seconds > 0)) return;
  const double rate = work / seconds;
  if (!std::isfinite(rate)) return;
  recent_[samples_ % kWindow] = static_cast<float>(rate);
  ++samples_;
  if (samples_ < kMinSamples) return;
  std::array<float, kWindow> sorted = recent_;
  const auto n = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(samples_, kWindow));
  // The lower median of an even number: errs low.
  const auto middle = sorted.begin() + (n - 1) / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + n);
  median_ = static_cast<double>(*middle);
}

void LearnedCopyRate::Observe(double tokens, double seconds, absl::Time now) {
  if (now - last_ > kMemory) rate_.Reset();
  const std::uint64_t before = rate_.samples();
  rate_.Observe(tokens, seconds);
  if (rate_.samples() != before) last_ = now;
}

double RateInUse(const LearnedRate& rate, double hint, const PeerRates& peers) {
  const double own = rate.tokens_per_s();
  const double expected = hint > 0 ? hint * peers.share_of_hint : peers.median;
  if (own > 0) {
    const bool alike = own < expected * kAlike && expected < own * kAlike;
    return alike ? expected : own;
  }
  if (hint > 0) return expected > 0 ? expected : hint * kHintTrust;
  if (peers.median > 0) return peers.median * kPeerTrust;
  return kFallbackRate;
}

double CopyRateInUse(double learned, double hint, double prefill_rate) {
  if (learned > 0) return learned;
  return hint > 0 ? hint * kHintTrust : prefill_rate * kCopyGuess;
}

}  // namespace warmpath
