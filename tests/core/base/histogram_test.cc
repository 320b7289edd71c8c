#include "core/base/histogram.h"

#include <limits>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

TEST(HistogramTest, BoundsAreInclusiveAndTheLastBucketIsOpen) {
  Histogram histogram({1, 2, 4});
  for (const double value : {0.0, 1.0, 1.5, 2.0, 4.0, 4.1, 100.0}) histogram.Observe(value);
  const HistogramSnapshot snapshot = histogram.Snapshot();
  EXPECT_THAT(snapshot.counts, ::testing::ElementsAre(2, 2, 1, 2));
  EXPECT_DOUBLE_EQ(snapshot.sum, 112.6);
  EXPECT_EQ(snapshot.Count(), 7u);
}

TEST(HistogramTest, QuantileIsTheUpperBoundOfItsBucket) {
  Histogram histogram({1, 2, 4});
  EXPECT_EQ(histogram.Snapshot().Quantile(0.99), 0);
  for (int i = 0; i < 98; ++i) histogram.Observe(0.5);
  histogram.Observe(3);
  EXPECT_EQ(histogram.Snapshot().Quantile(0.5), 1);
  EXPECT_EQ(histogram.Snapshot().Quantile(0.99), 4);  // the 99th of 99
  histogram.Observe(9);
  EXPECT_EQ(histogram.Snapshot().Quantile(0.98), 1);
  EXPECT_EQ(histogram.Snapshot().Quantile(0.99), 4);
  EXPECT_EQ(histogram.Snapshot().Quantile(1), std::numeric_limits<double>::infinity());
}

TEST(HistogramTest, ThreadsLoseNothing) {
  Histogram histogram({1});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&histogram] {
      for (int i = 0; i < 1000; ++i) histogram.Observe(0.25);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram.Snapshot().Count(), 4000u);
  EXPECT_DOUBLE_EQ(histogram.Snapshot().sum, 1000);
}

}  // namespace
}  // namespace warmpath
