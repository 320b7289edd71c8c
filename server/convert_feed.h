// worker_events.proto <-> the values of core/fleet/feed.h.
#ifndef WARMPATH_SERVER_CONVERT_FEED_H_
#define WARMPATH_SERVER_CONVERT_FEED_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/fleet/feed.h"
#include "core/fleet/worker.h"
#include "warmpath/v1/worker_events.pb.h"

namespace warmpath {

// INVALID_ARGUMENT names the field. What a worker may say about itself is bounded here, in bytes;
// what it must say is checked by the fleet.
absl::StatusOr<Registration> RegistrationFromProto(const v1::Register& message);

// *result borrows from `update`. INVALID_ARGUMENT names the field. Of a heartbeat it is what is
// said of the caches: its load reports are updates of their own, to be applied before it.
absl::Status FeedUpdateFromProto(const v1::WorkerUpdate& update, FeedUpdate* result);

absl::Status LoadUpdateFromProto(const v1::LoadReport& message, FeedUpdate* result);

void RegisteredToProto(const RegisteredReply& reply, absl::Duration heartbeat,
                       absl::Duration heartbeat_in, v1::Registered* message);

// UNSPECIFIED is GPU. INVALID_ARGUMENT for numbers without a meaning.
absl::StatusOr<Tier> TierFromProto(v1::Tier tier, std::string_view field);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_CONVERT_FEED_H_
