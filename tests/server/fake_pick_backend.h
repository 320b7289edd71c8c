// A pick that answers what the test says.
#ifndef WARMPATH_TESTS_SERVER_FAKE_PICK_BACKEND_H_
#define WARMPATH_TESTS_SERVER_FAKE_PICK_BACKEND_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/pick_backend.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath::testing {

// Thread-safe. Text prompts are heavy; the model "refused" is refused with a retry of 1.5 s.
class FakePickBackend final : public PickBackend {
 public:
  bool IsHeavy(const v1::PickRequest& request) const override { return request.has_text(); }

  PickResult Pick(const v1::PickRequest& request, HolderId holder, bool reserve,
                  v1::PickResponse* response) override {
    absl::MutexLock lock(&mu_);
    if (request.model() == "refused") {
      return {absl::ResourceExhaustedError("wait exceeds max_wait_ms"), absl::Milliseconds(1500)};
    }
    if (reserve) held_.emplace_back(holder, ++last_id_);
    response->set_reservation_id(last_id_);
    response->set_request_id(request.request_id());
    response->mutable_endpoint()->set_address("10.0.0.1:8000");
    return {};
  }
  absl::Status Report(const v1::OutcomeRequest& request) override {
    absl::MutexLock lock(&mu_);
    reported_.push_back(request.reservation_id());
    if (request.reservation_id() == 404) return absl::NotFoundError("reservation 404 is not open");
    return absl::OkStatus();
  }
  void ReleaseHolder(HolderId holder, std::string_view instance) override {
    absl::MutexLock lock(&mu_);
    released_.emplace_back(holder, std::string(instance));
  }
  std::uint32_t AdoptHolder(std::string_view, HolderId) override { return 3; }

  std::vector<std::pair<HolderId, std::uint64_t>> held() const {
    absl::MutexLock lock(&mu_);
    return held_;
  }
  std::vector<std::uint64_t> reported() const {
    absl::MutexLock lock(&mu_);
    return reported_;
  }
  std::vector<std::pair<HolderId, std::string>> released() const {
    absl::MutexLock lock(&mu_);
    return released_;
  }

 private:
  mutable absl::Mutex mu_;
  std::uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::pair<HolderId, std::uint64_t>> held_ ABSL_GUARDED_BY(mu_);
  std::vector<std::uint64_t> reported_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<HolderId, std::string>> released_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_SERVER_FAKE_PICK_BACKEND_H_
