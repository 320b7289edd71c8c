#include "client/agent/canonical/feed_cause.h"

namespace warmpath {

std::string_view FeedCauseName(FeedCause cause) {
  switch (cause) {
    case FeedCause::kResync:
      return "resync";
    case FeedCause::kGap:
      return "gap";
    case FeedCause::kMissedStart:
      return "missed_start";
    case FeedCause::kLateJoin:
      return "late_join";
    case FeedCause::kHiddenDomain:
      return "hidden_domain";
    case FeedCause::kSilent:
      return "silent";
    case FeedCause::kDrift:
      return "drift";
    case FeedCause::kCount:
      break;
  }
  return "unknown";
}

}  // namespace warmpath
