// One pick from request to response: model -> pool, prompt -> chain hashes, picker, metrics. The
// same for unary calls, streams and HTTP, and testable without any of them.
#ifndef WARMPATH_SERVER_PICK_HANDLER_H_
#define WARMPATH_SERVER_PICK_HANDLER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/histogram.h"
#include "core/fleet/fleet.h"
#include "core/routing/picker.h"
#include "server/pick_backend.h"

namespace warmpath {

// Thread-safe.
class PickHandler final : public PickBackend {
 public:
  struct Limits {
    std::uint32_t max_prompt_tokens = 1'000'000;
    std::uint32_t heavy_prompt_tokens = 65'536;
  };

  // All must outlive the handler.
  PickHandler(Fleet* fleet, Picker* picker, const Clock* clock, const Limits& limits,
              std::uint64_t random_seed);

  bool IsHeavy(const v1::PickRequest& request) const override;
  PickResult Pick(const v1::PickRequest& request, HolderId holder, bool reserve,
                  v1::PickResponse* response) override;
  absl::Status Report(const v1::OutcomeRequest& request) override;
  void ReleaseHolder(HolderId holder, std::string_view client_instance) override;
  std::uint32_t AdoptHolder(std::string_view client_instance, HolderId new_holder) override;

  // Seconds from the parsed request to the decision, of picks that reserved.
  HistogramSnapshot PickSeconds() const { return pick_seconds_.Snapshot(); }

 private:
  struct Prompt;

  absl::Status TakePrompt(const v1::PickRequest& request, Prompt* prompt) const;
  absl::Status TakeTokens(const v1::PickRequest& request, Prompt* prompt) const;
  absl::Status TakeChain(const v1::PickRequest& request, std::uint32_t block_size,
                         std::string_view pool, Prompt* prompt) const;
  absl::Status TakeBody(const v1::PickRequest& request, Prompt* prompt) const;
  PickResult PickPrompt(const v1::PickRequest& request, HolderId holder, bool reserve,
                        v1::PickResponse* response);

  Fleet* const fleet_;
  Picker* const picker_;
  const Clock* const clock_;
  const Limits limits_;
  const std::string id_prefix_;  // of request ids that we make
  Histogram pick_seconds_;
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_PICK_HANDLER_H_
