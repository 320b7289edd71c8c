// The stream around the machine, event by event.
#include "server/ext_proc/stream.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/ext_proc/messages.h"
#include "tests/server/ext_proc/scripted_backend.h"
#include "tests/testing/fake_bidi_stream.h"

namespace warmpath {
namespace {

using namespace ::warmpath::testing;  // NOLINT: the words of these tests

using Stream = FakeBidiStream<ProcessingRequest, ProcessingResponse>;

constexpr std::string_view kHeavyChat = R"({"model":"m","prompt":"HEAVY"})";
const absl::Time kAnswerBy = absl::FromUnixSeconds(1000);

class ExtProcStreamTest : public ::testing::Test {
 protected:
  ExtProcStreamTest() {
    options_.pools = [] { return std::vector<std::string>{"m"}; };
  }
  void SetUp() override {
    auto* stream = new ExtProcStream(&options_, &backend_, &stats_, &pool_, 9, kAnswerBy);
    stream->Begin(&registry_);
    stream_.Bind(stream);
  }
  void TearDown() override {
    EXPECT_EQ(backend_.open(), 0);
    EXPECT_EQ(registry_.size(), 0u);
    EXPECT_EQ(stats_.held_bytes(), 0u);
  }
  // A request with its endpoint.
  void Answered() {
    stream_.Deliver(ChatHeaders());
    stream_.Deliver(RequestBody(kChat, true));
    EXPECT_TRUE(stream_.CompleteWrite().has_request_headers());
    EXPECT_TRUE(stream_.CompleteWrite().has_request_body());
  }
  void End() {
    stream_.EndReads();
    stream_.RunToEnd();
  }

  ExtProcOptions options_;
  ScriptedBackend backend_;
  ExtProcStats stats_;
  WorkPool pool_{1, 1};
  ReactorRegistry registry_{"ext_proc", 2, "ext_proc.max_streams"};
  Stream stream_;
};

TEST_F(ExtProcStreamTest, OneRequest) {
  Answered();
  stream_.Deliver(ResponseHeaders("200"));
  EXPECT_TRUE(stream_.CompleteWrite().has_response_headers());
  stream_.EndReads();
  ASSERT_TRUE(stream_.finished());
  EXPECT_TRUE(stream_.status().ok());
  stream_.RunToEnd();
  EXPECT_EQ(backend_.OutcomeKinds(), "PROGRESS FINISHED");
}

// gRPC would hold the initial metadata back with it, and then nothing might ever send either.
TEST_F(ExtProcStreamTest, AStreamsFirstWriteIsNotHeldBack) {
  stream_.Deliver(ChatHeaders());
  stream_.Deliver(
      RequestBody(absl::StrCat("{\"prompt\":\"", std::string(70'000, 'x'), "\"}"), true));
  EXPECT_FALSE(stream_.held_back());
  EXPECT_TRUE(stream_.CompleteWrite().has_request_headers());
  EXPECT_TRUE(stream_.held_back()) << "two chunks in one packet";
  EXPECT_TRUE(stream_.CompleteWrite().has_request_body());
  EXPECT_FALSE(stream_.held_back());
  stream_.CompleteWrite();
  End();
}

TEST_F(ExtProcStreamTest, ARefusalEndsTheStreamWithOk) {
  backend_.refusal = {absl::UnavailableError("none"), {}};
  stream_.Deliver(ChatHeaders());
  stream_.Deliver(RequestBody(kChat, true));
  EXPECT_EQ(StatusOf(stream_.CompleteWrite()), 503);
  ASSERT_TRUE(stream_.finished()) << "the proxy has no more use for it";
  EXPECT_TRUE(stream_.status().ok()) << "an error of gRPC would hide the answer";
  stream_.RunToEnd();
}

TEST_F(ExtProcStreamTest, Fault19_ACancelInTheMiddleOfTheBodyLeavesNothing) {
  stream_.Deliver(ChatHeaders());
  stream_.Deliver(RequestBody(kChat.substr(0, 10), false));
  EXPECT_EQ(stats_.held_bytes(), 10u);
  stream_.Cancel();
  stream_.RunToEnd();
}

TEST_F(ExtProcStreamTest, Fault19_ACancelAfterThePickReleases) {
  stream_.Deliver(ChatHeaders());
  stream_.Deliver(RequestBody(kChat, true));  // its answer is in flight
  EXPECT_EQ(backend_.open(), 1);
  stream_.Cancel();
  stream_.RunToEnd();
  EXPECT_EQ(backend_.OutcomeKinds(), "FAILED");
}

TEST_F(ExtProcStreamTest, HeavyPicksRunInThePoolAndNothingIsReadMeanwhile) {
  absl::Notification go;
  absl::Notification running;
  ASSERT_TRUE(pool_.TrySubmit([&] {
    running.Notify();
    go.WaitForNotification();
  }));
  running.WaitForNotification();
  stream_.Deliver(ChatHeaders());
  stream_.Deliver(RequestBody(kHeavyChat, true));
  EXPECT_FALSE(stream_.writing());
  EXPECT_FALSE(stream_.reading()) << "the machine is the pool's";
  go.Notify();
  pool_.Stop();
  EXPECT_TRUE(stream_.CompleteWrite().has_request_headers());
  EXPECT_TRUE(stream_.CompleteWrite().has_request_body());
  EXPECT_TRUE(stream_.reading());
  End();
}

TEST_F(ExtProcStreamTest, Fault19_AHeavyPickOfAVanishedClientReservesNothing) {
  absl::Notification go;
  absl::Notification running;
  ASSERT_TRUE(pool_.TrySubmit([&] {
    running.Notify();
    go.WaitForNotification();
  }));
  running.WaitForNotification();
  stream_.Deliver(ChatHeaders());
  stream_.Deliver(RequestBody(kHeavyChat, true));
  stream_.Cancel();
  EXPECT_FALSE(stream_.finished()) << "the job refers to the stream";
  go.Notify();
  pool_.Stop();
  stream_.RunToEnd();
  EXPECT_TRUE(backend_.picks().empty());
}

TEST_F(ExtProcStreamTest, AFullPoolRefusesAtTheDoor) {
  absl::Notification go;
  absl::Notification running;
  ASSERT_TRUE(pool_.TrySubmit([&] {
    running.Notify();
    go.WaitForNotification();
  }));
  running.WaitForNotification();
  ASSERT_TRUE(pool_.TrySubmit([] {}));
  stream_.Deliver(ChatHeaders());
  stream_.Deliver(RequestBody(kHeavyChat, true));
  const ProcessingResponse answer = stream_.CompleteWrite();
  EXPECT_EQ(StatusOf(answer), 429);
  EXPECT_EQ(HeaderOf(answer, "retry-after"), "1");
  stream_.RunToEnd();
  go.Notify();
  pool_.Stop();  // whose thread may still be looking at `go`
}

TEST_F(ExtProcStreamTest, ADrainLetsRequestsThatHaveTheirEndpointGoOn) {
  Answered();
  registry_.DrainAll(absl::UnavailableError("bye"));
  ASSERT_TRUE(stream_.finished());
  EXPECT_TRUE(stream_.status().ok()) << "the proxy goes on without us";
  stream_.RunToEnd();
}

TEST_F(ExtProcStreamTest, ADrainLetsARequestThatIsStillComingHaveItsEndpoint) {
  stream_.Deliver(ChatHeaders());
  registry_.DrainAll(absl::UnavailableError("bye"));
  EXPECT_FALSE(stream_.finished());
  stream_.Deliver(RequestBody(kChat, true));
  EXPECT_TRUE(stream_.CompleteWrite().has_request_headers());
  EXPECT_FALSE(stream_.finished()) << "the body is still to be sent";
  EXPECT_TRUE(stream_.CompleteWrite().has_request_body());
  ASSERT_TRUE(stream_.finished());
  EXPECT_TRUE(stream_.status().ok());
  stream_.RunToEnd();
}

TEST_F(ExtProcStreamTest, ARequestThatDoesNotBecomeWholeInTimeIs408) {
  stream_.Deliver(ChatHeaders());
  registry_.TickAll(kAnswerBy - absl::Seconds(1));
  EXPECT_FALSE(stream_.writing());
  registry_.TickAll(kAnswerBy);
  EXPECT_EQ(StatusOf(stream_.CompleteWrite()), 408);
  ASSERT_TRUE(stream_.finished());
  EXPECT_TRUE(stream_.status().ok());
  stream_.RunToEnd();
  EXPECT_EQ(stats_.refusals().at({408, "request_timeout"}), 1u);
}

TEST_F(ExtProcStreamTest, AProxyThatOnlyWatchesIsNotTimedOut) {
  ProcessingRequest headers = ChatHeaders();
  headers.set_observability_mode(true);
  stream_.Deliver(headers);
  registry_.TickAll(kAnswerBy);
  EXPECT_FALSE(stream_.writing());
  End();
}

TEST_F(ExtProcStreamTest, ALongResponseIsNotTimedOut) {
  Answered();
  registry_.TickAll(kAnswerBy + absl::Hours(1));
  EXPECT_FALSE(stream_.writing());
  EXPECT_FALSE(stream_.finished());
  End();
}

TEST_F(ExtProcStreamTest, AProxyThatDoesNotReadIsNotReadFrom) {
  Answered();
  for (std::size_t i = 0; i < ExtProcStream::kWindow + 1; ++i) {
    ASSERT_TRUE(stream_.reading()) << i;
    stream_.Deliver(ResponseBody("x", false));
  }
  EXPECT_FALSE(stream_.reading());
  stream_.CompleteWrite();
  EXPECT_TRUE(stream_.reading());
  stream_.Cancel();
  stream_.RunToEnd();
}

// Plays the events in this order; then nothing may be left.
void PlayInOrder(const std::vector<int>& events, std::string_view body, WorkPool& pool,
                 bool stop_pool) {
  ExtProcOptions options;
  options.pools = [] { return std::vector<std::string>{"m"}; };
  ScriptedBackend backend;
  ExtProcStats stats;
  ReactorRegistry registry{"ext_proc", 1};
  Stream stream;
  auto* reactor = new ExtProcStream(&options, &backend, &stats, &pool, 9, kAnswerBy);
  reactor->Begin(&registry);
  stream.Bind(reactor);
  for (const int event : events) {
    const bool open = stream.reading() && !stream.finished();
    if (event == 0 && open) stream.Deliver(ChatHeaders());
    if (event == 1 && open) stream.Deliver(RequestBody(body, true));
    if (event == 2 && open) stream.Deliver(ResponseHeaders("200"));
    if (event == 3 && stream.writing()) stream.CompleteWrite();
    if (event == 4) stream.Cancel();
    if (event == 5) registry.DrainAll(absl::UnavailableError("bye"));
    if (event == 6 && stream.reading()) stream.EndReads();
    if (event == 7) registry.TickAll(kAnswerBy);
  }
  if (stop_pool) pool.Stop();
  stream.Cancel();  // a drained request that never gets its body would stay open
  stream.RunToEnd();
  ASSERT_EQ(backend.open(), 0);
  ASSERT_EQ(registry.size(), 0u);
  ASSERT_EQ(stats.held_bytes(), 0u);
}

// Every order of a request's messages, a write that ends, a cancel, a drain, the end of reads and a
// tick: one Finish, and nothing stays reserved.
TEST(ExtProcStreamOrderTest, EveryOrderOfEventsEndsWell) {
  WorkPool idle(1, 1);
  std::vector<int> events = {0, 1, 2, 3, 4, 5, 6, 7};
  do {
    PlayInOrder(events, kChat, idle, /*stop_pool=*/false);
  } while (std::next_permutation(events.begin(), events.end()) && !::testing::Test::HasFailure());
}

TEST(ExtProcStreamOrderTest, EveryOrderOfEventsAroundAHeavyPickEndsWell) {
  std::vector<int> events = {0, 1, 2, 3, 4, 5, 6};
  do {
    WorkPool pool(1, 8);
    PlayInOrder(events, kHeavyChat, pool, /*stop_pool=*/true);
  } while (std::next_permutation(events.begin(), events.end()) && !::testing::Test::HasFailure());
}

}  // namespace
}  // namespace warmpath
