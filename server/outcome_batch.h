// Several outcomes in one message, as ReportOutcomes and PickStream take them.
#ifndef WARMPATH_SERVER_OUTCOME_BATCH_H_
#define WARMPATH_SERVER_OUTCOME_BATCH_H_

#include "absl/status/status.h"
#include "server/pick_backend.h"

namespace warmpath {

namespace v1 {
class OutcomeBatch;
class OutcomeBatchResponse;
}  // namespace v1

inline constexpr int kMaxOutcomesPerBatch = 1024;

// Reports each outcome in order. What is not taken is listed in the response and holds up nothing.
// INVALID_ARGUMENT, and none is taken, when the batch is over kMaxOutcomesPerBatch.
absl::Status ReportBatch(PickBackend& backend, const v1::OutcomeBatch& batch,
                         v1::OutcomeBatchResponse* response);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_OUTCOME_BATCH_H_
