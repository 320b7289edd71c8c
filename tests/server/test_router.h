// A whole router on loopback ports of its own, and workers that register with it, for tests over
// real connections.
#ifndef WARMPATH_TESTS_SERVER_TEST_ROUTER_H_
#define WARMPATH_TESTS_SERVER_TEST_ROUTER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/app.h"
#include "warmpath/v1/admin.grpc.pb.h"
#include "warmpath/v1/router.grpc.pb.h"
#include "warmpath/v1/worker_events.grpc.pb.h"

namespace warmpath::testing {

// Calls `condition` until it is true, at most 10 s; returns whether it became so.
bool Eventually(const std::function<bool()>& condition);

class TestRouter {
 public:
  // Ports and drain_delay of `config` are replaced.
  explicit TestRouter(RouterConfig config = {}, const Clock* clock = &SystemClock());

  App& app() { return *app_; }
  // A connection of its own: clients that share one could hide what a lost connection does.
  std::shared_ptr<grpc::Channel> NewChannel() const;

  v1::Router::Stub& router() { return *router_; }
  v1::Admin::Stub& admin() { return *admin_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }

  // --- One call each, with a deadline of 10 s.
  grpc::Status Pick(const v1::PickRequest& request, v1::PickResponse* response);
  grpc::Status Report(const v1::OutcomeRequest& request);
  grpc::Status Explain(const v1::PickRequest& request, v1::PickResponse* response);
  std::vector<v1::WorkerInfo> Workers();
  // The only target of a worker; an empty message when there is none.
  v1::TargetInfo TargetOf(const std::string& worker);
  v1::PoolIndexStats PoolStats(const std::string& pool);
  // Closes by FINISHED; the test fails when it is not open.
  void FinishRequest(std::uint64_t reservation);

 private:
  std::unique_ptr<App> app_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Router::Stub> router_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// Sets the deadline of a test's call.
void SetDeadline(grpc::ClientContext& context);

// A worker with one rank and its agent in one.
class TestWorker {
 public:
  struct Options {
    std::string id = "w0";
    std::string model = "m";
    std::string address = "10.0.0.1:8000";
    std::uint64_t epoch = 1;
    std::uint32_t block_size = 16;
    std::uint64_t capacity_tokens = 1'000'000;
    bool has_events = true;
    std::vector<std::string> loras;
    std::string agent_instance = std::string(16, 'a');
    double host_copy_tokens_per_s = 0;
  };

  // Opens the stream and sends Register.
  TestWorker(TestRouter& router, Options options);
  // Ends the stream.
  ~TestWorker();

  // Reads the router's next message; false at the stream's end (then see Finish).
  bool Read(v1::RouterUpdate* update) { return stream_->Read(update); }
  // Reads Registered. The test fails when the router refuses.
  void ExpectRegistered();
  // Sends a whole snapshot that holds these hashes.
  void SendSnapshot(const std::vector<std::uint64_t>& hashes);
  void SendDelta(const std::vector<std::uint64_t>& stored,
                 const std::vector<std::uint64_t>& removed = {}, v1::Tier tier = v1::TIER_GPU);
  bool Send(v1::WorkerUpdate update);
  // Registered, then a snapshot with these hashes, then READY.
  void Join(const std::vector<std::uint64_t>& hashes = {});

  std::uint64_t session() const { return registered_.session(); }
  const v1::Registered& registered() const { return registered_; }
  std::uint64_t NextSeq() { return ++delta_seq_; }
  std::uint64_t last_seq() const { return delta_seq_; }

  // The client's side of the connection is lost.
  void Vanish() { context_.TryCancel(); }
  // The stream's status; ends the client's half first.
  grpc::Status Finish();

 private:
  TestRouter& router_;
  const Options options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::WorkerEvents::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::WorkerUpdate, v1::RouterUpdate>> stream_;
  v1::Registered registered_;
  std::uint64_t delta_seq_ = 0;
  bool finished_ = false;
};

// A pick of model "m" on token ids first, first + 1, ...
v1::PickRequest TokenPick(std::uint32_t first, std::size_t count);

// The chain hashes of those ids in blocks of `block_size`.
std::vector<std::uint64_t> ChainOf(std::uint32_t first, std::size_t count,
                                   std::uint32_t block_size);

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_SERVER_TEST_ROUTER_H_
