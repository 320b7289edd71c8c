// One worker of two ranks, whose stream a test drives by hand.
#ifndef WARMPATH_TESTS_CORE_FLEET_FEED_FIXTURE_H_
#define WARMPATH_TESTS_CORE_FLEET_FEED_FIXTURE_H_

#include <cstdint>
#include <optional>

#include "gtest/gtest.h"
#include "tests/core/fleet/fleet_harness.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {

inline const Glance kExact{Lifecycle::kReady, Freshness::kExact, ""};
inline const Glance kResyncing{Lifecycle::kReady, Freshness::kDegraded, "resync"};

class FeedTest : public ::testing::Test {
 protected:
  FeedTest() : agent_(*fleet_, MakeRegistration("w", 2)) { EXPECT_THAT(agent_.Register(), IsOk()); }
  // Both ranks have their snapshot; rank 0 holds these.
  void Start(const Hashes& hashes, std::optional<std::uint64_t> engine_seq = 10) {
    ASSERT_THAT(agent_.Snapshot(hashes, engine_seq), IsOk());
    ASSERT_THAT(agent_.Snapshot({}, 0, 1), IsOk());
    ASSERT_EQ(fleet_.Look("w"), kExact);
  }
  std::optional<std::uint64_t> DumpedSeq() {
    DumpHeader header;
    fleet_.Dump("w", Tier::kGpu, 0, &header);
    return header.engine_seq;
  }

  FleetHarness fleet_;
  TestAgent agent_;
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CORE_FLEET_FEED_FIXTURE_H_
