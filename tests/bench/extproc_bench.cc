// What an endpoint picker costs a gateway: requests through ext_proc against the same messages on
// the same server answered with a constant. A client in a process of its own plays the gateway with
// a number of HTTP requests in flight; each is a stream of its own: headers, a chat body in chunks
// (FULL_DUPLEX_STREAMED), the answers, response headers, the end. The constant passes the body on,
// too, as every processor in this mode must. Rounds alternate, the result is the median of the
// pairs; latencies are from the first message to the last answer of the request's part.
//
//   extproc_bench [--json] [--rounds N] [--seconds S] [--inflight N] [--bytes N] [--chunk N]
//                 [--buffered]
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_callback.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "core/base/log.h"
#include "core/base/random.h"
#include "envoy/service/ext_proc/v3/external_processor.grpc.pb.h"
#include "server/app.h"
#include "server/ext_proc/answers.h"
#include "server/ext_proc/metadata.h"
#include "server/ext_proc/names.h"
#include "tests/bench/paired_rounds.h"
#include "tests/bench/played_worker.h"

namespace warmpath {
namespace {

using bench::Die;
using bench::kModel;
using bench::MakeChannels;
using bench::Medians;
using bench::Round;
using bench::RoundOf;
using bench::RunClientProcess;
using bench::RunRounds;

using Clock = std::chrono::steady_clock;

constexpr char kConstantMethod[] = "/warmpath.bench.Constant/Process";
constexpr char kPickMethod[] = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
constexpr char kEndpoints[] = "10.0.0.1:8000,10.0.0.2:8000,10.0.0.3:8000,10.0.0.4:8000";
constexpr std::size_t kRequests = 256;  // distinct bodies, used in turn
constexpr std::size_t kFamilies = 64;   // three quarters of a body are its family's
constexpr int kChannels = 4;
constexpr int kWorkers = 64;
constexpr std::uint32_t kEngineBlock = 16;

struct Settings {
  bool json = false;
  bool buffered = false;
  int rounds = 5;
  double seconds = 5;
  int inflight = 32;
  std::size_t bytes = 32 << 10;
  std::size_t chunk = 16 << 10;  // what gateways make of a body that arrives over HTTP/2
};

// Words of letters, as text has them.
void AppendWords(Random random, std::size_t bytes, std::string* text) {
  const std::size_t end = text->size() + bytes;
  while (text->size() < end) {
    for (std::uint64_t left = 2 + random.Below(8); left > 0; --left) {
      *text += static_cast<char>('a' + random.Below(26));
    }
    *text += ' ';
  }
}

// A conversation: a system prompt and a history that its family shares, and a question of its own.
std::string ChatBody(std::size_t number, std::size_t bytes) {
  std::string body = absl::StrCat(R"({"model":")", std::string(kModel),
                                  R"(","stream":true,"messages":[{"role":"system","content":")");
  const std::size_t family = number % kFamilies;
  AppendWords(Random(family + 1), bytes / 4, &body);
  for (std::size_t turn = 0; turn < 8; ++turn) {
    absl::StrAppend(&body, R"("},{"role":")", turn % 2 == 0 ? "user" : "assistant",
                    R"(","content":")");
    AppendWords(Random(family * 100 + turn), bytes / 16, &body);
  }
  absl::StrAppend(&body, R"("},{"role":"user","content":")");
  AppendWords(Random(number * 7919 + 13), bytes - std::min(bytes, body.size()), &body);
  return body + R"("}]})";
}

// --- The server's side

class ConstantProcessor final
    : public grpc::ServerBidiReactor<ProcessingRequest, ProcessingResponse> {
 public:
  ConstantProcessor() { StartRead(&request_); }

  void OnReadDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::OK);
      return;
    }
    response_.Clear();
    switch (request_.request_case()) {
      case ProcessingRequest::kRequestHeaders:
        buffered_ = request_.protocol_config().request_body_mode() == ProcessingMode::BUFFERED;
        if (!buffered_) {
          StartRead(&request_);
          return;
        }
        response_.mutable_request_headers();
        break;
      case ProcessingRequest::kRequestBody:
        body_ += request_.request_body().body();
        if (!request_.request_body().end_of_stream()) {
          StartRead(&request_);
          return;
        }
        FillPick();
        chunk_due_ = !buffered_;
        break;
      default:
        response_.mutable_response_headers();
        break;
    }
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok || !std::exchange(chunk_due_, false)) {
      StartRead(&request_);
      return;
    }
    response_.Clear();
    auto* mutation = response_.mutable_request_body()->mutable_response()->mutable_body_mutation();
    mutation->mutable_streamed_response()->set_body(std::move(body_));
    mutation->mutable_streamed_response()->set_end_of_stream(true);
    StartWrite(&response_);
  }

  void OnDone() override { delete this; }

 private:
  void FillPick() {
    auto* common = buffered_ ? response_.mutable_request_body()->mutable_response()
                             : response_.mutable_request_headers()->mutable_response();
    common->set_clear_route_cache(true);
    SetHeader(kEndpointHeader, kEndpoints, common->mutable_header_mutation());
    SetMetadata(kEndpointNamespace, kEndpointHeader, kEndpoints,
                response_.mutable_dynamic_metadata());
  }

  ProcessingRequest request_;
  ProcessingResponse response_;
  std::string body_;
  bool buffered_ = false;
  bool chunk_due_ = false;
};

class ConstantService final : public grpc::Service {
 public:
  ConstantService() {
    AddMethod(new grpc::internal::RpcServiceMethod(
        kConstantMethod, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodCallback(
        0, new grpc::internal::CallbackBidiHandler<ProcessingRequest, ProcessingResponse>(
               [](grpc::CallbackServerContext*) { return new ConstantProcessor; }));
  }
};

// --- The client's side

struct Exchange {
  ProcessingRequest headers;
  std::vector<ProcessingRequest> body;
  ProcessingRequest response;
};

Exchange MakeExchange(std::size_t number, const Settings& settings) {
  Exchange exchange;
  const std::string body = ChatBody(number, settings.bytes);
  const auto add = [](auto* headers, const char* name, std::string value) {
    auto* header = headers->mutable_headers()->add_headers();
    header->set_key(name);
    header->set_raw_value(std::move(value));
  };
  auto* config = exchange.headers.mutable_protocol_config();
  config->set_request_body_mode(settings.buffered ? ProcessingMode::BUFFERED
                                                  : ProcessingMode::FULL_DUPLEX_STREAMED);
  auto* headers = exchange.headers.mutable_request_headers();
  add(headers, ":method", "POST");
  add(headers, ":path", "/v1/chat/completions");
  add(headers, ":authority", "llm.example.com");
  add(headers, ":scheme", "https");
  add(headers, "content-type", "application/json");
  add(headers, "content-length", absl::StrCat(body.size()));
  add(headers, "accept", "application/json");
  add(headers, "accept-encoding", "gzip, deflate");
  add(headers, "user-agent", "OpenAI/Python 1.99.0");
  add(headers, "authorization", "Bearer 0123456789abcdef0123456789abcdef");
  add(headers, "x-forwarded-for", "192.0.2.1");
  add(headers, "x-forwarded-proto", "https");
  const std::size_t chunk = settings.buffered ? body.size() : settings.chunk;
  for (std::size_t at = 0; at < body.size(); at += chunk) {
    auto* part = exchange.body.emplace_back().mutable_request_body();
    part->set_body(body.substr(at, chunk));
    part->set_end_of_stream(at + chunk >= body.size());
  }
  auto* response = exchange.response.mutable_response_headers();
  add(response, ":status", "200");
  add(response, "content-type", "text/event-stream; charset=utf-8");
  return exchange;
}

// One HTTP request of the gateway.
class Call final : public grpc::ClientBidiReactor<ProcessingRequest, ProcessingResponse> {
 public:
  // `done` gets the microseconds until the request could go on; the call is gone then.
  Call(grpc::Channel* channel, bool pick, const Exchange* exchange,
       std::function<void(double)> done)
      : exchange_(exchange), done_(std::move(done)), sent_(Clock::now()) {
    const grpc::internal::RpcMethod method(pick ? kPickMethod : kConstantMethod,
                                           grpc::internal::RpcMethod::BIDI_STREAMING);
    grpc::internal::ClientCallbackReaderWriterFactory<ProcessingRequest,
                                                      ProcessingResponse>::Create(channel, method,
                                                                                  &context_, this);
    StartWrite(&exchange_->headers);
    StartRead(&answer_);
    AddHold();
    StartCall();
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return;
    if (written_ < exchange_->body.size()) {
      StartWrite(&exchange_->body[written_++]);
    } else if (written_ == exchange_->body.size()) {
      ++written_;
      RequestPartDone();
    }
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (answer_.has_immediate_response()) Die(answer_.immediate_response().body());
    if (answer_.has_request_headers()) {
      picked_ = picked_ || answer_.has_dynamic_metadata();
    } else if (answer_.has_request_body()) {
      picked_ = picked_ || answer_.has_dynamic_metadata();
      const auto& mutation = answer_.request_body().response().body_mutation();
      if (!mutation.has_streamed_response() || mutation.streamed_response().end_of_stream()) {
        latency_us_ = std::chrono::duration<double, std::micro>(Clock::now() - sent_).count();
        RequestPartDone();
      }
    } else {
      answered_ = true;
      StartWritesDone();
      RemoveHold();
    }
    StartRead(&answer_);
  }

  void OnDone(const grpc::Status& status) override {
    if (!status.ok() || !answered_ || !picked_) {
      Die(absl::StrCat("call failed: ", status.error_message()));
    }
    const std::function<void(double)> done = std::move(done_);
    const double latency_us = latency_us_;
    delete this;
    done(latency_us);
  }

 private:
  // The answer may be read before its message's OnWriteDone.
  void RequestPartDone() {
    if (parts_left_.fetch_sub(1) == 1) StartWrite(&exchange_->response);
  }

  const Exchange* const exchange_;
  std::function<void(double)> done_;
  const Clock::time_point sent_;
  grpc::ClientContext context_;
  ProcessingResponse answer_;
  std::size_t written_ = 0;
  std::atomic<int> parts_left_{2};  // written whole, answered
  double latency_us_ = 0;
  bool picked_ = false;
  bool answered_ = false;
};

class Client {
 public:
  Client(int port, const Settings& settings)
      : settings_(settings), channels_(MakeChannels(port, kChannels)) {
    for (std::size_t i = 0; i < kRequests; ++i) exchanges_.push_back(MakeExchange(i, settings));
  }

  Round Run(bool pick, double seconds) {
    pick_ = pick;
    const auto start = Clock::now();
    deadline_ =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    std::vector<Loop> loops(static_cast<std::size_t>(settings_.inflight));
    {
      absl::MutexLock lock(&mu_);
      running_ = settings_.inflight;
    }
    for (std::size_t i = 0; i < loops.size(); ++i) {
      loops[i].channel = channels_[i % kChannels].get();
      loops[i].next = i * 7;
      Start(loops[i]);
    }
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(
          +[](int* running) { return *running == 0; }, &running_));
    }
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    std::vector<double> latencies;
    for (const Loop& loop : loops) {
      latencies.insert(latencies.end(), loop.latencies.begin(), loop.latencies.end());
    }
    return RoundOf(std::move(latencies), elapsed);
  }

 private:
  struct Loop {
    grpc::Channel* channel = nullptr;
    std::size_t next = 0;
    std::vector<double> latencies;
  };

  void Start(Loop& loop) {
    if (Clock::now() >= deadline_) {
      absl::MutexLock lock(&mu_);
      --running_;
      return;
    }
    new Call(loop.channel, pick_, &exchanges_[loop.next++ % kRequests], [this, &loop](double us) {
      loop.latencies.push_back(us);
      Start(loop);
    });
  }

  const Settings settings_;
  const std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<Exchange> exchanges_;
  bool pick_ = false;
  Clock::time_point deadline_;
  absl::Mutex mu_;
  int running_ ABSL_GUARDED_BY(mu_) = 0;
};

int RunClient(int port, const Settings& settings) {
  Client client(port, settings);
  RunRounds([&](bool pick, double seconds) { return client.Run(pick, seconds); }, settings.rounds,
            settings.seconds);
  return 0;
}

Medians RunChild(int port, const Settings& settings) {
  return RunClientProcess(
      absl::StrFormat("--client %d --rounds %d --seconds %g --inflight %d --bytes %d --chunk %d%s",
                      port, settings.rounds, settings.seconds, settings.inflight, settings.bytes,
                      settings.chunk, settings.buffered ? " --buffered" : ""));
}

int RunServer(const Settings& settings) {
  SetMinLogLevel(LogLevel::kError);
  RouterConfig config;
  config.server.grpc_address = "127.0.0.1:0";
  config.server.http_address = "127.0.0.1:0";
  // The workers of this fleet never say that they are still there.
  config.fleet.heartbeat = absl::Minutes(1);
  config.fleet.worker_lease = absl::Hours(1);
  App::Options options{.config = config, .random_seed = 1, .extra_services = {}};
  options.extra_services.push_back(std::make_shared<ConstantService>());
  auto app = App::Start(std::move(options));
  if (!app.ok()) Die(app.status().ToString());
  // Without cache events: what they hold is predicted from the picks.
  std::vector<bench::PlayedWorker> workers;
  for (int i = 0; i < kWorkers; ++i) {
    workers.push_back(bench::AddWorker(**app, i, kEngineBlock, /*has_events=*/false));
  }

  const Medians medians = RunChild((*app)->grpc_port(), settings);
  if (settings.json) {
    std::printf(
        "{\"constant_rps\": %.0f, \"pick_rps\": %.0f, \"ratio\": %.3f, "
        "\"constant_p99_us\": %.0f, \"pick_p99_us\": %.0f}\n",
        medians.constant.rps, medians.pick.rps, medians.ratio, medians.constant.p99_us,
        medians.pick.p99_us);
  } else {
    std::printf("%zu bytes, %s: constant %.0f/s p99 %.0f us; pick %.0f/s p99 %.0f us; ratio %.2f\n",
                settings.bytes, settings.buffered ? "buffered" : "full duplex",
                medians.constant.rps, medians.constant.p99_us, medians.pick.rps,
                medians.pick.p99_us, medians.ratio);
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
    if (flag == "--buffered") {
      settings.buffered = true;
      continue;
    }
    if (i + 1 == argc) Die(absl::StrCat(argv[i], " is unknown or lacks a value"));
    const double number = std::atof(argv[++i]);
    if (flag == "--rounds") {
      settings.rounds = static_cast<int>(number);
    } else if (flag == "--seconds") {
      settings.seconds = number;
    } else if (flag == "--inflight") {
      settings.inflight = static_cast<int>(number);
    } else if (flag == "--bytes") {
      settings.bytes = static_cast<std::size_t>(number);
    } else if (flag == "--chunk") {
      settings.chunk = static_cast<std::size_t>(number);
    } else if (flag == "--client") {
      client_port = static_cast<int>(number);
    } else {
      Die(absl::StrCat(argv[i - 1], " is unknown"));
    }
  }
  if (settings.rounds < 1 || settings.inflight < 1 || settings.bytes < 1 || settings.chunk < 1) {
    Die("numbers below 1");
  }
  return client_port != 0 ? RunClient(client_port, settings) : RunServer(settings);
}

}  // namespace
}  // namespace warmpath

int main(int argc, char** argv) { return warmpath::Main(argc, argv); }
