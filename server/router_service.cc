#include "server/router_service.h"

#include <atomic>
#include <utility>

#include "server/message_pool.h"
#include "server/outcome_batch.h"
#include "server/pick_stream.h"
#include "server/status_convert.h"
#include "server/unary.h"
#include "warmpath/v1/router.grpc.pb.h"

namespace warmpath {
namespace {

grpc::Status ToStatus(const PickResult& result) {
  return ToGrpcStatus(result.status, result.retry_after);
}

class RouterService final : public v1::Router::CallbackService {
 public:
  RouterService(PickBackend* backend, WorkPool* pool, ReactorRegistry* streams)
      : backend_(backend), pool_(pool), streams_(streams) {
    SetMessageAllocatorFor_PickEndpoint(&messages_);
  }

  grpc::ServerUnaryReactor* PickEndpoint(grpc::CallbackServerContext* context,
                                         const v1::PickRequest* request,
                                         v1::PickResponse* response) override {
    if (!backend_->IsHeavy(*request)) {
      return Answer(context, [&] { return PickFor(context, *request, response); });
    }
    // Request and response live until Finish.
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool queued = pool_->TrySubmit([this, context, reactor, request, response] {
      reactor->Finish(Guarded([&] { return PickFor(context, *request, response); }));
    });
    if (!queued) reactor->Finish(ToStatus(RefusedByQueue()));
    return reactor;
  }

  grpc::ServerUnaryReactor* ReportOutcome(grpc::CallbackServerContext* context,
                                          const v1::OutcomeRequest* request,
                                          v1::OutcomeResponse*) override {
    return Answer(context, [&] { return ToGrpcStatus(backend_->Report(*request)); });
  }

  grpc::ServerUnaryReactor* ReportOutcomes(grpc::CallbackServerContext* context,
                                           const v1::OutcomeBatch* request,
                                           v1::OutcomeBatchResponse* response) override {
    return Answer(context,
                  [&] { return ToGrpcStatus(ReportBatch(*backend_, *request, response)); });
  }

  grpc::ServerBidiReactor<v1::PickStreamRequest, v1::PickStreamResponse>* PickStream(
      grpc::CallbackServerContext*) override {
    auto* stream = new ::warmpath::PickStream(backend_, pool_,
                                              next_holder_.fetch_add(1, std::memory_order_relaxed));
    stream->Begin(streams_);
    return stream;
  }

 private:
  grpc::Status PickFor(grpc::CallbackServerContext* context, const v1::PickRequest& request,
                       v1::PickResponse* response) {
    // A client that gave up while its call waited would never close the reservation.
    if (context->IsCancelled()) return grpc::Status::CANCELLED;
    return ToStatus(backend_->Pick(request, 0, /*reserve=*/true, response));
  }

  PickBackend* const backend_;
  WorkPool* const pool_;
  ReactorRegistry* const streams_;
  std::atomic<HolderId> next_holder_{1};
  MessagePool<v1::PickRequest, v1::PickResponse> messages_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRouterService(PickBackend* backend, WorkPool* pool,
                                                 ReactorRegistry* streams) {
  return std::make_unique<RouterService>(backend, pool, streams);
}

}  // namespace warmpath
