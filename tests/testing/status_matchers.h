// GoogleTest matchers for absl::Status and absl::StatusOr.
//   EXPECT_THAT(f(), IsOk());
//   EXPECT_THAT(f(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("model")));
#ifndef WARMPATH_TESTS_TESTING_STATUS_MATCHERS_H_
#define WARMPATH_TESTS_TESTING_STATUS_MATCHERS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"

namespace warmpath::testing {

inline const absl::Status& GetStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& status) {
  return status.status();
}

MATCHER(IsOk, "is OK") {
  const absl::Status& status = GetStatus(arg);
  *result_listener << status.ToString();
  return status.ok();
}

MATCHER_P2(StatusIs, code, message_matcher, "has the status code and a matching message") {
  const absl::Status& status = GetStatus(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(message_matcher, std::string(status.message()),
                                       result_listener);
}

MATCHER_P(StatusIs, code, "has the status code") {
  const absl::Status& status = GetStatus(arg);
  *result_listener << status.ToString();
  return status.code() == code;
}

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_TESTING_STATUS_MATCHERS_H_
