#include "core/base/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace warmpath {

std::uint64_t HistogramSnapshot::Count() const {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

double HistogramSnapshot::Quantile(double q) const {
  const std::uint64_t total = Count();
  if (total == 0) return 0;
  const double wanted = std::max(1.0, std::ceil(q * static_cast<double>(total)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    seen += counts[i];
    if (static_cast<double>(seen) >= wanted) return bounds[i];
  }
  return std::numeric_limits<double>::infinity();
}

Histogram::Histogram(std::vector<double> bounds)
    : bounds_(std::move(bounds)),
      counts_(std::make_unique<std::atomic<std::uint64_t>[]>(bounds_.size() + 1)) {}

void Histogram::Observe(double value) {
  const auto bucket = static_cast<std::size_t>(
      std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin());
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

HistogramSnapshot Histogram::Snapshot() const {
  HistogramSnapshot snapshot{.bounds = bounds_, .counts = {}, .sum = 0};
  snapshot.counts.reserve(bounds_.size() + 1);
  for (std::size_t i = 0; i <= bounds_.size(); ++i) {
    snapshot.counts.push_back(counts_[i].load(std::memory_order_relaxed));
  }
  snapshot.sum = sum_.load(std::memory_order_relaxed);
  return snapshot;
}

}  // namespace warmpath
