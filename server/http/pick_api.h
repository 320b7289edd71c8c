// Picks and outcomes over HTTP, for load balancers without gRPC: docs/http-api.md.
#ifndef WARMPATH_SERVER_HTTP_PICK_API_H_
#define WARMPATH_SERVER_HTTP_PICK_API_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "server/http/http_message.h"
#include "server/pick_backend.h"

namespace warmpath {

struct PickApiOptions {
  PickBackend* backend = nullptr;  // must outlive the routes
  // Picks with at least so many bytes of body run on the pool.
  WorkPool* pool = nullptr;
  std::size_t pool_from_bytes = 0;
};

// POST /v1/pick and POST /v1/outcome.
std::vector<HttpRoute> PickRoutes(const PickApiOptions& options);

// The pick that a request asks for: the JSON form, or with the header x-warmpath-path the body of
// the client's own request as it is. Control headers fill in what the body does not say.
// INVALID_ARGUMENT names the field or the header. Takes the body away.
absl::Status PickFromHttp(HttpRequest& http, v1::PickRequest* pick);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_HTTP_PICK_API_H_
