// Any messages in any order on one ext_proc stream. The input: one byte of switches, then messages,
// each with its length in two bytes (little-endian) before it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/ext_proc/machine.h"
#include "tests/server/ext_proc/scripted_backend.h"

namespace {

using ::warmpath::ExtProcMachine;
using ::warmpath::ExtProcOptions;
using ::warmpath::ExtProcStats;
using ::warmpath::kMaxChunkBytes;
using ::warmpath::ProcessingMode;
using ::warmpath::ProcessingRequest;
using ::warmpath::ProcessingResponse;
using ::warmpath::ProcessingResponses;

constexpr std::uint64_t kMaxBody = 100'000;
constexpr std::uint64_t kMaxBuffered = 150'000;

// Not assert: must also hold in optimised builds.
void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckBody(const envoy::service::ext_proc::v3::BodyResponse& body) {
  const auto& mutation = body.response().body_mutation();
  Require(mutation.streamed_response().body().size() <= kMaxChunkBytes);
}

void CheckAnswers(const ProcessingRequest& request, const ProcessingResponses& answers,
                  bool was_refused, const ExtProcMachine& machine) {
  if (was_refused) Require(answers.empty());
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const ProcessingResponse& answer = answers[i];
    Require(answer.response_case() != ProcessingResponse::RESPONSE_NOT_SET);
    CheckBody(answer.request_body());
    CheckBody(answer.response_body());
    if (answer.has_immediate_response()) {
      Require(machine.refused());
      Require(i + 1 == answers.size());
      Require(answer.immediate_response().status().code() >= 400);
    }
  }
  // The response's part is answered at once and in kind.
  if (!was_refused && !machine.refused() && !request.observability_mode() && !answers.empty()) {
    if (request.has_response_headers()) Require(answers[0].has_response_headers());
    if (request.has_response_trailers()) Require(answers[0].has_response_trailers());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const unsigned switches = data[0];
  ExtProcOptions options;
  options.fallbacks = (switches & 1) != 0;
  options.usage_accounting = (switches & 2) != 0;
  options.decision_metadata = (switches & 4) != 0;
  if ((switches & 8) != 0) options.default_model = "default";
  options.request_body_mode = static_cast<warmpath::BodyMode>((switches >> 4) % 5);
  options.response_body_mode = ProcessingMode::FULL_DUPLEX_STREAMED;
  options.max_body_bytes = kMaxBody;
  options.max_buffered_bytes = kMaxBuffered;
  options.pools = [] { return std::vector<std::string>{"a", "b"}; };
  warmpath::testing::ScriptedBackend backend;
  backend.cached_tokens_dry = (switches & 128) != 0 ? 1 : 0;
  ExtProcStats stats;
  {
    ExtProcMachine machine(&options, &backend, &stats, 1);
    for (std::size_t at = 1; at + 2 <= size;) {
      const std::size_t length = data[at] + 256u * data[at + 1];
      at += 2;
      const std::size_t taken = std::min(length, size - at);
      ProcessingRequest request;
      const bool parsed = request.ParseFromArray(data + at, static_cast<int>(taken));
      at += taken;
      if (!parsed) continue;
      const ProcessingRequest copy = request;
      const bool was_refused = machine.refused();
      ProcessingResponses answers;
      machine.OnMessage(request, &answers);
      if (machine.wants_pick()) machine.RunPick(&answers);
      CheckAnswers(copy, answers, was_refused, machine);
      Require(!machine.wants_pick());
      Require(stats.held_bytes() <= kMaxBody);
      Require(backend.open() <= 1);
    }
  }
  Require(stats.held_bytes() == 0);
  Require(backend.open() == 0);
  return 0;
}
