#include "server/heartbeat_slots.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using testing::FakeClock;

class HeartbeatSlotsTest : public ::testing::Test {
 protected:
  std::vector<std::size_t> Take(HeartbeatSlots& slots, int count) {
    std::vector<std::size_t> taken;
    for (int i = 0; i < count; ++i) taken.push_back(slots.Take());
    return taken;
  }
  // How many share each slot.
  static std::map<std::size_t, std::size_t> Shares(const std::vector<std::size_t>& taken) {
    std::map<std::size_t, std::size_t> shares;
    for (const std::size_t slot : taken) ++shares[slot];
    return shares;
  }
  static std::size_t Most(const std::vector<std::size_t>& taken) {
    std::size_t most = 0;
    for (const auto& [slot, share] : Shares(taken)) most = std::max(most, share);
    return most;
  }

  FakeClock clock_;
  HeartbeatSlots slots_{absl::Seconds(2), &clock_};
};

TEST_F(HeartbeatSlotsTest, TheFirstSlotsAreHalfASecondApart) {
  EXPECT_THAT(Take(slots_, 5), ElementsAre(0, 1, 2, 3, 0));
  // The clock stands at a whole multiple of the heartbeat.
  EXPECT_EQ(slots_.UntilNext(0), absl::ZeroDuration());
  EXPECT_EQ(slots_.UntilNext(1), absl::Milliseconds(1000));
  EXPECT_EQ(slots_.UntilNext(2), absl::Milliseconds(500));
  EXPECT_EQ(slots_.UntilNext(3), absl::Milliseconds(1500));
  clock_.Advance(absl::Milliseconds(1200));
  EXPECT_EQ(slots_.UntilNext(0), absl::Milliseconds(800));
  EXPECT_EQ(slots_.UntilNext(1), absl::Milliseconds(1800));
  EXPECT_EQ(slots_.UntilNext(2), absl::Milliseconds(1300));
  EXPECT_EQ(slots_.UntilNext(3), absl::Milliseconds(300));
}

TEST_F(HeartbeatSlotsTest, Fault28_AHundredIdleAgentsWakeTheRouterFourTimesAnInterval) {
  EXPECT_THAT(Shares(Take(slots_, 100)),
              ElementsAre(std::pair(0, 25), std::pair(1, 25), std::pair(2, 25), std::pair(3, 25)));
}

TEST_F(HeartbeatSlotsTest, ALargeFleetOpensMoreSlotsAndBurstsStayShort) {
  const std::vector<std::size_t> taken = Take(slots_, 4096);
  EXPECT_EQ(Most(taken), HeartbeatSlots::kPerSlot);
  EXPECT_EQ(Shares(taken).size(), 128u);
  std::set<absl::Duration> times;
  for (const auto& [slot, share] : Shares(taken)) times.insert(slots_.UntilNext(slot));
  absl::Duration expected;
  for (const absl::Duration time : times) {
    EXPECT_EQ(time, expected);
    expected += absl::Seconds(2) / 128;
  }
  // No slots closer than 10 ms: from here on they are shared by more.
  Take(slots_, 4096);
  EXPECT_EQ(slots_.Take(), 0u);
}

TEST_F(HeartbeatSlotsTest, PlacesGivenBackAreTakenAgain) {
  const std::vector<std::size_t> taken = Take(slots_, 256);
  EXPECT_EQ(Shares(taken).size(), 8u);
  for (const std::size_t slot : taken) {
    if (slot == 2) slots_.GiveBack(slot);
  }
  for (int i = 0; i < 32; ++i) EXPECT_EQ(slots_.Take(), 2u);
  // A fleet that shrank uses the first slots only.
  for (const std::size_t slot : taken) slots_.GiveBack(slot);
  EXPECT_THAT(Take(slots_, 4), ElementsAre(0, 1, 2, 3));
}

TEST_F(HeartbeatSlotsTest, SteadyOnceEachSlotHasSeveral) {
  Take(slots_, 31);
  EXPECT_FALSE(slots_.Steady());
  const std::size_t slot = slots_.Take();
  EXPECT_TRUE(slots_.Steady());
  slots_.GiveBack(slot);
  EXPECT_FALSE(slots_.Steady());
}

TEST_F(HeartbeatSlotsTest, ShortAndLongHeartbeats) {
  HeartbeatSlots quick(absl::Milliseconds(100), &clock_);
  EXPECT_THAT(Take(quick, 3), ElementsAre(0, 0, 0));
  EXPECT_EQ(Most(Take(quick, 253)), 32u) << "8 slots";
  HeartbeatSlots slow(absl::Minutes(1), &clock_);
  EXPECT_EQ(Shares(Take(slow, 128)).size(), 128u) << "less than half a second apart";
}

}  // namespace
}  // namespace warmpath
