// router.proto <-> the values of core/routing.
#ifndef WARMPATH_SERVER_CONVERT_PICK_H_
#define WARMPATH_SERVER_CONVERT_PICK_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/routing/decision.h"
#include "core/routing/query.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {

// Everything of the request but its prompt. *query borrows from `request`. INVALID_ARGUMENT names
// the field and the fix.
absl::Status QueryFromProto(const v1::PickRequest& request, Query* query);

absl::StatusOr<Outcome> OutcomeFromProto(const v1::OutcomeRequest& request);

// All of the response but request_id.
void DecisionToProto(const Decision& decision, bool length_is_estimate, bool explain,
                     v1::PickResponse* response);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_CONVERT_PICK_H_
