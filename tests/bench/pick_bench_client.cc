#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/client_callback.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/outcome_batch.h"
#include "tests/bench/paired_rounds.h"
#include "tests/bench/pick_bench.h"
#include "warmpath/v1/router.grpc.pb.h"

namespace warmpath::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kPickMethod[] = "/warmpath.v1.Router/PickEndpoint";
constexpr char kOutcomeMethod[] = "/warmpath.v1.Router/ReportOutcome";
constexpr int kChannels = 4;  // connections

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
      std::fprintf(stderr, "outcomes: %zu in %zu messages\n", sent_, messages_);
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
    sent_ += count;
    ++messages_;
    StartWrite(&request_);
  }

  const std::unique_ptr<v1::Router::Stub> stub_;
  grpc::ClientContext context_;
  v1::PickStreamResponse response_;
  absl::Mutex mu_;
  v1::PickStreamRequest request_ ABSL_GUARDED_BY(mu_);
  std::vector<std::uint64_t> waiting_ ABSL_GUARDED_BY(mu_);
  std::size_t sent_ ABSL_GUARDED_BY(mu_) = 0;
  std::size_t messages_ ABSL_GUARDED_BY(mu_) = 0;
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

}  // namespace

int RunClient(int port, const Settings& settings) {
  // Only for the benchmark's sake do the two share a machine: the callers should not take the
  // processor from the router while it holds a mutex.
  if (nice(10) == -1) Die("can not lower the client's priority");
  Client client(port, settings);
  RunRounds([&](bool pick, double seconds) { return client.Run(pick, seconds); }, settings.rounds,
            settings.seconds);
  return 0;
}

}  // namespace warmpath::bench
