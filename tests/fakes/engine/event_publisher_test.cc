#include "tests/fakes/engine/event_publisher.h"

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

constexpr int kTimeoutMs = 5'000;

std::string Seq(std::uint64_t seq) {
  std::string bytes(8, '\0');
  for (int i = 7; i >= 0; --i, seq >>= 8) bytes[i] = static_cast<char>(seq & 0xff);
  return bytes;
}
const std::string kEnd(8, '\xff');

using Frames = std::vector<std::string>;

std::optional<Frames> Receive(zmq::socket_t& socket, int timeout_ms = kTimeoutMs) {
  socket.set(zmq::sockopt::rcvtimeo, timeout_ms);
  Frames frames;
  do {
    zmq::message_t frame;
    if (!socket.recv(frame)) return std::nullopt;
    frames.push_back(frame.to_string());
  } while (socket.get(zmq::sockopt::rcvmore));
  return frames;
}

void Send(zmq::socket_t& socket, const Frames& frames) {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    socket.send(zmq::buffer(frames[i]),
                i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
  }
}

class EventPublisherTest : public ::testing::Test {
 protected:
  static PublisherOptions Options() {
    PublisherOptions options;
    options.endpoint = "tcp://127.0.0.1:0";
    options.replay_endpoint = "tcp://127.0.0.1:0";
    options.topic = "kv@test";
    return options;
  }

  void Start(const PublisherOptions& options) {
    auto created = EventPublisher::Create(&context_, options);
    ASSERT_THAT(created, IsOk());
    publisher_ = *std::move(created);
  }

  zmq::socket_t Dealer() {
    zmq::socket_t dealer(context_, zmq::socket_type::dealer);
    dealer.set(zmq::sockopt::linger, 0);
    dealer.connect(publisher_->replay_endpoint());
    return dealer;
  }

  // All replies of one replay, the end marker included.
  std::vector<Frames> Replay(std::uint64_t from) {
    zmq::socket_t dealer = Dealer();
    Send(dealer, {"", Seq(from)});
    std::vector<Frames> replies;
    while (true) {
      const std::optional<Frames> reply = Receive(dealer);
      if (!reply) return replies;
      replies.push_back(*reply);
      if (reply->at(reply->size() - 2) == kEnd) return replies;
    }
  }

  // A subscriber that is known to be connected: XPUB-less, so it waits for a first message.
  zmq::socket_t Subscribed() {
    zmq::socket_t sub(context_, zmq::socket_type::sub);
    sub.set(zmq::sockopt::linger, 0);
    sub.set(zmq::sockopt::subscribe, "");
    sub.connect(publisher_->endpoint());
    for (int i = 0; i < 500; ++i) {
      publisher_->Publish("hello");
      if (Receive(sub, 20)) return sub;
    }
    ADD_FAILURE() << "never connected";
    return sub;
  }

  zmq::context_t context_;
  std::unique_ptr<EventPublisher> publisher_;
};

TEST_F(EventPublisherTest, MessagesHaveTopicSequenceAndPayload) {
  Start(Options());
  zmq::socket_t sub = Subscribed();
  while (Receive(sub, 50)) {
  }
  const std::uint64_t seq = publisher_->Publish("payload");
  EXPECT_THAT(*Receive(sub), ElementsAre("kv@test", Seq(seq), "payload"));
  EXPECT_EQ(publisher_->Publish("next"), seq + 1);
  EXPECT_THAT(*Receive(sub), ElementsAre("kv@test", Seq(seq + 1), "next"));
}

TEST_F(EventPublisherTest, ReplayOfTheNewShapeCarriesTheTopic) {
  Start(Options());
  for (const char* payload : {"a", "b", "c"}) publisher_->Publish(payload);
  EXPECT_THAT(Replay(1),
              ElementsAre(ElementsAre("", "kv@test", Seq(1), "b"),
                          ElementsAre("", "kv@test", Seq(2), "c"), ElementsAre("", "", kEnd, "")));
  EXPECT_THAT(Replay(3), ElementsAre(ElementsAre("", "", kEnd, "")));
}

TEST_F(EventPublisherTest, ReplayOfTheOldShapeDoesNot) {
  PublisherOptions options = Options();
  options.replay_shape = ReplayShape::kOld;
  Start(options);
  for (const char* payload : {"a", "b"}) publisher_->Publish(payload);
  EXPECT_THAT(Replay(0), ElementsAre(ElementsAre("", Seq(0), "a"), ElementsAre("", Seq(1), "b"),
                                     ElementsAre("", kEnd, "")));
}

TEST_F(EventPublisherTest, ReplayStartsAtTheOldestMessageKept) {
  PublisherOptions options = Options();
  options.buffer_steps = 2;
  Start(options);
  for (const char* payload : {"a", "b", "c", "d"}) publisher_->Publish(payload);
  EXPECT_THAT(Replay(0),
              ElementsAre(ElementsAre("", "kv@test", Seq(2), "c"),
                          ElementsAre("", "kv@test", Seq(3), "d"), ElementsAre("", "", kEnd, "")));
}

TEST_F(EventPublisherTest, MalformedReplayRequestsAreIgnored) {
  Start(Options());
  publisher_->Publish("a");
  zmq::socket_t dealer = Dealer();
  Send(dealer, {Seq(0)});
  Send(dealer, {"", "short"});
  Send(dealer, {"", Seq(0), "more", "and", "more"});
  Send(dealer, {"x", Seq(0)});
  Send(dealer, {"", Seq(0)});
  EXPECT_THAT(*Receive(dealer), ElementsAre("", "kv@test", Seq(0), "a"));
  EXPECT_THAT(*Receive(dealer), ElementsAre("", "", kEnd, ""));
  EXPECT_EQ(Receive(dealer, 100), std::nullopt);
}

TEST_F(EventPublisherTest, LostMessagesStayInTheReplayBuffer) {
  PublisherOptions options = Options();
  options.drop_seqs = {1'000};
  Start(options);
  zmq::socket_t sub = Subscribed();
  while (Receive(sub, 50)) {
  }
  std::uint64_t seq = publisher_->Publish("x");
  while (seq < 999) seq = publisher_->Publish("x");
  while (Receive(sub)->at(1) != Seq(999)) {
  }
  EXPECT_EQ(publisher_->Publish("lost"), 1'000u);
  publisher_->DropNext(2);
  publisher_->Publish("lost too");
  publisher_->Publish("lost too");
  EXPECT_EQ(publisher_->Publish("arrives"), 1'003u);
  EXPECT_THAT(*Receive(sub), ElementsAre("kv@test", Seq(1'003), "arrives"));
  EXPECT_THAT(publisher_->dropped(), ElementsAre(1'000, 1'001, 1'002));
  EXPECT_THAT(Replay(1'000)[0], ElementsAre("", "kv@test", Seq(1'000), "lost"));
}

TEST_F(EventPublisherTest, TheDropRateIsSeededAndRoughlyKept) {
  PublisherOptions options = Options();
  options.replay_endpoint.clear();
  options.drop_rate = 0.1;
  options.drop_seed = 5;
  std::vector<std::uint64_t> first;
  for (int run = 0; run < 2; ++run) {
    Start(options);
    for (int i = 0; i < 2'000; ++i) publisher_->Publish("x");
    const std::vector<std::uint64_t> dropped = publisher_->dropped();
    EXPECT_GT(dropped.size(), 140u);
    EXPECT_LT(dropped.size(), 260u);
    if (run == 0) first = dropped;
    EXPECT_EQ(dropped, first);
  }
  publisher_->SetDropRate(0);
  const std::size_t before = publisher_->dropped().size();
  for (int i = 0; i < 100; ++i) publisher_->Publish("x");
  EXPECT_EQ(publisher_->dropped().size(), before);
}

TEST_F(EventPublisherTest, AnOccupiedPortIsNamed) {
  Start(Options());
  PublisherOptions taken = Options();
  taken.endpoint = publisher_->endpoint();
  EXPECT_THAT(EventPublisher::Create(&context_, taken),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(taken.endpoint)));
}

TEST_F(EventPublisherTest, WithoutReplayThereIsNoReplaySocket) {
  PublisherOptions options = Options();
  options.replay_endpoint.clear();
  Start(options);
  EXPECT_THAT(publisher_->replay_endpoint(), IsEmpty());
}

}  // namespace
}  // namespace warmpath::engine
