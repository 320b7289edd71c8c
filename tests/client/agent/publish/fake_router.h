// A real gRPC server on a free loopback port whose Publish streams follow the test's script: one
// function per stream, run on the stream's own thread.
#ifndef WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_FAKE_ROUTER_H_
#define WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_FAKE_ROUTER_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "tests/client/agent/publish/router_model.h"
#include "warmpath/v1/worker_events.grpc.pb.h"

namespace warmpath::testing {

class FakeRouter final : public v1::WorkerEvents::Service {
 public:
  // What a script works with. Reads and writes block.
  class Stream {
   public:
    Stream(FakeRouter* router, grpc::ServerContext* context,
           grpc::ServerReaderWriter<v1::RouterUpdate, v1::WorkerUpdate>* io)
        : router_(router), context_(context), io_(io) {}

    // The next update, applied to the model; false at the stream's end, and once a later stream has
    // a session: what was still under way on this one is not for the model any more.
    bool Read() {
      v1::WorkerUpdate update;
      if (!io_->Read(&update)) return false;
      absl::MutexLock lock(&router_->mu_);
      if (session_ != 0 && session_ != router_->sessions_) return false;
      router_->model_.Apply(update);
      last_ = update;
      return true;
    }
    const v1::WorkerUpdate& last() const { return last_; }

    // Reads Register and accepts it under a new session.
    bool Accept(std::uint32_t routing_block = 16, std::vector<std::uint32_t> snapshots = {0}) {
      {
        absl::MutexLock lock(&router_->mu_);
        session_ = ++router_->sessions_;
        router_->model_.Begin(session_);
      }
      if (!Read() || !last_.has_register_()) return false;
      v1::RouterUpdate reply;
      v1::Registered* message = reply.mutable_registered();
      message->set_session(session_);
      message->set_routing_block_size(routing_block);
      message->set_hash_seed(1337);
      message->set_protocol(1);
      message->set_heartbeat_ms(200);
      for (const std::uint32_t rank : snapshots) message->add_snapshot_ranks(rank);
      return io_->Write(reply);
    }
    bool Ack() {
      v1::RouterUpdate reply;
      {
        absl::MutexLock lock(&router_->mu_);
        reply.mutable_ack()->set_delta_seq(router_->model_.delta_seq());
      }
      return io_->Write(reply);
    }
    bool Write(const v1::RouterUpdate& reply) { return io_->Write(reply); }

    // Reads and acknowledges until the stream or the test ends.
    grpc::Status Serve() {
      while (Read()) Ack();
      return grpc::Status::OK;
    }
    // Reads nothing until `done`, or until the other side or the test ends.
    void Hold(const std::function<bool()>& done = [] { return false; }) {
      while (!context_->IsCancelled() && !done() && !router_->stopping()) {
        absl::SleepFor(absl::Milliseconds(2));
      }
    }

   private:
    FakeRouter* const router_;
    grpc::ServerContext* const context_;
    grpc::ServerReaderWriter<v1::RouterUpdate, v1::WorkerUpdate>* const io_;
    v1::WorkerUpdate last_;
    std::uint64_t session_ = 0;  // 0 until accepted
  };
  using Script = std::function<grpc::Status(Stream&)>;

  explicit FakeRouter(
      std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials())
      : credentials_(std::move(credentials)) {
    Start(0);
  }
  ~FakeRouter() override { Stop(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Streams take scripts in order; the last one serves all further streams too.
  void AddScript(Script script) {
    absl::MutexLock lock(&mu_);
    scripts_.push_back(std::move(script));
  }

  // Waits until the condition on the model holds; false after 15 s.
  bool Await(const std::function<bool(RouterModel&)>& condition) {
    absl::MutexLock lock(&mu_);
    const std::pair<const std::function<bool(RouterModel&)>*, RouterModel*> both(&condition,
                                                                                 &model_);
    return mu_.AwaitWithTimeout(
        absl::Condition(
            +[](const std::pair<const std::function<bool(RouterModel&)>*, RouterModel*>* p) {
              return (*p->first)(*p->second);
            },
            &both),
        absl::Seconds(15));
  }
  // Waits until so many streams have begun; false after 15 s.
  bool AwaitStreams(int n) {
    return Await([this, n](RouterModel&) ABSL_NO_THREAD_SAFETY_ANALYSIS { return streams_ >= n; });
  }
  RouterModel model() const {
    absl::MutexLock lock(&mu_);
    return model_;
  }
  int streams() const {
    absl::MutexLock lock(&mu_);
    return streams_;
  }
  bool stopping() const {
    absl::MutexLock lock(&mu_);
    return stopping_;
  }

  void Stop() {
    if (server_ == nullptr) return;
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_.reset();
  }
  // A router of the same address that knows nothing.
  void Restart() {
    Stop();
    {
      absl::MutexLock lock(&mu_);
      stopping_ = false;
      model_ = RouterModel();
    }
    Start(port_);
  }

  grpc::Status Publish(grpc::ServerContext* context,
                       grpc::ServerReaderWriter<v1::RouterUpdate, v1::WorkerUpdate>* io) override {
    Script script;
    {
      absl::MutexLock lock(&mu_);
      ++streams_;
      if (scripts_.empty()) return grpc::Status(grpc::StatusCode::INTERNAL, "no script");
      script = scripts_.front();
      if (scripts_.size() > 1) scripts_.pop_front();
    }
    Stream stream(this, context, io);
    return script(stream);
  }

 private:
  void Start(int port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port), credentials_, &port_);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }

  const std::shared_ptr<grpc::ServerCredentials> credentials_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  mutable absl::Mutex mu_;
  std::deque<Script> scripts_ ABSL_GUARDED_BY(mu_);
  RouterModel model_ ABSL_GUARDED_BY(mu_);
  std::uint64_t sessions_ ABSL_GUARDED_BY(mu_) = 0;
  int streams_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_FAKE_ROUTER_H_
