#include "server/bidi_reactor.h"

#include <deque>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_bidi_stream.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::warmpath::testing::FakeBidiStream;

using Stream = FakeBidiStream<v1::PickStreamRequest, v1::PickStreamResponse>;

struct Witness {
  std::vector<std::uint64_t> seen;
  int ended = 0;
  int held = 0;
};

// Echoes the tag. Tag 100 is refused, 101 throws, odd tags below 100 are answered by work elsewhere
// (a hold), which the test completes.
class Echo final : public BidiReactor<v1::PickStreamRequest, v1::PickStreamResponse> {
 public:
  explicit Echo(Witness* witness) : witness_(witness) {}

  // `still_locked` runs after everything else, with mu() held.
  void CompleteHeld(absl::FunctionRef<void()> still_locked = [] {}) {
    absl::MutexLock lock(&mu());
    pending_.push_back(held_.front());
    held_.pop_front();
    --witness_->held;
    ReleaseHold();
    still_locked();
  }

 private:
  absl::Status OnMessage(v1::PickStreamRequest& request) override {
    witness_->seen.push_back(request.tag());
    if (request.tag() == 100) return absl::InvalidArgumentError("tag: refused");
    if (request.tag() == 101) throw std::runtime_error("boom");
    absl::MutexLock lock(&mu());
    if (request.tag() % 2 == 1) {
      AddHold();
      ++witness_->held;
      held_.push_back(request.tag());
    } else {
      pending_.push_back(request.tag());
    }
    return absl::OkStatus();
  }
  bool NextResponse(v1::PickStreamResponse* response) noexcept override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) {
    if (pending_.empty()) return false;
    response->set_tag(pending_.front());
    pending_.pop_front();
    return true;
  }
  bool PauseReads() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) {
    return pending_.size() + held_.size() >= 2;
  }
  void OnEnd() override { ++witness_->ended; }

  Witness* const witness_;
  std::deque<std::uint64_t> pending_ ABSL_GUARDED_BY(mu());
  std::deque<std::uint64_t> held_ ABSL_GUARDED_BY(mu());
};

v1::PickStreamRequest Tagged(std::uint64_t tag) {
  v1::PickStreamRequest request;
  request.set_tag(tag);
  return request;
}

class BidiReactorTest : public ::testing::Test {
 protected:
  void Open() {
    reactor_ = new Echo(&witness_);
    reactor_->Begin(&registry_);
    stream_.Bind(reactor_);
  }

  ReactorRegistry registry_{"pick", 2};
  Witness witness_;
  Echo* reactor_ = nullptr;
  Stream stream_;
};

TEST_F(BidiReactorTest, TheNextReadStartsOnlyAfterTheMessageWasDealtWith) {
  Open();
  ASSERT_TRUE(stream_.reading());
  stream_.Deliver(Tagged(2));
  EXPECT_TRUE(stream_.writing());
  EXPECT_TRUE(stream_.reading());
  EXPECT_EQ(stream_.CompleteWrite().tag(), 2u);
  stream_.EndReads();
  ASSERT_TRUE(stream_.finished());
  EXPECT_TRUE(stream_.status().ok());
  stream_.RunToEnd();
  EXPECT_EQ(witness_.ended, 1);
  EXPECT_EQ(registry_.size(), 0u);
}

TEST_F(BidiReactorTest, ReadsPauseWhileResponsesPileUp) {
  Open();
  stream_.Deliver(Tagged(2));  // in flight
  stream_.Deliver(Tagged(4));
  stream_.Deliver(Tagged(6));
  EXPECT_FALSE(stream_.reading()) << "two responses wait";
  EXPECT_EQ(stream_.CompleteWrite().tag(), 2u);
  EXPECT_TRUE(stream_.reading());
  stream_.EndReads();
  EXPECT_FALSE(stream_.finished()) << "responses are still to be sent";
  EXPECT_EQ(stream_.CompleteWrite().tag(), 4u);
  EXPECT_EQ(stream_.CompleteWrite().tag(), 6u);
  ASSERT_TRUE(stream_.finished());
  stream_.RunToEnd();
}

TEST_F(BidiReactorTest, FinishWaitsForTheWriteInFlight) {
  Open();
  stream_.Deliver(Tagged(2));
  reactor_->Close(absl::AbortedError("superseded"));
  EXPECT_FALSE(stream_.finished());
  reactor_->Close(absl::InternalError("second"));
  stream_.CompleteWrite();
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(stream_.status().error_message(), "superseded");
  stream_.RunToEnd();
}

TEST_F(BidiReactorTest, ARefusedMessageEndsTheStreamWithItsStatus) {
  Open();
  stream_.Deliver(Tagged(100));
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  stream_.RunToEnd();
}

TEST_F(BidiReactorTest, AnExceptionEndsTheStreamWithInternal) {
  Open();
  stream_.Deliver(Tagged(101));
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(stream_.status().error_message(), "unexpected: boom");
  stream_.RunToEnd();
}

TEST_F(BidiReactorTest, CancelFinishes) {
  Open();
  stream_.Cancel();
  ASSERT_TRUE(stream_.finished());
  stream_.RunToEnd();
  EXPECT_EQ(witness_.ended, 1);
}

TEST_F(BidiReactorTest, AHoldKeepsTheReactorAlive) {
  Open();
  stream_.Deliver(Tagged(1));
  stream_.Cancel();
  EXPECT_FALSE(stream_.finished()) << "work elsewhere still refers to the reactor";
  reactor_->CompleteHeld();
  ASSERT_TRUE(stream_.finished());
  stream_.RunToEnd();
}

TEST_F(BidiReactorTest, DrainAnswersWhatWasRead) {
  Open();
  stream_.Deliver(Tagged(2));
  stream_.Deliver(Tagged(1));
  registry_.DrainAll(absl::UnavailableError("bye"));
  EXPECT_FALSE(stream_.finished());
  stream_.CompleteWrite();
  reactor_->CompleteHeld();
  ASSERT_TRUE(stream_.writing());
  EXPECT_EQ(stream_.CompleteWrite().tag(), 1u);
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_code(), grpc::StatusCode::UNAVAILABLE);
  stream_.RunToEnd();
}

TEST_F(BidiReactorTest, StreamsBeyondTheLimitAreRefused) {
  Open();
  Stream second;
  auto* second_reactor = new Echo(&witness_);
  second_reactor->Begin(&registry_);
  second.Bind(second_reactor);
  Stream third;
  auto* third_reactor = new Echo(&witness_);
  third_reactor->Begin(&registry_);
  third.Bind(third_reactor);
  ASSERT_TRUE(third.finished());
  EXPECT_EQ(third.status().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(third.status().error_message().find("max_pick_streams"), std::string::npos);
  third.RunToEnd();
  second.Cancel();
  second.RunToEnd();
  stream_.Cancel();
  stream_.RunToEnd();
  EXPECT_EQ(witness_.ended, 3);
}

TEST_F(BidiReactorTest, WhoComesWhileDrainingIsRefused) {
  registry_.DrainAll(absl::UnavailableError("bye"));
  Open();
  ASSERT_TRUE(stream_.finished());
  EXPECT_EQ(stream_.status().error_code(), grpc::StatusCode::UNAVAILABLE);
  stream_.RunToEnd();
}

// --- All orders of what gRPC, the client and the rest of the server may do.

enum class Event {
  kDeliver,
  kDeliverHeld,
  kEndReads,
  kWriteOk,
  kWriteFails,
  kCancel,
  kClose,
  kDrain,
  kHeldDone
};

class Order {
 public:
  // Plays the events; false when one is not possible at its place (then the order is no order).
  bool Play(const std::vector<Event>& events) {
    reactor_ = new Echo(&witness_);
    reactor_->Begin(&registry_);
    stream_.Bind(reactor_);
    for (const Event event : events) {
      if (!Step(event)) return Finish(false);
    }
    return Finish(true);
  }

 private:
  bool Step(Event event) {
    switch (event) {
      case Event::kDeliver:
      case Event::kDeliverHeld:
        if (!stream_.reading() || stream_.finished()) return false;
        delivered_ += 1;
        stream_.Deliver(Tagged(delivered_ * 2 + (event == Event::kDeliverHeld ? 1 : 0)));
        return true;
      case Event::kEndReads:
        if (!stream_.reading()) return false;
        stream_.EndReads();
        return true;
      case Event::kWriteOk:
      case Event::kWriteFails:
        if (!stream_.writing()) return false;
        sent_.push_back(stream_.CompleteWrite(event == Event::kWriteOk).tag());
        return true;
      case Event::kCancel:
        if (std::exchange(cancelled_, true)) return false;
        stream_.Cancel();
        return true;
      case Event::kClose:
        reactor_->Close(absl::AbortedError("closed"));
        return true;
      case Event::kDrain:
        registry_.DrainAll(absl::UnavailableError("bye"));
        return true;
      case Event::kHeldDone:
        if (witness_.held == 0) return false;
        reactor_->CompleteHeld();
        return true;
    }
    return false;
  }

  // Whatever happened: it ends, once, after everything under way has ended.
  bool Finish(bool valid) {
    while (witness_.held > 0) reactor_->CompleteHeld();
    if (!stream_.finished() && !cancelled_) stream_.Cancel();
    stream_.RunToEnd();
    EXPECT_EQ(witness_.ended, 1);
    EXPECT_EQ(registry_.size(), 0u);
    return valid;
  }

  ReactorRegistry registry_{"pick", 1};
  Witness witness_;
  Echo* reactor_ = nullptr;
  Stream stream_;
  std::uint64_t delivered_ = 0;
  bool cancelled_ = false;
  std::vector<std::uint64_t> sent_;
};

int PlayAll(std::vector<Event>& prefix, std::size_t depth) {
  Order order;
  if (!order.Play(prefix) || ::testing::Test::HasFailure()) return 0;
  int count = 1;
  if (prefix.size() == depth) return count;
  for (const Event event :
       {Event::kDeliver, Event::kDeliverHeld, Event::kEndReads, Event::kWriteOk, Event::kWriteFails,
        Event::kCancel, Event::kClose, Event::kDrain, Event::kHeldDone}) {
    prefix.push_back(event);
    count += PlayAll(prefix, depth);
    if (::testing::Test::HasFailure()) {
      std::string names;
      for (const Event e : prefix) names += std::to_string(static_cast<int>(e)) + " ";
      ADD_FAILURE() << "in the order " << names;
      return count;
    }
    prefix.pop_back();
  }
  return count;
}

TEST(BidiReactorOrderTest, EveryOrderOfEventsEndsWell) {
  std::vector<Event> prefix;
  EXPECT_GT(PlayAll(prefix, 6), 5'000);
}

// Work elsewhere releases the last hold, which finishes the stream; gRPC may call OnDone before
// that thread has left mu().
TEST(BidiReactorOrderTest, TheEndWaitsForWhoeverReleasedTheLastHold) {
  for (int round = 0; round < 200; ++round) {
    ReactorRegistry registry{"pick", 1};
    Witness witness;
    Stream stream;
    auto* reactor = new Echo(&witness);
    reactor->Begin(&registry);
    stream.Bind(reactor);
    stream.Deliver(Tagged(1));
    stream.Cancel();
    stream.EndReads();
    ASSERT_FALSE(stream.finished()) << "the hold";
    std::thread done;
    reactor->CompleteHeld([&] {
      ASSERT_TRUE(stream.finished());
      done = std::thread([&] { stream.RunToEnd(); });
      while (registry.size() > 0) std::this_thread::yield();  // OnDone has begun
      EXPECT_EQ(witness.ended, 0);
    });
    done.join();
    EXPECT_EQ(witness.ended, 1);
  }
}

// Reactions of one stream run at the same time in gRPC: a reader, a writer, a cancel and work
// elsewhere, on real threads, many times. Its worth is under ThreadSanitizer.
TEST(BidiReactorOrderTest, ReactionsOnSeveralThreads) {
  for (int round = 0; round < 200; ++round) {
    ReactorRegistry registry{"pick", 1};
    Witness witness;
    Stream stream;
    auto* reactor = new Echo(&witness);
    reactor->Begin(&registry);
    stream.Bind(reactor);
    std::thread reader([&] {
      for (std::uint64_t tag = 2; tag < 12 && stream.reading(); tag += 2) {
        stream.Deliver(Tagged(tag));
      }
    });
    std::thread writer([&] {
      for (int i = 0; i < 50; ++i) {
        if (stream.writing()) stream.CompleteWrite();
      }
    });
    std::thread ender([&, round] {
      if (round % 3 == 0) reactor->Close(absl::AbortedError("x"));
      if (round % 3 == 1) registry.DrainAll(absl::UnavailableError("y"));
      if (round % 3 == 2) reactor->Wake();
    });
    reader.join();
    writer.join();
    ender.join();
    if (!stream.finished()) stream.Cancel();
    stream.RunToEnd();
    EXPECT_EQ(witness.ended, 1);
  }
}

}  // namespace
}  // namespace warmpath
