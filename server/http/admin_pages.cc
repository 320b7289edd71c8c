#include "server/http/admin_pages.h"

#include "absl/time/time.h"

namespace warmpath {
namespace {

HttpResponse Page(std::string_view content_type, std::string body, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.content_type = content_type;
  response.body = std::move(body);
  return response;
}

HttpResponse TooManyPages() {
  return ErrorResponse(absl::ResourceExhaustedError("too many pages are asked for: retry later"),
                       absl::Seconds(1));
}

}  // namespace

std::vector<HttpRoute> HealthRoutes(const std::function<bool()>& ready) {
  std::vector<HttpRoute> routes;
  routes.push_back({.method = "GET", .path = "/healthz", .handler = [](HttpRequest&) {
                      return Page("text/plain", "ok\n");
                    }});
  routes.push_back({.method = "GET", .path = "/readyz", .handler = [ready](HttpRequest&) {
                      return ready() ? Page("text/plain", "ready\n")
                                     : Page("text/plain", "not ready\n", 503);
                    }});
  return routes;
}

std::vector<HttpRoute> PageRoutes(const AdminContent& content, WorkPool* pool) {
  std::vector<HttpRoute> routes;
  routes.push_back(
      {.method = "GET",
       .path = "/",
       .handler = [page = content.status_page](
                      HttpRequest&) { return Page("text/html; charset=utf-8", page()); },
       .pool = pool,
       .pool_full = TooManyPages});
  routes.push_back({.method = "GET",
                    .path = "/metrics",
                    .handler =
                        [metrics = content.metrics](HttpRequest&) {
                          return Page("text/plain; version=0.0.4; charset=utf-8", metrics());
                        },
                    .pool = pool,
                    .pool_full = TooManyPages});
  return routes;
}

}  // namespace warmpath
