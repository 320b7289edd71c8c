// What the services need of a pick, without knowing pools, hashing or policies. Implemented by
// PickHandler; tests of streams use their own.
#ifndef WARMPATH_SERVER_PICK_BACKEND_H_
#define WARMPATH_SERVER_PICK_BACKEND_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/routing/query.h"

namespace warmpath {

namespace v1 {
class OutcomeRequest;
class PickRequest;
class PickResponse;
}  // namespace v1

// What refused a pick, or nothing.
struct PickResult {
  absl::Status status;
  absl::Duration retry_after;  // > 0 where waiting helps: RESOURCE_EXHAUSTED that passes, a warm-up
};

// Thread-safe.
class PickBackend {
 public:
  virtual ~PickBackend() = default;

  // Too long for a callback thread: run Pick on the work pool.
  virtual bool IsHeavy(const v1::PickRequest& request) const = 0;

  // `holder` 0: the reservation is held by its lease. reserve = false only explains.
  virtual PickResult Pick(const v1::PickRequest& request, HolderId holder, bool reserve,
                          v1::PickResponse* response) = 0;

  virtual absl::Status Report(const v1::OutcomeRequest& request) = 0;

  virtual void ReleaseHolder(HolderId holder, std::string_view client_instance) = 0;
  virtual std::uint32_t AdoptHolder(std::string_view client_instance, HolderId new_holder) = 0;
};

// What a full work pool answers.
inline PickResult RefusedByQueue() {
  return {absl::ResourceExhaustedError(
              "too many picks with long prompts are waiting: retry later, send chain hashes, or "
              "raise server.heavy_queue or server.heavy_threads"),
          absl::Milliseconds(200)};
}

}  // namespace warmpath

#endif  // WARMPATH_SERVER_PICK_BACKEND_H_
