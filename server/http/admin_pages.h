// What operators and monitoring look at: /, /metrics, /healthz, /readyz.
#ifndef WARMPATH_SERVER_HTTP_ADMIN_PAGES_H_
#define WARMPATH_SERVER_HTTP_ADMIN_PAGES_H_

#include <functional>
#include <string>
#include <vector>

#include "server/http/http_message.h"

namespace warmpath {

// Called from several threads at once.
struct AdminContent {
  std::function<std::string()> metrics;      // Prometheus text
  std::function<std::string()> status_page;  // HTML
};

// GET /healthz and GET /readyz.
std::vector<HttpRoute> HealthRoutes(const std::function<bool()>& ready);

// GET / and GET /metrics. They grow with the number of workers, so they are made on `pool`, where
// they can not hold up a health check.
std::vector<HttpRoute> PageRoutes(const AdminContent& content, WorkPool* pool);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_HTTP_ADMIN_PAGES_H_
