#include "server/work_pool.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/ticker.h"
#include "tests/testing/fake_clock.h"

namespace warmpath {
namespace {

TEST(WorkPoolTest, RefusesWhenFullAndRunsWhatItTook) {
  std::atomic<int> ran{0};
  absl::Notification started;
  absl::Notification release;
  WorkPool pool(1, 2);
  ASSERT_TRUE(pool.TrySubmit([&] {
    started.Notify();
    release.WaitForNotification();
  }));
  started.WaitForNotification();
  EXPECT_TRUE(pool.TrySubmit([&] { ++ran; }));
  EXPECT_TRUE(pool.TrySubmit([&] { ++ran; }));
  EXPECT_FALSE(pool.TrySubmit([&] { ++ran; }));
  EXPECT_EQ(pool.queued(), 2u);
  release.Notify();
  pool.Stop();
  EXPECT_EQ(ran, 2);
  EXPECT_FALSE(pool.TrySubmit([&] { ++ran; })) << "stopped";
  pool.Stop();
}

TEST(TickerTest, RunsEachTaskWhenItIsDue) {
  testing::FakeClock clock;
  int fast = 0;
  int slow = 0;
  Ticker ticker(&clock, {{.run = [&] { return ++fast, absl::Milliseconds(20); }},
                         {.run = [&] { return ++slow, absl::Milliseconds(50); }}});
  EXPECT_EQ(ticker.RunDue() - clock.Now(), absl::Milliseconds(20));
  clock.Advance(absl::Milliseconds(10));
  ticker.RunDue();
  EXPECT_EQ(fast, 1);
  clock.Advance(absl::Milliseconds(10));
  EXPECT_EQ(ticker.RunDue() - clock.Now(), absl::Milliseconds(20));
  EXPECT_EQ(fast, 2);
  EXPECT_EQ(slow, 1);
  clock.Advance(absl::Milliseconds(30));
  ticker.RunDue();
  EXPECT_EQ(fast, 3);
  EXPECT_EQ(slow, 2);
}

TEST(TickerTest, StopsWithoutWaitingForTheNextRound) {
  absl::Notification ran;
  Ticker ticker(&SystemClock(), {{.run = [&] {
    if (!ran.HasBeenNotified()) ran.Notify();
    return absl::Hours(1);
  }}});
  ticker.Start();
  ran.WaitForNotification();
  ticker.Stop();
  ticker.Stop();
}

}  // namespace
}  // namespace warmpath
