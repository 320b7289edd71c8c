// A pick that answers what the test says, and remembers what it was asked and told.
#ifndef WARMPATH_TESTS_SERVER_EXT_PROC_SCRIPTED_BACKEND_H_
#define WARMPATH_TESTS_SERVER_EXT_PROC_SCRIPTED_BACKEND_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/pick_backend.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath::testing {

// Thread-safe, but for what the test sets: before the picks. Bodies with the word HEAVY are heavy.
class ScriptedBackend final : public PickBackend {
 public:
  bool IsHeavy(const v1::PickRequest& request) const override {
    return request.openai().json().find("HEAVY") != std::string::npos;
  }

  PickResult Pick(const v1::PickRequest& request, HolderId holder, bool reserve,
                  v1::PickResponse* response) override {
    absl::MutexLock lock(&mu_);
    picks_.push_back(request);
    if (holder == 0) return {absl::InternalError("no holder"), {}};
    if (request.openai().json().find("no JSON") != std::string::npos) {
      return {absl::InvalidArgumentError("openai.json: is no valid JSON"), {}};
    }
    if (!only_model.empty() && request.model() != only_model) {
      return {absl::NotFoundError("model: unknown"), {}};
    }
    if (!refusal.status.ok()) return refusal;
    *response = answer;
    response->set_predicted_cached_tokens(reserve ? cached_tokens : cached_tokens_dry);
    response->set_request_id(request.request_id().empty() ? "made-1" : request.request_id());
    if (reserve) response->set_reservation_id(++last_id_);
    if (reserve) ++open_;
    return {};
  }

  absl::Status Report(const v1::OutcomeRequest& request) override {
    absl::MutexLock lock(&mu_);
    outcomes_.push_back(request);
    if (lost) return absl::NotFoundError("not open");
    if (request.kind() == v1::OUTCOME_KIND_FINISHED || request.kind() == v1::OUTCOME_KIND_FAILED) {
      --open_;
    }
    return absl::OkStatus();
  }
  void ReleaseHolder(HolderId, std::string_view) override {}
  std::uint32_t AdoptHolder(std::string_view, HolderId) override { return 0; }

  std::vector<v1::PickRequest> picks() const {
    absl::MutexLock lock(&mu_);
    return picks_;
  }
  std::vector<v1::OutcomeRequest> outcomes() const {
    absl::MutexLock lock(&mu_);
    return outcomes_;
  }
  // E.g. "FIRST_TOKEN FINISHED".
  std::string OutcomeKinds() const {
    std::string kinds;
    for (const v1::OutcomeRequest& outcome : outcomes()) {
      constexpr std::size_t kPrefix = sizeof("OUTCOME_KIND_") - 1;
      if (!kinds.empty()) kinds += ' ';
      kinds += v1::OutcomeKind_Name(outcome.kind()).substr(kPrefix);
    }
    return kinds;
  }
  // Reservations made and not closed.
  int open() const {
    absl::MutexLock lock(&mu_);
    return open_;
  }

  // The endpoint and its fallbacks.
  void SetEndpoints(const std::vector<std::string>& addresses) {
    answer.Clear();
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      v1::Endpoint* endpoint = i == 0 ? answer.mutable_endpoint() : answer.add_fallbacks();
      endpoint->set_address(addresses[i]);
      endpoint->mutable_target()->set_worker_id(absl::StrCat("w", i));
    }
  }

  ScriptedBackend() { SetEndpoints({"10.0.0.1:8000", "10.0.0.2:8000"}); }

  v1::PickResponse answer;
  PickResult refusal;
  std::string only_model;  // empty: every model is known
  std::uint32_t cached_tokens = 0;
  std::uint32_t cached_tokens_dry = 0;
  bool lost = false;  // reservations are closed already

 private:
  mutable absl::Mutex mu_;
  std::uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  int open_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<v1::PickRequest> picks_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::OutcomeRequest> outcomes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_SERVER_EXT_PROC_SCRIPTED_BACKEND_H_
