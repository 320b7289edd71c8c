// Status plumbing. Errors name the field and the fix, so callers mostly pass them on.
#ifndef WARMPATH_CORE_BASE_STATUS_H_
#define WARMPATH_CORE_BASE_STATUS_H_

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/strings.h"

namespace warmpath {

// The same code with "context: " before the message, e.g. the field that was read.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(ToAbsl(context), ": ", status.message()));
}

}  // namespace warmpath

#define WARMPATH_RETURN_IF_ERROR(expr)                   \
  do {                                                   \
    ::absl::Status warmpath_status_ = (expr);            \
    if (!warmpath_status_.ok()) return warmpath_status_; \
  } while (false)

#define WARMPATH_CONCAT_INNER_(a, b) a##b
#define WARMPATH_CONCAT_(a, b) WARMPATH_CONCAT_INNER_(a, b)
#define WARMPATH_ASSIGN_OR_RETURN(lhs, expr) \
  WARMPATH_ASSIGN_OR_RETURN_IMPL_(WARMPATH_CONCAT_(warmpath_statusor_, __LINE__), lhs, expr)
// `tmp` is declared here, and `lhs` may declare something: neither can stand in parentheses.
// NOLINTBEGIN(bugprone-macro-parentheses)
#define WARMPATH_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                    \
  if (!tmp.ok()) return tmp.status();                   \
  lhs = *std::move(tmp)
// NOLINTEND(bugprone-macro-parentheses)

#endif  // WARMPATH_CORE_BASE_STATUS_H_
