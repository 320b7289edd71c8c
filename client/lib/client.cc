#include "warmpath/client.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "client/lib/channel.h"
#include "warmpath/v1/router.grpc.pb.h"

namespace warmpath::client {
namespace {

constexpr std::size_t kMaxOutcomesPerMessage = 1024;  // what the router takes

void FillPrompt(const PickArgs& args, v1::PickRequest* request) {
  if (!args.tokens.empty()) {
    request->mutable_tokens()->mutable_ids()->Add(args.tokens.begin(), args.tokens.end());
  } else if (!args.chain.empty()) {
    auto* chain = request->mutable_chain();
    chain->mutable_hashes()->Add(args.chain.begin(), args.chain.end());
    chain->set_block_size(args.chain_block_size);
  } else if (!args.openai_json.empty()) {
    auto* body = request->mutable_openai();
    body->set_path(args.openai_path.data(), args.openai_path.size());
    body->set_json(args.openai_json.data(), args.openai_json.size());
  } else if (!args.text.empty()) {
    request->set_text(args.text.data(), args.text.size());
  }
}

v1::PickRequest ToProto(const PickArgs& args) {
  v1::PickRequest request;
  request.set_model(std::string(args.model));
  FillPrompt(args, &request);
  if (!args.lora.empty()) request.set_lora(std::string(args.lora));
  if (args.cache_salt.has_value()) request.set_cache_salt(std::string(*args.cache_salt));
  request.set_session_key(std::string(args.session_key));
  request.set_tenant(std::string(args.tenant));
  request.set_prefix_aware_id(std::string(args.prefix_aware_id));
  for (const std::string& endpoint : args.exclude) request.add_exclude(endpoint);
  request.set_request_id(std::string(args.request_id));
  request.set_policy(std::string(args.policy));
  request.set_expected_output_tokens(args.expected_output_tokens);
  request.set_reservation_lease_ms(
      static_cast<std::uint32_t>(absl::ToInt64Milliseconds(args.lease)));
  request.set_max_wait_ms(static_cast<std::uint32_t>(absl::ToInt64Milliseconds(args.max_wait)));
  return request;
}

PickedEndpoint FromProto(const v1::Endpoint& endpoint) {
  PickedEndpoint picked{.worker_id = endpoint.target().worker_id(),
                        .rank = endpoint.target().rank(),
                        .address = endpoint.address()};
  for (const auto& [name, value] : endpoint.headers()) picked.headers.emplace_back(name, value);
  std::sort(picked.headers.begin(), picked.headers.end());
  return picked;
}

Freshness FromProto(v1::Freshness freshness) {
  switch (freshness) {
    case v1::FRESHNESS_EXACT:
      return Freshness::kExact;
    case v1::FRESHNESS_DEGRADED:
      return Freshness::kDegraded;
    default:
      return Freshness::kNone;
  }
}

PickResult FromProto(const v1::PickResponse& response) {
  PickResult result{.endpoint = FromProto(response.endpoint()),
                    .reservation_id = response.reservation_id(),
                    .prompt_tokens = response.prompt_tokens(),
                    .predicted_cached_tokens = response.predicted_cached_tokens(),
                    .predicted_ttft = absl::Milliseconds(response.predicted_ttft_ms()),
                    .freshness = FromProto(response.freshness()),
                    .policy = response.policy(),
                    .reason = response.reason(),
                    .request_id = response.request_id()};
  for (const auto& fallback : response.fallbacks()) result.fallbacks.push_back(FromProto(fallback));
  return result;
}

v1::OutcomeKind ToProto(OutcomeKind kind) {
  switch (kind) {
    case OutcomeKind::kFirstToken:
      return v1::OUTCOME_KIND_FIRST_TOKEN;
    case OutcomeKind::kProgress:
      return v1::OUTCOME_KIND_PROGRESS;
    case OutcomeKind::kFinished:
      return v1::OUTCOME_KIND_FINISHED;
    case OutcomeKind::kFailed:
      return v1::OUTCOME_KIND_FAILED;
  }
  return v1::OUTCOME_KIND_UNSPECIFIED;
}

v1::OutcomeRequest ToProto(const OutcomeArgs& args) {
  v1::OutcomeRequest request;
  request.set_reservation_id(args.reservation_id);
  request.set_kind(ToProto(args.kind));
  request.set_served_by(std::string(args.served_by));
  if (args.actual_cached_tokens) request.set_actual_cached_tokens(*args.actual_cached_tokens);
  if (args.actual_prompt_tokens) request.set_actual_prompt_tokens(*args.actual_prompt_tokens);
  if (args.output_tokens) request.set_output_tokens(*args.output_tokens);
  if (args.ttft) request.set_ttft_ms(absl::ToDoubleMilliseconds(*args.ttft));
  return request;
}

class GrpcClient final : public Client {
 public:
  explicit GrpcClient(ClientOptions options)
      : options_(std::move(options)),
        channel_(MakeRouterChannel(options_.address, options_.root_ca_pem)),
        router_(v1::Router::NewStub(channel_)) {}

  absl::StatusOr<PickResult> Pick(const PickArgs& args) override {
    const v1::PickRequest request = ToProto(args);
    v1::PickResponse response;
    // A pick whose answer was lost leaves a reservation that its lease closes; with a request_id
    // the retry supersedes it at once.
    absl::Status status = WithRetries([&](grpc::ClientContext* context) {
      return router_->PickEndpoint(context, request, &response);
    });
    if (!status.ok()) return status;
    return FromProto(response);
  }

  absl::Status Report(const OutcomeArgs& args) override {
    const v1::OutcomeRequest request = ToProto(args);
    v1::OutcomeResponse response;
    return WithRetries([&](grpc::ClientContext* context) {
      return router_->ReportOutcome(context, request, &response);
    });
  }

  absl::StatusOr<std::vector<absl::Status>> ReportAll(
      std::span<const OutcomeArgs> outcomes) override {
    std::vector<absl::Status> statuses(outcomes.size());
    for (std::size_t begin = 0; begin < outcomes.size(); begin += kMaxOutcomesPerMessage) {
      const std::size_t end = std::min(outcomes.size(), begin + kMaxOutcomesPerMessage);
      v1::OutcomeBatch batch;
      for (std::size_t i = begin; i < end; ++i) *batch.add_outcomes() = ToProto(outcomes[i]);
      v1::OutcomeBatchResponse response;
      const absl::Status status = WithRetries([&](grpc::ClientContext* context) {
        return router_->ReportOutcomes(context, batch, &response);
      });
      if (!status.ok()) return status;
      for (const v1::OutcomeFailure& failure : response.failures()) {
        if (failure.index() >= end - begin) continue;  // no router of ours says that
        statuses[begin + failure.index()] = absl::Status(
            static_cast<absl::StatusCode>(failure.status_code()), failure.status_message());
      }
    }
    return statuses;
  }

  absl::Status WaitConnected(absl::Duration timeout) override {
    if (channel_->WaitForConnected(absl::ToChronoTime(absl::Now() + timeout))) {
      return absl::OkStatus();
    }
    return absl::DeadlineExceededError(
        absl::StrCat("no connection to the router at ", options_.address, " within ",
                     absl::FormatDuration(timeout), ": is warmpath-router running there?"));
  }

 private:
  template <typename Call>
  absl::Status WithRetries(Call call) {
    const absl::Time deadline = absl::Now() + options_.deadline;
    absl::Duration backoff = absl::Milliseconds(20);
    for (int attempt = 1;; ++attempt) {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(deadline));
      const grpc::Status status = call(&context);
      if (status.ok()) return absl::OkStatus();
      const bool retryable = status.error_code() == grpc::StatusCode::UNAVAILABLE;
      if (!retryable || attempt >= options_.max_attempts || absl::Now() + backoff >= deadline) {
        return FromGrpc(status);
      }
      absl::SleepFor(backoff);
      backoff *= 2;
    }
  }

  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Router::Stub> router_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  if (options.address.empty()) {
    return absl::InvalidArgumentError("address is empty: give the router's gRPC host:port");
  }
  if (options.max_attempts < 1) {
    return absl::InvalidArgumentError("max_attempts must be at least 1");
  }
  return std::unique_ptr<Client>(std::make_unique<GrpcClient>(std::move(options)));
}

}  // namespace warmpath::client
