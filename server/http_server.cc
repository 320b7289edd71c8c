#include "server/http_server.h"

#include <httplib.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/base/log.h"
#include "server/config/schema.h"
#include "server/pick_json.h"
#include "server/status_convert.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {
namespace {

constexpr std::size_t kConnectionsWaiting = 256;
constexpr int kIdleSeconds = 2;  // a kept-alive connection holds a thread
constexpr int kReadSeconds = 5;
constexpr std::size_t kRequestsPerConnection = 1000;
constexpr char kJson[] = "application/json";

// httplib's own queue of accepted connections has no bound. Here the accepting thread waits while
// the queue is full, and the kernel's backlog refuses the rest.
class BoundedQueue final : public httplib::TaskQueue {
 public:
  explicit BoundedQueue(std::size_t threads) {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }

  void enqueue(std::function<void()> connection) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &BoundedQueue::HasRoom));
    waiting_.push_back(std::move(connection));
  }

  void shutdown() override ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || waiting_.size() < kConnectionsWaiting;
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !waiting_.empty(); }
  void Run() ABSL_LOCKS_EXCLUDED(mu_) {
    for (;;) {
      std::function<void()> connection;
      {
        absl::MutexLock lock(&mu_);
        mu_.Await(absl::Condition(this, &BoundedQueue::HasWork));
        if (waiting_.empty()) return;
        connection = std::move(waiting_.front());
        waiting_.pop_front();
      }
      connection();
    }
  }

  absl::Mutex mu_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

void SetError(const absl::Status& status, absl::Duration retry_after, httplib::Response& response) {
  response.status = HttpStatusOf(status.code(), retry_after);
  if (retry_after > absl::ZeroDuration()) {
    const std::int64_t seconds =
        std::max<std::int64_t>(1, absl::ToInt64Seconds(absl::Ceil(retry_after, absl::Seconds(1))));
    response.set_header("Retry-After", absl::StrCat(seconds));
  }
  response.set_content(ErrorToJson(status, retry_after), kJson);
}

// Answers without having read the whole body, so the connection can not be used again: what is left
// of the body would be taken for a request. The provider's "false" after the last byte makes
// httplib close it.
void RefuseBody(int http_status, const absl::Status& status, httplib::Response& response) {
  response.status = http_status;
  response.set_header("Connection", "close");
  const std::string body = ErrorToJson(status, absl::ZeroDuration());
  response.set_content_provider(body.size(), kJson,
                                [body](std::size_t offset, std::size_t, httplib::DataSink& sink) {
                                  sink.write(body.data() + offset, body.size() - offset);
                                  return false;
                                });
}

// Reads a JSON body of bounded size; false when the response was made already.
bool ReadBody(const httplib::Request& request, const httplib::ContentReader& reader,
              std::size_t limit, std::string* body, httplib::Response& response) {
  // Compressed bodies could grow a thousandfold.
  if (request.has_header("Content-Encoding")) {
    RefuseBody(415, absl::InvalidArgumentError("Content-Encoding: send the body uncompressed"),
               response);
    return false;
  }
  if (request.is_multipart_form_data()) {
    RefuseBody(415, absl::InvalidArgumentError("Content-Type: send application/json"), response);
    return false;
  }
  bool too_large = false;
  const bool whole = reader([&](const char* data, std::size_t size) {
    too_large = too_large || body->size() + size > limit;
    if (too_large) return false;
    body->append(data, size);
    return true;
  });
  // With a Content-Length above the limit httplib skips the body by itself and reports failure.
  std::uint64_t declared = 0;
  too_large =
      too_large ||
      (absl::SimpleAtoi(request.get_header_value("Content-Length"), &declared) && declared > limit);
  if (too_large) {
    RefuseBody(
        413,
        absl::ResourceExhaustedError(absl::StrCat(
            "body: is larger than ", limit, " bytes: send less or raise server.max_message_bytes")),
        response);
    return false;
  }
  if (!whole) {
    RefuseBody(400, absl::InvalidArgumentError("body: ended early"), response);
    return false;
  }
  return true;
}

absl::Status SplitAddress(const std::string& address, std::string* host, int* port) {
  if (absl::Status status = CheckAddress(address); !status.ok()) return status;
  const std::size_t colon = address.rfind(':');
  *host = address.substr(0, colon);
  if (host->front() == '[') *host = host->substr(1, host->size() - 2);
  if (!absl::SimpleAtoi(address.substr(colon + 1), port)) {
    return absl::InvalidArgumentError("write host:port");
  }
  return absl::OkStatus();
}

}  // namespace

struct HttpServer::Impl {
  Options options;
  Content content;
  httplib::Server server;
  int port = 0;
  std::thread thread;

  void Configure();
  void AddPages();
  void AddPicks();
};

void HttpServer::Impl::Configure() {
  server.new_task_queue = [threads = options.threads] { return new BoundedQueue(threads); };
  // httplib's default is SO_REUSEPORT, with which a second router shares the port unnoticed.
  server.set_socket_options([](int socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  server.set_tcp_nodelay(true);
  server.set_keep_alive_timeout(kIdleSeconds);
  server.set_keep_alive_max_count(kRequestsPerConnection);
  server.set_read_timeout(kReadSeconds);
  server.set_write_timeout(kReadSeconds);
  server.set_payload_max_length(options.max_body_bytes);
  server.set_exception_handler(
      [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
        SetError(absl::InternalError("unexpected exception"), absl::ZeroDuration(), response);
      });
  server.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
    if (!response.body.empty() || response.content_provider_) return;
    const char* message = "the request could not be read";
    if (response.status == 404) message = "no such page: see / for what there is";
    if (response.status == 413) message = "body: too large: raise server.max_message_bytes";
    const absl::Status status(
        response.status == 404 ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
        message);
    response.set_content(ErrorToJson(status, absl::ZeroDuration()), kJson);
    static_cast<void>(request);
  });
}

void HttpServer::Impl::AddPages() {
  server.Get("/", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(content.status_page(), "text/html; charset=utf-8");
  });
  server.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(content.metrics(), "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("ok\n", "text/plain");
  });
  server.Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
    const bool ready = content.ready();
    response.status = ready ? 200 : 503;
    response.set_content(ready ? "ready\n" : "not ready\n", "text/plain");
  });
}

void HttpServer::Impl::AddPicks() {
  server.Post("/v1/pick", [this](const httplib::Request& request, httplib::Response& response,
                                 const httplib::ContentReader& reader) {
    std::string body;
    if (!ReadBody(request, reader, options.max_body_bytes, &body, response)) return;
    v1::PickRequest pick;
    if (absl::Status status = PickRequestFromJson(body, &pick); !status.ok()) {
      SetError(status, absl::ZeroDuration(), response);
      return;
    }
    v1::PickResponse answer;
    const PickResult result = content.backend->Pick(pick, 0, /*reserve=*/true, &answer);
    if (!result.status.ok()) {
      SetError(result.status, result.retry_after, response);
      return;
    }
    response.set_content(PickResponseToJson(answer), kJson);
  });
  server.Post("/v1/outcome", [this](const httplib::Request& request, httplib::Response& response,
                                    const httplib::ContentReader& reader) {
    std::string body;
    if (!ReadBody(request, reader, options.max_body_bytes, &body, response)) return;
    v1::OutcomeRequest outcome;
    absl::Status status = OutcomeRequestFromJson(body, &outcome);
    if (status.ok()) status = content.backend->Report(outcome);
    if (!status.ok()) {
      SetError(status, absl::ZeroDuration(), response);
      return;
    }
    response.set_content("{}", kJson);
  });
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options,
                                                              Content content) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->content = std::move(content);
  std::string host;
  int port = 0;
  if (absl::Status status = SplitAddress(options.address, &host, &port); !status.ok()) {
    return status;
  }
  impl->Configure();
  impl->AddPages();
  impl->AddPicks();
  if (port == 0) {
    impl->port = impl->server.bind_to_any_port(host);
  } else if (impl->server.bind_to_port(host, port)) {
    impl->port = port;
  }
  if (impl->port <= 0) {
    return absl::UnavailableError(
        absl::StrCat("can not listen for HTTP on ", options.address,
                     ": another program uses the port, or the address is not this machine's; "
                     "change server.http_address"));
  }
  impl->thread = std::thread([server = &impl->server] { server->listen_after_bind(); });
  // stop() has no effect before the loop runs.
  while (!impl->server.is_running()) std::this_thread::yield();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  impl_->server.stop();
  impl_->thread.join();
}

int HttpServer::port() const { return impl_->port; }

}  // namespace warmpath
