#include "server/pick_stream.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/outcome_batch.h"
#include "tests/server/fake_pick_backend.h"
#include "tests/testing/fake_bidi_stream.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::warmpath::testing::FakeBidiStream;
using ::warmpath::testing::FakePickBackend;

using Stream = FakeBidiStream<v1::PickStreamRequest, v1::PickStreamResponse>;
constexpr HolderId kHolder = 11;

v1::PickStreamRequest Pick(std::uint64_t tag, const std::string& model = "m") {
  v1::PickStreamRequest request;
  request.set_tag(tag);
  request.mutable_pick()->set_model(model);
  return request;
}

v1::PickStreamRequest HeavyPick(std::uint64_t tag) {
  v1::PickStreamRequest request = Pick(tag);
  request.mutable_pick()->set_text("text");
  return request;
}

v1::PickStreamRequest Hello(const std::string& instance) {
  v1::PickStreamRequest request;
  request.mutable_hello()->set_client_instance(instance);
  return request;
}

v1::PickStreamRequest Outcome(std::uint64_t tag, std::uint64_t id) {
  v1::PickStreamRequest request;
  request.set_tag(tag);
  request.mutable_outcome()->set_reservation_id(id);
  return request;
}

class PickStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto* stream = new PickStream(&backend_, &pool_, kHolder);
    stream->Begin(&registry_);
    stream_.Bind(stream);
  }
  v1::PickStreamResponse Ask(const v1::PickStreamRequest& request) {
    stream_.Deliver(request);
    return stream_.CompleteWrite();
  }
  void End() {
    stream_.EndReads();
    stream_.RunToEnd();
  }

  FakePickBackend backend_;
  WorkPool pool_{1, 4};
  ReactorRegistry registry_{"pick", 1};
  Stream stream_;
};

TEST_F(PickStreamTest, ResponsesCarryTheTagOfTheirRequest) {
  const v1::PickStreamResponse pick = Ask(Pick(42));
  EXPECT_EQ(pick.tag(), 42u);
  EXPECT_EQ(pick.status_code(), 0);
  EXPECT_EQ(pick.pick().endpoint().address(), "10.0.0.1:8000");
  const v1::PickStreamResponse outcome = Ask(Outcome(43, 1));
  EXPECT_EQ(outcome.tag(), 43u);
  EXPECT_TRUE(outcome.has_outcome());
  EXPECT_THAT(backend_.held(), ElementsAre(Pair(kHolder, 1u)));
  End();
}

TEST_F(PickStreamTest, FailuresAreAnsweredAndTheStreamGoesOn) {
  const v1::PickStreamResponse refused = Ask(Pick(1, "refused"));
  EXPECT_EQ(refused.status_code(), 8);
  EXPECT_EQ(refused.retry_after_ms(), 1500u);
  EXPECT_FALSE(refused.has_pick());
  const v1::PickStreamResponse outcome = Ask(Outcome(2, 404));
  EXPECT_EQ(outcome.status_code(), 5);
  EXPECT_THAT(outcome.status_message(), HasSubstr("not open"));
  const v1::PickStreamResponse empty = Ask(v1::PickStreamRequest());
  EXPECT_EQ(empty.status_code(), 3);
  EXPECT_EQ(Ask(Pick(3)).status_code(), 0);
  End();
}

TEST_F(PickStreamTest, ABatchOfOutcomesListsWhatWasNotTaken) {
  v1::PickStreamRequest batch;
  batch.set_tag(7);
  for (const std::uint64_t id : {1u, 404u, 2u}) {
    batch.mutable_outcomes()->add_outcomes()->set_reservation_id(id);
  }
  const v1::PickStreamResponse response = Ask(batch);
  EXPECT_EQ(response.tag(), 7u);
  EXPECT_EQ(response.status_code(), 0);
  ASSERT_EQ(response.outcomes().failures_size(), 1);
  EXPECT_EQ(response.outcomes().failures(0).index(), 1u);
  EXPECT_EQ(response.outcomes().failures(0).status_code(), 5);
  EXPECT_THAT(response.outcomes().failures(0).status_message(), HasSubstr("not open"));
  EXPECT_THAT(backend_.reported(), ElementsAre(1u, 404u, 2u));
  End();
}

TEST_F(PickStreamTest, ABatchOverTheLimitIsRefusedWhole) {
  v1::PickStreamRequest batch;
  for (int i = 0; i < kMaxOutcomesPerBatch; ++i) batch.mutable_outcomes()->add_outcomes();
  EXPECT_EQ(Ask(batch).status_code(), 0);
  batch.mutable_outcomes()->add_outcomes();
  const v1::PickStreamResponse response = Ask(batch);
  EXPECT_EQ(response.status_code(), 3);
  EXPECT_FALSE(response.has_outcomes());
  EXPECT_THAT(response.status_message(), HasSubstr("send at most 1024"));
  EXPECT_EQ(backend_.reported().size(), static_cast<std::size_t>(kMaxOutcomesPerBatch));
  End();
}

TEST_F(PickStreamTest, Fault19_TheEndOfTheStreamReleasesItsHolder) {
  Ask(Pick(1));
  End();
  EXPECT_THAT(backend_.released(), ElementsAre(Pair(kHolder, "")));
}

TEST_F(PickStreamTest, Fault19_AVanishedClientReleasesItsHolder) {
  stream_.Deliver(Pick(1));  // its answer is in flight
  stream_.Cancel();
  stream_.RunToEnd();
  EXPECT_THAT(backend_.released(), ElementsAre(Pair(kHolder, "")));
}

TEST_F(PickStreamTest, HelloAdoptsAndNamesTheClientAtTheEnd) {
  const std::string instance(16, 'i');
  EXPECT_EQ(Ask(Hello(instance)).hello().adopted_reservations(), 3u);
  End();
  EXPECT_THAT(backend_.released(), ElementsAre(Pair(kHolder, instance)));
}

TEST_F(PickStreamTest, HelloMustComeFirstAndHave16Bytes) {
  EXPECT_THAT(Ask(Hello("short")).status_message(), HasSubstr("client_instance"));
  EXPECT_THAT(Ask(Hello(std::string(16, 'i'))).status_message(), HasSubstr("first message"));
  End();
  EXPECT_THAT(backend_.released(), ElementsAre(Pair(kHolder, "")));
}

TEST_F(PickStreamTest, AClientThatDoesNotReadIsNotReadFrom) {
  for (std::size_t i = 0; i < PickStream::kWindow + 1; ++i) {
    ASSERT_TRUE(stream_.reading()) << i;
    stream_.Deliver(Pick(i));
  }
  EXPECT_FALSE(stream_.reading());
  stream_.CompleteWrite();
  EXPECT_TRUE(stream_.reading());
  stream_.EndReads();
  while (stream_.writing()) stream_.CompleteWrite();
  ASSERT_TRUE(stream_.finished());
  EXPECT_TRUE(stream_.status().ok());
  stream_.RunToEnd();
}

// The pool has one thread; this keeps it busy until the test lets go.
class Blocker {
 public:
  explicit Blocker(WorkPool* pool) {
    EXPECT_TRUE(pool->TrySubmit([this] {
      started_.Notify();
      release_.WaitForNotification();
      ended_.Notify();
    }));
    started_.WaitForNotification();
  }
  ~Blocker() {
    Release();
    ended_.WaitForNotification();  // the job looks at release_ until then
  }
  void Release() {
    if (!release_.HasBeenNotified()) release_.Notify();
  }

 private:
  absl::Notification started_;
  absl::Notification release_;
  absl::Notification ended_;
};

TEST_F(PickStreamTest, HeavyPicksRunInThePoolAndLightOnesPassThem) {
  {
    Blocker blocker(&pool_);
    stream_.Deliver(HeavyPick(1));
    EXPECT_FALSE(stream_.writing());
    EXPECT_EQ(Ask(Pick(2)).tag(), 2u);
    stream_.EndReads();
    EXPECT_FALSE(stream_.finished()) << "the heavy pick is still to be answered";
  }
  pool_.Stop();
  ASSERT_TRUE(stream_.writing());
  EXPECT_EQ(stream_.CompleteWrite().tag(), 1u);
  ASSERT_TRUE(stream_.finished());
  stream_.RunToEnd();
  EXPECT_EQ(backend_.held().size(), 2u);
}

TEST_F(PickStreamTest, AFullPoolRefusesAtTheDoor) {
  Blocker blocker(&pool_);
  for (std::uint64_t i = 0; i < 4; ++i) stream_.Deliver(HeavyPick(i));
  const v1::PickStreamResponse refused = Ask(HeavyPick(9));
  EXPECT_EQ(refused.tag(), 9u);
  EXPECT_EQ(refused.status_code(), 8);
  EXPECT_GT(refused.retry_after_ms(), 0u);
  EXPECT_THAT(refused.status_message(), HasSubstr("heavy_queue"));
  blocker.Release();
  pool_.Stop();
  stream_.EndReads();
  while (stream_.writing()) stream_.CompleteWrite();
  stream_.RunToEnd();
}

TEST_F(PickStreamTest, Fault19_AHeavyPickOfAVanishedClientReservesNothing) {
  {
    Blocker blocker(&pool_);
    stream_.Deliver(HeavyPick(1));
    stream_.Cancel();
    EXPECT_FALSE(stream_.finished()) << "the job refers to the stream";
  }
  pool_.Stop();
  ASSERT_TRUE(stream_.finished());
  EXPECT_TRUE(backend_.held().empty());
  stream_.RunToEnd();
  EXPECT_THAT(backend_.released(), ElementsAre(Pair(kHolder, "")));
}

// Every order of two picks, an outcome, a write that ends, a cancel, a drain and the end of reads:
// one Finish, one release, after everything else.
TEST(PickStreamOrderTest, EveryOrderOfEventsEndsWell) {
  std::vector<int> events = {0, 1, 2, 3, 4, 5, 6};
  do {
    FakePickBackend backend;
    WorkPool pool(1, 8);
    ReactorRegistry registry{"pick", 1};
    Stream stream;
    auto* reactor = new PickStream(&backend, &pool, kHolder);
    reactor->Begin(&registry);
    stream.Bind(reactor);
    for (const int event : events) {
      const bool open = stream.reading() && !stream.finished();
      if (event == 0 && open) stream.Deliver(Pick(1));
      if (event == 1 && open) stream.Deliver(HeavyPick(2));
      if (event == 2 && open) stream.Deliver(Outcome(3, 1));
      if (event == 3 && stream.writing()) stream.CompleteWrite();
      if (event == 4) stream.Cancel();
      if (event == 5) registry.DrainAll(absl::UnavailableError("bye"));
      if (event == 6 && stream.reading()) stream.EndReads();
    }
    pool.Stop();
    stream.RunToEnd();
    ASSERT_EQ(backend.released().size(), 1u);
    ASSERT_EQ(registry.size(), 0u);
  } while (std::next_permutation(events.begin(), events.end()) && !::testing::Test::HasFailure());
}

}  // namespace
}  // namespace warmpath
