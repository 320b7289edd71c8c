// What a pick costs over the wire: PickEndpoint against a unary call of the same message whose
// handler answers a constant, on the same server with the same options. A client in a process of
// its own keeps a number of calls in flight; each pick is followed by its outcome. Rounds
// alternate, the result is the median of the pairs.
//
//   pick_bench [--json] [--rounds N] [--seconds S] [--inflight N] [--tokens N] [--block-size B]
//              [--blocks N] [--open N] [--unary-outcomes] [--floor-reads-as-pick]
//
// --floor-reads-as-pick: the constant's handler leaves its message to the router's own reader of
// token ids instead of protobuf. What the pick itself costs is then all of the difference.
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "core/base/log.h"
#include "core/routing/picker.h"
#include "server/app.h"
#include "server/pick_handler.h"
#include "server/pick_request_reader.h"
#include "tests/bench/message_pool.h"
#include "tests/bench/paired_rounds.h"
#include "tests/bench/pick_bench.h"
#include "tests/bench/played_worker.h"
#include "warmpath/v1/router.grpc.pb.h"

namespace warmpath::bench {
namespace {

// Answers a constant to a PickRequest, whose memory is kept from call to call.
class FloorService final : public grpc::Service {
 public:
  explicit FloorService(bool reads_as_pick) {
    AddMethod(new grpc::internal::RpcServiceMethod(kFloorMethod,
                                                   grpc::internal::RpcMethod::NORMAL_RPC, nullptr));
    if (reads_as_pick) {
      using Handler = grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
      MarkMethodRawCallback(0, new Handler(AnswerBytes));
      return;
    }
    using Handler = grpc::internal::CallbackUnaryHandler<v1::PickRequest, v1::PickResponse>;
    auto* handler = new Handler([](grpc::CallbackServerContext* context, const v1::PickRequest*,
                                   v1::PickResponse* response) {
      response->mutable_endpoint()->set_address("10.0.0.1:8000");
      grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
      reactor->Finish(grpc::Status::OK);
      return reactor;
    });
    handler->SetMessageAllocator(&messages_);
    MarkMethodCallback(0, handler);
  }

 private:
  static grpc::ServerUnaryReactor* AnswerBytes(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
    static thread_local v1::PickRequest parsed;
    static thread_local std::string bytes;
    std::vector<grpc::Slice> slices;
    bool ok = request->Dump(&slices).ok();
    bytes.clear();
    for (const grpc::Slice& slice : slices) {
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    ok = ok && ReadPickRequest(bytes, &parsed);
    v1::PickResponse constant;
    constant.mutable_endpoint()->set_address("10.0.0.1:8000");
    const grpc::Slice slice(constant.SerializeAsString());
    grpc::ByteBuffer buffer(&slice, 1);
    response->Swap(&buffer);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ok ? grpc::Status::OK : grpc::Status::CANCELLED);
    return reactor;
  }

  MessagePool<v1::PickRequest, v1::PickResponse> messages_;
};

Medians RunChild(int port, const Settings& settings) {
  return RunClientProcess(
      absl::StrFormat("--client %d --rounds %d --seconds %g --inflight %d --tokens %d%s", port,
                      settings.rounds, settings.seconds, settings.inflight, settings.tokens,
                      settings.unary_outcomes ? " --unary-outcomes" : ""));
}

double ThreadCpuMicros() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

// CPU time of one pick and of one outcome without gRPC: what is ours to make faster.
void PrintHandlerCost(App& app, const Settings& settings) {
  PickHandler handler(&app.fleet(), &app.picker(), &SystemClock(), {}, 1);
  std::vector<v1::PickRequest> requests;
  for (std::uint64_t i = 0; i < kRequests; ++i) requests.push_back(MakeRequest(i, settings));
  double pick_us = 0;
  double outcome_us = 0;
  constexpr int kCalls = 20'000;
  for (int i = 0; i < kCalls; ++i) {
    v1::PickResponse response;
    const double start = ThreadCpuMicros();
    const PickResult result =
        handler.Pick(requests[static_cast<std::size_t>(i) % kRequests], 0, true, &response);
    const double middle = ThreadCpuMicros();
    if (!result.status.ok()) Die(result.status.ToString());
    v1::OutcomeRequest outcome;
    FillOutcome(response.reservation_id(), &outcome);
    if (!handler.Report(outcome).ok()) Die("outcome failed");
    pick_us += middle - start;
    outcome_us += ThreadCpuMicros() - middle;
  }
  std::fprintf(stderr, "handler alone: pick %.1f us, outcome %.1f us of CPU time\n",
               pick_us / kCalls, outcome_us / kCalls);
}

int RunServer(const Settings& settings) {
  SetMinLogLevel(LogLevel::kError);
  RouterConfig config;
  config.fleet.heartbeat = absl::Hours(1);  // the bench's workers send none
  config.server.grpc_address = "127.0.0.1:0";
  config.server.http_address = "127.0.0.1:0";
  config.server.heavy_prompt_tokens = 200'000;  // the same path for every length
  config.fleet.defaults.routing_block_size = settings.block_size;
  App::Options options{.config = config, .random_seed = 1, .extra_services = {}};
  options.extra_services.push_back(std::make_shared<FloorService>(settings.floor_reads_as_pick));
  auto app = App::Start(std::move(options));
  if (!app.ok()) Die(app.status().ToString());
  std::vector<PlayedWorker> workers = AddWorkers(**app, settings);
  OpenReservations(**app, settings);

  PrintHandlerCost(**app, settings);
  const HistogramSnapshot before = (*app)->picker().LockHold();
  const Medians medians = RunChild((*app)->grpc_port(), settings);
  HistogramSnapshot hold = (*app)->picker().LockHold();
  for (std::size_t i = 0; i < hold.counts.size(); ++i) hold.counts[i] -= before.counts[i];
  std::fprintf(stderr, "pool mutex held: p50 %.1f us, p90 %.1f us, p98 %.1f us, p99 %.1f us\n",
               hold.Quantile(0.5) * 1e6, hold.Quantile(0.9) * 1e6, hold.Quantile(0.98) * 1e6,
               hold.Quantile(0.99) * 1e6);

  const double hold_p99_us = hold.Quantile(0.99) * 1e6;
  const auto [constant, pick, ratio, cpu_ratio] = medians;
  if (settings.json) {
    std::printf(
        "{\"empty_rps\": %.0f, \"pick_rps\": %.0f, \"ratio\": %.3f, \"cpu_ratio\": %.3f, "
        "\"empty_p99_us\": %.0f, \"pick_p99_us\": %.0f, \"empty_cpu_us\": %.1f, "
        "\"pick_cpu_us\": %.1f, \"empty_caller_cpu_us\": %.1f, \"pick_caller_cpu_us\": %.1f, "
        "\"lock_hold_p99_us\": %.1f}\n",
        constant.rps, pick.rps, ratio, cpu_ratio, constant.p99_us, pick.p99_us, constant.server_us,
        pick.server_us, constant.client_us, pick.client_us, hold_p99_us);
  } else {
    std::printf(
        "%zu tokens, block %u: constant %.0f/s p99 %.0f us; pick and outcome %.0f/s p99 "
        "%.0f us; ratio %.2f, of processor time %.2f; pool mutex held p99 %.1f us\n",
        settings.tokens, settings.block_size, constant.rps, constant.p99_us, pick.rps, pick.p99_us,
        ratio, cpu_ratio, hold_p99_us);
  }
  std::fflush(stdout);
  workers.clear();
  return 0;
}

int Main(int argc, char** argv) {
  // As in the programs: Debian's abseil looks for lock cycles in release builds, too.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Settings settings;
  int client_port = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--json") {
      settings.json = true;
      continue;
    }
    if (flag == "--floor-reads-as-pick") {
      settings.floor_reads_as_pick = true;
      continue;
    }
    if (flag == "--unary-outcomes") {
      settings.unary_outcomes = true;
      continue;
    }
    if (i + 1 == argc) Die(absl::StrCat(argv[i], " is unknown or lacks a value"));
    const std::string value = argv[++i];
    const double number = std::atof(value.c_str());
    if (flag == "--rounds") {
      settings.rounds = static_cast<int>(number);
    } else if (flag == "--seconds") {
      settings.seconds = number;
    } else if (flag == "--inflight") {
      settings.inflight = static_cast<int>(number);
    } else if (flag == "--tokens") {
      settings.tokens = static_cast<std::size_t>(number);
    } else if (flag == "--block-size") {
      settings.block_size = static_cast<std::uint32_t>(number);
    } else if (flag == "--blocks") {
      settings.blocks = static_cast<std::size_t>(number);
    } else if (flag == "--open") {
      settings.open = static_cast<int>(number);
    } else if (flag == "--client") {
      client_port = static_cast<int>(number);
    } else {
      Die(absl::StrCat(argv[i - 1], " is unknown"));
    }
  }
  if (settings.rounds < 1 || settings.inflight < 1 || settings.tokens < 1) Die("numbers below 1");
  return client_port != 0 ? RunClient(client_port, settings) : RunServer(settings);
}

}  // namespace
}  // namespace warmpath::bench

int main(int argc, char** argv) { return warmpath::bench::Main(argc, argv); }
