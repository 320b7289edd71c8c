#include "client/agent/engine/zmq_source.h"

#include <zmq.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/engine/fake_publisher.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using testing::FakePublisher;
using ::testing::HasSubstr;
using testing::ReplayShape;
using testing::StatusIs;

// Writes everything down, in order.
class Notes final : public ZmqSourceSink {
 public:
  void OnMessage(std::uint64_t seq, std::string payload) override {
    lines.push_back(absl::StrCat("live ", seq, " ", payload));
  }
  void OnReplayMessage(std::uint64_t attempt, std::uint64_t seq,
                       std::string_view payload) override {
    lines.push_back(absl::StrCat("replay#", attempt, " ", seq, " ", std::string(payload)));
    if (on_replay) on_replay();
  }
  void OnReplayEnd(std::uint64_t attempt) override {
    lines.push_back(absl::StrCat("end#", attempt));
  }
  void OnConnected() override { lines.emplace_back("connected"); }
  void OnDisconnected() override { lines.emplace_back("disconnected"); }

  std::vector<std::string> lines;
  std::function<void()> on_replay;
};

class ZmqSourceTest : public ::testing::Test {
 protected:
  std::unique_ptr<ZmqSource> Open(std::string topic = "") {
    auto source = ZmqSource::Open(
        context_,
        {.events = publisher_.events(), .replay = publisher_.replay(), .topic = std::move(topic)});
    EXPECT_TRUE(source.ok()) << source.status();
    return *std::move(source);
  }

  // Polls until the notes have `lines` entries, at most 10 s.
  void PollFor(ZmqSource* source, std::size_t lines) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (notes_.lines.size() < lines && absl::Now() < deadline) {
      std::vector<void*> sockets;
      source->AppendSockets(&sockets);
      std::vector<zmq_pollitem_t> items;
      for (void* socket : sockets) items.push_back({socket, 0, ZMQ_POLLIN, 0});
      zmq_poll(items.data(), static_cast<int>(items.size()), 100);
      while (source->Poll(&notes_)) {
      }
    }
  }

  ZmqContext context_;
  FakePublisher publisher_;
  Notes notes_;
};

TEST_F(ZmqSourceTest, HandsOverLiveMessages) {
  auto source = Open();
  PollFor(source.get(), 1);
  publisher_.WaitForSubscriber();
  publisher_.Publish(0, "a");
  publisher_.Publish(1, std::string("\0b", 2));
  PollFor(source.get(), 3);
  EXPECT_THAT(notes_.lines, ElementsAre("connected", "live 0 a", std::string("live 1 \0b", 9)));
  EXPECT_EQ(source->counts().messages, 2U);
}

TEST_F(ZmqSourceTest, FiltersByTopicPrefix) {
  auto source = Open("kv@10.0.0.1");
  PollFor(source.get(), 1);
  publisher_.WaitForSubscriber();
  publisher_.Publish(0, "other", "kv@10.0.0.2@m");
  publisher_.Publish(1, "mine", "kv@10.0.0.1@m");
  PollFor(source.get(), 2);
  EXPECT_THAT(notes_.lines, ElementsAre("connected", "live 1 mine"));
}

TEST_F(ZmqSourceTest, MalformedMessagesAreCountedAndSkipped) {
  auto source = Open();
  PollFor(source.get(), 1);
  publisher_.WaitForSubscriber();
  publisher_.PublishFrames({"", "1234567", "short sequence"});
  publisher_.PublishFrames({"", "only two"});
  publisher_.PublishFrames({"one"});
  publisher_.PublishFrames(std::vector<std::string>(1000, "frame"));
  publisher_.Publish(7, "good");
  PollFor(source.get(), 2);
  EXPECT_THAT(notes_.lines, ElementsAre("connected", "live 7 good"));
  EXPECT_EQ(source->counts().malformed, 4U);
}

TEST_F(ZmqSourceTest, ReadsBothReplyShapes) {
  publisher_.Keep(3, "c");
  publisher_.Keep(4, "d");
  auto source = Open();
  PollFor(source.get(), 1);
  for (const ReplayShape shape : {ReplayShape::kPlain, ReplayShape::kWithTopic}) {
    notes_.lines.clear();
    publisher_.SetReplay({.shape = shape});
    source->RequestReplay(2, 9);
    PollFor(source.get(), 3);
    EXPECT_THAT(notes_.lines, ElementsAre("replay#9 3 c", "replay#9 4 d", "end#9"));
    EXPECT_EQ(publisher_.last_request(), 2U);
    source->CloseReplay(9);
  }
  EXPECT_EQ(source->counts().replayed, 4U);
  EXPECT_EQ(source->counts().malformed, 0U);
}

TEST_F(ZmqSourceTest, AReplayWithoutEndMarkerStaysOpenUntilItIsClosed) {
  publisher_.Keep(0, "a");
  publisher_.Keep(1, "b");
  publisher_.SetReplay({.drop = {1}, .send_end = false});
  auto source = Open();
  PollFor(source.get(), 1);
  source->RequestReplay(0, 1);
  PollFor(source.get(), 2);
  EXPECT_THAT(notes_.lines, ElementsAre("connected", "replay#1 0 a"));
  std::vector<void*> sockets;
  source->AppendSockets(&sockets);
  EXPECT_EQ(sockets.size(), 3U);
  source->CloseReplay(7);  // another attempt's: nothing happens
  source->CloseReplay(1);
  sockets.clear();
  source->AppendSockets(&sockets);
  EXPECT_EQ(sockets.size(), 2U);
}

TEST_F(ZmqSourceTest, LateRepliesToASupersededRequestNeverArrive) {
  publisher_.Keep(0, "a");
  auto source = Open();
  PollFor(source.get(), 1);
  source->RequestReplay(0, 1);
  publisher_.WaitForRequests(1);  // answered already
  source->RequestReplay(0, 2);
  PollFor(source.get(), 3);
  EXPECT_THAT(notes_.lines, ElementsAre("connected", "replay#2 0 a", "end#2"));
}

TEST_F(ZmqSourceTest, TheSinkMayAskAgainFromWithinAReply) {
  publisher_.Keep(0, "a");
  auto source = Open();
  PollFor(source.get(), 1);
  notes_.on_replay = [&] {
    notes_.on_replay = nullptr;
    source->RequestReplay(0, 2);
  };
  source->RequestReplay(0, 1);
  PollFor(source.get(), 4);
  EXPECT_THAT(notes_.lines, ElementsAre("connected", "replay#1 0 a", "replay#2 0 a", "end#2"));
}

TEST_F(ZmqSourceTest, MalformedRepliesAreCountedAndSkipped) {
  publisher_.SetReplay({.extra = {{""}, {"", "abc", "x"}, {"", "", "", "", ""}, {"x"}}});
  auto source = Open();
  PollFor(source.get(), 1);
  source->RequestReplay(0, 1);
  PollFor(source.get(), 2);
  EXPECT_THAT(notes_.lines, ElementsAre("connected", "end#1"));
  EXPECT_EQ(source->counts().malformed, 4U);
}

TEST_F(ZmqSourceTest, WhatAProcessSentComesBeforeItsDisconnect) {
  auto source = Open();
  PollFor(source.get(), 1);
  publisher_.WaitForSubscriber();
  for (int i = 0; i < 3; ++i) publisher_.Publish(static_cast<std::uint64_t>(i), "old");
  publisher_.Stop();
  PollFor(source.get(), 5);
  EXPECT_THAT(notes_.lines,
              ElementsAre("connected", "live 0 old", "live 1 old", "live 2 old", "disconnected"));
}

// The agent was busy while the engine restarted: the end of the old connection, the new one and the
// old one's messages all wait.
TEST_F(ZmqSourceTest, Fault01_MessagesOfTwoProcessesAreParted) {
  auto source = Open();
  PollFor(source.get(), 1);
  publisher_.WaitForSubscriber();
  publisher_.Publish(0, "old");
  publisher_.Publish(1, "old");
  publisher_.Restart();
  PollFor(source.get(), 5);
  publisher_.WaitForSubscriber();
  publisher_.Publish(0, "new");
  publisher_.Publish(1, "new");
  PollFor(source.get(), 7);
  EXPECT_THAT(notes_.lines, ElementsAre("connected", "live 0 old", "live 1 old", "disconnected",
                                        "connected", "live 0 new", "live 1 new"));
}

TEST_F(ZmqSourceTest, ConnectsToAnEngineThatStartsLater) {
  publisher_.Stop();
  auto source = Open();
  source->RequestReplay(0, 1);
  EXPECT_FALSE(source->Poll(&notes_));
  EXPECT_TRUE(notes_.lines.empty());
  publisher_.Keep(0, "a");
  publisher_.Restart();
  PollFor(source.get(), 3);
  EXPECT_THAT(notes_.lines, ::testing::UnorderedElementsAre("connected", "replay#1 0 a", "end#1"));
}

TEST_F(ZmqSourceTest, PollIsBoundedPerCall) {
  auto source = Open();
  PollFor(source.get(), 1);
  publisher_.WaitForSubscriber();
  for (int i = 0; i < 10; ++i) publisher_.Publish(static_cast<std::uint64_t>(i), "x");
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (notes_.lines.size() < 11 && absl::Now() < deadline) {
    const std::size_t before = notes_.lines.size();
    source->Poll(&notes_, 4);
    ASSERT_LE(notes_.lines.size(), before + 4);
  }
  EXPECT_EQ(notes_.lines.size(), 11U);
}

TEST(ZmqSourceOpenTest, NamesABadEndpoint) {
  ZmqContext context;
  EXPECT_THAT(
      ZmqSource::Open(context, {.events = "nonsense"}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("events endpoint \"nonsense\"")));
  EXPECT_THAT(ZmqSource::Open(context, {.events = "tcp://127.0.0.1:1", .replay = "tcp://"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("replay endpoint")));
}

}  // namespace
}  // namespace warmpath
