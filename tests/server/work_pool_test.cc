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

TEST(TickerTest, TasksOfEqualIntervalsShareTheirWakeUps) {
  testing::FakeClock clock;
  int rounds[3] = {0, 0, 0};
  bool quick = true;
  Ticker ticker(&clock, {{.run = [&] { return ++rounds[0], absl::Milliseconds(100); }},
                         // Out of step with the first for a while.
                         {.run = [&] { return ++rounds[1], absl::Milliseconds(quick ? 30 : 100); }},
                         {.run = [&] { return ++rounds[2], absl::Milliseconds(200); }}});
  while (rounds[1] < 5) clock.Advance(ticker.RunDue() - clock.Now() + absl::Microseconds(70));
  quick = false;
  for (int i = 0; i < 6; ++i) clock.Advance(ticker.RunDue() - clock.Now() + absl::Microseconds(70));
  const int before[3] = {rounds[0], rounds[1], rounds[2]};
  int wake_ups = 0;
  for (const absl::Time end = clock.Now() + absl::Seconds(10); clock.Now() < end; ++wake_ups) {
    // Threads wake somewhat late.
    clock.Advance(ticker.RunDue() - clock.Now() + absl::Microseconds(70));
  }
  EXPECT_NEAR(wake_ups, 100, 2);
  EXPECT_NEAR(rounds[0] - before[0], 100, 2);
  EXPECT_NEAR(rounds[1] - before[1], 100, 2);
  EXPECT_NEAR(rounds[2] - before[2], 50, 2);
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
