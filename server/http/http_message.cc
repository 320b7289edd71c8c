#include "server/http/http_message.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/pick_json.h"
#include "server/status_convert.h"

namespace warmpath {

HttpResponse ErrorResponse(const absl::Status& status, absl::Duration retry_after) {
  HttpResponse response;
  response.status = HttpStatusOf(status.code(), retry_after);
  if (retry_after > absl::ZeroDuration()) {
    const std::int64_t seconds =
        std::max<std::int64_t>(1, absl::ToInt64Seconds(absl::Ceil(retry_after, absl::Seconds(1))));
    response.headers.emplace_back("Retry-After", absl::StrCat(seconds));
  }
  response.body = ErrorToJson(status, retry_after);
  return response;
}

HttpResponse ErrorResponse(int http_status, const absl::Status& status) {
  HttpResponse response = ErrorResponse(status);
  response.status = http_status;
  return response;
}

}  // namespace warmpath
