#include "server/convert_pick.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/routing/prefix_key.h"
#include "server/convert_admin.h"

namespace warmpath {
namespace {

constexpr std::size_t kMaxModel = 1024;
constexpr std::size_t kMaxRequestId = 256;  // kept with the reservation
constexpr std::size_t kMaxKey = 1024;
constexpr std::size_t kMaxTenant = 256;  // kept while the tenant is among those of the pool
constexpr int kMaxEndpoints = 16'384;
constexpr std::uint32_t kMaxLeaseMs = 3'600'000;

absl::Status CheckLength(std::string_view field, std::string_view value, std::size_t limit) {
  if (value.size() <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(field), ": has ", value.size(), " bytes: send at most ", limit));
}

std::uint32_t Clamp32(std::uint64_t value) {
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(value, std::numeric_limits<std::uint32_t>::max()));
}

void EndpointToProto(const EndpointRef& endpoint, v1::Endpoint* m) {
  m->mutable_target()->set_worker_id(endpoint.worker_id);
  m->mutable_target()->set_rank(endpoint.rank);
  m->set_address(endpoint.address);
  if (endpoint.needs_rank_header) {
    (*m->mutable_headers())["X-data-parallel-rank"] = absl::StrCat(endpoint.rank);
  }
}

void TermsToProto(const CandidateTerms& terms, v1::CandidateTerms* m) {
  m->mutable_target()->set_worker_id(terms.endpoint.worker_id);
  m->mutable_target()->set_rank(terms.endpoint.rank);
  m->set_address(terms.endpoint.address);
  m->set_cached_tokens(Clamp32(terms.cached_tokens));
  m->set_uncached_tokens(Clamp32(terms.uncached_tokens));
  m->set_wait_ms(terms.wait_s * 1000);
  m->set_prefill_ms(terms.prefill_s * 1000);
  m->set_pool_price_ms(terms.pool_price_s * 1000);
  m->set_decode_stall_ms(terms.decode_stall_s * 1000);
  m->set_kv_pressure_ms(terms.kv_pressure_s * 1000);
  m->set_kv_wait_ms(terms.kv_wait_s * 1000);
  m->set_tenant_ms(terms.tenant_s * 1000);
  m->set_cost_ms(terms.cost_s * 1000);
  m->set_inflight(terms.inflight);
  m->set_kv_tokens(terms.kv_tokens);
  m->set_kv_capacity_tokens(terms.kv_capacity_tokens);
  m->set_freshness(FreshnessToProto(terms.freshness));
  m->set_freshness_cause(CauseToProto(terms.causes));
  m->set_excluded(terms.excluded);
  m->set_copy_ms(terms.copy_s * 1000);
  m->set_copied_tokens(Clamp32(terms.copied_tokens));
}

}  // namespace

absl::Status QueryFromProto(const v1::PickRequest& request, Query* query) {
  WARMPATH_RETURN_IF_ERROR(CheckLength("model", request.model(), kMaxModel));
  WARMPATH_RETURN_IF_ERROR(CheckLength("request_id", request.request_id(), kMaxRequestId));
  WARMPATH_RETURN_IF_ERROR(CheckLength("session_key", request.session_key(), kMaxKey));
  WARMPATH_RETURN_IF_ERROR(CheckLength("tenant", request.tenant(), kMaxTenant));
  WARMPATH_RETURN_IF_ERROR(CheckPrefixAwareId(request.prefix_aware_id()));
  if (request.subset_size() > kMaxEndpoints || request.exclude_size() > kMaxEndpoints) {
    return absl::InvalidArgumentError(
        absl::StrCat("subset, exclude: send at most ", kMaxEndpoints, " endpoints each"));
  }
  if (request.subset_size() > 0 && !request.subset_present()) {
    return absl::InvalidArgumentError(
        "subset: is given without subset_present: set it to true, or leave the list out");
  }
  if (request.reservation_lease_ms() > kMaxLeaseMs) {
    return absl::InvalidArgumentError(absl::StrCat("reservation_lease_ms: is ",
                                                   request.reservation_lease_ms(),
                                                   ": send at most ", kMaxLeaseMs));
  }
  query->session_key = request.session_key();
  query->prefix_aware_id = request.prefix_aware_id();
  query->tenant = request.tenant();
  query->subset_present = request.subset_present();
  query->subset.assign(request.subset().begin(), request.subset().end());
  query->exclude.assign(request.exclude().begin(), request.exclude().end());
  query->priority = request.priority();
  query->expected_output_tokens = request.expected_output_tokens();
  query->request_id = request.request_id();
  query->lease = absl::Milliseconds(request.reservation_lease_ms());
  query->max_wait = absl::Milliseconds(request.max_wait_ms());
  query->policy = request.policy();
  query->explain = request.explain();
  return absl::OkStatus();
}

absl::StatusOr<Outcome> OutcomeFromProto(const v1::OutcomeRequest& request) {
  if (request.reservation_id() == 0) {
    return absl::InvalidArgumentError("reservation_id: send the one that the pick returned");
  }
  Outcome outcome;
  outcome.reservation_id = request.reservation_id();
  switch (request.kind()) {
    case v1::OUTCOME_KIND_FIRST_TOKEN:
      outcome.kind = OutcomeKind::kFirstToken;
      break;
    case v1::OUTCOME_KIND_PROGRESS:
      outcome.kind = OutcomeKind::kProgress;
      break;
    case v1::OUTCOME_KIND_FINISHED:
      outcome.kind = OutcomeKind::kFinished;
      break;
    case v1::OUTCOME_KIND_FAILED:
      outcome.kind = OutcomeKind::kFailed;
      break;
    default:
      return absl::InvalidArgumentError(
          "kind: send one of FIRST_TOKEN, PROGRESS, FINISHED, FAILED");
  }
  WARMPATH_RETURN_IF_ERROR(CheckLength("served_by", request.served_by(), kMaxKey));
  outcome.served_by = request.served_by();
  if (request.has_actual_cached_tokens()) {
    outcome.actual_cached_tokens = request.actual_cached_tokens();
  }
  if (request.has_actual_prompt_tokens()) {
    outcome.actual_prompt_tokens = request.actual_prompt_tokens();
  }
  if (request.has_output_tokens()) outcome.output_tokens = request.output_tokens();
  if (request.has_ttft_ms()) {
    if (!(request.ttft_ms() >= 0 && request.ttft_ms() < 1e12)) {
      return absl::InvalidArgumentError("ttft_ms: send milliseconds, 0 or more");
    }
    outcome.ttft = absl::Milliseconds(request.ttft_ms());
  }
  return outcome;
}

void DecisionToProto(const Decision& decision, bool length_is_estimate, bool explain,
                     v1::PickResponse* response) {
  EndpointToProto(decision.endpoint, response->mutable_endpoint());
  for (const EndpointRef& fallback : decision.fallbacks) {
    EndpointToProto(fallback, response->add_fallbacks());
  }
  response->set_reservation_id(decision.reservation_id);
  response->set_prompt_tokens(length_is_estimate ? 0 : Clamp32(decision.prompt_tokens));
  response->set_predicted_cached_tokens(Clamp32(decision.predicted_cached_tokens));
  response->set_predicted_ttft_ms(decision.predicted_ttft_s * 1000);
  response->set_freshness(FreshnessToProto(decision.freshness));
  response->set_freshness_cause(CauseToProto(decision.causes));
  response->set_candidates_exact(decision.candidates_exact);
  response->set_candidates_degraded(decision.candidates_degraded);
  response->set_candidates_none(decision.candidates_none);
  response->set_policy(decision.policy);
  response->set_reason(decision.reason);
  response->set_pool(decision.pool);
  if (!explain) return;
  v1::Explanation* explanation = response->mutable_explanation();
  for (const CandidateTerms& terms : decision.explanation) {
    TermsToProto(terms, explanation->add_candidates());
  }
  for (const std::string& note : decision.notes) explanation->add_notes(note);
}

}  // namespace warmpath
