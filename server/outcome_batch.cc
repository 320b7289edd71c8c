#include "server/outcome_batch.h"

#include "absl/strings/str_cat.h"
#include "core/base/strings.h"
#include "server/status_convert.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {

absl::Status ReportBatch(PickBackend& backend, const v1::OutcomeBatch& batch,
                         v1::OutcomeBatchResponse* response) {
  if (batch.outcomes_size() > kMaxOutcomesPerBatch) {
    return absl::InvalidArgumentError(absl::StrCat("outcomes: has ", batch.outcomes_size(),
                                                   ": send at most ", kMaxOutcomesPerBatch,
                                                   " in one message"));
  }
  for (int i = 0; i < batch.outcomes_size(); ++i) {
    const absl::Status status = backend.Report(batch.outcomes(i));
    if (status.ok()) continue;
    v1::OutcomeFailure* failure = response->add_failures();
    failure->set_index(static_cast<std::uint32_t>(i));
    failure->set_status_code(static_cast<int>(status.code()));
    failure->set_status_message(CutMessage(ToStd(status.message())));
  }
  return absl::OkStatus();
}

}  // namespace warmpath
