#include "server/router_service.h"

#include <google/protobuf/arena.h>
#include <grpc/slice.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/outcome_batch.h"
#include "server/pick_request_reader.h"
#include "server/pick_stream.h"
#include "server/status_convert.h"
#include "server/unary.h"
#include "warmpath/v1/router.grpc.pb.h"

namespace warmpath {
namespace {

grpc::Status ToStatus(const PickResult& result) {
  return ToGrpcStatus(result.status, result.retry_after);
}

std::string_view View(const grpc::Slice& slice) {
  return {reinterpret_cast<const char*>(slice.begin()), slice.size()};
}

// The messages of one pick, used again by the thread's next one.
class PickMessages {
 public:
  // This thread's.
  static PickMessages& Kept() {
    static thread_local PickMessages kept;
    return kept;
  }

  bool Read(const grpc::ByteBuffer& from) {
    size_ = from.Length();
    grpc::Slice whole;
    if (from.TrySingleSlice(&whole).ok()) return ReadPickRequest(View(whole), &request_);
    std::vector<grpc::Slice> slices;
    if (!from.Dump(&slices).ok()) return false;
    bytes_.clear();
    for (const grpc::Slice& slice : slices) bytes_.append(View(slice));
    return ReadPickRequest(bytes_, &request_);
  }
  const v1::PickRequest& request() const { return request_; }
  v1::PickResponse* response() { return response_; }

  void WriteResponse(grpc::ByteBuffer* to) const {
    const std::size_t size = response_->ByteSizeLong();
    grpc_slice bytes = grpc_slice_malloc(size);
    response_->SerializeWithCachedSizesToArray(GRPC_SLICE_START_PTR(bytes));
    const grpc::Slice slice(bytes, grpc::Slice::STEAL_REF);
    grpc::ByteBuffer buffer(&slice, 1);
    to->Swap(&buffer);
  }

  // After the pick: what was large goes back to the allocator.
  void Recycle() {
    arena_.Reset();
    response_ = NewResponse();
    if (request_.tokens().ids().Capacity() > kKeptIds) request_.clear_tokens();
    if (bytes_.capacity() > kKeptBytes) std::string().swap(bytes_);
    // Texts, other prompts and lists of endpoints are as long as their callers like.
    if (size_ > kKeptBytes || request_.prompt_case() != v1::PickRequest::kTokens ||
        request_.subset_size() > 0 || request_.exclude_size() > 0 ||
        request_.multimodal_size() > 0) {
      request_ = v1::PickRequest();
    }
  }

 private:
  static constexpr std::size_t kArenaBytes = 4096;  // without an explanation it all fits
  static constexpr int kKeptIds = 16'384;
  static constexpr std::size_t kKeptBytes = 65'536;

  v1::PickResponse* NewResponse() {
    return google::protobuf::Arena::CreateMessage<v1::PickResponse>(&arena_);
  }

  v1::PickRequest request_;
  std::size_t size_ = 0;  // of the message read last, bytes
  std::string bytes_;     // of a message that came in pieces
  // Its dozen small strings and messages are a few additions here.
  alignas(8) std::array<char, kArenaBytes> memory_;
  google::protobuf::Arena arena_{memory_.data(), memory_.size()};
  v1::PickResponse* response_ = NewResponse();
};

// PickEndpoint takes and gives bytes: protobuf would take longer for the token ids than all the
// rest of the pick.
using Service = v1::Router::WithRawCallbackMethod_PickEndpoint<
    v1::Router::WithCallbackMethod_PickStream<v1::Router::WithCallbackMethod_ReportOutcome<
        v1::Router::WithCallbackMethod_ReportOutcomes<v1::Router::Service>>>>;

class RouterService final : public Service {
 public:
  RouterService(PickBackend* backend, WorkPool* pool, ReactorRegistry* streams)
      : backend_(backend), pool_(pool), streams_(streams) {}

  grpc::ServerUnaryReactor* PickEndpoint(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override {
    PickMessages& messages = PickMessages::Kept();
    bool heavy = false;
    grpc::Status status = Guarded([&] {
      if (!messages.Read(*request)) {
        return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                            "request: is no PickRequest: send one of warmpath/v1/router.proto");
      }
      heavy = backend_->IsHeavy(messages.request());
      return heavy ? grpc::Status::OK : PickFor(context, messages, response);
    });
    messages.Recycle();
    if (heavy) return PickInPool(context, request, response);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(status);
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
  grpc::Status PickFor(grpc::CallbackServerContext* context, PickMessages& messages,
                       grpc::ByteBuffer* response) {
    // A client that gave up while its call waited would never close the reservation.
    if (context->IsCancelled()) return grpc::Status::CANCELLED;
    const PickResult result =
        backend_->Pick(messages.request(), 0, /*reserve=*/true, messages.response());
    if (result.status.ok()) messages.WriteResponse(response);
    return ToStatus(result);
  }

  // Reads the message again, there: this thread has others to serve.
  grpc::ServerUnaryReactor* PickInPool(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) {
    // Both buffers live until Finish.
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool queued = pool_->TrySubmit([this, context, reactor, request, response] {
      PickMessages& messages = PickMessages::Kept();
      const grpc::Status status = Guarded([&] {
        messages.Read(*request);  // as before
        return PickFor(context, messages, response);
      });
      messages.Recycle();
      reactor->Finish(status);
    });
    if (!queued) reactor->Finish(ToStatus(RefusedByQueue()));
    return reactor;
  }

  PickBackend* const backend_;
  WorkPool* const pool_;
  ReactorRegistry* const streams_;
  std::atomic<HolderId> next_holder_{1};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRouterService(PickBackend* backend, WorkPool* pool,
                                                 ReactorRegistry* streams) {
  return std::make_unique<RouterService>(backend, pool, streams);
}

}  // namespace warmpath
