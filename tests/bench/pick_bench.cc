// What a pick costs over the wire: PickEndpoint against a unary call of the same message whose
// handler answers a constant, on the same server with the same options. A client in a process of
// its own keeps a number of calls in flight; each pick is followed by its outcome. Rounds
// alternate, the result is the median of the pairs.
//
//   pick_bench [--json] [--rounds N] [--seconds S] [--inflight N] [--tokens N] [--block-size B]
//              [--blocks N] [--open N] [--unary-outcomes]
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_callback.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "core/base/log.h"
#include "core/base/random.h"
#include "core/fleet/feed.h"
#include "core/hashing/chain_hash.h"
#include "core/routing/picker.h"
#include "server/app.h"
#include "server/message_pool.h"
#include "server/outcome_batch.h"
#include "server/pick_handler.h"
#include "tests/bench/paired_rounds.h"
#include "warmpath/v1/router.grpc.pb.h"

namespace warmpath {
namespace {

using bench::Die;
using bench::MakeChannels;
using bench::Medians;
using bench::Round;
using bench::RoundOf;
using bench::RunClientProcess;
using bench::RunRounds;

using Clock = std::chrono::steady_clock;

constexpr char kFloorMethod[] = "/warmpath.bench.Floor/Pick";
constexpr char kPickMethod[] = "/warmpath.v1.Router/PickEndpoint";
constexpr char kOutcomeMethod[] = "/warmpath.v1.Router/ReportOutcome";
constexpr std::string_view kModel = "bench";
constexpr int kRequests = 256;  // distinct prompts, used in turn
constexpr int kChannels = 4;    // connections of the client
constexpr std::size_t kFamilies = 64;

struct Settings {
  bool json = false;
  bool unary_outcomes = false;
  int rounds = 5;
  double seconds = 5;
  int inflight = 32;
  std::size_t tokens = 2000;
  std::uint32_t block_size = 16;
  int workers = 64;
  std::size_t blocks = 1'000'000;
  int open = 10'000;
};

// Prompts of one family start with the same tokens, which its workers hold: about three quarters
// of the prompt is a hit.
std::vector<TokenId> Prompt(std::size_t family, std::uint64_t variant, std::size_t tokens) {
  std::vector<TokenId> ids(tokens);
  Random head(family + 1);
  Random tail(variant * 7919 + 13);
  for (std::size_t i = 0; i < tokens; ++i) {
    ids[i] = static_cast<TokenId>((i < tokens * 3 / 4 ? head : tail).Below(150'000));
  }
  return ids;
}

v1::PickRequest MakeRequest(std::uint64_t number, const Settings& settings) {
  v1::PickRequest request;
  request.set_model(std::string(kModel));
  const std::vector<TokenId> ids = Prompt(number % kFamilies, number, settings.tokens);
  request.mutable_tokens()->mutable_ids()->Add(ids.begin(), ids.end());
  return request;
}

// --- The server's side

// Answers a constant to a PickRequest; its messages' memory is kept as PickEndpoint's is.
class FloorService final : public grpc::Service {
 public:
  FloorService() {
    using Handler = grpc::internal::CallbackUnaryHandler<v1::PickRequest, v1::PickResponse>;
    AddMethod(new grpc::internal::RpcServiceMethod(kFloorMethod,
                                                   grpc::internal::RpcMethod::NORMAL_RPC, nullptr));
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
  MessagePool<v1::PickRequest, v1::PickResponse> messages_;
};

// The agents of this fleet are only played: what the router tells them is of no interest.
class Deaf final : public FeedSink {
 public:
  void Send(FeedReply reply) override {
    if (const auto* registered = std::get_if<RegisteredReply>(&reply)) {
      session = registered->session;
    }
  }
  void Close(absl::Status) override {}
  SessionId session = 0;
};

void Apply(WorkerFeed& feed, SessionId session, const FeedUpdate& update) {
  if (const absl::Status status = feed.OnUpdate(session, update); !status.ok()) {
    Die(status.ToString());
  }
}

// One worker that holds `share` blocks: chains of its families, and filler.
std::unique_ptr<WorkerFeed> AddWorker(App& app, int number, const Settings& settings) {
  Registration r;
  r.agent_instance = absl::StrFormat("%016d", number);
  r.worker_id = absl::StrCat("worker-", number);
  r.model = std::string(kModel);
  r.ranks = {{.rank = 0,
              .address = absl::StrCat("10.0.0.", number + 1, ":8000"),
              .epoch = 1,
              .engine_block_size = settings.block_size,
              .kv_capacity_tokens = 10'000'000,
              .has_events = true,
              .prefill_tokens_per_s = 20'000}};
  auto sink = std::make_shared<Deaf>();
  auto feed = app.fleet().Register(r, "bench", sink);
  if (!feed.ok()) Die(feed.status().ToString());
  std::vector<ChainHash> hashes;
  for (std::size_t family = 0; family < kFamilies; ++family) {
    if ((family + static_cast<std::size_t>(number)) % 8 != 0) continue;
    std::vector<TokenId> ids = Prompt(family, 0, settings.tokens);
    ids.resize(ids.size() * 3 / 4);
    AppendChain(kHashSeed, settings.block_size, ids, {}, &hashes);
  }
  Random random(static_cast<std::uint64_t>(number) + 1000);
  const std::size_t share = settings.blocks / static_cast<std::size_t>(settings.workers);
  while (hashes.size() < share) hashes.push_back(random());
  std::uint64_t seq = 0;
  std::uint64_t all = 0;
  for (const ChainHash hash : hashes) all ^= hash;
  Apply(**feed, sink->session, SnapshotBeginUpdate{.delta_seq = ++seq, .epoch = 1});
  for (std::size_t i = 0; i < hashes.size(); i += kMaxHashesPerMessage) {
    const std::size_t count = std::min(kMaxHashesPerMessage, hashes.size() - i);
    Apply(**feed, sink->session,
          SnapshotChunkUpdate{.delta_seq = ++seq, .hashes = {hashes.data() + i, count}});
  }
  Apply(**feed, sink->session,
        SnapshotEndUpdate{
            .delta_seq = ++seq, .engine_seq = 1, .count = hashes.size(), .xor_of_hashes = all});
  return *std::move(feed);
}

void OpenReservations(App& app, const Settings& settings) {
  const auto model = app.fleet().Resolve(kModel);
  if (!model.ok()) Die(model.status().ToString());
  for (int i = 0; i < settings.open; ++i) {
    const std::vector<TokenId> ids =
        Prompt(static_cast<std::size_t>(i) % kFamilies, 1'000'000u + static_cast<unsigned>(i), 600);
    std::vector<ChainHash> chain;
    AppendChain(kHashSeed, settings.block_size, ids, {}, &chain);
    Query query;
    query.chain = chain;
    query.prompt_tokens = ids.size();
    query.lease = absl::Hours(1);
    const auto decision = app.picker().Pick(*model->pool, query);
    if (!decision.ok()) Die(decision.status().ToString());
  }
}

// --- The client's side

void FillOutcome(std::uint64_t reservation, v1::OutcomeRequest* outcome) {
  outcome->set_reservation_id(reservation);
  outcome->set_kind(v1::OUTCOME_KIND_FINISHED);
  outcome->set_output_tokens(100);
}

// The outcomes of all picks of this client, on one stream: what gathers while a message is under
// way leaves with the next one. Ends with Close, which waits for all answers.
class OutcomeStream final
    : public grpc::ClientBidiReactor<v1::PickStreamRequest, v1::PickStreamResponse> {
 public:
  explicit OutcomeStream(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Router::NewStub(channel)) {
    stub_->async()->PickStream(&context_, this);
    AddHold();  // writes start outside of reactions
    StartRead(&response_);
    StartCall();
  }

  void Send(std::uint64_t reservation) {
    absl::MutexLock lock(&mu_);
    waiting_.push_back(reservation);
    Write();
  }

  void Close() {
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &OutcomeStream::Idle));
    }
    StartWritesDone();
    RemoveHold();
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&done_));
  }

  void OnWriteDone(bool) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    Write();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (response_.status_code() != 0) Die(absl::StrCat("outcomes: ", response_.status_message()));
    for (const v1::OutcomeFailure& failure : response_.outcomes().failures()) {
      Die(absl::StrCat("outcome: ", failure.status_message()));
    }
    {
      absl::MutexLock lock(&mu_);
      unanswered_ = false;
      Write();
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    if (!status.ok()) Die(absl::StrCat("outcomes: ", status.error_message()));
    absl::MutexLock lock(&mu_);
    done_ = true;
  }

 private:
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !writing_ && !unanswered_ && waiting_.empty();
  }

  void Write() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // An answer can be read before its message's OnWriteDone.
    if (writing_ || unanswered_ || waiting_.empty()) return;
    writing_ = true;
    unanswered_ = true;
    v1::OutcomeBatch* batch = request_.mutable_outcomes();
    batch->clear_outcomes();
    const std::size_t count = std::min<std::size_t>(waiting_.size(), kMaxOutcomesPerBatch);
    for (std::size_t i = 0; i < count; ++i) FillOutcome(waiting_[i], batch->add_outcomes());
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(count));
    StartWrite(&request_);
  }

  const std::unique_ptr<v1::Router::Stub> stub_;
  grpc::ClientContext context_;
  v1::PickStreamResponse response_;
  absl::Mutex mu_;
  v1::PickStreamRequest request_ ABSL_GUARDED_BY(mu_);
  std::vector<std::uint64_t> waiting_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool unanswered_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

class Client {
 public:
  Client(int port, const Settings& settings)
      : settings_(settings), channels_(MakeChannels(port, kChannels)) {
    for (std::uint64_t i = 0; i < kRequests; ++i) {
      requests_.push_back(MakeRequest(i, settings));
    }
  }

  // Keeps `inflight` calls going for `seconds`; `pick` chooses what is called.
  Round Run(bool pick, double seconds) {
    pick_ = pick;
    deadline_ = Clock::now() +
                std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    const auto start = Clock::now();
    std::unique_ptr<OutcomeStream> outcomes;
    if (pick && !settings_.unary_outcomes) {
      outcomes = std::make_unique<OutcomeStream>(channels_.front());
    }
    std::vector<std::unique_ptr<Loop>> loops;
    for (int i = 0; i < settings_.inflight; ++i) {
      loops.push_back(std::make_unique<Loop>());
      loops.back()->channel = channels_[static_cast<std::size_t>(i) % kChannels].get();
      loops.back()->outcomes = outcomes.get();
      loops.back()->next = static_cast<std::size_t>(i) * 7;
    }
    {
      absl::MutexLock lock(&mu_);
      running_ = settings_.inflight;
    }
    for (auto& loop : loops) Start(*loop);
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(
          +[](int* running) { return *running == 0; }, &running_));
    }
    if (outcomes != nullptr) outcomes->Close();  // their answers belong to the round
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    std::vector<double> latencies;
    for (const auto& loop : loops) {
      latencies.insert(latencies.end(), loop->latencies.begin(), loop->latencies.end());
    }
    return RoundOf(std::move(latencies), elapsed);
  }

 private:
  struct Loop {
    grpc::Channel* channel = nullptr;
    OutcomeStream* outcomes = nullptr;  // null: by unary calls
    std::size_t next = 0;
    std::unique_ptr<grpc::ClientContext> context;
    v1::PickResponse response;
    v1::OutcomeRequest outcome;
    v1::OutcomeResponse outcome_response;
    Clock::time_point sent;
    std::vector<double> latencies;
  };

  void Start(Loop& loop) {
    if (Clock::now() >= deadline_) {
      absl::MutexLock lock(&mu_);
      --running_;
      return;
    }
    loop.context = std::make_unique<grpc::ClientContext>();
    loop.response.Clear();
    const v1::PickRequest& request = requests_[loop.next++ % kRequests];
    loop.sent = Clock::now();
    const grpc::internal::RpcMethod method(pick_ ? kPickMethod : kFloorMethod,
                                           grpc::internal::RpcMethod::NORMAL_RPC);
    grpc::internal::CallbackUnaryCall<v1::PickRequest, v1::PickResponse>(
        loop.channel, method, loop.context.get(), &request, &loop.response,
        [this, &loop](const grpc::Status& status) { Answered(loop, status); });
  }

  void Answered(Loop& loop, const grpc::Status& status) {
    if (!status.ok()) Die(absl::StrCat("call failed: ", status.error_message()));
    loop.latencies.push_back(
        std::chrono::duration<float, std::micro>(Clock::now() - loop.sent).count());
    if (!pick_) {
      Start(loop);
      return;
    }
    if (loop.outcomes != nullptr) {
      loop.outcomes->Send(loop.response.reservation_id());
      Start(loop);
      return;
    }
    FillOutcome(loop.response.reservation_id(), &loop.outcome);
    loop.context = std::make_unique<grpc::ClientContext>();
    const grpc::internal::RpcMethod method(kOutcomeMethod, grpc::internal::RpcMethod::NORMAL_RPC);
    grpc::internal::CallbackUnaryCall<v1::OutcomeRequest, v1::OutcomeResponse>(
        loop.channel, method, loop.context.get(), &loop.outcome, &loop.outcome_response,
        [this, &loop](const grpc::Status& outcome) {
          if (!outcome.ok()) Die(absl::StrCat("outcome failed: ", outcome.error_message()));
          Start(loop);
        });
  }

  const Settings settings_;
  const std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<v1::PickRequest> requests_;
  bool pick_ = false;
  Clock::time_point deadline_;
  absl::Mutex mu_;
  int running_ = 0;
};

int RunClient(int port, const Settings& settings) {
  // Only for the benchmark's sake do the two share a machine: the callers should not take the
  // processor from the router while it holds a mutex.
  if (nice(10) == -1) Die("can not lower the client's priority");
  Client client(port, settings);
  RunRounds([&](bool pick, double seconds) { return client.Run(pick, seconds); }, settings.rounds,
            settings.seconds);
  return 0;
}

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
  options.extra_services.push_back(std::make_shared<FloorService>());
  auto app = App::Start(std::move(options));
  if (!app.ok()) Die(app.status().ToString());
  std::vector<std::unique_ptr<WorkerFeed>> feeds;
  for (int i = 0; i < settings.workers; ++i) feeds.push_back(AddWorker(**app, i, settings));
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
  if (settings.json) {
    std::printf(
        "{\"empty_rps\": %.0f, \"pick_rps\": %.0f, \"ratio\": %.3f, "
        "\"empty_p99_us\": %.0f, \"pick_p99_us\": %.0f, \"lock_hold_p99_us\": %.1f}\n",
        medians.constant_rps, medians.pick_rps, medians.ratio, medians.constant_p99_us,
        medians.pick_p99_us, hold_p99_us);
  } else {
    std::printf(
        "%zu tokens, block %u: constant %.0f/s p99 %.0f us; pick and outcome %.0f/s p99 "
        "%.0f us; ratio %.2f; pool mutex held p99 %.1f us\n",
        settings.tokens, settings.block_size, medians.constant_rps, medians.constant_p99_us,
        medians.pick_rps, medians.pick_p99_us, medians.ratio, hold_p99_us);
  }
  std::fflush(stdout);
  feeds.clear();
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
}  // namespace warmpath

int main(int argc, char** argv) { return warmpath::Main(argc, argv); }
