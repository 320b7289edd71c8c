#include "warmpath/client.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "warmpath/v1/router.grpc.pb.h"

namespace warmpath::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

// A router that notes what it is asked and answers what the test wants.
class FakeRouter final : public v1::Router::Service {
 public:
  FakeRouter() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }

  std::unique_ptr<Client> NewClient() {
    return *Client::Create({.address = address_, .deadline = absl::Seconds(10)});
  }

  // Set before the call, read after it.
  v1::PickResponse pick;
  std::vector<v1::PickRequest> picks;
  std::vector<v1::OutcomeRequest> outcomes;
  std::vector<v1::OutcomeBatch> batches;
  std::vector<std::vector<std::uint32_t>> refused;  // of each batch, the indexes not taken
  std::vector<grpc::Status> failures;               // the first calls end so

 private:
  grpc::Status Next() {
    if (failures.empty()) return grpc::Status::OK;
    const grpc::Status status = failures.front();
    failures.erase(failures.begin());
    return status;
  }

  grpc::Status PickEndpoint(grpc::ServerContext*, const v1::PickRequest* request,
                            v1::PickResponse* response) override {
    absl::MutexLock lock(&mu_);
    picks.push_back(*request);
    *response = pick;
    return Next();
  }
  grpc::Status ReportOutcome(grpc::ServerContext*, const v1::OutcomeRequest* request,
                             v1::OutcomeResponse*) override {
    absl::MutexLock lock(&mu_);
    outcomes.push_back(*request);
    return Next();
  }
  grpc::Status ReportOutcomes(grpc::ServerContext*, const v1::OutcomeBatch* request,
                              v1::OutcomeBatchResponse* response) override {
    absl::MutexLock lock(&mu_);
    if (batches.size() < refused.size()) {
      for (const std::uint32_t index : refused[batches.size()]) {
        v1::OutcomeFailure* failure = response->add_failures();
        failure->set_index(index);
        failure->set_status_code(grpc::StatusCode::NOT_FOUND);
        failure->set_status_message("not open");
      }
    }
    batches.push_back(*request);
    return Next();
  }

  absl::Mutex mu_;  // calls follow each other, but on several threads
  std::string address_;
  std::unique_ptr<grpc::Server> server_;  // last: it calls the above
};

TEST(ClientTest, OptionsAreChecked) {
  EXPECT_THAT(Client::Create({}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("address")));
  EXPECT_THAT(Client::Create({.address = "x:1", .max_attempts = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_attempts")));
}

TEST(ClientTest, APickCarriesAllThatItWasGiven) {
  FakeRouter router;
  const auto client = router.NewClient();
  const std::vector<std::uint32_t> tokens = {7, 8, 9};
  ASSERT_THAT(client->Pick({.model = "m",
                            .tokens = tokens,
                            .text = "not looked at",
                            .lora = "a",
                            .cache_salt = "",
                            .session_key = "s",
                            .tenant = "t",
                            .prefix_aware_id = "p",
                            .exclude = {"w1", "10.0.0.2:1"},
                            .request_id = "r",
                            .policy = "random",
                            .expected_output_tokens = 5,
                            .lease = absl::Seconds(3),
                            .max_wait = absl::Milliseconds(40)}),
              IsOk());
  ASSERT_EQ(router.picks.size(), 1u);
  const v1::PickRequest& sent = router.picks[0];
  EXPECT_EQ(sent.model(), "m");
  EXPECT_THAT(sent.tokens().ids(), ElementsAre(7, 8, 9));
  EXPECT_EQ(sent.lora(), "a");
  EXPECT_TRUE(sent.has_cache_salt()) << "an empty salt is a salt";
  EXPECT_EQ(sent.session_key(), "s");
  EXPECT_EQ(sent.tenant(), "t");
  EXPECT_EQ(sent.prefix_aware_id(), "p");
  EXPECT_THAT(sent.exclude(), ElementsAre("w1", "10.0.0.2:1"));
  EXPECT_EQ(sent.request_id(), "r");
  EXPECT_EQ(sent.policy(), "random");
  EXPECT_EQ(sent.expected_output_tokens(), 5u);
  EXPECT_EQ(sent.reservation_lease_ms(), 3000u);
  EXPECT_EQ(sent.max_wait_ms(), 40u);
}

TEST(ClientTest, EachKindOfPrompt) {
  FakeRouter router;
  const auto client = router.NewClient();
  const std::vector<std::uint64_t> chain = {1, 2};
  ASSERT_THAT(client->Pick({.model = "m", .chain = chain, .chain_block_size = 64}), IsOk());
  ASSERT_THAT(client->Pick({.model = "m", .openai_json = "{}", .openai_path = "/v1/completions"}),
              IsOk());
  ASSERT_THAT(client->Pick({.model = "m", .text = "hello"}), IsOk());
  ASSERT_THAT(client->Pick({.model = "m"}), IsOk());
  ASSERT_EQ(router.picks.size(), 4u);
  EXPECT_THAT(router.picks[0].chain().hashes(), ElementsAre(1, 2));
  EXPECT_EQ(router.picks[0].chain().block_size(), 64u);
  EXPECT_EQ(router.picks[1].openai().path(), "/v1/completions");
  EXPECT_EQ(router.picks[1].openai().json(), "{}");
  EXPECT_EQ(router.picks[2].text(), "hello");
  EXPECT_EQ(router.picks[3].prompt_case(), v1::PickRequest::PROMPT_NOT_SET) << "by load alone";
  for (const v1::PickRequest& sent : router.picks) {
    EXPECT_FALSE(sent.has_lora());
    EXPECT_FALSE(sent.has_cache_salt());
  }
}

TEST(ClientTest, TheAnswerIsReadWhole) {
  FakeRouter router;
  router.pick.mutable_endpoint()->mutable_target()->set_worker_id("w");
  router.pick.mutable_endpoint()->mutable_target()->set_rank(2);
  router.pick.mutable_endpoint()->set_address("10.0.0.1:8000");
  (*router.pick.mutable_endpoint()->mutable_headers())["X-data-parallel-rank"] = "2";
  router.pick.add_fallbacks()->set_address("10.0.0.2:8000");
  router.pick.set_reservation_id(77);
  router.pick.set_prompt_tokens(100);
  router.pick.set_predicted_cached_tokens(64);
  router.pick.set_predicted_ttft_ms(12.5);
  router.pick.set_freshness(v1::FRESHNESS_DEGRADED);
  router.pick.set_policy("marginal_cost");
  router.pick.set_reason("prefix");
  router.pick.set_request_id("r");
  const auto answer = router.NewClient()->Pick({.model = "m", .text = "x"});
  ASSERT_THAT(answer, IsOk());
  EXPECT_EQ(answer->endpoint.worker_id, "w");
  EXPECT_EQ(answer->endpoint.rank, 2u);
  EXPECT_EQ(answer->endpoint.address, "10.0.0.1:8000");
  EXPECT_THAT(answer->endpoint.headers, ElementsAre(Pair("X-data-parallel-rank", "2")));
  ASSERT_EQ(answer->fallbacks.size(), 1u);
  EXPECT_EQ(answer->fallbacks[0].address, "10.0.0.2:8000");
  EXPECT_THAT(answer->fallbacks[0].headers, IsEmpty());
  EXPECT_EQ(answer->reservation_id, 77u);
  EXPECT_EQ(answer->prompt_tokens, 100u);
  EXPECT_EQ(answer->predicted_cached_tokens, 64u);
  EXPECT_EQ(answer->predicted_ttft, absl::Milliseconds(12.5));
  EXPECT_EQ(answer->freshness, Freshness::kDegraded);
  EXPECT_EQ(answer->policy, "marginal_cost");
  EXPECT_EQ(answer->reason, "prefix");
  EXPECT_EQ(answer->request_id, "r");
}

TEST(ClientTest, OnlyWhatMayPassIsTriedAgain) {
  FakeRouter router;
  const auto client = router.NewClient();
  const grpc::Status away(grpc::StatusCode::UNAVAILABLE, "away");
  router.failures = {away, away};
  EXPECT_THAT(client->Pick({.model = "m"}), IsOk());
  EXPECT_EQ(router.picks.size(), 3u);
  router.failures = {away, away, away};
  EXPECT_THAT(client->Pick({.model = "m"}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("away")));
  EXPECT_EQ(router.picks.size(), 6u);
  for (const auto code : {grpc::StatusCode::INVALID_ARGUMENT, grpc::StatusCode::NOT_FOUND,
                          grpc::StatusCode::RESOURCE_EXHAUSTED}) {
    router.failures = {grpc::Status(code, "no")};
    EXPECT_THAT(client->Pick({.model = "m"}),
                StatusIs(static_cast<absl::StatusCode>(code), HasSubstr("no")));
  }
  EXPECT_EQ(router.picks.size(), 9u);
}

TEST(ClientTest, AnOutcomeCarriesWhatIsKnown) {
  FakeRouter router;
  const auto client = router.NewClient();
  ASSERT_THAT(client->Report({.reservation_id = 5,
                              .kind = OutcomeKind::kFinished,
                              .served_by = "10.0.0.2:8000",
                              .actual_cached_tokens = 0,
                              .output_tokens = 9,
                              .ttft = absl::Milliseconds(3)}),
              IsOk());
  ASSERT_THAT(client->Report({.reservation_id = 6, .kind = OutcomeKind::kProgress}), IsOk());
  ASSERT_EQ(router.outcomes.size(), 2u);
  const v1::OutcomeRequest& sent = router.outcomes[0];
  EXPECT_EQ(sent.reservation_id(), 5u);
  EXPECT_EQ(sent.kind(), v1::OUTCOME_KIND_FINISHED);
  EXPECT_EQ(sent.served_by(), "10.0.0.2:8000");
  EXPECT_TRUE(sent.has_actual_cached_tokens()) << "none is a number, too";
  EXPECT_FALSE(sent.has_actual_prompt_tokens());
  EXPECT_EQ(sent.output_tokens(), 9u);
  EXPECT_EQ(sent.ttft_ms(), 3);
  EXPECT_EQ(router.outcomes[1].kind(), v1::OUTCOME_KIND_PROGRESS);
  EXPECT_FALSE(router.outcomes[1].has_ttft_ms());
}

TEST(ClientTest, ManyOutcomesGoInFewMessagesEachWithItsStatus) {
  FakeRouter router;
  router.refused = {{0, 1023, 1024}, {1}};  // the third is no outcome of that message
  std::vector<OutcomeArgs> outcomes(1500);
  for (std::size_t i = 0; i < outcomes.size(); ++i) outcomes[i].reservation_id = i + 1;
  const auto statuses = router.NewClient()->ReportAll(outcomes);
  ASSERT_THAT(statuses, IsOk());
  ASSERT_EQ(router.batches.size(), 2u);
  EXPECT_EQ(router.batches[0].outcomes_size(), 1024);
  EXPECT_EQ(router.batches[1].outcomes_size(), 476);
  EXPECT_EQ(router.batches[1].outcomes(0).reservation_id(), 1025u);
  ASSERT_EQ(statuses->size(), 1500u);
  std::vector<std::size_t> bad;
  for (std::size_t i = 0; i < statuses->size(); ++i) {
    if ((*statuses)[i].ok()) continue;
    bad.push_back(i);
    EXPECT_THAT((*statuses)[i], StatusIs(absl::StatusCode::kNotFound, HasSubstr("not open")));
  }
  EXPECT_THAT(bad, ElementsAre(0, 1023, 1025));
  EXPECT_THAT(*router.NewClient()->ReportAll({}), IsEmpty());
}

TEST(ClientTest, WaitingForARouterThatIsNotThereEnds) {
  FakeRouter router;
  EXPECT_THAT(router.NewClient()->WaitConnected(absl::Seconds(10)), IsOk());
  const auto client = Client::Create({.address = "127.0.0.1:1"});
  ASSERT_THAT(client, IsOk());
  EXPECT_THAT((*client)->WaitConnected(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("127.0.0.1:1")));
}

}  // namespace
}  // namespace warmpath::client
