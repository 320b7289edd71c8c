// A machine over a scripted backend.
#ifndef WARMPATH_TESTS_SERVER_EXT_PROC_MACHINE_FIXTURE_H_
#define WARMPATH_TESTS_SERVER_EXT_PROC_MACHINE_FIXTURE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/ext_proc/machine.h"
#include "tests/server/ext_proc/messages.h"
#include "tests/server/ext_proc/scripted_backend.h"

namespace warmpath::testing {

class MachineTest : public ::testing::Test {
 protected:
  MachineTest() {
    options_.pools = [this] { return pools_; };
  }
  void TearDown() override {
    if (machine_ != nullptr) End();
    EXPECT_EQ(backend_.open(), 0) << "a reservation is left behind";
    EXPECT_EQ(stats_.held_bytes(), 0u) << "bytes are counted that nobody holds";
  }

  // One message, its pick if it makes one, and the answers.
  ProcessingResponses Send(ProcessingRequest request) {
    if (machine_ == nullptr) Start();
    ProcessingResponses answers;
    machine_->OnMessage(request, &answers);
    if (machine_->wants_pick()) machine_->RunPick(&answers);
    return answers;
  }
  // REQUIRES: the message has exactly one answer.
  ProcessingResponse Ask(ProcessingRequest request) {
    ProcessingResponses answers = Send(std::move(request));
    EXPECT_EQ(answers.size(), 1u) << KindsOf(answers);
    return answers.empty() ? ProcessingResponse() : std::move(answers.front());
  }
  // A chat request in FULL_DUPLEX_STREAMED mode; the answers to its body.
  ProcessingResponses SendChat(HeaderList headers = {}, std::string_view body = kChat) {
    EXPECT_EQ(Send(ChatHeaders(std::move(headers))).size(), 0u);
    return Send(RequestBody(body, true));
  }

  void Start() { machine_ = std::make_unique<ExtProcMachine>(&options_, &backend_, &stats_, 7); }
  void End() { machine_.reset(); }

  std::vector<std::string> pools_ = {"m"};
  ExtProcOptions options_;
  ScriptedBackend backend_;
  ExtProcStats stats_;
  std::unique_ptr<ExtProcMachine> machine_;
};

// The body that goes on, put together again, and whether its end was marked.
struct PassedBody {
  std::string body;
  bool ended = false;
  std::size_t largest_chunk = 0;
};

inline PassedBody BodyOf(const ProcessingResponses& answers) {
  PassedBody passed;
  for (const ProcessingResponse& answer : answers) {
    if (!answer.has_request_body() && !answer.has_response_body()) continue;
    const auto& body = answer.has_request_body() ? answer.request_body() : answer.response_body();
    const auto& chunk = body.response().body_mutation().streamed_response();
    EXPECT_FALSE(passed.ended) << "a chunk after the last one";
    passed.body += chunk.body();
    passed.ended = chunk.end_of_stream();
    passed.largest_chunk = std::max(passed.largest_chunk, chunk.body().size());
  }
  return passed;
}

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_SERVER_EXT_PROC_MACHINE_FIXTURE_H_
