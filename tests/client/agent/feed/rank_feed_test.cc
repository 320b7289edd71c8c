#include "client/agent/feed/rank_feed.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/agent/publish/coalescer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/events/engine_events.h"
#include "tests/client/agent/events/msgpack_writer.h"
#include "tests/client/agent/feed/temp_dir.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::Chain;
using testing::EncodeBatch;
using testing::FakeClock;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::Options;
using testing::Remove;
using testing::StatusIs;
using testing::Store;
using testing::TempDir;
using ::testing::UnorderedElementsAreArray;

// A router session behind a feed: what the router would hold.
class Session : public RankFeedListener {
 public:
  void OnChanges(Rank rank, std::span<const BlockChanges> changes,
                 std::optional<std::uint64_t> engine_seq) override {
    coalescer.Add(rank, changes, engine_seq, /*no_holes=*/false);
    while (const auto piece = coalescer.Take()) {
      for (const ChainHash hash : piece->removed) held.erase(hash);
      for (const ChainHash hash : piece->stored) held.insert(hash);
    }
    seq = engine_seq;
  }
  void OnNewEpoch(Rank, Epoch epoch, std::string_view reason) override {
    coalescer = Coalescer();
    held.clear();
    epochs.push_back(epoch);
    reasons.emplace_back(reason);
  }
  void RequestReplay(Rank, std::uint64_t from, std::uint64_t attempt) override {
    request = {from, attempt};
  }
  void ReplayDone(Rank, std::uint64_t) override { request.reset(); }

  Coalescer coalescer;
  std::set<ChainHash> held;
  std::optional<std::uint64_t> seq;
  std::vector<Epoch> epochs;
  std::vector<std::string> reasons;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> request;
};

// Message `n` of a process stores one block that no other message stores.
std::string Message(std::uint64_t n, int process = 0) {
  return EncodeBatch({Store({1000 * static_cast<EngineHash>(process) + n + 1}, std::nullopt,
                            static_cast<TokenId>(10 * n + 1))},
                     static_cast<double>(100 * process) + static_cast<double>(n) + 1);
}

std::vector<ChainHash> BlocksOf(std::initializer_list<std::uint64_t> messages) {
  std::vector<ChainHash> blocks;
  for (const std::uint64_t n : messages)
    blocks.push_back(Chain(static_cast<TokenId>(10 * n + 1), 1)[0]);
  return blocks;
}

RankFeedOptions FeedOptionsFor(bool replay, std::string journal = "") {
  RankFeedOptions options;
  options.canonical = Options();
  options.canonical.capacity[0] = 4;
  options.feed.replay = replay;
  options.journal_path = std::move(journal);
  return options;
}

class RankFeedTest : public ::testing::Test {
 protected:
  void Reply(RankFeed& feed, std::uint64_t first, std::uint64_t last, int process = 0) {
    ASSERT_TRUE(session_.request.has_value());
    const std::uint64_t attempt = session_.request->second;
    for (std::uint64_t n = first; n <= last; ++n)
      feed.OnReplayMessage(attempt, n, Message(n, process));
    feed.OnReplayEnd(attempt);
  }

  FakeClock clock_;
  Session session_;
};

TEST_F(RankFeedTest, FollowsTheEngine) {
  RankFeed feed(FeedOptionsFor(true), clock_, &session_);
  ASSERT_THAT(feed.Start(), IsOk());
  EXPECT_EQ(feed.epoch(), static_cast<Epoch>(absl::ToUnixNanos(clock_.WallNow())));
  EXPECT_FALSE(feed.causes().empty());
  Reply(feed, 0, 1);
  EXPECT_TRUE(feed.causes().empty());
  feed.OnMessage(2, Message(2));
  EXPECT_THAT(session_.held, UnorderedElementsAreArray(BlocksOf({0, 1, 2})));
  EXPECT_EQ(session_.seq, 2u);
  EXPECT_EQ(feed.engine_seq(), 2u);
  EXPECT_EQ(feed.engine_ts(), 3.0);
  EXPECT_EQ(feed.events().stored, 3u);
  EXPECT_EQ(feed.digests()[0], session_.coalescer.SentDigest(0, Tier::kGpu));
  EXPECT_THAT(session_.epochs, IsEmpty());
}

TEST_F(RankFeedTest, Fault01_ARestartedEngineIsClearedWithAndWithoutReplay) {
  for (const bool replay : {true, false}) {
    SCOPED_TRACE(replay);
    session_ = Session();
    RankFeed feed(FeedOptionsFor(replay), clock_, &session_);
    ASSERT_THAT(feed.Start(), IsOk());
    if (replay) feed.OnReplayEnd(session_.request->second);
    for (std::uint64_t n = 0; n < 3; ++n) feed.OnMessage(n, Message(n));
    const Epoch before = feed.epoch();
    feed.OnMessage(0, Message(0, 1));
    if (replay) {
      feed.OnReplayEnd(session_.request->second);
      EXPECT_THAT(session_.held, IsEmpty()) << "at once";
      Reply(feed, 0, 0, 1);
    }
    EXPECT_THAT(session_.held, UnorderedElementsAreArray(BlocksOf({0})));
    ASSERT_EQ(session_.epochs.size(), 1u);
    EXPECT_GT(session_.epochs[0], before);
    EXPECT_EQ(feed.epoch(), session_.epochs[0]);
    EXPECT_TRUE(feed.causes().empty());
  }
}

TEST_F(RankFeedTest, Fault02_AGapWithReplayIsDegradedThenExact) {
  RankFeed feed(FeedOptionsFor(true), clock_, &session_);
  ASSERT_THAT(feed.Start(), IsOk());
  Reply(feed, 0, 0);
  feed.OnMessage(3, Message(3));
  EXPECT_TRUE(feed.causes().Has(FeedCause::kGap));
  EXPECT_TRUE(feed.causes().Has(FeedCause::kResync));
  Reply(feed, 0, 3);
  EXPECT_TRUE(feed.causes().empty());
  EXPECT_THAT(session_.held, UnorderedElementsAreArray(BlocksOf({0, 1, 2, 3})));
}

TEST_F(RankFeedTest, Fault02_AGapWithoutReplayIsDegradedUntilNothingFromBeforeIsLeft) {
  RankFeed feed(FeedOptionsFor(false), clock_, &session_);
  ASSERT_THAT(feed.Start(), IsOk());
  feed.OnMessage(0, Message(0));
  feed.OnMessage(1, Message(1));
  feed.OnMessage(3, Message(3));  // 2 is lost
  EXPECT_TRUE(feed.causes().Has(FeedCause::kGap));
  EXPECT_THAT(session_.held, UnorderedElementsAreArray(BlocksOf({0, 1, 3})))
      << "nothing is cleared";
  feed.OnMessage(4, Message(4));
  feed.OnMessage(5, Message(5));
  EXPECT_THAT(session_.held, UnorderedElementsAreArray(BlocksOf({1, 3, 4, 5})))
      << "the engine holds four: the oldest from before goes";
  EXPECT_TRUE(feed.causes().Has(FeedCause::kGap));
  feed.OnMessage(6, Message(6));
  EXPECT_THAT(session_.held, UnorderedElementsAreArray(BlocksOf({3, 4, 5, 6})));
  EXPECT_TRUE(feed.causes().empty());
}

TEST_F(RankFeedTest, APayloadThatIsNoBatchIsALoss) {
  RankFeed feed(FeedOptionsFor(false), clock_, &session_);
  ASSERT_THAT(feed.Start(), IsOk());
  feed.OnMessage(0, Message(0));
  feed.OnMessage(1, "garbage");
  EXPECT_EQ(feed.events().bad_batches, 1u);
  EXPECT_TRUE(feed.causes().Has(FeedCause::kGap));
  feed.OnMessage(2, Message(2));
  EXPECT_THAT(session_.held, UnorderedElementsAreArray(BlocksOf({0, 2})));
}

TEST_F(RankFeedTest, CountsBatchesOfAnotherRank) {
  RankFeedOptions options = FeedOptionsFor(false);
  options.rank = 1;
  RankFeed feed(options, clock_, &session_);
  ASSERT_THAT(feed.Start(), IsOk());
  feed.OnMessage(0, Message(0));  // stamped rank 0
  EXPECT_EQ(feed.events().wrong_rank, 1u);
  EXPECT_THAT(session_.held, UnorderedElementsAreArray(BlocksOf({0}))) << "the socket's rank rules";
}

TEST_F(RankFeedTest, AfterARestartOfTheAgentItGoesOnWithReplay) {
  const TempDir dir;
  const std::string path = dir.File("rank0");
  Epoch epoch = 0;
  {
    RankFeed feed(FeedOptionsFor(true, path), clock_, &session_);
    ASSERT_THAT(feed.Start(), IsOk());
    Reply(feed, 0, 2);
    epoch = feed.epoch();
  }
  clock_.Advance(absl::Seconds(5));
  session_ = Session();
  RankFeed feed(FeedOptionsFor(true, path), clock_, &session_);
  ASSERT_THAT(feed.Start(), IsOk());
  EXPECT_EQ(feed.epoch(), epoch);
  EXPECT_EQ(feed.canonical().digest(Tier::kGpu).count, 3u) << "served while it is verified";
  EXPECT_EQ(session_.request->first, 2u);
  Reply(feed, 2, 3);
  EXPECT_TRUE(feed.causes().empty());
  EXPECT_EQ(feed.epoch(), epoch);
  EXPECT_EQ(feed.canonical().digest(Tier::kGpu).count, 4u);
}

TEST_F(RankFeedTest, Fault01_AStateFileOfAnotherProcessIsDropped) {
  const TempDir dir;
  const std::string path = dir.File("rank0");
  {
    RankFeed feed(FeedOptionsFor(true, path), clock_, &session_);
    ASSERT_THAT(feed.Start(), IsOk());
    Reply(feed, 0, 2);
  }
  session_ = Session();
  RankFeed feed(FeedOptionsFor(true, path), clock_, &session_);
  ASSERT_THAT(feed.Start(), IsOk());
  const Epoch restored = feed.epoch();
  Reply(feed, 2, 5, 1);
  ASSERT_EQ(session_.epochs.size(), 1u);
  EXPECT_GT(session_.epochs[0], restored) << "also when the clock did not move";
  Reply(feed, 0, 5, 1);
  EXPECT_THAT(session_.held, UnorderedElementsAreArray(BlocksOf({0, 1, 2, 3, 4, 5})));

  // And the file follows: a third start goes on from there.
  session_ = Session();
  RankFeed third(FeedOptionsFor(true, path), clock_, &session_);
  ASSERT_THAT(third.Start(), IsOk());
  EXPECT_EQ(third.epoch(), feed.epoch());
  EXPECT_EQ(third.engine_seq(), 5u);
}

TEST_F(RankFeedTest, WithoutReplayTheStateFileCountsOnlyWhenProven) {
  const TempDir dir;
  const std::string path = dir.File("rank0");
  {
    RankFeed feed(FeedOptionsFor(false, path), clock_, &session_);
    ASSERT_THAT(feed.Start(), IsOk());
    feed.OnProcessStart(77);
    feed.OnMessage(0, Message(0));
    feed.OnMessage(1, Message(1));
  }
  {
    session_ = Session();
    RankFeed feed(FeedOptionsFor(false, path), clock_, &session_);
    ASSERT_THAT(feed.Start(), IsOk());
    EXPECT_TRUE(feed.causes().Has(FeedCause::kLateJoin));
    feed.OnProcessStart(77);
    feed.OnMessage(2, Message(2));
    EXPECT_TRUE(feed.causes().empty());
    EXPECT_EQ(feed.canonical().digest(Tier::kGpu).count, 3u);
    EXPECT_THAT(session_.epochs, IsEmpty());
  }
  session_ = Session();
  RankFeed feed(FeedOptionsFor(false, path), clock_, &session_);
  ASSERT_THAT(feed.Start(), IsOk());
  feed.OnProcessStart(77);
  feed.OnMessage(4, Message(4));  // 3 went by while no agent was there
  EXPECT_EQ(session_.epochs.size(), 1u);
  EXPECT_TRUE(feed.causes().Has(FeedCause::kMissedStart));
  EXPECT_THAT(session_.held, UnorderedElementsAreArray(BlocksOf({4})));
}

TEST_F(RankFeedTest, AnUnusableStateFileIsSaidAndLeftAside) {
  const TempDir dir;
  RankFeed unwritable(FeedOptionsFor(true, "/nonexistent/rank0"), clock_, &session_);
  EXPECT_THAT(unwritable.Start(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent")));
  Reply(unwritable, 0, 1);
  EXPECT_TRUE(unwritable.causes().empty()) << "the feed runs in any case";
  EXPECT_EQ(unwritable.events().journal_errors, 1u);
  EXPECT_TRUE(unwritable.journal_failing());

  const std::string path = dir.File("rank0");
  {
    RankFeed feed(FeedOptionsFor(true, path), clock_, &session_);
    ASSERT_THAT(feed.Start(), IsOk());
  }
  RankFeedOptions other = FeedOptionsFor(true, path);
  other.canonical.routing_block = 64;
  RankFeed feed(other, clock_, &session_);
  EXPECT_THAT(feed.Start(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("64")));
  EXPECT_EQ(session_.request->first, 0u) << "from the start, then";
}

TEST_F(RankFeedTest, AStateFileThatCanBeWrittenAgainIsNoLongerFailing) {
  const TempDir dir;
  const std::string folder = dir.File("state");
  const std::string aside = dir.File("aside");
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  RankFeed feed(FeedOptionsFor(true, folder + "/rank0"), clock_, &session_);
  ASSERT_THAT(feed.Start(), IsOk());
  EXPECT_FALSE(feed.journal_failing());

  std::filesystem::rename(folder, aside);
  feed.RenewEpoch(1);
  EXPECT_TRUE(feed.journal_failing());

  std::filesystem::rename(aside, folder);
  feed.RenewEpoch(1);
  EXPECT_FALSE(feed.journal_failing());
  EXPECT_EQ(feed.events().journal_errors, 1u) << "what was stays counted";
}

TEST_F(RankFeedTest, LossesAreInTheStateFile) {
  const TempDir dir;
  const std::string path = dir.File("rank0");
  {
    RankFeed feed(FeedOptionsFor(true, path), clock_, &session_);
    ASSERT_THAT(feed.Start(), IsOk());
    Reply(feed, 2, 3);
    EXPECT_TRUE(feed.causes().Has(FeedCause::kMissedStart));
  }
  RankFeed feed(FeedOptionsFor(true, path), clock_, &session_);
  ASSERT_THAT(feed.Start(), IsOk());
  Reply(feed, 3, 3);
  EXPECT_TRUE(feed.causes().Has(FeedCause::kMissedStart)) << "a restart does not make it whole";
}

}  // namespace
}  // namespace warmpath
