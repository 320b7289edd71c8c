#include "server/ext_proc/service.h"

#include <atomic>
#include <utility>

#include "absl/strings/ascii.h"
#include "envoy/service/ext_proc/v3/external_processor.grpc.pb.h"
#include "server/ext_proc/stream.h"

namespace warmpath {
namespace {

using ::envoy::service::ext_proc::v3::ExternalProcessor;

// Router.PickStream's holders count from 1.
constexpr HolderId kFirstHolder = HolderId{1} << 63;

// "full_duplex_streamed" -> FULL_DUPLEX_STREAMED.
BodyMode ModeOf(const std::string& name) {
  BodyMode mode = ProcessingMode::FULL_DUPLEX_STREAMED;
  ProcessingMode::BodySendMode_Parse(absl::AsciiStrToUpper(name), &mode);
  return mode;
}

class ExtProcService final : public ExternalProcessor::CallbackService {
 public:
  ExtProcService(const ExtProcOptions* options, absl::Duration timeout, PickBackend* backend,
                 ExtProcStats* stats, WorkPool* pool, ReactorRegistry* streams, const Clock* clock)
      : options_(options),
        timeout_(timeout),
        backend_(backend),
        stats_(stats),
        pool_(pool),
        streams_(streams),
        clock_(clock) {}

  grpc::ServerBidiReactor<ProcessingRequest, ProcessingResponse>* Process(
      grpc::CallbackServerContext*) override {
    const absl::Time answer_by =
        timeout_ > absl::ZeroDuration() ? clock_->Now() + timeout_ : absl::InfiniteFuture();
    auto* stream =
        new ExtProcStream(options_, backend_, stats_, pool_,
                          next_holder_.fetch_add(1, std::memory_order_relaxed), answer_by);
    stream->Begin(streams_);
    return stream;
  }

 private:
  const ExtProcOptions* const options_;
  const absl::Duration timeout_;
  PickBackend* const backend_;
  ExtProcStats* const stats_;
  WorkPool* const pool_;
  ReactorRegistry* const streams_;
  const Clock* const clock_;
  std::atomic<HolderId> next_holder_{kFirstHolder};
};

}  // namespace

ExtProcOptions MakeExtProcOptions(const ExtProcSection& section,
                                  std::function<std::vector<std::string>()> pools) {
  return {.request_body_mode = ModeOf(section.request_body_mode),
          .response_body_mode = ModeOf(section.response_body_mode),
          .fallbacks = section.fallbacks,
          .usage_accounting = section.usage_accounting,
          .decision_metadata = section.decision_metadata,
          .max_body_bytes = section.max_body_bytes,
          .max_buffered_bytes = section.max_buffered_bytes,
          .default_model = section.default_model,
          .pools = std::move(pools)};
}

std::unique_ptr<grpc::Service> MakeExtProcService(const ExtProcOptions* options,
                                                  absl::Duration timeout, PickBackend* backend,
                                                  ExtProcStats* stats, WorkPool* pool,
                                                  ReactorRegistry* streams, const Clock* clock) {
  return std::make_unique<ExtProcService>(options, timeout, backend, stats, pool, streams, clock);
}

}  // namespace warmpath
