// What a pick is asked with, what its answer becomes, and refusals.
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/ext_proc/machine_fixture.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using namespace ::warmpath::testing;  // NOLINT: the words of these tests

using MachinePickTest = MachineTest;

// --- Subsets

TEST_F(MachinePickTest, ASubsetAsAList) {
  Send(WithSubset(ChatHeaders(), {"10.0.0.2:8000", "10.0.0.3"}));
  Send(RequestBody(kChat, true));
  EXPECT_TRUE(backend_.picks()[0].subset_present());
  EXPECT_THAT(backend_.picks()[0].subset(), ElementsAre("10.0.0.2:8000", "10.0.0.3"));
}

TEST_F(MachinePickTest, Fault26_ASubsetAsAStringIsHonoured) {
  Send(WithSubsetText(ChatHeaders(), " 10.0.0.2:8000, 10.0.0.3 ,[::1]:8000,"));
  Send(RequestBody(kChat, true));
  EXPECT_TRUE(backend_.picks()[0].subset_present());
  EXPECT_THAT(backend_.picks()[0].subset(), ElementsAre("10.0.0.2:8000", "10.0.0.3", "[::1]:8000"));
}

TEST_F(MachinePickTest, Fault26_ASubsetOfAnotherKindDoesNotOpenThePool) {
  ProcessingRequest headers = ChatHeaders();
  MetadataValue(headers, kSubsetNamespace, kSubsetKey).set_number_value(1);
  Send(headers);
  Send(RequestBody(kChat, true));
  EXPECT_TRUE(backend_.picks()[0].subset_present());
  EXPECT_EQ(backend_.picks()[0].subset_size(), 0);
}

TEST_F(MachinePickTest, AnEmptySubsetIsPresent) {
  for (const ProcessingRequest& headers :
       {WithSubset(ChatHeaders(), {}), WithSubsetText(ChatHeaders(), "")}) {
    Start();
    Send(headers);
    Send(RequestBody(kChat, true));
    EXPECT_TRUE(backend_.picks().back().subset_present());
    EXPECT_EQ(backend_.picks().back().subset_size(), 0);
  }
}

TEST_F(MachinePickTest, TheSubsetMayComeWithTheBody) {
  Send(ChatHeaders());
  Send(WithSubset(RequestBody(kChat, true), {"10.0.0.2:8000"}));
  EXPECT_THAT(backend_.picks()[0].subset(), ElementsAre("10.0.0.2:8000"));
}

// --- Headers

TEST_F(MachinePickTest, ControlHeadersAreReadAndDoNotReachTheWorker) {
  const HeaderList newer = {{"x-llm-d-inference-fairness-id", "tenant"},
                            {"x-llm-d-inference-objective", "batch"},
                            {"x-llm-d-slo-ttft-ms", "250"},
                            {"x-llm-d-slo-tpot-ms", "12.5"},
                            {"x-amzn-sagemaker-prefix-aware-id", "prefix"}};
  const HeaderList older = {{"x-gateway-inference-fairness-id", "tenant"},
                            {"x-gateway-inference-objective", "batch"},
                            {"x-slo-ttft-ms", "250"},
                            {"x-slo-tpot-ms", "12.5"},
                            {"x-amzn-sagemaker-prefix-aware-id", "prefix"}};
  options_.decision_metadata = true;
  for (const HeaderList& headers : {newer, older}) {
    Start();
    const ProcessingResponses answers = SendChat(headers);
    const v1::PickRequest pick = backend_.picks().back();
    EXPECT_EQ(pick.slo_ttft_ms(), 250u);
    EXPECT_EQ(pick.slo_tpot_ms(), 13u);
    EXPECT_EQ(pick.prefix_aware_id(), "prefix");
    EXPECT_EQ(pick.tenant(), "tenant");
    EXPECT_EQ(pick.request_id(), "id-1");
    std::vector<std::string> names;
    for (const auto& [name, value] : headers) names.push_back(name);
    EXPECT_THAT(RemovedBy(answers[0]), ::testing::UnorderedElementsAreArray(names));
    const auto& decision =
        answers[0].dynamic_metadata().fields().at("warmpath").struct_value().fields();
    EXPECT_EQ(decision.at("fairness_id").string_value(), "tenant");
    EXPECT_EQ(decision.at("objective").string_value(), "batch");
    EXPECT_EQ(decision.at("worker").string_value(), "w0");
  }
}

TEST_F(MachinePickTest, TheNewerSpellingRules) {
  SendChat({{"x-slo-ttft-ms", "1"}, {"x-llm-d-slo-ttft-ms", "2"}});
  EXPECT_EQ(backend_.picks()[0].slo_ttft_ms(), 2u);
}

TEST_F(MachinePickTest, ControlHeadersThatMakeNoSenseAreNamed) {
  for (const char* value : {"soon", "-1", "nan", "1e300"}) {
    Start();
    const ProcessingResponse answer = Ask(ChatHeaders({{"x-slo-ttft-ms", value}}));
    EXPECT_EQ(StatusOf(answer), 400) << value;
    EXPECT_THAT(answer.immediate_response().body(), HasSubstr("x-slo-ttft-ms"));
  }
}

TEST_F(MachinePickTest, AnEmptyPrefixAwareIdIsABadRequest) {
  EXPECT_EQ(StatusOf(Ask(ChatHeaders({{"x-amzn-sagemaker-prefix-aware-id", ""}}))), 400);
}

TEST_F(MachinePickTest, TheLongestWaitOfOneRequest) {
  const ProcessingResponses answers = SendChat({{"x-warmpath-max-wait-ms", "1500"}});
  EXPECT_EQ(backend_.picks()[0].max_wait_ms(), 1500u);
  EXPECT_THAT(RemovedBy(answers[0]), ElementsAre("x-warmpath-max-wait-ms"));
}

TEST_F(MachinePickTest, SessionKeysInOrder) {
  const HeaderList keys = {{"x-session-id", "a"},
                           {"x-session-token", "b"},
                           {"x-session-affinity", "c"},
                           {"x-claude-code-session-id", "d"}};
  for (std::size_t first = 0; first < keys.size(); ++first) {
    Start();
    const HeaderList headers(keys.begin() + static_cast<std::ptrdiff_t>(first), keys.end());
    const ProcessingResponses answers = SendChat(headers);
    EXPECT_EQ(backend_.picks().back().session_key(), keys[first].second);
    EXPECT_THAT(RemovedBy(answers[0]), IsEmpty()) << "they may be meant for others, too";
  }
}

TEST_F(MachinePickTest, ARequestIdIsMadeWhenThereIsNone) {
  const HeaderList headers = {{":method", "POST"}, {":path", "/v1/chat/completions"}};
  Send(RequestHeaders(headers));
  const ProcessingResponses answers = Send(RequestBody(kChat, true));
  EXPECT_EQ(HeaderOf(answers[0], "x-request-id"), "made-1");
  Start();
  EXPECT_EQ(HeaderOf(SendChat()[0], "x-request-id"), std::nullopt);
  Start();
  // Too long to name a reservation by: left alone.
  Send(
      RequestHeaders({{":path", "/v1/chat/completions"}, {"x-request-id", std::string(300, 'i')}}));
  const ProcessingResponses kept = Send(RequestBody(kChat, true));
  EXPECT_EQ(HeaderOf(kept[0], "x-request-id"), std::nullopt);
  EXPECT_EQ(backend_.picks().back().request_id(), "");
}

TEST_F(MachinePickTest, ValuesMayComeAsTextOrAsBytes) {
  ProcessingRequest request = RequestHeaders({{":path", "/v1/completions?x=y"}});
  auto* header = request.mutable_request_headers()->mutable_headers()->add_headers();
  header->set_key("x-session-id");
  header->set_value("text");
  Send(request);
  Send(RequestBody(R"({"model":"m","prompt":"x"})", true));
  EXPECT_EQ(backend_.picks()[0].session_key(), "text");
  EXPECT_EQ(backend_.picks()[0].openai().path(), "/v1/completions");
}

// --- The answer

TEST_F(MachinePickTest, FallbacksCanBeSwitchedOff) {
  options_.fallbacks = false;
  const ProcessingResponses answers = SendChat();
  EXPECT_EQ(EndpointHeaderOf(answers[0]), "10.0.0.1:8000");
  EXPECT_EQ(EndpointMetadataOf(answers[0]), "10.0.0.1:8000");
}

TEST_F(MachinePickTest, ARankBehindASharedPortIsReachedByItsHeader) {
  backend_.SetEndpoints({"10.0.0.1:8000", "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"});
  (*backend_.answer.mutable_endpoint()->mutable_headers())["X-data-parallel-rank"] = "3";
  const char* const ranks[] = {"1", "3", "2"};
  for (int i = 0; i < 3; ++i) {
    (*backend_.answer.mutable_fallbacks(i)->mutable_headers())["X-data-parallel-rank"] = ranks[i];
  }
  const ProcessingResponses answers = SendChat();
  EXPECT_EQ(HeaderOf(answers[0], "X-data-parallel-rank"), "3");
  // A fallback gets the same header, so only the same rank of another worker will do.
  EXPECT_EQ(EndpointHeaderOf(answers[0]), "10.0.0.1:8000,10.0.0.2:8000");
}

// --- Model rewrite

TEST_F(MachinePickTest, TheModelIsRewrittenBeforeThePick) {
  const std::string body = R"( { "messages" : [{"role":"user","model":"x"}], "model" : "old" } )";
  const std::string wanted =
      R"( { "messages" : [{"role":"user","model":"x"}], "model" : "new\"" } )";
  for (const char* name : {"x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"}) {
    Start();
    const ProcessingResponses answers = SendChat({{name, "new\""}}, body);
    EXPECT_EQ(BodyOf(answers).body, wanted);
    EXPECT_EQ(HeaderOf(answers[0], "content-length"), absl::StrCat(wanted.size()));
    EXPECT_THAT(RemovedBy(answers[0]), ElementsAre(name));
    EXPECT_EQ(backend_.picks().back().model(), "new\"");
    EXPECT_EQ(backend_.picks().back().openai().json(), wanted);
  }
}

TEST_F(MachinePickTest, ARewrittenBodyInTheOtherModes) {
  const HeaderList headers = {{"x-llm-d-model-name-rewrite", "n"}};
  const std::string wanted = R"({"model":"n","messages":[{"role":"user","content":"hi"}]})";
  Ask(WithModes(ChatHeaders(headers), ProcessingMode::BUFFERED));
  const ProcessingResponse buffered = Ask(RequestBody(kChat, true));
  EXPECT_EQ(buffered.request_body().response().body_mutation().body(), wanted);
  EXPECT_EQ(HeaderOf(buffered, "content-length"), absl::StrCat(wanted.size()));

  Start();
  Send(WithModes(ChatHeaders(headers), ProcessingMode::STREAMED, ProcessingMode::NONE, true));
  Send(RequestBody(kChat.substr(0, 20), false));
  const ProcessingResponses streamed = Send(RequestBody(kChat.substr(20), true));
  ASSERT_EQ(KindsOf(streamed), "request_headers request_body request_body");
  EXPECT_EQ(streamed[1].request_body().response().body_mutation().body(), wanted);
  EXPECT_TRUE(streamed[2].request_body().response().body_mutation().clear_body());
}

TEST_F(MachinePickTest, ALargeRewrittenBodyGoesOnInChunks) {
  const std::string text(200'000, 'x');
  const ProcessingResponses answers =
      SendChat({{"x-llm-d-model-name-rewrite", "a-longer-name"}},
               absl::StrCat(R"({"model":"m","prompt":")", text, R"("})"));
  const std::string wanted = absl::StrCat(R"({"model":"a-longer-name","prompt":")", text, R"("})");
  EXPECT_TRUE(BodyOf(answers).body == wanted);
  EXPECT_TRUE(BodyOf(answers).ended);
  EXPECT_LE(BodyOf(answers).largest_chunk, 62'000u);
  EXPECT_EQ(answers.size(), 1u + 4u);
}

TEST_F(MachinePickTest, ABodyThatCanNotBeRewrittenIsABadRequest) {
  for (const char* body : {"", "[1]", "no JSON", R"({"model":"m")", R"({"model":"m"} x)"}) {
    Start();
    const ProcessingResponses answers = SendChat({{"x-llm-d-model-name-rewrite", "n"}}, body);
    ASSERT_EQ(answers.size(), 1u) << body;
    EXPECT_EQ(StatusOf(answers[0]), 400) << body;
  }
}

// --- prefer: if-available

TEST_F(MachinePickTest, IfAvailableWithoutACachedPrefixIs412AndReservesNothing) {
  const ProcessingResponses answers = SendChat({{"prefer", "if-available"}});
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(StatusOf(answers[0]), 412);
  EXPECT_EQ(ReasonOf(answers[0]), "no_cached_prefix");
  EXPECT_EQ(backend_.open(), 0);
  EXPECT_THAT(backend_.outcomes(), IsEmpty()) << "no reservation was ever made";
}

TEST_F(MachinePickTest, IfAvailableWithACachedPrefixIsPicked) {
  backend_.cached_tokens = backend_.cached_tokens_dry = 64;
  const ProcessingResponses answers = SendChat({{"prefer", " respond-async, If-Available"}});
  EXPECT_EQ(KindsOf(answers), "request_headers request_body");
  EXPECT_THAT(RemovedBy(answers[0]), IsEmpty()) << "the worker may know the other preference";
  Start();
  EXPECT_THAT(RemovedBy(SendChat({{"prefer", "if-available"}})[0]), ElementsAre("prefer"));
}

TEST_F(MachinePickTest, IfAvailableThatIsGoneByThePickIsReleased) {
  backend_.cached_tokens_dry = 64;
  EXPECT_EQ(StatusOf(SendChat({{"prefer", "if-available"}})[0]), 412);
  EXPECT_EQ(backend_.OutcomeKinds(), "FAILED");
}

// --- Refusals

struct RefusalCase {
  absl::Status status;
  absl::Duration retry_after;
  int http_status;
  const char* reason;
};

TEST_F(MachinePickTest, RefusalsAreHttpAnswersWithAReason) {
  const RefusalCase cases[] = {
      {absl::InvalidArgumentError("model: is empty"), {}, 400, "bad_request"},
      {absl::NotFoundError("model"), {}, 404, "unknown_model"},
      {absl::UnavailableError("none"), {}, 503, "no_ready_worker"},
      {absl::FailedPreconditionError("subset"), {}, 503, "no_worker_in_subset"},
      {absl::ResourceExhaustedError("KV"), {}, 413, "prompt_too_large"},
      {absl::ResourceExhaustedError("wait"), absl::Milliseconds(1200), 429, "overloaded"},
      {absl::InternalError("bug"), {}, 500, "internal"},
  };
  for (const RefusalCase& test : cases) {
    Start();
    backend_.refusal = {test.status, test.retry_after};
    const ProcessingResponses answers = SendChat();
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_EQ(StatusOf(answers[0]), test.http_status);
    EXPECT_EQ(ReasonOf(answers[0]), test.reason);
    EXPECT_EQ(HeaderOf(answers[0], "content-type"), "application/json");
    EXPECT_EQ(HeaderOf(answers[0], "x-request-id"), "id-1");
    EXPECT_EQ(HeaderOf(answers[0], "retry-after").has_value(),
              test.retry_after > absl::ZeroDuration());
    EXPECT_THAT(answers[0].immediate_response().body(), HasSubstr(R"({"error":{"code":")"));
    EXPECT_TRUE(machine_->refused());
    // Whatever else the proxy sends is not answered.
    EXPECT_THAT(Send(ResponseHeaders("200")), IsEmpty());
    EXPECT_EQ(stats_.refusals().at({test.http_status, test.reason}), 1u);
  }
}

TEST_F(MachinePickTest, RetryAfterIsInWholeSeconds) {
  backend_.refusal = {absl::ResourceExhaustedError("wait"), absl::Milliseconds(1200)};
  EXPECT_EQ(HeaderOf(SendChat()[0], "retry-after"), "2");
}

TEST_F(MachinePickTest, WhileNoWorkerHasComeModelsAreNotUnknown) {
  pools_.clear();
  backend_.refusal = {absl::NotFoundError("model"), {}};
  EXPECT_EQ(StatusOf(SendChat()[0]), 503);
}

TEST_F(MachinePickTest, InvalidJsonIsABadRequest) {
  EXPECT_EQ(StatusOf(SendChat({}, "no JSON")[0]), 400);
}

TEST_F(MachinePickTest, TheDefaultModelIsForBodiesWithoutOne) {
  options_.default_model = "d";
  SendChat({}, R"({"messages":[]})");
  EXPECT_EQ(backend_.picks().back().model(), "d");
  Start();
  SendChat();
  EXPECT_EQ(backend_.picks().back().model(), "") << "the body names one";
}

}  // namespace
}  // namespace warmpath
