// The sequencer with an engine that replays.
#include "client/agent/feed/feed_sequencer.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/feed/sequencer_harness.h"

namespace warmpath::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FeedSequencerTest, StartsWithAReplayFromZero) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  EXPECT_TRUE(h.sequencer.causes().Has(FeedCause::kResync));
  h.Live('a', 3);  // published while the replay runs
  EXPECT_THAT(h.Take(), ElementsAre("ask:0"));
  h.Reply('a', 0, 2);
  EXPECT_THAT(h.Take(), ElementsAre("a0", "a1", "a2", "a3"));
  EXPECT_TRUE(Exact(h));
  h.Live('a', 4);
  EXPECT_THAT(h.Take(), ElementsAre("a4"));
}

TEST(FeedSequencerTest, AnEngineWithoutEventsYetIsExact) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  EXPECT_TRUE(h.sequencer.causes().Has(FeedCause::kSilent));
  h.ReplyEmpty();
  EXPECT_TRUE(Exact(h));
  h.Live('a', 0);
  EXPECT_THAT(h.Take(), ElementsAre("ask:0", "a0"));
}

TEST(FeedSequencerTest, LiveMessagesBehindTheReplayAreDropped) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.Reply('a', 0, 5);
  h.Take();
  h.LiveRange('a', 2, 6);  // still queued in the SUB socket
  EXPECT_THAT(h.Take(), ElementsAre("a6"));
  EXPECT_EQ(h.sequencer.counts().duplicates, 4u);
  EXPECT_TRUE(Exact(h));
}

TEST(FeedSequencerTest, Fault02_AGapIsFilledByReplay) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.Reply('a', 0, 2);
  h.Take();
  h.Live('a', 5);
  EXPECT_TRUE(h.sequencer.causes().Has(FeedCause::kGap));
  EXPECT_THAT(h.Take(), ElementsAre("ask:2"));
  h.Live('a', 6);
  h.Reply('a', 2, 5);
  EXPECT_THAT(h.Take(), ElementsAre("a3", "a4", "a5", "a6"));
  EXPECT_TRUE(Exact(h));
  EXPECT_EQ(h.sequencer.counts().gaps, 1u);
  EXPECT_EQ(h.sequencer.counts().losses, 0u);
}

TEST(FeedSequencerTest, Fault02_AGapTheEngineCanNotFillIsALoss) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.Reply('a', 0, 2);
  h.Take();
  h.Live('a', 9);
  h.Reply('a', 7, 9);  // its buffer begins at 7
  EXPECT_THAT(h.Take(), ElementsAre("ask:2", "loss:gap", "a7", "a8", "a9"));
  EXPECT_TRUE(Exact(h)) << "the loss itself is the canonical map's to remember";
}

TEST(FeedSequencerTest, Fault02_AGapIsALossWhenNobodyAnswers) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.Reply('a', 0, 2);
  h.Take();
  h.Live('a', 5);
  h.Advance(absl::Milliseconds(1900));
  EXPECT_THAT(h.Take(), ElementsAre("ask:2"));
  h.Live('a', 6);
  h.Advance(absl::Seconds(4) + absl::Milliseconds(200));
  EXPECT_THAT(h.Take(), ElementsAre("ask:2", "ask:2", "loss:gap", "a5", "a6"));
  EXPECT_EQ(h.sequencer.counts().replay_timeouts, 3u);
}

TEST(FeedSequencerTest, FirstSequenceAboveZeroIsAMissedStart) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.Reply('a', 2, 4);
  EXPECT_THAT(h.Take(), ElementsAre("ask:0", "loss:start", "a2", "a3", "a4"));
}

TEST(FeedSequencerTest, ReplayThatLosesFramesIsAskedAgain) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  const std::uint64_t attempt = *h.open;
  h.sequencer.OnReplayMessage(attempt, 0, "a0", h.now);
  h.sequencer.OnReplayMessage(attempt, 1, "a1", h.now);
  h.sequencer.OnReplayMessage(attempt, 7, "a7", h.now);
  EXPECT_THAT(h.Take(), ElementsAre("ask:0", "a0", "a1", "ask:1"));
  h.sequencer.OnReplayMessage(attempt, 8, "a8", h.now);
  EXPECT_THAT(h.Take(), IsEmpty()) << "a reply of the older attempt";
  h.Reply('a', 1, 7);
  EXPECT_THAT(h.Take(), ElementsAre("a2", "a3", "a4", "a5", "a6", "a7"));
  EXPECT_TRUE(Exact(h));
}

TEST(FeedSequencerTest, LostEndMarkerCostsOnlyTime) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.sequencer.OnReplayMessage(*h.open, 0, "a0", h.now);
  h.Live('a', 1);
  h.Advance(absl::Seconds(2));
  EXPECT_THAT(h.Take(), ElementsAre("ask:0", "a0", "ask:0"));
  h.Reply('a', 0, 1);
  EXPECT_THAT(h.Take(), ElementsAre("a1"));
}

TEST(FeedSequencerTest, ASlowReplayDoesNotTimeOut) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  const std::uint64_t attempt = *h.open;
  for (std::uint64_t seq = 0; seq < 5; ++seq) {
    h.Advance(absl::Milliseconds(1900));
    h.sequencer.OnReplayMessage(attempt, seq, Payload('a', seq), h.now);
  }
  EXPECT_EQ(h.sequencer.counts().replay_timeouts, 0u);
  EXPECT_EQ(h.sequencer.position().last_seq, 4u);
}

TEST(FeedSequencerTest, Fault01_RestartIsSeenWhenTheSequenceGoesBack) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.ReplyEmpty();
  h.LiveRange('a', 0, 5);
  h.Take();
  h.Live('b', 0);
  EXPECT_THAT(h.Take(), ElementsAre("ask:5"));
  EXPECT_TRUE(h.sequencer.causes().Has(FeedCause::kResync));
  h.ReplyEmpty();  // the new process has no message 5
  EXPECT_THAT(h.Take(), ElementsAre("epoch", "ask:0"));
  h.Live('b', 1);
  h.Reply('b', 0, 0);
  EXPECT_THAT(h.Take(), ElementsAre("b0", "b1"));
  EXPECT_TRUE(Exact(h));
  EXPECT_EQ(h.sequencer.counts().restarts, 1u);
}

TEST(FeedSequencerTest, Fault01_RestartIsSeenByTheLastMessageItself) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.ReplyEmpty();
  h.LiveRange('a', 0, 5);
  h.Take();
  // Reconnected to a process that is further on than the old one was: no sequence goes back.
  h.sequencer.OnDisconnected(h.now);
  EXPECT_THAT(h.Take(), ElementsAre("ask:5"));
  h.sequencer.OnConnected(h.now);
  h.Take();
  h.Reply('b', 5, 8);
  // The first reply already differs; the rest belongs to an attempt that is over.
  EXPECT_THAT(h.Take(), ElementsAre("epoch", "ask:0"));
  h.Reply('b', 0, 8);
  EXPECT_THAT(h.Take(), ElementsAre("b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8"));
  EXPECT_TRUE(Exact(h));
}

TEST(FeedSequencerTest, Fault01_RestartBehindAGapIsSeenToo) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.ReplyEmpty();
  h.LiveRange('a', 0, 2);
  h.Live('b', 9);
  h.Take();
  h.Reply('b', 2, 9);
  EXPECT_THAT(h.Take(), ElementsAre("epoch", "ask:0"));
  h.Reply('b', 0, 9);
  EXPECT_EQ(h.Take().size(), 10u);
}

TEST(FeedSequencerTest, ReconnectToTheSameProcessGoesOn) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.ReplyEmpty();
  h.LiveRange('a', 0, 5);
  h.sequencer.OnDisconnected(h.now);
  h.Take();
  h.sequencer.OnConnected(h.now);
  EXPECT_THAT(h.Take(), ElementsAre("ask:5"));
  h.Reply('a', 5, 7);
  EXPECT_THAT(h.Take(), ElementsAre("a6", "a7"));
  EXPECT_EQ(h.sequencer.counts().restarts, 0u);
  EXPECT_TRUE(Exact(h));
}

TEST(FeedSequencerTest, AReconnectThatNobodyConfirmsIsANewEpoch) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.ReplyEmpty();
  h.LiveRange('a', 0, 5);
  h.sequencer.OnDisconnected(h.now);
  h.Take();
  h.Advance(absl::Seconds(30));
  for (const std::string& entry : h.Take()) EXPECT_EQ(entry, "ask:5") << "down: wait for it";
  h.sequencer.OnConnected(h.now);
  h.Advance(absl::Seconds(6));
  const std::vector<std::string> log = h.Take();
  EXPECT_EQ(log.back(), "ask:0");
  EXPECT_THAT(log, ::testing::Contains("epoch"));
}

TEST(FeedSequencerTest, BufferTrimmedPastTheLastMessageIsANewEpoch) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.ReplyEmpty();
  h.LiveRange('a', 0, 5);
  h.sequencer.OnDisconnected(h.now);
  h.sequencer.OnConnected(h.now);
  h.Take();
  h.Reply('a', 40, 42);  // nothing proves that this is the same process
  EXPECT_THAT(h.Take(), ElementsAre("epoch", "ask:0"));
  h.Reply('a', 40, 42);
  EXPECT_THAT(h.Take(), ElementsAre("loss:start", "a40", "a41", "a42"));
}

TEST(FeedSequencerTest, SilenceIsProbedAndALostTailFound) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.Reply('a', 0, 2);
  h.Take();
  h.Advance(absl::Milliseconds(900));
  EXPECT_THAT(h.Take(), IsEmpty());
  h.Advance(absl::Milliseconds(100));
  EXPECT_THAT(h.Take(), ElementsAre("ask:3"));
  EXPECT_TRUE(Exact(h)) << "a probe is no doubt";
  h.sequencer.OnReplayMessage(*h.open, 3, "a3", h.now);
  EXPECT_THAT(h.Take(), ElementsAre("ask:2"));
  EXPECT_FALSE(Exact(h));
  h.Reply('a', 2, 3);
  EXPECT_THAT(h.Take(), ElementsAre("a3"));
  EXPECT_TRUE(Exact(h));
}

TEST(FeedSequencerTest, ProbesBackOff) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.Reply('a', 0, 0);
  h.Take();
  const auto seconds_to_probe = [&] {
    for (int tenths = 1; tenths < 2000; ++tenths) {
      h.Advance(absl::Milliseconds(100));
      if (h.open.has_value()) {
        h.ReplyEmpty();
        return tenths / 10;
      }
    }
    return -1;
  };
  EXPECT_EQ(seconds_to_probe(), 1);
  EXPECT_EQ(seconds_to_probe(), 10);
  EXPECT_EQ(seconds_to_probe(), 20);
  EXPECT_EQ(seconds_to_probe(), 40);
  EXPECT_EQ(seconds_to_probe(), 60);
  EXPECT_EQ(seconds_to_probe(), 60);
  h.Live('a', 1);
  EXPECT_EQ(seconds_to_probe(), 1);
}

TEST(FeedSequencerTest, LiveMessagesAreAppliedBesideAProbe) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.Reply('a', 0, 0);
  h.Advance(absl::Seconds(1));
  h.Take();
  h.Live('a', 1);
  EXPECT_THAT(h.Take(), ElementsAre("a1"));
  h.Reply('a', 1, 1);
  EXPECT_THAT(h.Take(), IsEmpty());
  EXPECT_TRUE(Exact(h));
}

TEST(FeedSequencerTest, TheHeldBackBufferIsBounded) {
  FeedOptions options;
  options.max_buffered_messages = 4;
  SequencerHarness h(true, options);
  h.sequencer.Start(h.now);
  h.LiveRange('a', 3, 20);
  EXPECT_EQ(h.sequencer.counts().buffer_dropped, 14u);
  h.Take();
  h.Reply('a', 0, 3);
  // What found no room is asked for, not waited for.
  EXPECT_THAT(h.Take(), ElementsAre("a0", "a1", "a2", "a3", "a4", "a5", "a6", "ask:6"));
  h.Reply('a', 6, 20);
  EXPECT_EQ(h.sequencer.position().last_seq, 20u);
  EXPECT_TRUE(Exact(h));

  options.max_buffered_messages = 1000;
  options.max_buffered_bytes = 10;
  SequencerHarness bytes(true, options);
  bytes.sequencer.Start(bytes.now);
  bytes.LiveRange('a', 1, 9);
  EXPECT_EQ(bytes.sequencer.counts().buffer_dropped, 4u);
}

TEST(FeedSequencerTest, ARestoredPositionIsVerified) {
  SequencerHarness same(true);
  same.sequencer.Start(same.now, PositionAt('a', 7));
  EXPECT_THAT(same.Take(), ElementsAre("ask:7"));
  same.Reply('a', 7, 9);
  EXPECT_THAT(same.Take(), ElementsAre("a8", "a9"));
  EXPECT_EQ(same.sequencer.counts().restarts, 0u);

  SequencerHarness other(true);
  other.sequencer.Start(other.now, PositionAt('a', 7));
  other.Take();
  other.Live('b', 10);
  other.Reply('b', 7, 9);
  EXPECT_THAT(other.Take(), ElementsAre("epoch", "ask:0"));
  other.Reply('b', 0, 9);
  EXPECT_EQ(other.Take().size(), 11u) << "0 to 9 and the one held back";
}

TEST(FeedSequencerTest, AChangedProcessStartIsVerified) {
  SequencerHarness h(true);
  h.sequencer.Start(h.now);
  h.sequencer.OnProcessStart(100, h.now);
  h.Reply('a', 0, 3);
  h.Take();
  h.sequencer.OnProcessStart(100.01, h.now);
  EXPECT_THAT(h.Take(), IsEmpty());
  h.sequencer.OnProcessStart(200, h.now);
  EXPECT_THAT(h.Take(), ElementsAre("ask:3"));
  h.ReplyEmpty();
  EXPECT_THAT(h.Take(), ElementsAre("epoch", "ask:0"));
}

}  // namespace
}  // namespace warmpath::testing
