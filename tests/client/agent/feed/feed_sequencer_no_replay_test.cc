// The sequencer with an engine that replays nothing.
#include "client/agent/feed/feed_sequencer.h"

#include <cstdint>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/feed/sequencer_harness.h"

namespace warmpath::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FeedSequencerTest, WithoutReplaySequenceZeroMakesItExact) {
  SequencerHarness h(false);
  h.sequencer.Start(h.now);
  EXPECT_TRUE(h.sequencer.causes().Has(FeedCause::kSilent));
  h.LiveRange('a', 0, 1);
  EXPECT_THAT(h.Take(), ElementsAre("a0", "a1"));
  EXPECT_TRUE(Exact(h));
  h.Advance(absl::Seconds(100));
  EXPECT_THAT(h.Take(), IsEmpty()) << "nobody to probe";
}

TEST(FeedSequencerTest, WithoutReplayALateStartIsMissed) {
  SequencerHarness h(false);
  h.sequencer.Start(h.now);
  h.Live('a', 4);
  EXPECT_THAT(h.Take(), ElementsAre("loss:start", "a4"));
}

TEST(FeedSequencerTest, Fault02_WithoutReplayAGapIsALoss) {
  SequencerHarness h(false);
  h.sequencer.Start(h.now);
  h.Live('a', 0);
  h.Live('a', 2);
  EXPECT_THAT(h.Take(), ElementsAre("a0", "loss:gap", "a2"));
  EXPECT_EQ(h.sequencer.counts().gaps, 1u);
  EXPECT_EQ(h.sequencer.counts().losses, 1u);
}

TEST(FeedSequencerTest, Fault01_WithoutReplayGoingBackIsANewEpoch) {
  SequencerHarness h(false);
  h.sequencer.Start(h.now);
  h.LiveRange('a', 0, 5);
  h.Take();
  h.Live('a', 5);
  EXPECT_THAT(h.Take(), IsEmpty()) << "the very same message";
  h.Live('b', 0);
  EXPECT_THAT(h.Take(), ElementsAre("epoch", "b0"));
  h.LiveRange('b', 1, 5);
  h.Take();
  h.Live('c', 5);
  EXPECT_THAT(h.Take(), ElementsAre("epoch", "loss:start", "c5"));
}

TEST(FeedSequencerTest, Fault01_WithoutReplayADisconnectIsANewEpoch) {
  SequencerHarness h(false);
  h.sequencer.Start(h.now);
  h.LiveRange('a', 0, 5);
  h.Take();
  h.sequencer.OnDisconnected(h.now);
  EXPECT_THAT(h.Take(), ElementsAre("epoch"));
  EXPECT_TRUE(h.sequencer.causes().Has(FeedCause::kSilent));
  h.sequencer.OnConnected(h.now);
  h.Live('b', 0);
  EXPECT_THAT(h.Take(), ElementsAre("b0"));
  EXPECT_TRUE(Exact(h));
}

TEST(FeedSequencerTest, Fault01_WithoutReplayAChangedStartTimeIsANewEpoch) {
  SequencerHarness h(false);
  h.sequencer.Start(h.now);
  h.sequencer.OnProcessStart(100, h.now);
  h.LiveRange('a', 0, 1);
  h.Take();
  h.sequencer.OnProcessStart(200, h.now);
  EXPECT_THAT(h.Take(), ElementsAre("epoch"));
  h.sequencer.OnProcessStart(200, h.now);
  EXPECT_THAT(h.Take(), IsEmpty());
  EXPECT_EQ(h.sequencer.position().process_start, 200);
}

TEST(FeedSequencerTest, WithoutReplayARestoredPositionMustBeProven) {
  SequencerHarness proven(false);
  proven.sequencer.Start(proven.now, PositionAt('a', 7, 100));
  EXPECT_TRUE(proven.sequencer.causes().Has(FeedCause::kLateJoin));
  proven.sequencer.OnProcessStart(100, proven.now);
  proven.Live('a', 8);
  EXPECT_THAT(proven.Take(), ElementsAre("a8"));
  EXPECT_TRUE(Exact(proven));

  SequencerHarness late(false);
  late.sequencer.Start(late.now, PositionAt('a', 7, 100));
  late.sequencer.OnProcessStart(100, late.now);
  late.Live('a', 9);
  EXPECT_THAT(late.Take(), ElementsAre("epoch", "loss:start", "a9"));

  SequencerHarness unknown_start(false);
  unknown_start.sequencer.Start(unknown_start.now, PositionAt('a', 7));
  unknown_start.sequencer.OnProcessStart(100, unknown_start.now);
  unknown_start.Live('a', 8);
  EXPECT_THAT(unknown_start.Take(), ElementsAre("epoch", "loss:start", "a8"));

  SequencerHarness restarted(false);
  restarted.sequencer.Start(restarted.now, PositionAt('a', 7, 100));
  restarted.sequencer.OnProcessStart(300, restarted.now);
  EXPECT_THAT(restarted.Take(), ElementsAre("epoch"));
  restarted.Live('b', 0);
  EXPECT_THAT(restarted.Take(), ElementsAre("b0"));
}

TEST(FeedSequencerTest, TheEndMarkersSequenceIsNoMessage) {
  SequencerHarness h(false);
  h.sequencer.Start(h.now);
  h.sequencer.OnMessage(~std::uint64_t{0}, "x", h.now);
  EXPECT_THAT(h.Take(), IsEmpty());
}

}  // namespace
}  // namespace warmpath::testing
