#include "client/agent/feed/state_journal.h"

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "client/agent/events/vllm_decoder.h"
#include "client/agent/feed/payload_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/events/engine_events.h"
#include "tests/client/agent/events/msgpack_writer.h"
#include "tests/client/agent/feed/temp_dir.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::Chain;
using testing::EncodeBatch;
using ::testing::HasSubstr;
using testing::Held;
using testing::IsOk;
using testing::Options;
using testing::Remove;
using testing::StatusIs;
using testing::Store;
using testing::TempDir;
using ::testing::UnorderedElementsAreArray;

constexpr Epoch kEpoch = 1767225600123456789;
constexpr AgentInstance kInstance = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A canonical map and its journal, fed with the same batches.
struct Feed {
  explicit Feed(const std::string& path) : canonical(Options()) {
    auto opened = StateJournal::Open(path, kInstance, kEpoch, {}, canonical);
    EXPECT_THAT(opened, IsOk());
    journal = *std::move(opened);
  }
  void Apply(std::uint64_t seq, std::vector<EngineEvent> events) {
    const std::string payload = EncodeBatch(events, static_cast<double>(seq));
    canonical.Apply(*DecodeKvEvents(payload));
    position.last_seq = seq;
    position.last_payload_hash = PayloadHash(payload);
    EXPECT_THAT(journal->AppendBatch(seq, position.last_payload_hash, payload), IsOk());
  }

  Canonical canonical;
  FeedPosition position;
  std::unique_ptr<StateJournal> journal;
};

TEST(StateJournalTest, RestoresWhatWasWritten) {
  const TempDir dir;
  const std::string path = dir.File("rank0");
  Feed feed(path);
  feed.Apply(0, {Store({1, 2, 3}, std::nullopt, 1)});
  EXPECT_THAT(feed.journal->AppendProcessStart(1234.5), IsOk());
  feed.Apply(1, {Store({4}, 3, 13), Remove({1})});
  feed.canonical.MarkLoss(LossKind::kGap);
  EXPECT_THAT(feed.journal->AppendLoss(LossKind::kGap), IsOk());
  feed.Apply(7, {Store({9}, std::nullopt, 90)});

  Canonical restored(Options());
  const auto state = StateJournal::Load(path, &restored);
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(state->epoch, kEpoch);
  EXPECT_EQ(state->agent_instance, kInstance);
  EXPECT_EQ(state->truncated, "");
  EXPECT_EQ(state->batches, 3u);
  feed.position.process_start = 1234.5;
  EXPECT_EQ(state->position, feed.position);
  EXPECT_THAT(Held(restored), UnorderedElementsAreArray(Held(feed.canonical)));
  EXPECT_EQ(restored.digest(Tier::kGpu), feed.canonical.digest(Tier::kGpu));
  EXPECT_TRUE(restored.causes().Has(FeedCause::kGap));
  EXPECT_EQ(restored.suspects(), feed.canonical.suspects());
}

TEST(StateJournalTest, HoldsPromptsHenceForItsOwnerOnly) {
  const TempDir dir;
  const std::string path = dir.File("rank0");
  WriteFile(path, "left over");
  std::filesystem::permissions(path, std::filesystem::perms(0644));
  const Feed feed(path);
  struct stat info = {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(StateJournalTest, CompactionKeepsTheState) {
  const TempDir dir;
  const std::string path = dir.File("rank0");
  Feed feed(path);
  std::uint64_t seq = 0;
  while (!feed.journal->WantsCompaction()) {
    ASSERT_LT(seq, 200000u);
    feed.Apply(seq++, {Store({1, 2, 3, 4, 5, 6, 7, 8}, std::nullopt, 1)});
    feed.Apply(seq++, {Remove({8, 7, 6, 5, 4})});
  }
  const std::size_t before = feed.journal->bytes();
  EXPECT_EQ(std::filesystem::file_size(path), before);
  feed.position.process_start = 5;
  ASSERT_THAT(feed.journal->Reset(kEpoch, feed.position, feed.canonical), IsOk());
  EXPECT_LT(feed.journal->bytes(), 4096u);
  EXPECT_FALSE(feed.journal->WantsCompaction());
  feed.Apply(seq, {Store({11}, std::nullopt, 70)});

  Canonical restored(Options());
  const auto state = StateJournal::Load(path, &restored);
  ASSERT_THAT(state, IsOk());
  EXPECT_EQ(state->batches, 1u);
  EXPECT_EQ(state->position, feed.position);
  EXPECT_EQ(restored.digest(Tier::kGpu), feed.canonical.digest(Tier::kGpu));
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
}

TEST(StateJournalTest, ATornTailLeavesTheStateBeforeIt) {
  const TempDir dir;
  const std::string path = dir.File("rank0");
  std::size_t after_first = 0;
  {
    Feed feed(path);
    feed.Apply(0, {Store({1}, std::nullopt, 1)});
    after_first = feed.journal->bytes();
    feed.Apply(1, {Store({2}, 1, 5)});
  }
  const std::string whole = ReadFile(path);
  for (std::size_t n = after_first + 1; n < whole.size(); ++n) {
    WriteFile(path, whole.substr(0, n));
    Canonical restored(Options());
    const auto state = StateJournal::Load(path, &restored);
    ASSERT_THAT(state, IsOk()) << n;
    EXPECT_EQ(state->position.last_seq, 0u);
    EXPECT_NE(state->truncated, "");
    EXPECT_THAT(Held(restored), UnorderedElementsAreArray(Chain(1, 1)));
  }
}

TEST(StateJournalTest, DamageIsNeverTakenForState) {
  const TempDir dir;
  const std::string path = dir.File("rank0");
  {
    Feed feed(path);
    feed.Apply(0, {Store({1}, std::nullopt, 1)});
    feed.Apply(1, {Store({2}, 1, 5)});
  }
  const std::string whole = ReadFile(path);
  for (std::size_t i = 0; i < whole.size(); i += 3) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    WriteFile(path, damaged);
    Canonical restored(Options());
    const auto state = StateJournal::Load(path, &restored);
    if (!state.ok()) {
      EXPECT_THAT(state.status().message(), HasSubstr(path));
      EXPECT_EQ(restored.blocks(), 0u);
      continue;
    }
    EXPECT_NE(state->truncated, "") << i;
    EXPECT_LT(restored.digest(Tier::kGpu).count, 2u);
  }
}

TEST(StateJournalTest, OtherFilesAreRefusedWithAReason) {
  const TempDir dir;
  Canonical canonical(Options());
  EXPECT_THAT(StateJournal::Load(dir.File("none"), &canonical),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
  WriteFile(dir.File("empty"), "");
  EXPECT_THAT(StateJournal::Load(dir.File("empty"), &canonical),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a journal")));
  WriteFile(dir.File("text"), std::string(1000, 'x'));
  EXPECT_THAT(StateJournal::Load(dir.File("text"), &canonical),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a journal")));
  EXPECT_THAT(StateJournal::Load(dir.File("."), &canonical),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("regular file")));
  const std::string path = dir.File("rank0");
  { const Feed feed(path); }
  Canonical other(Options(64));
  EXPECT_THAT(StateJournal::Load(path, &other),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("routing blocks of 4")));
}

TEST(StateJournalTest, AWriteErrorStopsItUntilReset) {
  Canonical canonical(Options());
  EXPECT_THAT(StateJournal::Open("/nonexistent/rank0", kInstance, kEpoch, {}, canonical),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nonexistent/rank0")));
}

TEST(StateJournalTest, AgentInstanceIsDrawnOnce) {
  const TempDir dir;
  Random random(1);
  const std::string path = dir.File("instance");
  const auto first = LoadOrCreateAgentInstance(path, random);
  ASSERT_THAT(first, IsOk());
  const auto second = LoadOrCreateAgentInstance(path, random);
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(*first, *second);
  WriteFile(path, "short");
  EXPECT_THAT(LoadOrCreateAgentInstance(path, random),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("5 bytes")));
  EXPECT_THAT(LoadOrCreateAgentInstance("/nonexistent/instance", random),
              StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace warmpath
