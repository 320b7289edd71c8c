// How fast a target prefills, learned from its own first tokens.
//
// Work is counted in token equivalents, so that attention's growth with context is taken out:
// work = (L - h) * (1 + (h + L) / 2 / ctx_half); seconds = work / rate. docs/policy.md.
#ifndef WARMPATH_CORE_FLEET_PREFILL_RATE_H_
#define WARMPATH_CORE_FLEET_PREFILL_RATE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace warmpath {

inline constexpr double kDefaultCtxHalf = 30'000;  // tokens of context that double the time
inline constexpr double kFallbackRate = 8'000;     // tokens/s when nobody knows anything
inline constexpr double kHintTrust = 0.8;          // of a registered hint
inline constexpr double kPeerTrust = 0.9;          // of other targets' rates, without a hint
// A target whose own rate is within this factor of what its peers let expect has the same speed as
// they. Samples contain some waiting for decodes, so engines of one kind differ by a few percent,
// the busier ones looking slower; acted upon, that would break every tie the same way for minutes.
inline constexpr double kAlike = 1.3;
// Targets whose rates differ by more than this factor decode at different speeds too. Wider than
// kAlike, so that one unlucky estimate among engines of one kind does not change every score.
inline constexpr double kUnequal = 1.5;

// Copying KV from host memory is taken to be so many times faster than computing it, where nothing
// else is known: errs slow. A link moves the KV of a token of today's models five to ten times as
// fast as their engines compute it; and that ratio depends little on the model, since both grow
// with it.
inline constexpr double kCopyGuess = 4;

// Token equivalents of prefilling `prompt` tokens of which `cached` are there already.
double PrefillWork(std::uint64_t prompt, std::uint64_t cached, double ctx_half);

// The median of a target's last samples. Every sample contains some waiting for the engine's step
// and for decodes, so the median errs towards slow, the harmless side; the median and not the mean,
// because a prefill that waited for KV space may look ten times slower than it is.
// Not thread-safe.
class LearnedRate {
 public:
  // Below this much work a sample says more about the engine's step time than about its speed.
  static constexpr double kMinWork = 1'024;
  // As many samples are needed before the estimate counts: a target that a few unlucky ones make
  // look slow gets little work from then on, and so is slow to correct them.
  static constexpr std::size_t kMinSamples = 16;

  // `work` token equivalents took `seconds`. Samples too small or not finite are ignored.
  void Observe(double work, double seconds);
  // Forget everything: a new engine process may run on other hardware or settings.
  void Reset() { *this = LearnedRate(); }

  // Tokens per second; 0 until kMinSamples were seen.
  double tokens_per_s() const { return median_; }
  double ctx_half() const { return kDefaultCtxHalf; }
  std::uint64_t samples() const { return samples_; }

 private:
  static constexpr std::size_t kWindow = 32;

  double median_ = 0;          // first: all that picks read
  std::uint64_t samples_ = 0;  // since start; recent_ holds the last kWindow of them
  std::array<float, kWindow> recent_{};
};

// How fast a target copies from its host tier, from requests whose copies came from nowhere else.
//
// Whoever looks slow is asked for fewer copies, down to none where computing looks quicker; and
// only copies can show that it has become, or always was, faster. So what was learned stands for
// kMemory after the last sample, and is then forgotten: the target is tried again at the rate of
// its hint or the guess. A floor, the other way out, would have a link that is truly slower than
// computing taken for faster for ever. Being tried costs a slow one kMinSamples requests at a wrong
// price, and a fast one that had nothing to copy as little.
// Not thread-safe.
class LearnedCopyRate {
 public:
  static constexpr absl::Duration kMemory = absl::Minutes(10);

  // As LearnedRate::Observe.
  void Observe(double tokens, double seconds, absl::Time now);
  void Reset() { *this = LearnedCopyRate(); }

  // Tokens per second; 0: not known, or not any more.
  double tokens_per_s(absl::Time now) const {
    return now - last_ > kMemory ? 0 : rate_.tokens_per_s();
  }
  std::uint64_t samples() const { return rate_.samples(); }

 private:
  LearnedRate rate_;
  absl::Time last_ = absl::InfinitePast();
};

// What the targets of a pool that have learned their rates say of all of them; 0: nothing.
struct PeerRates {
  double median = 0;  // of their rates
  // Median of their rates as shares of their hints. Hints tend to be wrong together, for they come
  // from one measurement or one data sheet; and a target believed several times too slow gets too
  // little work to ever show its own rate.
  double share_of_hint = 0;
};

// rate_w in use. What peers let expect is hint * their share, or their median where there is no
// hint. A learned rate within kAlike of that: what peers let expect; any other learned rate:
// itself. None learned: hint * share, else hint * 0.8, else the peers' median * 0.9, else 8,000
// tokens/s. `hint` is 0 when unknown. A learned rate without peers is in use as it is.
double RateInUse(const LearnedRate& rate, double hint, const PeerRates& peers);

// The rate at which a target copies from its host tier, tokens/s: `learned`, as
// LearnedCopyRate::tokens_per_s() says, else hint * 0.8, else 4 times `prefill_rate`, its
// RateInUse.
double CopyRateInUse(double learned, double hint, double prefill_rate);

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_PREFILL_RATE_H_
