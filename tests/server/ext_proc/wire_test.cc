// A whole router, asked over real connections as a gateway asks it.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "envoy/service/ext_proc/v3/external_processor.grpc.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/ext_proc/messages.h"
#include "tests/server/test_router.h"

namespace warmpath {
namespace {

using ::envoy::service::ext_proc::v3::ExternalProcessor;
using namespace ::warmpath::testing;  // NOLINT: the words of these tests

// One HTTP request.
class Call {
 public:
  explicit Call(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(ExternalProcessor::NewStub(channel)) {
    SetDeadline(context_);
    stream_ = stub_->Process(&context_);
  }
  ~Call() {
    if (!finished_) {
      context_.TryCancel();
      stream_->Finish();
    }
  }

  bool Send(const ProcessingRequest& request) { return stream_->Write(request); }
  // An answer that says nothing when the stream has ended.
  ProcessingResponse Read() {
    ProcessingResponse answer;
    stream_->Read(&answer);
    return answer;
  }
  ProcessingResponse Ask(const ProcessingRequest& request) {
    Send(request);
    return Read();
  }
  // The proxy is done with the stream.
  grpc::Status Finish() {
    finished_ = true;
    stream_->WritesDone();
    ProcessingResponse rest;
    while (stream_->Read(&rest)) {
    }
    return stream_->Finish();
  }
  void Abort() { context_.TryCancel(); }

 private:
  std::unique_ptr<ExternalProcessor::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<ProcessingRequest, ProcessingResponse>> stream_;
  bool finished_ = false;
};

std::uint32_t InFlight(TestRouter& router, const std::string& worker) {
  return router.TargetOf(worker).inflight();
}

class ExtProcWireTest : public ::testing::Test {
 protected:
  TestRouter router_;
};

TEST_F(ExtProcWireTest, AChatRequestFromBeginningToEnd) {
  TestWorker worker(router_, {.id = "w0", .address = "10.0.0.1:8000"});
  worker.Join();
  Call call(router_.NewChannel());
  call.Send(ChatHeaders());
  call.Send(RequestBody(kChat, true));
  const ProcessingResponse headers = call.Read();
  ASSERT_TRUE(headers.has_request_headers()) << headers.DebugString();
  EXPECT_EQ(EndpointHeaderOf(headers), "10.0.0.1:8000");
  EXPECT_EQ(EndpointMetadataOf(headers), "10.0.0.1:8000");
  const ProcessingResponse body = call.Read();
  const auto& chunk = body.request_body().response().body_mutation().streamed_response();
  EXPECT_EQ(chunk.body(), kChat);
  EXPECT_TRUE(chunk.end_of_stream());
  EXPECT_EQ(InFlight(router_, "w0"), 1u);
  EXPECT_TRUE(call.Ask(ResponseHeaders("200")).has_response_headers());
  EXPECT_EQ(InFlight(router_, "w0"), 1u);
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_TRUE(Eventually([&] { return InFlight(router_, "w0") == 0; }));
}

TEST_F(ExtProcWireTest, NoWorkerIs503AndAnUnknownModel404) {
  {
    Call call(router_.NewChannel());
    call.Send(ChatHeaders());
    EXPECT_EQ(StatusOf(call.Ask(RequestBody(kChat, true))), 503);
    EXPECT_TRUE(call.Finish().ok()) << "an HTTP answer, no gRPC error";
  }
  TestWorker worker(router_, {.id = "w0", .address = "10.0.0.1:8000"});
  worker.Join();
  Call call(router_.NewChannel());
  call.Send(ChatHeaders());
  const ProcessingResponse answer =
      call.Ask(RequestBody(R"({"model":"other","messages":[]})", true));
  EXPECT_EQ(StatusOf(answer), 404);
  EXPECT_EQ(ReasonOf(answer), "unknown_model");
  EXPECT_THAT(answer.immediate_response().body(), ::testing::HasSubstr("NOT_FOUND"));
  EXPECT_TRUE(call.Finish().ok());
}

TEST_F(ExtProcWireTest, Fault19_AnAbortedRequestReleasesItsReservation) {
  TestWorker worker(router_, {.id = "w0", .address = "10.0.0.1:8000"});
  worker.Join();
  Call mid_body(router_.NewChannel());
  mid_body.Send(ChatHeaders());
  mid_body.Send(RequestBody(kChat.substr(0, 10), false));
  mid_body.Abort();
  Call mid_response(router_.NewChannel());
  mid_response.Send(ChatHeaders());
  mid_response.Ask(RequestBody(kChat, true));
  mid_response.Read();
  mid_response.Ask(ResponseHeaders("200"));
  EXPECT_EQ(InFlight(router_, "w0"), 1u);
  mid_response.Abort();
  EXPECT_TRUE(Eventually([&] { return InFlight(router_, "w0") == 0; }));
}

TEST_F(ExtProcWireTest, ServedByMovesTheReservation) {
  TestWorker a(router_, {.id = "a", .address = "10.0.0.1:8000"});
  TestWorker b(router_, {.id = "b", .address = "10.0.0.2:8000"});
  a.Join();
  b.Join();
  Call call(router_.NewChannel());
  call.Send(ChatHeaders());
  const std::string list = EndpointHeaderOf(call.Ask(RequestBody(kChat, true)));
  call.Read();
  const bool a_first = list == "10.0.0.1:8000,10.0.0.2:8000";
  ASSERT_TRUE(a_first || list == "10.0.0.2:8000,10.0.0.1:8000") << list;
  const std::string picked = a_first ? "a" : "b";
  const std::string served = a_first ? "b" : "a";
  EXPECT_EQ(InFlight(router_, picked), 1u);
  call.Ask(WithServed(ResponseHeaders("200"), a_first ? "10.0.0.2:8000" : "10.0.0.1:8000"));
  EXPECT_EQ(InFlight(router_, picked), 0u);
  EXPECT_EQ(InFlight(router_, served), 1u);
  call.Finish();
  EXPECT_TRUE(Eventually([&] { return InFlight(router_, served) == 0; }));
}

TEST_F(ExtProcWireTest, AWorkerThatIsLostBetweenPickAndResponse) {
  Call call(router_.NewChannel());
  {
    TestWorker worker(router_, {.id = "w0", .address = "10.0.0.1:8000"});
    worker.Join();
    call.Send(ChatHeaders());
    call.Ask(RequestBody(kChat, true));
    call.Read();
  }
  // A new process of the engine takes the address: the old reservation is closed with the old one.
  TestWorker again(router_, {.id = "w0", .address = "10.0.0.1:8000", .epoch = 2});
  again.Join();
  EXPECT_EQ(InFlight(router_, "w0"), 0u);
  EXPECT_TRUE(call.Ask(ResponseHeaders("200")).has_response_headers());
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(InFlight(router_, "w0"), 0u);
}

TEST_F(ExtProcWireTest, LoraModelsAndTheirWorkers) {
  TestWorker plain(router_, {.id = "plain", .address = "10.0.0.1:8000"});
  TestWorker lora(router_, {.id = "lora", .address = "10.0.0.2:8000", .loras = {"sql"}});
  plain.Join();
  lora.Join();
  for (int i = 0; i < 3; ++i) {
    Call call(router_.NewChannel());
    call.Send(ChatHeaders({{"x-request-id", ""}}));
    EXPECT_EQ(EndpointHeaderOf(call.Ask(RequestBody(R"({"model":"sql","messages":[]})", true))),
              "10.0.0.2:8000");
    call.Finish();
  }
}

TEST_F(ExtProcWireTest, Fault26_SubsetsAsListsAndAsText) {
  TestWorker a(router_, {.id = "a", .address = "10.0.0.1:8000"});
  TestWorker b(router_, {.id = "b", .address = "10.0.0.2:8000"});
  a.Join();
  b.Join();
  const auto ask = [&](const ProcessingRequest& headers) {
    Call call(router_.NewChannel());
    call.Send(headers);
    const ProcessingResponse answer = call.Ask(RequestBody(kChat, true));
    call.Finish();
    return answer;
  };
  const ProcessingRequest chat = ChatHeaders();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(EndpointHeaderOf(ask(WithSubset(chat, {"10.0.0.2:8000"}))), "10.0.0.2:8000");
    EXPECT_EQ(EndpointHeaderOf(ask(WithSubset(chat, {"10.0.0.1", "10.9.9.9:1"}))), "10.0.0.1:8000");
    EXPECT_EQ(EndpointHeaderOf(ask(WithSubsetText(chat, "10.9.9.9:1,10.0.0.2:8000"))),
              "10.0.0.2:8000");
  }
  for (const ProcessingRequest& none :
       {WithSubset(chat, {}), WithSubsetText(chat, ""), WithSubset(chat, {"10.9.9.9:8000"})}) {
    const ProcessingResponse answer = ask(none);
    EXPECT_EQ(StatusOf(answer), 503);
    EXPECT_EQ(ReasonOf(answer), "no_worker_in_subset");
  }
  // Without a body, too.
  Call get(router_.NewChannel());
  EXPECT_EQ(EndpointHeaderOf(get.Ask(WithSubset(GetHeaders(), {"10.0.0.2:8000"}))),
            "10.0.0.2:8000");
}

TEST_F(ExtProcWireTest, BodiesThatAreNoRequest) {
  TestWorker worker(router_, {.id = "w0", .address = "10.0.0.1:8000"});
  worker.Join();
  for (const std::string body :
       {"", "{", "[]", "nonsense", R"({"messages":[]})", R"({"model":"m"})", R"({"model":7})",
        "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}"}) {
    Call call(router_.NewChannel());
    call.Send(ChatHeaders());
    const ProcessingResponse answer = call.Ask(RequestBody(body, true));
    EXPECT_EQ(StatusOf(answer), 400) << body;
    EXPECT_EQ(ReasonOf(answer), "bad_request") << body;
    EXPECT_TRUE(call.Finish().ok()) << body;
  }
  EXPECT_EQ(InFlight(router_, "w0"), 0u);
}

TEST_F(ExtProcWireTest, Fault25_ABodyOfFourMegabytes) {
  TestWorker worker(router_, {.id = "w0", .address = "10.0.0.1:8000"});
  worker.Join();
  const std::string body = absl::StrCat(R"({"model":"m","messages":[{"role":"user","content":")",
                                        std::string(std::size_t{4} << 20, 'x'), R"("}]})");
  Call call(router_.NewChannel());
  call.Send(ChatHeaders());
  constexpr std::size_t kPiece = 64 << 10;
  for (std::size_t at = 0; at < body.size(); at += kPiece) {
    call.Send(RequestBody(std::string_view(body).substr(at, kPiece), at + kPiece >= body.size()));
  }
  EXPECT_EQ(EndpointHeaderOf(call.Read()), "10.0.0.1:8000");
  std::string passed;
  for (bool end = false; !end;) {
    const ProcessingResponse answer = call.Read();
    ASSERT_TRUE(answer.has_request_body());
    const auto& chunk = answer.request_body().response().body_mutation().streamed_response();
    ASSERT_LE(chunk.body().size(), kMaxChunkBytes);
    passed += chunk.body();
    end = chunk.end_of_stream();
  }
  EXPECT_TRUE(passed == body);
}

// The second request of a conversation finds its beginning on the worker of the first.
TEST_F(ExtProcWireTest, IfAvailableOnceThePrefixIsThere) {
  TestWorker worker(router_, {.id = "w0", .address = "10.0.0.1:8000", .has_events = false});
  worker.Join();
  const std::string body = absl::StrCat(R"({"model":"m","messages":[{"role":"user","content":")",
                                        std::string(4000, 'x'), R"("}]})");
  const auto ask = [&](HeaderList headers) {
    headers.insert(headers.end(), {{":method", "POST"}, {":path", "/v1/chat/completions"}});
    auto call = std::make_unique<Call>(router_.NewChannel());
    call->Send(RequestHeaders(headers));
    return std::pair(call->Ask(RequestBody(body, true)), std::move(call));
  };
  EXPECT_EQ(StatusOf(ask({{"prefer", "if-available"}}).first), 412);
  EXPECT_EQ(InFlight(router_, "w0"), 0u);
  EXPECT_EQ(StatusOf(ask({{"prefer", "if-available"}}).first), 412) << "asking changes nothing";
  auto [first, call] = ask({});
  EXPECT_EQ(EndpointHeaderOf(first), "10.0.0.1:8000");
  call->Read();
  call->Ask(ResponseHeaders("200"));
  call->Finish();
  EXPECT_EQ(EndpointHeaderOf(ask({{"prefer", "if-available"}}).first), "10.0.0.1:8000");
}

TEST_F(ExtProcWireTest, AThousandStreamsAtOnce) {
  TestWorker a(router_, {.id = "a", .address = "10.0.0.1:8000"});
  TestWorker b(router_, {.id = "b", .address = "10.0.0.2:8000"});
  a.Join();
  b.Join();
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < 4; ++i) channels.push_back(router_.NewChannel());
  std::vector<std::unique_ptr<Call>> calls;
  for (std::size_t i = 0; i < 1000; ++i) {
    calls.push_back(std::make_unique<Call>(channels[i % channels.size()]));
    HeaderList headers = {{":method", "POST"}, {":path", "/v1/chat/completions"}};
    calls.back()->Send(RequestHeaders(headers));
    calls.back()->Send(RequestBody(kChat.substr(0, 20), false));
  }
  for (auto& call : calls) call->Send(RequestBody(kChat.substr(20), true));
  for (auto& call : calls) {
    EXPECT_NE(EndpointHeaderOf(call->Read()), "");
    EXPECT_TRUE(call->Read().has_request_body());
  }
  EXPECT_EQ(InFlight(router_, "a") + InFlight(router_, "b"), 1000u);
  for (auto& call : calls) EXPECT_TRUE(call->Ask(ResponseHeaders("200")).has_response_headers());
  for (auto& call : calls) EXPECT_TRUE(call->Finish().ok());
  EXPECT_TRUE(Eventually([&] { return InFlight(router_, "a") + InFlight(router_, "b") == 0; }));
}

TEST(ExtProcLimitTest, StreamsAreBounded) {
  RouterConfig config;
  config.ext_proc.max_streams = 2;
  TestRouter router(config);
  Call a(router.NewChannel());
  Call b(router.NewChannel());
  // Answered, so open.
  for (Call* call : {&a, &b}) {
    EXPECT_TRUE(
        call->Ask(WithModes(ChatHeaders(), ProcessingMode::BUFFERED)).has_request_headers());
  }
  Call c(router.NewChannel());
  c.Send(ChatHeaders());
  const grpc::Status status = c.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("raise ext_proc.max_streams"));
  EXPECT_TRUE(a.Finish().ok());
  EXPECT_TRUE(Eventually([&] {
    Call d(router.NewChannel());
    return d.Ask(WithModes(ChatHeaders(), ProcessingMode::BUFFERED)).has_request_headers();
  }));
}

TEST(ExtProcDrainTest, RequestsThatHaveTheirEndpointGoOnWithoutUs) {
  TestRouter router;
  TestWorker worker(router, {.id = "w0", .address = "10.0.0.1:8000"});
  worker.Join();
  Call answered(router.NewChannel());
  answered.Send(ChatHeaders());
  EXPECT_EQ(EndpointHeaderOf(answered.Ask(RequestBody(kChat, true))), "10.0.0.1:8000");
  answered.Read();
  Call arriving(router.NewChannel());
  arriving.Send(ChatHeaders());
  arriving.Send(RequestBody(kChat.substr(0, 10), false));
  // Its messages are read once those of a later stream of the same connection are.
  EXPECT_EQ(InFlight(router, "w0"), 1u);
  router.app().Drain(absl::ZeroDuration(), absl::Milliseconds(200));
  EXPECT_TRUE(answered.Finish().ok());
}

}  // namespace
}  // namespace warmpath
