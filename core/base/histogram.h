// A histogram over fixed bucket bounds that many threads fill without a lock.
#ifndef WARMPATH_CORE_BASE_HISTOGRAM_H_
#define WARMPATH_CORE_BASE_HISTOGRAM_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace warmpath {

// A copy of a histogram's state; plain values.
struct HistogramSnapshot {
  std::vector<double> bounds;         // upper bounds, ascending, inclusive
  std::vector<std::uint64_t> counts;  // one more than bounds: the last bucket has no bound
  double sum = 0;

  std::uint64_t Count() const;
  // Upper bound of the bucket that holds the q-quantile (0 < q <= 1), so never below the true
  // value; +infinity when that is the last bucket, 0 when nothing was observed.
  double Quantile(double q) const;
};

// Thread-safe. A snapshot taken while others observe may miss their last observations.
class Histogram {
 public:
  // REQUIRES: bounds ascending.
  explicit Histogram(std::vector<double> bounds);

  Histogram(const Histogram&) = delete;
  Histogram& operator=(const Histogram&) = delete;

  void Observe(double value);
  HistogramSnapshot Snapshot() const;

 private:
  const std::vector<double> bounds_;
  const std::unique_ptr<std::atomic<std::uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_BASE_HISTOGRAM_H_
