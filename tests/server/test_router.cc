#include "tests/server/test_router.h"

#include <chrono>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/hashing/chain_hash.h"
#include "gtest/gtest.h"

namespace warmpath::testing {

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

TestRouter::TestRouter(RouterConfig config, const Clock* clock) {
  // TestWorkers send none by themselves, and a sanitizer's build may take its time.
  config.fleet.heartbeat = absl::Minutes(1);
  // Unknown models are judged at once, unless a test is about just that.
  if (config.fleet.warm_up == RouterConfig().fleet.warm_up) {
    config.fleet.warm_up = absl::ZeroDuration();
  }
  config.server.grpc_address = "127.0.0.1:0";
  config.server.http_address = "127.0.0.1:0";
  absl::StatusOr<std::unique_ptr<App>> app =
      App::Start({.config = std::move(config), .clock = clock, .random_seed = 1});
  if (!app.ok()) {
    ADD_FAILURE() << app.status();
    std::abort();
  }
  app_ = *std::move(app);
  channel_ = NewChannel();
  router_ = v1::Router::NewStub(channel_);
  admin_ = v1::Admin::NewStub(channel_);
  health_ = grpc::health::v1::Health::NewStub(channel_);
}

std::shared_ptr<grpc::Channel> TestRouter::NewChannel() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxSendMessageSize(-1);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", app_->grpc_port()),
                                   grpc::InsecureChannelCredentials(), arguments);
}

grpc::Status TestRouter::Pick(const v1::PickRequest& request, v1::PickResponse* response) {
  grpc::ClientContext context;
  SetDeadline(context);
  return router_->PickEndpoint(&context, request, response);
}

grpc::Status TestRouter::Report(const v1::OutcomeRequest& request) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::OutcomeResponse response;
  return router_->ReportOutcome(&context, request, &response);
}

grpc::Status TestRouter::Explain(const v1::PickRequest& request, v1::PickResponse* response) {
  grpc::ClientContext context;
  SetDeadline(context);
  return admin_->Explain(&context, request, response);
}

std::vector<v1::WorkerInfo> TestRouter::Workers() {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListWorkersResponse response;
  const grpc::Status status = admin_->ListWorkers(&context, {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.workers().begin(), response.workers().end()};
}

v1::TargetInfo TestRouter::TargetOf(const std::string& worker) {
  for (const v1::WorkerInfo& info : Workers()) {
    if (info.worker_id() == worker && info.targets_size() == 1) return info.targets(0);
  }
  return {};
}

v1::PoolIndexStats TestRouter::PoolStats(const std::string& pool) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::IndexStatsRequest request;
  request.set_pool(pool);
  v1::IndexStatsResponse response;
  const grpc::Status status = admin_->IndexStats(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.pools_size() == 1 ? response.pools(0) : v1::PoolIndexStats();
}

void TestRouter::FinishRequest(std::uint64_t reservation) {
  v1::OutcomeRequest request;
  request.set_reservation_id(reservation);
  request.set_kind(v1::OUTCOME_KIND_FINISHED);
  const grpc::Status status = Report(request);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TestWorker::TestWorker(TestRouter& router, Options options)
    : router_(router),
      options_(std::move(options)),
      channel_(router.NewChannel()),
      stub_(v1::WorkerEvents::NewStub(channel_)) {
  stream_ = stub_->Publish(&context_);
  v1::WorkerUpdate update;
  v1::Register* r = update.mutable_register_();
  r->set_protocol_min(1);
  r->set_protocol_max(1);
  r->set_agent_instance(options_.agent_instance);
  r->set_worker_id(options_.id);
  r->set_model(options_.model);
  r->set_engine("vllm");
  for (const std::string& lora : options_.loras) r->add_loras(lora);
  v1::RankInfo* rank = r->add_ranks();
  rank->set_address(options_.address);
  rank->set_epoch(options_.epoch);
  rank->set_engine_block_size(options_.block_size);
  rank->set_kv_capacity_tokens(options_.capacity_tokens);
  rank->set_has_events(options_.has_events);
  rank->set_prefill_tokens_per_s(20'000);
  rank->set_host_copy_tokens_per_s(options_.host_copy_tokens_per_s);
  Send(std::move(update));
}

TestWorker::~TestWorker() {
  if (!finished_) {
    context_.TryCancel();
    stream_->Finish();
  }
}

bool TestWorker::Send(v1::WorkerUpdate update) {
  update.set_session(registered_.session());
  return stream_->Write(update);
}

void TestWorker::ExpectRegistered() {
  v1::RouterUpdate update;
  if (!Read(&update) || !update.has_registered()) {
    ADD_FAILURE() << "refused: " << Finish().error_message();
    return;
  }
  registered_ = update.registered();
}

void TestWorker::SendSnapshot(const std::vector<std::uint64_t>& hashes) {
  v1::WorkerUpdate begin;
  begin.mutable_snapshot_begin()->set_delta_seq(NextSeq());
  begin.mutable_snapshot_begin()->set_epoch(options_.epoch);
  begin.mutable_snapshot_begin()->set_reason("connect");
  Send(std::move(begin));
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < hashes.size(); i += 4096) {
    v1::WorkerUpdate chunk;
    chunk.mutable_snapshot_chunk()->set_delta_seq(NextSeq());
    chunk.mutable_snapshot_chunk()->set_tier(v1::TIER_GPU);
    for (std::size_t k = i; k < std::min(i + 4096, hashes.size()); ++k) {
      chunk.mutable_snapshot_chunk()->add_hashes(hashes[k]);
      all ^= hashes[k];
    }
    Send(std::move(chunk));
  }
  v1::WorkerUpdate end;
  end.mutable_snapshot_end()->set_delta_seq(NextSeq());
  end.mutable_snapshot_end()->set_engine_seq(1);
  end.mutable_snapshot_end()->set_engine_seq_valid(true);
  end.mutable_snapshot_end()->set_count(hashes.size());
  end.mutable_snapshot_end()->set_xor_(all);
  Send(std::move(end));
}

void TestWorker::SendDelta(const std::vector<std::uint64_t>& stored,
                           const std::vector<std::uint64_t>& removed, v1::Tier tier) {
  v1::WorkerUpdate update;
  v1::CacheDelta* delta = update.mutable_delta();
  delta->set_delta_seq(NextSeq());
  delta->set_tier(tier);
  delta->mutable_stored()->Add(stored.begin(), stored.end());
  delta->mutable_removed()->Add(removed.begin(), removed.end());
  delta->set_engine_seq(delta_seq_);
  delta->set_engine_seq_valid(true);
  Send(std::move(update));
}

void TestWorker::Join(const std::vector<std::uint64_t>& hashes) {
  ExpectRegistered();
  if (options_.has_events) SendSnapshot(hashes);
  EXPECT_TRUE(Eventually([&] {
    return router_.TargetOf(options_.id).lifecycle() == v1::LIFECYCLE_READY;
  })) << options_.id
      << " does not get READY";
}

grpc::Status TestWorker::Finish() {
  if (finished_) return grpc::Status(grpc::StatusCode::INTERNAL, "finished before");
  finished_ = true;
  stream_->WritesDone();
  v1::RouterUpdate update;
  while (stream_->Read(&update)) {
  }
  return stream_->Finish();
}

v1::PickRequest TokenPick(std::uint32_t first, std::size_t count) {
  v1::PickRequest request;
  request.set_model("m");
  auto* ids = request.mutable_tokens()->mutable_ids();
  ids->Resize(static_cast<int>(count), 0);
  std::iota(ids->begin(), ids->end(), first);
  return request;
}

std::vector<std::uint64_t> ChainOf(std::uint32_t first, std::size_t count,
                                   std::uint32_t block_size) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  std::vector<ChainHash> chain;
  AppendChain(kHashSeed, block_size, tokens, {}, &chain);
  return chain;
}

}  // namespace warmpath::testing
