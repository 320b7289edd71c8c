// The response's part: the reservation's life, who served, and what the engine counted.
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/ext_proc/machine_fixture.h"

namespace warmpath {
namespace {

using ::testing::IsEmpty;
using namespace ::warmpath::testing;  // NOLINT: the words of these tests

constexpr BodyMode kFullDuplex = ProcessingMode::FULL_DUPLEX_STREAMED;

class MachineResponseTest : public MachineTest {
 protected:
  void Picked(BodyMode response_mode = ProcessingMode::NONE) {
    Start();
    Send(WithModes(ChatHeaders(), kFullDuplex, response_mode));
    ASSERT_EQ(Send(RequestBody(kChat, true)).size(), 2u);
    ASSERT_EQ(backend_.open(), 1);
  }
  v1::OutcomeRequest Last() { return backend_.outcomes().back(); }
};

TEST_F(MachineResponseTest, WithTheBodyOffHeadersAreTheFirstByteAndTheStreamsEndTheLast) {
  Picked();
  const ProcessingResponse answer = Ask(ResponseHeaders("200"));
  ASSERT_TRUE(answer.has_response_headers());
  EXPECT_FALSE(answer.response_headers().has_response()) << "nothing changes";
  EXPECT_EQ(backend_.OutcomeKinds(), "PROGRESS");
  EXPECT_EQ(backend_.open(), 1);
  End();
  EXPECT_EQ(backend_.OutcomeKinds(), "PROGRESS FINISHED");
}

TEST_F(MachineResponseTest, TrailersAreTheEnd) {
  Picked();
  Ask(ResponseHeaders("200"));
  EXPECT_TRUE(Ask(ResponseTrailers()).has_response_trailers());
  EXPECT_EQ(backend_.OutcomeKinds(), "PROGRESS FINISHED");
}

TEST_F(MachineResponseTest, AResponseWithoutABody) {
  Picked();
  Ask(ResponseHeaders("204", true));
  EXPECT_EQ(backend_.OutcomeKinds(), "FINISHED");
}

TEST_F(MachineResponseTest, WithTheBodyOnItsFirstByteIsTheFirstAndItsEndTheLast) {
  Picked(kFullDuplex);
  Ask(ResponseHeaders("200", false, "text/event-stream"));
  EXPECT_EQ(backend_.OutcomeKinds(), "");
  Ask(ResponseBody("a", false));
  EXPECT_EQ(backend_.OutcomeKinds(), "FIRST_TOKEN");
  Ask(ResponseBody("b", false));
  Ask(ResponseBody("", true));
  EXPECT_EQ(backend_.OutcomeKinds(), "FIRST_TOKEN FINISHED");
}

TEST_F(MachineResponseTest, AnAnswerInOnePieceTellsNothingOfItsFirstToken) {
  Picked(kFullDuplex);
  Ask(ResponseHeaders("200", false, "application/json"));
  Ask(ResponseBody("{}", true));
  EXPECT_EQ(backend_.OutcomeKinds(), "PROGRESS FINISHED");
}

TEST_F(MachineResponseTest, AnErrorOfTheWorkerIsAFailure) {
  for (const char* status : {"500", "429", "302", "nonsense"}) {
    Picked();
    EXPECT_TRUE(Ask(ResponseHeaders(status)).has_response_headers());
    EXPECT_EQ(Last().kind(), v1::OUTCOME_KIND_FAILED) << status;
    EXPECT_EQ(backend_.open(), 0);
  }
}

TEST_F(MachineResponseTest, Fault19_AStreamThatEndsBeforeTheResponseIsAFailure) {
  Picked();
  End();
  EXPECT_EQ(backend_.OutcomeKinds(), "FAILED");
}

TEST_F(MachineResponseTest, Fault19_AStreamThatEndsInTheMiddleOfTheBodyIsAFailure) {
  Picked(kFullDuplex);
  Ask(ResponseHeaders("200", false, "text/event-stream"));
  Ask(ResponseBody("a", false));
  End();
  EXPECT_EQ(backend_.OutcomeKinds(), "FIRST_TOKEN FAILED");
}

TEST_F(MachineResponseTest, AProxyThatAnswersByItselfInTheMiddleOfTheRequest) {
  Send(ChatHeaders());
  Send(RequestBody(kChat.substr(0, 10), false));
  EXPECT_TRUE(Ask(ResponseHeaders("413")).has_response_headers());
  EXPECT_EQ(stats_.held_bytes(), 0u);
  EXPECT_TRUE(Ask(RequestBody("rest", true)).has_request_body());
  EXPECT_THAT(backend_.picks(), IsEmpty());
}

// --- Who served

TEST_F(MachineResponseTest, ServedByAnotherMovesTheReservation) {
  Picked();
  Ask(WithServed(ResponseHeaders("200"), "10.0.0.2:8000"));
  EXPECT_EQ(Last().kind(), v1::OUTCOME_KIND_PROGRESS);
  EXPECT_EQ(Last().served_by(), "10.0.0.2:8000");
  EXPECT_EQ(stats_.served_elsewhere(), 1u);
}

TEST_F(MachineResponseTest, ServedByThePickedOneMovesNothing) {
  Picked();
  Ask(WithServed(ResponseHeaders("200"), "10.0.0.1:8000"));
  EXPECT_EQ(Last().served_by(), "");
  EXPECT_EQ(stats_.served_elsewhere(), 0u);
}

TEST_F(MachineResponseTest, AFailureIsTheServersWhoFailed) {
  Picked();
  Ask(WithServed(ResponseHeaders("500"), "10.0.0.2:8000"));
  EXPECT_EQ(Last().kind(), v1::OUTCOME_KIND_FAILED);
  EXPECT_EQ(Last().served_by(), "10.0.0.2:8000");
}

TEST_F(MachineResponseTest, AReservationThatIsClosedAlreadyIsNotReportedAgain) {
  Picked();
  backend_.lost = true;  // its worker went away
  Ask(ResponseHeaders("200"));
  Ask(ResponseTrailers());
  End();
  EXPECT_EQ(backend_.OutcomeKinds(), "PROGRESS");
  backend_.lost = false;
  v1::OutcomeRequest closed;  // so that the fixture's books balance
  closed.set_kind(v1::OUTCOME_KIND_FAILED);
  backend_.Report(closed).IgnoreError();
}

// --- The body

TEST_F(MachineResponseTest, ChunksGoOnAsTheyCame) {
  Picked(kFullDuplex);
  Ask(ResponseHeaders("200", false, "text/event-stream"));
  const ProcessingResponses answers = Send(ResponseBody("data: x\n\n", false));
  EXPECT_EQ(BodyOf(answers).body, "data: x\n\n");
  EXPECT_FALSE(BodyOf(answers).ended);
  const std::string large(150'000, 'l');
  const ProcessingResponses many = Send(ResponseBody(large, true));
  EXPECT_EQ(many.size(), 3u);
  EXPECT_TRUE(BodyOf(many).body == large);
  EXPECT_TRUE(BodyOf(many).ended);
}

TEST_F(MachineResponseTest, InOtherModesChunksAreAnsweredWithNothing) {
  for (const BodyMode mode : {ProcessingMode::STREAMED, ProcessingMode::BUFFERED}) {
    Picked(mode);
    Ask(ResponseHeaders("200"));
    const ProcessingResponse answer = Ask(ResponseBody("x", true));
    EXPECT_TRUE(answer.has_response_body());
    EXPECT_FALSE(answer.response_body().has_response());
  }
}

TEST_F(MachineResponseTest, ChunksOfAProxyThatDoesNotSayHowItSendsThem) {
  SendChat();
  Ask(ResponseHeaders("200"));
  EXPECT_EQ(backend_.OutcomeKinds(), "PROGRESS");
  EXPECT_EQ(BodyOf(Send(ResponseBody("x", false))).body, "x");
  End();
  EXPECT_EQ(backend_.OutcomeKinds(), "PROGRESS FAILED") << "its end was still to come";
}

TEST_F(MachineResponseTest, Fault29_WithTheBodyOffAStreamOfTenThousandChunksCostsTwoMessages) {
  Picked();
  Ask(ResponseHeaders("200", false, "text/event-stream"));
  // 10,000 chunks go from the worker to the client: the proxy, told NONE, sends none of them.
  Ask(ResponseTrailers());
  EXPECT_EQ(stats_.messages(ExtProcStats::kResponseBody), 0u);
  EXPECT_EQ(stats_.messages(ExtProcStats::kResponseHeaders), 1u);
  EXPECT_EQ(backend_.OutcomeKinds(), "PROGRESS FINISHED");
}

TEST_F(MachineResponseTest, Fault29_ChunksThatComeAnywayCostNoWorkOfTheRouter) {
  Picked(kFullDuplex);
  Ask(ResponseHeaders("200", false, "text/event-stream"));
  for (int i = 0; i < 10'000; ++i) Ask(ResponseBody("data: {\"usage\":{}}\n\n", false));
  EXPECT_EQ(stats_.messages(ExtProcStats::kResponseBody), 10'000u);
  EXPECT_EQ(backend_.outcomes().size(), 1u) << "one first token, and nothing for each chunk";
  EXPECT_EQ(backend_.picks().size(), 1u);
  EXPECT_EQ(stats_.usage(true) + stats_.usage(false), 0u) << "accounting is off";
}

// --- Usage

TEST_F(MachineResponseTest, UsageOfAJsonBody) {
  options_.usage_accounting = true;
  Picked(kFullDuplex);
  Ask(ResponseHeaders("200"));
  Ask(ResponseBody(R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4,)", false));
  Ask(ResponseBody(R"("prompt_tokens_details":{"cached_tokens":8}}})", true));
  EXPECT_EQ(Last().kind(), v1::OUTCOME_KIND_FINISHED);
  EXPECT_EQ(Last().actual_prompt_tokens(), 9u);
  EXPECT_EQ(Last().output_tokens(), 4u);
  EXPECT_EQ(Last().actual_cached_tokens(), 8u);
  EXPECT_EQ(stats_.usage(true), 1u);
}

TEST_F(MachineResponseTest, UsageOfTheLastEventThatTrailersEnd) {
  options_.usage_accounting = true;
  Picked(kFullDuplex);
  Ask(ResponseHeaders("200", false, "text/event-stream; charset=utf-8"));
  Ask(ResponseBody("data: {\"usage\":null}\n\ndata: {\"us", false));
  Ask(ResponseBody("age\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n", false));
  Ask(ResponseBody("data: [DONE]\n\n", false));
  Ask(ResponseTrailers());
  EXPECT_EQ(Last().actual_prompt_tokens(), 3u);
  EXPECT_EQ(Last().output_tokens(), 2u);
  EXPECT_FALSE(Last().has_actual_cached_tokens());
}

TEST_F(MachineResponseTest, UsageThatIsMissingIsCounted) {
  options_.usage_accounting = true;
  Picked(kFullDuplex);
  Ask(ResponseHeaders("200"));
  Ask(ResponseBody("{}", true));
  EXPECT_FALSE(Last().has_output_tokens());
  EXPECT_EQ(stats_.usage(false), 1u);
}

}  // namespace
}  // namespace warmpath
