// Randomness as an injected dependency: one seeded generator (xoshiro256**), so that
// simulations and tests repeat exactly. Nobody else makes a generator.
#ifndef WARMPATH_CORE_BASE_RANDOM_H_
#define WARMPATH_CORE_BASE_RANDOM_H_

#include <bit>
#include <cmath>
#include <cstdint>

namespace warmpath {

// Not thread-safe; one per owner. Satisfies UniformRandomBitGenerator.
// Algorithm: Blackman and Vigna, xoshiro256** 1.0, seeded with splitmix64 (public domain).
class Random {
 public:
  using result_type = std::uint64_t;

  explicit Random(std::uint64_t seed) {
    for (auto& word : state_) {
      seed += 0x9e3779b97f4a7c15ULL;
      std::uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
      word = z ^ (z >> 31);
    }
  }

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return ~result_type{0}; }

  result_type operator()() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, n). REQUIRES: n > 0. Multiply-shift; the bias is below 2^-32 for n < 2^32.
  std::uint64_t Below(std::uint64_t n) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>((*this)()) * n) >> 64);
  }

  // Uniform in [0, 1).
  double Unit() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }

  // Exponential with the given mean, for arrivals.
  double Exponential(double mean) { return -mean * std::log1p(-Unit()); }

 private:
  std::uint64_t state_[4];
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_BASE_RANDOM_H_
