#include "server/admin_service.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/fleet/pool.h"
#include "core/routing/picker.h"
#include "server/convert_admin.h"
#include "server/convert_feed.h"
#include "server/status_convert.h"
#include "server/unary.h"
#include "server/version.h"
#include "warmpath/v1/admin.grpc.pb.h"

namespace warmpath {
namespace {

absl::StatusOr<KnowledgeSource> SourceFromProto(v1::KnowledgeSource source) {
  switch (source) {
    case v1::KNOWLEDGE_SOURCE_UNSPECIFIED:
    case v1::KNOWLEDGE_SOURCE_EVENTS:
      return KnowledgeSource::kEvents;
    case v1::KNOWLEDGE_SOURCE_IN_FLIGHT:
      return KnowledgeSource::kInFlight;
    case v1::KNOWLEDGE_SOURCE_PREDICTED:
      return KnowledgeSource::kPredicted;
    default:
      return absl::InvalidArgumentError("source: send EVENTS, IN_FLIGHT or PREDICTED");
  }
}

// A list that is empty because the name is wrong would look like a pool without workers.
absl::Status CheckPool(const Fleet& fleet, std::string_view name) {
  constexpr std::size_t kShown = 10;
  constexpr std::size_t kEchoed = 128;
  if (name.empty()) return absl::OkStatus();
  std::vector<std::string> known;
  for (const std::shared_ptr<Pool>& pool : fleet.Pools()) {
    if (pool->name() == name) return absl::OkStatus();
    known.push_back(pool->name());
  }
  std::sort(known.begin(), known.end());
  const std::size_t more = known.size() - std::min(known.size(), kShown);
  known.resize(known.size() - more);
  return absl::NotFoundError(absl::StrCat(
      "pool: '", ToAbsl(name.substr(0, kEchoed)),
      "' is not here; known pools: ", known.empty() ? "none" : absl::StrJoin(known, ", "),
      more > 0 ? absl::StrCat(" and ", more, " more") : ""));
}

// Sends one dump in chunks. Made with everything it sends, so it needs no lock: between OnWriteDone
// calls nobody else touches it.
class DumpStream final : public grpc::ServerWriteReactor<v1::DumpIndexResponse> {
 public:
  // Runs off gRPC's threads: takes the dump, then starts the first write.
  void Run(Fleet* fleet, const v1::DumpIndexRequest& request) {
    const grpc::Status status = Guarded([&] { return ToGrpcStatus(Take(fleet, request)); });
    if (!status.ok()) {
      Finish(status);
      return;
    }
    StartWrite(&chunk_);
  }
  void Refuse(const absl::Status& status) { Finish(ToGrpcStatus(status)); }

  void OnWriteDone(bool ok) override {
    if (!ok) {
      Finish(grpc::Status::CANCELLED);
    } else if (sent_ == hashes_.size()) {
      Finish(grpc::Status::OK);
    } else {
      FillChunk();
      StartWrite(&chunk_);
    }
  }
  void OnDone() override { delete this; }

 private:
  absl::Status Take(Fleet* fleet, const v1::DumpIndexRequest& request) {
    WARMPATH_ASSIGN_OR_RETURN(const Tier tier, TierFromProto(request.tier(), "tier"));
    WARMPATH_ASSIGN_OR_RETURN(const KnowledgeSource source, SourceFromProto(request.source()));
    WARMPATH_ASSIGN_OR_RETURN(
        const DumpHeader header,
        fleet->Dump(request.target().worker_id(), request.target().rank(), tier, source, &hashes_));
    chunk_.set_engine_seq_valid(header.engine_seq.has_value());
    chunk_.set_engine_seq(header.engine_seq.value_or(0));
    chunk_.set_freshness(FreshnessToProto(header.freshness));
    chunk_.set_cause(CauseToProto(header.causes));
    chunk_.set_routing_block_size(header.routing_block_size);
    chunk_.set_epoch(header.epoch);
    FillChunk();
    return absl::OkStatus();
  }

  void FillChunk() {
    const std::size_t count = std::min(kMaxHashesPerMessage, hashes_.size() - sent_);
    if (sent_ > 0) chunk_.Clear();  // the header goes with the first chunk only
    const auto* first = hashes_.data() + sent_;
    chunk_.mutable_hashes()->Add(first, first + count);
    sent_ += count;
  }

  std::vector<ChainHash> hashes_;
  std::size_t sent_ = 0;
  v1::DumpIndexResponse chunk_;
};

class AdminService final : public v1::Admin::CallbackService {
 public:
  AdminService(Fleet* fleet, PickBackend* backend, WorkPool* pool, const Clock* clock,
               std::string config_yaml)
      : fleet_(fleet),
        backend_(backend),
        pool_(pool),
        clock_(clock),
        config_yaml_(std::move(config_yaml)) {}

  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override {
    return InPool(context, [this, request, response] {
      const absl::Status status = CheckPool(*fleet_, request->pool());
      if (!status.ok()) return ToGrpcStatus(status);
      const absl::Time now = clock_->Now();
      for (const WorkerView& worker : fleet_->ListWorkers(request->pool())) {
        WorkerToProto(worker, now, response->add_workers());
      }
      return grpc::Status::OK;
    });
  }

  grpc::ServerUnaryReactor* DrainWorker(grpc::CallbackServerContext* context,
                                        const v1::DrainWorkerRequest* request,
                                        v1::DrainWorkerResponse* response) override {
    return Answer(context, [&] {
      const absl::StatusOr<std::uint32_t> open =
          fleet_->Drain(request->worker_id(), request->undo());
      if (!open.ok()) return ToGrpcStatus(open.status());
      response->set_open_reservations(*open);
      Log(LogLevel::kInfo, request->undo() ? "drain of worker ended" : "worker drains",
          {{"worker", request->worker_id()}, {"open", *open}, {"by", context->peer()}});
      return grpc::Status::OK;
    });
  }

  grpc::ServerUnaryReactor* Explain(grpc::CallbackServerContext* context,
                                    const v1::PickRequest* request,
                                    v1::PickResponse* response) override {
    return InPool(context, [this, request, response] {
      const PickResult result = backend_->Pick(*request, 0, /*reserve=*/false, response);
      return ToGrpcStatus(result.status, result.retry_after);
    });
  }

  grpc::ServerUnaryReactor* IndexStats(grpc::CallbackServerContext* context,
                                       const v1::IndexStatsRequest* request,
                                       v1::IndexStatsResponse* response) override {
    return InPool(context, [this, request, response] {
      const absl::Status status = CheckPool(*fleet_, request->pool());
      if (!status.ok()) return ToGrpcStatus(status);
      for (const PoolView& pool : fleet_->ListPools(request->pool())) {
        PoolStatsToProto(pool, response->add_pools());
      }
      return grpc::Status::OK;
    });
  }

  grpc::ServerWriteReactor<v1::DumpIndexResponse>* DumpIndex(
      grpc::CallbackServerContext*, const v1::DumpIndexRequest* request) override {
    auto* stream = new DumpStream;
    // The request lives until OnDone, which waits for Finish.
    if (!pool_->TrySubmit([this, stream, request] { stream->Run(fleet_, *request); })) {
      stream->Refuse(RefusedByQueue().status);
    }
    return stream;
  }

  grpc::ServerUnaryReactor* GetConfig(grpc::CallbackServerContext* context,
                                      const v1::GetConfigRequest*,
                                      v1::GetConfigResponse* response) override {
    return Answer(context, [&] {
      response->set_yaml(config_yaml_);
      for (const std::string_view name : PolicyNames()) response->add_policies(std::string(name));
      response->set_version(std::string(kVersion));
      return grpc::Status::OK;
    });
  }

 private:
  grpc::ServerUnaryReactor* InPool(grpc::CallbackServerContext* context,
                                   absl::AnyInvocable<grpc::Status()> handler) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool queued = pool_->TrySubmit(
        [reactor, handler = std::move(handler)]() mutable { reactor->Finish(Guarded(handler)); });
    if (!queued) reactor->Finish(ToGrpcStatus(RefusedByQueue().status));
    return reactor;
  }

  Fleet* const fleet_;
  PickBackend* const backend_;
  WorkPool* const pool_;
  const Clock* const clock_;
  const std::string config_yaml_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(Fleet* fleet, PickBackend* backend, WorkPool* pool,
                                                const Clock* clock, std::string config_yaml) {
  return std::make_unique<AdminService>(fleet, backend, pool, clock, std::move(config_yaml));
}

}  // namespace warmpath
