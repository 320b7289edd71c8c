// The request's part of the protocol: what is answered when, in every mode of the body.
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/ext_proc/machine_fixture.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace ::warmpath::testing;  // NOLINT: the words of these tests

using MachineRequestTest = MachineTest;

std::string BigChat(std::size_t bytes) {
  return absl::StrCat(R"({"model":"m","messages":[{"role":"user","content":")",
                      std::string(bytes, 'x'), R"("}]})");
}

TEST_F(MachineRequestTest, HeadersWaitForTheBodyThenComeFirst) {
  EXPECT_THAT(Send(ChatHeaders()), IsEmpty());
  EXPECT_THAT(Send(RequestBody(kChat.substr(0, 9), false)), IsEmpty());
  EXPECT_THAT(backend_.picks(), IsEmpty());
  const ProcessingResponses answers = Send(RequestBody(kChat.substr(9), true));
  EXPECT_EQ(KindsOf(answers), "request_headers request_body");
  EXPECT_EQ(EndpointHeaderOf(answers[0]), "10.0.0.1:8000,10.0.0.2:8000");
  EXPECT_EQ(EndpointMetadataOf(answers[0]), EndpointHeaderOf(answers[0]));
  EXPECT_TRUE(answers[0].request_headers().response().clear_route_cache());
  EXPECT_EQ(BodyOf(answers).body, kChat);
  EXPECT_TRUE(BodyOf(answers).ended);
  ASSERT_EQ(backend_.picks().size(), 1u);
  EXPECT_EQ(backend_.picks()[0].openai().json(), kChat);
  EXPECT_EQ(backend_.picks()[0].openai().path(), "/v1/chat/completions");
  EXPECT_FALSE(backend_.picks()[0].subset_present());
}

TEST_F(MachineRequestTest, HeadersThatDoNotChangeAreNotEchoed) {
  const ProcessingResponses answers = SendChat();
  const auto mutation = MutationOf(answers[0]);
  ASSERT_EQ(mutation.set_headers_size(), 1);
  EXPECT_EQ(mutation.set_headers(0).header().key(), kEndpointHeader);
  EXPECT_EQ(mutation.set_headers(0).header().value(), "") << "one of value and raw_value";
  EXPECT_EQ(mutation.remove_headers_size(), 0);
}

// Every split of a small request, in each mode, with and without trailers at its end.
TEST_F(MachineRequestTest, TheBodyMayBeSplitAnywhere) {
  for (const bool trailers : {false, true}) {
    for (const BodyMode mode : {ProcessingMode::FULL_DUPLEX_STREAMED, ProcessingMode::STREAMED}) {
      for (std::size_t i = 0; i <= kChat.size(); ++i) {
        SCOPED_TRACE(absl::StrCat("split at ", i, ", mode ", mode, ", trailers ", trailers));
        Start();
        Send(WithModes(ChatHeaders(), mode, ProcessingMode::NONE, /*without_waiting=*/true));
        EXPECT_THAT(Send(RequestBody(kChat.substr(0, i), false)), IsEmpty());
        ProcessingResponses answers = Send(RequestBody(kChat.substr(i), !trailers));
        if (trailers) {
          EXPECT_THAT(answers, IsEmpty());
          answers = Send(RequestTrailers());
        }
        ASSERT_EQ(backend_.picks().size(), 1u + stats_.messages(ExtProcStats::kRequestHeaders) - 1);
        EXPECT_EQ(backend_.picks().back().openai().json(), kChat);
        ASSERT_FALSE(answers.empty());
        EXPECT_EQ(EndpointHeaderOf(answers[0]), "10.0.0.1:8000,10.0.0.2:8000");
        const std::string end = trailers ? " request_trailers" : "";
        if (mode == ProcessingMode::STREAMED) {
          EXPECT_EQ(KindsOf(answers), "request_headers request_body request_body" + end);
          EXPECT_FALSE(answers[1].request_body().response().has_body_mutation());
        } else {
          EXPECT_EQ(KindsOf(answers), "request_headers request_body" + end);
          EXPECT_EQ(BodyOf(answers).body, kChat);
          // Only a chunk of the request that was the last one may have a last one for an answer.
          EXPECT_EQ(BodyOf(answers).ended, !trailers);
        }
        End();
        ASSERT_EQ(backend_.open(), 0);
      }
    }
  }
}

TEST_F(MachineRequestTest, ByteByByte) {
  Send(ChatHeaders());
  for (std::size_t i = 0; i + 1 < kChat.size(); ++i) {
    EXPECT_THAT(Send(RequestBody(kChat.substr(i, 1), false)), IsEmpty());
  }
  const ProcessingResponses answers = Send(RequestBody(kChat.substr(kChat.size() - 1), true));
  EXPECT_EQ(BodyOf(answers).body, kChat);
  EXPECT_EQ(backend_.picks().back().openai().json(), kChat);
}

TEST_F(MachineRequestTest, TheLastChunkMayBeEmpty) {
  Send(ChatHeaders());
  Send(RequestBody(kChat, false));
  const ProcessingResponses answers = Send(RequestBody("", true));
  EXPECT_EQ(BodyOf(answers).body, kChat);
  EXPECT_TRUE(BodyOf(answers).ended);
}

TEST_F(MachineRequestTest, BufferedBodiesGetTheirEndpointWithTheBody) {
  const ProcessingResponse headers = Ask(WithModes(ChatHeaders(), ProcessingMode::BUFFERED));
  EXPECT_TRUE(headers.has_request_headers());
  EXPECT_FALSE(headers.request_headers().has_response()) << "nothing is known yet";
  const ProcessingResponse body = Ask(RequestBody(kChat, true));
  ASSERT_TRUE(body.has_request_body());
  EXPECT_EQ(EndpointHeaderOf(body), "10.0.0.1:8000,10.0.0.2:8000");
  EXPECT_EQ(EndpointMetadataOf(body), EndpointHeaderOf(body));
  EXPECT_TRUE(body.request_body().response().clear_route_cache());
  EXPECT_FALSE(body.request_body().response().has_body_mutation()) << "the body stays";
}

TEST_F(MachineRequestTest, BufferedBodiesBeforeTrailersHaveNoEnd) {
  Ask(WithModes(ChatHeaders(), ProcessingMode::BUFFERED));
  EXPECT_TRUE(Ask(RequestBody(kChat, false)).has_request_body());
  EXPECT_TRUE(Ask(RequestTrailers()).has_request_trailers());
}

TEST_F(MachineRequestTest, OfAPartOfABodyOnlyTheModelIsUsed) {
  Ask(WithModes(ChatHeaders(), ProcessingMode::BUFFERED_PARTIAL));
  const ProcessingResponse body = Ask(RequestBody(kChat.substr(0, 40), false));
  EXPECT_NE(EndpointHeaderOf(body), "");
  EXPECT_EQ(backend_.picks()[0].model(), "m");
  EXPECT_FALSE(backend_.picks()[0].has_openai());
}

TEST_F(MachineRequestTest, APartialBodyThatIsWholeIsUsedAsSuch) {
  for (const bool end : {true, false}) {  // false: trailers follow
    Start();
    Ask(WithModes(ChatHeaders(), ProcessingMode::BUFFERED_PARTIAL));
    EXPECT_NE(EndpointHeaderOf(Ask(RequestBody(kChat, end))), "");
    EXPECT_EQ(backend_.picks().back().openai().json(), kChat);
    End();
  }
}

TEST_F(MachineRequestTest, WithoutABodyTheHeadersDecide) {
  options_.default_model = "m";
  for (const BodyMode mode : {ProcessingMode::NONE, ProcessingMode::STREAMED}) {
    Start();
    const ProcessingResponse headers = Ask(WithModes(ChatHeaders(), mode));
    EXPECT_EQ(EndpointHeaderOf(headers), "10.0.0.1:8000,10.0.0.2:8000");
    EXPECT_FALSE(backend_.picks().back().has_openai());
    // STREAMED: the chunks come afterwards and pass.
    const ProcessingResponse body = Ask(RequestBody(kChat, true));
    EXPECT_TRUE(body.has_request_body());
    EXPECT_FALSE(body.request_body().has_response());
    End();
  }
}

TEST_F(MachineRequestTest, ARequestWithoutABodyIsPickedByLoadAtOnce) {
  const ProcessingResponse answer = Ask(WithSubset(GetHeaders(), {"10.0.0.2:8000"}));
  EXPECT_EQ(EndpointHeaderOf(answer), "10.0.0.1:8000,10.0.0.2:8000");
  ASSERT_EQ(backend_.picks().size(), 1u);
  EXPECT_EQ(backend_.picks()[0].prompt_case(), v1::PickRequest::PROMPT_NOT_SET);
  EXPECT_EQ(backend_.picks()[0].model(), "m");
  EXPECT_THAT(backend_.picks()[0].subset(), ElementsAre("10.0.0.2:8000"));
}

TEST_F(MachineRequestTest, ARequestWithoutABodyMayGoToAnyPool) {
  pools_ = {"a", "b", "c"};
  backend_.only_model = "b";
  EXPECT_NE(EndpointHeaderOf(Ask(GetHeaders())), "");
  EXPECT_EQ(backend_.picks().size(), 2u);
  backend_.only_model = "none of them";
  Start();
  EXPECT_EQ(StatusOf(Ask(GetHeaders())), 404);
  pools_.clear();
  Start();
  EXPECT_EQ(StatusOf(Ask(GetHeaders())), 503);
}

TEST_F(MachineRequestTest, AnEmptyFrameMayEndARequestWithoutABody) {
  EXPECT_THAT(Send(GetHeaders({}, false)), IsEmpty());
  const ProcessingResponses answers = Send(RequestBody("", true));
  EXPECT_EQ(KindsOf(answers), "request_headers request_body");
  EXPECT_TRUE(BodyOf(answers).ended);
  EXPECT_FALSE(backend_.picks()[0].has_openai());
}

TEST_F(MachineRequestTest, UploadedFilesAreNotRead) {
  options_.default_model = "whisper";
  Send(ChatHeaders());
  End();
  const HeaderList headers = {{":method", "POST"},
                              {":path", "/v1/audio/transcriptions?x=1"},
                              {"content-type", "multipart/form-data; boundary=b"}};
  Send(RequestHeaders(headers));
  const ProcessingResponses answers = Send(RequestBody("--b\r\n\xff\xfe", true));
  EXPECT_EQ(BodyOf(answers).body, "--b\r\n\xff\xfe");
  EXPECT_FALSE(backend_.picks()[0].has_openai());
  EXPECT_EQ(backend_.picks()[0].model(), "whisper");
}

TEST_F(MachineRequestTest, Fault27_ABodyThatTrailersEndIsAnswered) {
  Send(ChatHeaders());
  EXPECT_THAT(Send(RequestBody(kChat, false)), IsEmpty());
  const ProcessingResponses answers = Send(RequestTrailers());
  EXPECT_EQ(KindsOf(answers), "request_headers request_body request_trailers");
  EXPECT_EQ(BodyOf(answers).body, kChat);
}

TEST_F(MachineRequestTest, Fault27_TrailersWithoutABodyAreAnswered) {
  Send(GetHeaders({}, false));
  EXPECT_EQ(KindsOf(Send(RequestTrailers())), "request_headers request_trailers");
  // After the end of the body, as some proxies send them.
  Start();
  SendChat();
  EXPECT_TRUE(Ask(RequestTrailers()).has_request_trailers());
}

TEST_F(MachineRequestTest, Fault25_BodiesOf64And128KilobytesAnd4Megabytes) {
  for (const std::size_t size :
       {64u << 10, (64u << 10) + 1, 128u << 10, (128u << 10) + 1, 4u << 20}) {
    for (const std::size_t piece : {std::size_t{16} << 10, std::size_t{64} << 10, size + 100}) {
      SCOPED_TRACE(absl::StrCat(size, " bytes in pieces of ", piece));
      const std::string body = BigChat(size);
      Start();
      Send(ChatHeaders({{"content-length", absl::StrCat(body.size())}}));
      ProcessingResponses answers;
      for (std::size_t at = 0; at < body.size(); at += piece) {
        const bool last = at + piece >= body.size();
        answers = Send(RequestBody(std::string_view(body).substr(at, piece), last));
      }
      ASSERT_FALSE(answers.empty());
      EXPECT_NE(EndpointHeaderOf(answers[0]), "");
      const PassedBody passed = BodyOf(answers);
      EXPECT_TRUE(passed.body == body);
      EXPECT_TRUE(passed.ended);
      EXPECT_LE(passed.largest_chunk, 62'000u);
      EXPECT_TRUE(backend_.picks().back().openai().json() == body);
      End();
    }
  }
}

TEST_F(MachineRequestTest, Fault25_ABodyOverTheLimitIs413AndNotHeld) {
  options_.max_body_bytes = 1000;
  Send(ChatHeaders());
  EXPECT_THAT(Send(RequestBody(std::string(600, ' '), false)), IsEmpty());
  EXPECT_EQ(stats_.held_bytes(), 600u);
  const ProcessingResponse answer = Ask(RequestBody(std::string(401, ' '), false));
  EXPECT_EQ(StatusOf(answer), 413);
  EXPECT_EQ(ReasonOf(answer), "body_too_large");
  EXPECT_THAT(answer.immediate_response().body(), HasSubstr("ext_proc.max_body_bytes"));
  EXPECT_EQ(stats_.held_bytes(), 0u);
  EXPECT_TRUE(machine_->refused());
  EXPECT_THAT(Send(RequestBody("more", true)), IsEmpty());
  EXPECT_THAT(backend_.picks(), IsEmpty());
  // Exactly the limit is no error of size.
  Start();
  options_.max_body_bytes = kChat.size();
  EXPECT_EQ(KindsOf(SendChat()), "request_headers request_body");
}

TEST_F(MachineRequestTest, AllBodiesTogetherAreBounded) {
  options_.max_buffered_bytes = 1000;
  ASSERT_TRUE(stats_.HoldBytes(900, 1000));  // another stream's
  Send(ChatHeaders());
  const ProcessingResponse answer = Ask(RequestBody(std::string(101, ' '), false));
  EXPECT_EQ(StatusOf(answer), 429);
  EXPECT_EQ(HeaderOf(answer, "retry-after"), "1");
  EXPECT_EQ(stats_.held_bytes(), 900u);
  stats_.ReleaseBytes(900);
}

TEST_F(MachineRequestTest, OrderThatMakesNoSenseIsABadRequest) {
  EXPECT_EQ(StatusOf(Ask(RequestBody(kChat, true))), 400);
  Start();
  EXPECT_EQ(StatusOf(Ask(RequestTrailers())), 400);
  Start();
  Send(ChatHeaders());
  EXPECT_EQ(StatusOf(Ask(ChatHeaders())), 400);
  Start();
  EXPECT_THAT(Send(ProcessingRequest()), IsEmpty());
}

TEST_F(MachineRequestTest, AProxyThatOnlyWatchesGetsNoAnswers) {
  ProcessingRequest headers = ChatHeaders();
  headers.set_observability_mode(true);
  EXPECT_THAT(Send(headers), IsEmpty());
  EXPECT_THAT(Send(RequestBody(kChat, true)), IsEmpty());
  EXPECT_THAT(Send(ResponseHeaders("200")), IsEmpty());
  EXPECT_THAT(backend_.picks(), IsEmpty());
}

TEST_F(MachineRequestTest, AClientThatGivesUpInTheMiddleOfItsBodyLeavesNothing) {
  Send(ChatHeaders());
  Send(RequestBody(kChat.substr(0, 10), false));
  EXPECT_EQ(stats_.held_bytes(), 10u);
  End();
  EXPECT_THAT(backend_.picks(), IsEmpty());
  EXPECT_THAT(backend_.outcomes(), IsEmpty());
}

}  // namespace
}  // namespace warmpath
