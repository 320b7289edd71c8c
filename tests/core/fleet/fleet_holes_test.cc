// What the agent says of holes, and what the index is told: the flag of a slot comes down only
// after a message that says so, goes up before one that does not, and stays up while the slot may
// differ from what the agent holds.
#include <memory>
#include <string>
#include <vector>

#include "core/index/reference_index.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/fleet_harness.h"
#include "tests/core/fleet/forwarding_index.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {
namespace {

using ::testing::ElementsAre;

class HolesTest : public ::testing::Test {
 protected:
  explicit HolesTest(FleetConfig config = {})
      : fleet_(std::move(config)), agent_(*fleet_, MakeRegistration("w", 2)) {
    EXPECT_THAT(agent_.Register(), IsOk());
    agent_.SayNoHoles(true);
  }
  // Both ranks have their snapshot; rank 0 holds these.
  void Start(const Hashes& hashes) {
    ASSERT_THAT(agent_.Snapshot(hashes, 10), IsOk());
    ASSERT_THAT(agent_.Snapshot({}, 0, 1), IsOk());
    ASSERT_FALSE(MayHave(0));
    ASSERT_FALSE(MayHave(1));
  }
  // As shown; the index counts as many.
  bool MayHave(Rank rank) {
    std::uint64_t shown = 0;
    for (Rank r = 0; r < 2; ++r) shown += fleet_.View("w", r)->may_have_holes ? 1 : 0;
    const IndexStats stats = fleet_.PoolOf()->index().Stats();
    const bool building = stats.open_slots > 2;
    EXPECT_EQ(stats.slots_with_holes, shown + (building ? 1 : 0));
    return fleet_.View("w", rank)->may_have_holes;
  }
  void ExpectSticky() {
    EXPECT_TRUE(MayHave(0));
    ASSERT_THAT(agent_.Delta({}, {77}, 20), IsOk());
    EXPECT_TRUE(MayHave(0)) << "the message says there are none, the slot is still doubted";
  }

  FleetHarness fleet_;
  TestAgent agent_;
};

TEST_F(HolesTest, ASnapshotSaysIt) {
  agent_.SayNoHoles(false);
  ASSERT_THAT(agent_.Snapshot({1, 2}, 10), IsOk());
  ASSERT_THAT(agent_.Snapshot({}, 0, 1), IsOk());
  EXPECT_TRUE(MayHave(0));
  EXPECT_TRUE(MayHave(1));
  agent_.SayNoHoles(true);
  ASSERT_THAT(agent_.Begin(), IsOk());
  ASSERT_THAT(agent_.Chunk({1, 2}), IsOk());
  EXPECT_TRUE(MayHave(0));
  ASSERT_THAT(agent_.End(2, 3, 11), IsOk());
  EXPECT_FALSE(MayHave(0));
  EXPECT_TRUE(MayHave(1));
}

TEST_F(HolesTest, EachDeltaSaysItAnew) {
  Start({1, 2});
  ASSERT_THAT(agent_.Delta({}, {3}, 11), IsOk());
  EXPECT_FALSE(MayHave(0));
  agent_.SayNoHoles(false);
  ASSERT_THAT(agent_.Delta({2}, {}, 12), IsOk());
  EXPECT_TRUE(MayHave(0));
  EXPECT_FALSE(MayHave(1));
  // A part that says so is enough: it speaks for all tiers.
  agent_.SayNoHoles(true);
  ASSERT_THAT(agent_.Delta({}, {9}, 13, Tier::kHost), IsOk());
  EXPECT_FALSE(MayHave(0));
}

TEST_F(HolesTest, AMessageThatIsDroppedSaysNothing) {
  Start({1});
  ASSERT_THAT(agent_.Send(CacheDeltaUpdate{.delta_seq = 1, .no_holes = false}), IsOk());
  EXPECT_FALSE(MayHave(0));
  agent_.SayNoHoles(false);
  ASSERT_THAT(agent_.Delta({}, {2}, 11), IsOk());
  ASSERT_THAT(agent_.Send(CacheDeltaUpdate{.delta_seq = 1, .no_holes = true}), IsOk());
  EXPECT_TRUE(MayHave(0));
}

TEST_F(HolesTest, AfterALostMessageOnlyASnapshotHelps) {
  Start({1, 2, 3});
  agent_.Skip();
  ASSERT_THAT(agent_.Delta({}, {4}, 12), IsOk());
  EXPECT_TRUE(MayHave(1)) << "whose message was lost is not known";
  ExpectSticky();
  ASSERT_THAT(agent_.Snapshot({1, 2, 3, 4, 77}, 20), IsOk());
  EXPECT_FALSE(MayHave(0));
  EXPECT_TRUE(MayHave(1));
}

TEST_F(HolesTest, AHeartbeatThatShowsALossIsDoubtToo) {
  Start({1});
  agent_.Skip();
  ASSERT_THAT(agent_.Heartbeat({1}), IsOk());
  ExpectSticky();
}

TEST_F(HolesTest, AFailedAuditIsDoubt) {
  Start({1});
  ASSERT_THAT(agent_.Heartbeat({1, 2}), IsOk());
  EXPECT_FALSE(MayHave(1));
  ExpectSticky();
}

TEST_F(HolesTest, ASnapshotThatBreaksLeavesTheOldSlotInDoubt) {
  Start({1, 2});
  ASSERT_THAT(agent_.Begin(), IsOk());
  EXPECT_TRUE(MayHave(0)) << "an agent begins one when it has given up on changes";
  ASSERT_THAT(agent_.Chunk({1}), IsOk());
  ASSERT_THAT(agent_.End(2, 3, 11), IsOk());
  ExpectSticky();
  fleet_.Pass(absl::Seconds(1));
  ASSERT_THAT(agent_.Snapshot({1, 77}, 12), IsOk());
  EXPECT_FALSE(MayHave(0));
}

TEST_F(HolesTest, WhatAStreamLeftIsInDoubtUntilTheNextSnapshot) {
  Start({1, 2});
  agent_.Close();
  EXPECT_TRUE(MayHave(0)) << "the rest of a change may never come";
  EXPECT_TRUE(MayHave(1));
  ASSERT_THAT(agent_.Register(), IsOk());
  ExpectSticky();
  ASSERT_THAT(agent_.Snapshot({1, 2, 77}, 21), IsOk());
  EXPECT_FALSE(MayHave(0));
  ASSERT_THAT(agent_.Register(), IsOk());  // takes over from itself
  ExpectSticky();
}

TEST_F(HolesTest, AFreshSlotIsEmptyAndHasNone) {
  Start({1, 2});
  agent_.SayNoHoles(false);
  ASSERT_THAT(agent_.Delta({1}, {}, 11), IsOk());
  ASSERT_TRUE(MayHave(0));
  ASSERT_THAT(agent_.Cleared(Tier::kGpu, 12), IsOk());
  EXPECT_FALSE(MayHave(0));
  ASSERT_THAT(agent_.Delta({}, {5}, 13), IsOk());
  EXPECT_TRUE(MayHave(0)) << "an agent that knows nothing of holes";
  ASSERT_THAT(agent_.NewEpoch(200), IsOk());
  EXPECT_FALSE(MayHave(0));
  ASSERT_THAT(agent_.Delta({}, {5}, 1), IsOk());
  EXPECT_TRUE(MayHave(0));
  agent_.SayNoHoles(true);
  ASSERT_THAT(agent_.Delta({}, {6}, 2), IsOk());
  EXPECT_FALSE(MayHave(0));
}

TEST_F(HolesTest, ClearedAlsoEndsADoubt) {
  Start({1, 2});
  ASSERT_THAT(agent_.Heartbeat({1}), IsOk());
  ASSERT_TRUE(MayHave(0));
  ASSERT_THAT(agent_.Cleared(Tier::kGpu, 12), IsOk());
  EXPECT_FALSE(MayHave(0));
}

TEST_F(HolesTest, AnotherTierThatIsClearedEndsNone) {
  Start({});
  agent_.Skip();
  ASSERT_THAT(agent_.Cleared(Tier::kDisk, 12), IsOk());
  EXPECT_TRUE(MayHave(0)) << "what was lost is not known to have been in that tier";
  ExpectSticky();
}

TEST_F(HolesTest, AClearedTierBesideOthersIsEmptyToo) {
  Start({1, 2});
  ASSERT_THAT(agent_.Delta({}, {7}, 11, Tier::kHost), IsOk());
  agent_.SayNoHoles(false);
  ASSERT_THAT(agent_.Delta({1}, {}, 12), IsOk());
  ASSERT_THAT(agent_.Cleared(Tier::kDisk, 13), IsOk());
  EXPECT_TRUE(MayHave(0)) << "holes are the GPU tier's";
  ASSERT_THAT(agent_.Cleared(Tier::kGpu, 14), IsOk());
  EXPECT_FALSE(MayHave(0));
}

TEST_F(HolesTest, ALostWorkerHasNoSlotToDoubt) {
  Start({1});
  agent_.Close();
  fleet_.Pass(absl::Minutes(5));
  ASSERT_EQ(fleet_.Look("w").lifecycle, Lifecycle::kLost);
  EXPECT_FALSE(fleet_.View("w")->may_have_holes);
  EXPECT_EQ(fleet_.PoolOf()->index().Stats().slots_with_holes, 0u);
  ASSERT_THAT(agent_.Register(), IsOk());
  ASSERT_THAT(agent_.Snapshot({1, 2}, 11), IsOk());
  EXPECT_FALSE(fleet_.View("w")->may_have_holes);
}

// What the index is told, in order.
class WatchedIndex final : public ForwardingIndex {
 public:
  explicit WatchedIndex(std::vector<std::string>* calls) : calls_(calls) {}
  void SetMayHaveHoles(Slot slot, bool may) override {
    calls_->push_back(may ? "may have" : "has none");
    ForwardingIndex::SetMayHaveHoles(slot, may);
  }
  ApplyResult Apply(Slot slot, Tier tier, std::span<const ChainHash> removed,
                    std::span<const ChainHash> stored) override {
    calls_->push_back("apply");
    return ForwardingIndex::Apply(slot, tier, removed, stored);
  }

 private:
  std::vector<std::string>* const calls_;
};

TEST(HolesOrderTest, RaisedBeforeAChangeTakenBackAfterIt) {
  std::vector<std::string> calls;
  FleetHarness fleet(
      {}, [&calls](const IndexOptions&) { return std::make_unique<WatchedIndex>(&calls); });
  TestAgent agent(*fleet, MakeRegistration("w"));
  ASSERT_THAT(agent.Register(), IsOk());
  agent.SayNoHoles(true);
  ASSERT_THAT(agent.Snapshot({1, 2}, 10), IsOk());
  EXPECT_THAT(calls, ElementsAre("apply", "has none"));
  calls.clear();
  ASSERT_THAT(agent.Delta({}, {3}, 11), IsOk());
  EXPECT_THAT(calls, ElementsAre("apply"));
  calls.clear();
  agent.SayNoHoles(false);
  ASSERT_THAT(agent.Delta({1}, {}, 12), IsOk());
  EXPECT_THAT(calls, ElementsAre("may have", "apply"));
  calls.clear();
  agent.SayNoHoles(true);
  ASSERT_THAT(agent.Delta({2, 3}, {}, 13), IsOk());
  EXPECT_THAT(calls, ElementsAre("apply", "has none"));
  calls.clear();
  agent.Skip();
  ASSERT_THAT(agent.Delta({}, {4}, 15), IsOk());
  EXPECT_THAT(calls, ElementsAre("may have", "apply"));
}

// Has no memory for what is left without a block.
class StuckIndex final : public ForwardingIndex {
 public:
  ApplyResult Apply(Slot slot, Tier tier, std::span<const ChainHash> removed,
                    std::span<const ChainHash> stored) override {
    ApplyResult result = ForwardingIndex::Apply(slot, tier, {}, stored);
    result.not_removed = static_cast<std::uint32_t>(removed.size());
    return result;
  }
};

class HolesInAStuckIndexTest : public ::testing::Test {
 protected:
  HolesInAStuckIndexTest()
      : fleet_({}, [](const IndexOptions&) { return std::make_unique<StuckIndex>(); }),
        agent_(*fleet_, MakeRegistration("w")) {
    EXPECT_THAT(agent_.Register(), IsOk());
    agent_.SayNoHoles(true);
    EXPECT_THAT(agent_.Snapshot({1, 2}, 10), IsOk());
    EXPECT_FALSE(fleet_.View("w")->may_have_holes);
  }
  void ExpectDoubt() {
    EXPECT_TRUE(fleet_.View("w")->may_have_holes);
    EXPECT_EQ(fleet_.Look("w").causes, "index_full");
  }

  FleetHarness fleet_;
  TestAgent agent_;
};

TEST_F(HolesInAStuckIndexTest, ARemovalThatFailsIsDoubt) {
  ASSERT_THAT(agent_.Delta({2}, {}, 11), IsOk());
  ExpectDoubt();
}

TEST_F(HolesInAStuckIndexTest, SoIsATierThatCanNotBeCleared) {
  ASSERT_THAT(agent_.Delta({}, {7}, 11, Tier::kHost), IsOk());
  ASSERT_THAT(agent_.Cleared(Tier::kGpu, 12), IsOk());
  ExpectDoubt();
}

class HolesInAFullIndexTest : public ::testing::Test {
 protected:
  static FleetConfig Config() {
    FleetConfig config;
    config.defaults.index_bound_bytes = 4 * ReferenceIndex::kBytesPerPair;
    return config;
  }
  HolesInAFullIndexTest()
      : fleet_(Config(), CreateReferenceIndex), agent_(*fleet_, MakeRegistration("w")) {
    EXPECT_THAT(agent_.Register(), IsOk());
    agent_.SayNoHoles(true);
  }
  bool MayHave() { return fleet_.View("w")->may_have_holes; }

  FleetHarness fleet_;
  TestAgent agent_;
};

TEST_F(HolesInAFullIndexTest, ARefusedStoreIsDoubt) {
  ASSERT_THAT(agent_.Snapshot({1, 2, 3}, 10), IsOk());
  ASSERT_FALSE(MayHave());
  ASSERT_THAT(agent_.Delta({}, {4, 5, 6}, 11), IsOk());
  ASSERT_EQ(fleet_.Look("w").causes, "index_full");
  EXPECT_TRUE(MayHave());
  ASSERT_THAT(agent_.Delta({4, 5, 6}, {}, 12), IsOk());
  EXPECT_TRUE(MayHave()) << "what was refused is not there to be removed";
}

TEST_F(HolesInAFullIndexTest, ASnapshotThatDoesNotFitIsDoubt) {
  ASSERT_THAT(agent_.Snapshot({1, 2, 3, 4, 5, 6}, 10), IsOk());
  ASSERT_EQ(fleet_.Look("w").causes, "index_full");
  EXPECT_TRUE(MayHave());
  ASSERT_THAT(agent_.Delta({6}, {}, 11), IsOk());
  EXPECT_TRUE(MayHave());
  ASSERT_THAT(agent_.Delta({1, 2, 3, 4, 5}, {}, 12), IsOk());
  ASSERT_THAT(agent_.Snapshot({1, 2}, 13), IsOk());
  EXPECT_FALSE(MayHave());
}

}  // namespace
}  // namespace warmpath::testing
