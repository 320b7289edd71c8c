#include "server/http/http_server.h"

#include <microhttpd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "server/http/connection_table.h"
#include "server/http/listen_socket.h"
#include "server/work_pool.h"

namespace warmpath {
namespace {

// Read buffer and headers of one connection.
constexpr std::size_t kConnectionMemory = 32u << 10;
constexpr std::size_t kConnectionMemoryStep = 8u << 10;
// A refused body is read and dropped up to this much, since a client that still sends would not see
// the answer; of a larger one nothing is read.
constexpr std::uint64_t kMostDropped = 4u << 20;
constexpr std::size_t kFirstReserve = 64u << 10;
// Connections of a thread that may be on their way out while others have come in their place. What
// the library counts is its own: at its limit it would accept nothing, however idle all are.
constexpr unsigned int kLeaving = 64;

bool Printable(std::string_view value) {
  return std::all_of(value.begin(), value.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && static_cast<unsigned char>(c) != 0x7F;
  });
}

// 0 without one; what is no number is more than any limit.
std::uint64_t DeclaredLength(const HttpRequest& request) {
  const std::optional<std::string_view> length = request.Header("Content-Length");
  std::uint64_t declared = 0;
  if (length.has_value() && !absl::SimpleAtoi(ToAbsl(*length), &declared)) return ~std::uint64_t{0};
  return declared;
}

// The library shares its limit out among the threads, and they do not get the same load.
unsigned int MostConnections(const HttpServer::Options& options) {
  const auto most = static_cast<unsigned int>(options.max_connections);
  return options.threads > 1 ? most + most / 4 + kLeaving * options.threads : most + kLeaving;
}

}  // namespace

struct HttpServer::Impl {
  // One request, from its headers to the end of its answer.
  struct Exchange final : HttpRequest {
    Exchange(Impl* s, MHD_Connection* c, ConnectionTable::Connection* e)
        : server(s), connection(c), entry(e) {}
    ~Exchange() override { server->memory.fetch_sub(counted); }

    std::optional<std::string_view> Header(std::string_view name) const override {
      const char* value = nullptr;
      std::size_t size = 0;
      if (MHD_lookup_connection_value_n(connection, MHD_HEADER_KIND, name.data(), name.size(),
                                        &value, &size) == MHD_NO) {
        return std::nullopt;
      }
      return value == nullptr ? std::string_view() : std::string_view(value, size);
    }

    void Refuse(HttpResponse why) {
      if (refused) return;
      refused = true;
      response = std::move(why);
      body = std::string();
    }

    Impl* const server;
    MHD_Connection* const connection;
    ConnectionTable::Connection* const entry;
    const HttpRoute* route = nullptr;
    HttpResponse response;
    bool refused = false;        // the body does not matter any more
    bool answered = false;       // `response` is what the route's handler made
    std::uint64_t declared = 0;  // Content-Length
    std::uint64_t received = 0;
    std::size_t counted = 0;  // of the body, in the server's memory
  };

  Impl(const Options& o, std::vector<HttpRoute> r) : options(o), routes(std::move(r)) {}

  absl::Status Listen();
  void Stop(absl::Duration grace) ABSL_LOCKS_EXCLUDED(mu);

  void Begin(Exchange& exchange, std::string_view method, std::string_view path);
  std::size_t MaxBody(const Exchange& exchange) const;
  HttpResponse TooLarge(const Exchange& exchange) const;
  bool TakeBody(Exchange& exchange, std::string_view data);
  MHD_Result Finish(Exchange& exchange) ABSL_LOCKS_EXCLUDED(mu);
  MHD_Result Send(Exchange& exchange) ABSL_LOCKS_EXCLUDED(mu);
  static void Handle(Exchange& exchange);

  bool BeginJob() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    if (stopping) return false;
    ++jobs;
    return true;
  }
  void EndJob() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    --jobs;
  }
  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return exchanges == 0; }
  bool NoJobs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return jobs == 0; }

  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* url,
                              const char* method, const char* version, const char* data,
                              std::size_t* data_size, void** state);
  static void OnCompleted(void* self, MHD_Connection* connection, void** state,
                          MHD_RequestTerminationCode how);
  static void OnConnection(void* self, MHD_Connection* connection, void** entry,
                           MHD_ConnectionNotificationCode what);

  const Options options;
  const std::vector<HttpRoute> routes;
  ListenSocket socket;
  MHD_Daemon* daemon = nullptr;
  ConnectionTable connections;
  std::atomic<std::size_t> memory{0};

  mutable absl::Mutex mu;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  std::size_t exchanges ABSL_GUARDED_BY(mu) = 0;
  std::size_t jobs ABSL_GUARDED_BY(mu) = 0;  // on work pools: their connections are suspended
};

absl::Status HttpServer::Impl::Listen() {
  WARMPATH_ASSIGN_OR_RETURN(socket, ListenOn(options.address, options.setting));
  const auto idle_s = static_cast<unsigned int>(
      absl::ToInt64Seconds(absl::Ceil(options.idle_timeout, absl::Seconds(1))));
  // libmicrohttpd wants no pool of one.
  const unsigned int threads = options.threads > 1 ? options.threads : 0;
  daemon = MHD_start_daemon(
      MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC, 0, nullptr, nullptr,
      &OnRequest, this, MHD_OPTION_LISTEN_SOCKET, socket.fd, MHD_OPTION_THREAD_POOL_SIZE, threads,
      MHD_OPTION_CONNECTION_LIMIT, MostConnections(options), MHD_OPTION_CONNECTION_TIMEOUT, idle_s,
      MHD_OPTION_CONNECTION_MEMORY_LIMIT, kConnectionMemory, MHD_OPTION_CONNECTION_MEMORY_INCREMENT,
      kConnectionMemoryStep, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_COMPLETED,
      &OnCompleted, this, MHD_OPTION_NOTIFY_CONNECTION, &OnConnection, this, MHD_OPTION_END);
  if (daemon == nullptr) {
    close(socket.fd);
    return absl::ResourceExhaustedError(
        absl::StrCat("can not serve HTTP on ", options.address,
                     ": no threads or descriptors are left; raise the process's limits"));
  }
  return absl::OkStatus();
}

void HttpServer::Impl::Stop(absl::Duration grace) {
  if (daemon == nullptr) return;
  const MHD_socket listening = MHD_quiesce_daemon(daemon);
  {
    absl::MutexLock lock(&mu);
    stopping = true;
    mu.AwaitWithTimeout(absl::Condition(this, &Impl::Idle), grace);
    // Suspended connections must be resumed before the daemon stops.
    mu.Await(absl::Condition(this, &Impl::NoJobs));
  }
  MHD_stop_daemon(daemon);
  daemon = nullptr;
  if (listening != MHD_INVALID_SOCKET) close(listening);
}

void HttpServer::Impl::Begin(Exchange& exchange, std::string_view method, std::string_view path) {
  connections.SetBusy(exchange.entry);
  exchange.entry->SetDeadline(options.clock->Now() + options.request_timeout);
  std::vector<std::string_view> allowed;
  for (const HttpRoute& route : routes) {
    if (route.path != path) continue;
    if (route.method == method || (route.method == "GET" && method == "HEAD")) {
      exchange.route = &route;
      break;
    }
    allowed.push_back(route.method);
    if (route.method == "GET") allowed.push_back("HEAD");
  }
  if (exchange.route == nullptr && allowed.empty()) {
    exchange.Refuse(ErrorResponse(absl::NotFoundError("no such page: see docs/http-api.md")));
  } else if (exchange.route == nullptr) {
    const std::string methods = absl::StrJoin(
        allowed, ", ", [](std::string* out, auto name) { absl::StrAppend(out, ToAbsl(name)); });
    HttpResponse response = ErrorResponse(
        405, absl::UnimplementedError(absl::StrCat("method: this page takes ", methods)));
    response.headers.emplace_back("Allow", methods);
    exchange.Refuse(std::move(response));
  } else if (exchange.Header("Content-Encoding").has_value()) {
    // Could grow a thousandfold.
    exchange.Refuse(ErrorResponse(
        415, absl::InvalidArgumentError("Content-Encoding: send the body uncompressed")));
  }
  exchange.declared = DeclaredLength(exchange);
  if (exchange.declared > MaxBody(exchange)) exchange.Refuse(TooLarge(exchange));
  if (!exchange.refused) {
    exchange.body.reserve(std::min<std::uint64_t>(exchange.declared, kFirstReserve));
  }
}

std::size_t HttpServer::Impl::MaxBody(const Exchange& exchange) const {
  const HttpRoute* route = exchange.route;
  return std::min(options.max_body_bytes,
                  route == nullptr ? options.max_body_bytes : route->max_body_bytes);
}

HttpResponse HttpServer::Impl::TooLarge(const Exchange& exchange) const {
  const std::size_t limit = MaxBody(exchange);
  return ErrorResponse(
      413, absl::ResourceExhaustedError(absl::StrCat(
               "body: is larger than ", limit, " bytes: send less",
               limit == options.max_body_bytes ? " or raise server.max_message_bytes"
                                               : ", which is all that this page takes")));
}

// Appends, or refuses what becomes too large; false: the connection is not worth keeping.
bool HttpServer::Impl::TakeBody(Exchange& exchange, std::string_view data) {
  exchange.received += data.size();
  if (exchange.refused) return exchange.received <= options.max_body_bytes + kMostDropped;
  if (exchange.received > MaxBody(exchange)) {
    exchange.Refuse(TooLarge(exchange));
    return true;
  }
  exchange.counted += data.size();
  if (memory.fetch_add(data.size()) + data.size() > options.max_memory) {
    exchange.Refuse(ErrorResponse(
        absl::ResourceExhaustedError(
            "body: too many large bodies at once: retry later, or raise server.http_memory_bytes"),
        absl::Seconds(1)));
    return true;
  }
  exchange.body.append(data);
  return true;
}

void HttpServer::Impl::Handle(Exchange& exchange) {
  try {
    exchange.response = exchange.route->handler(exchange);
  } catch (const std::exception&) {
    exchange.response = ErrorResponse(absl::InternalError("unexpected exception"));
  }
  exchange.answered = true;
}

MHD_Result HttpServer::Impl::Finish(Exchange& exchange) {
  if (exchange.refused || exchange.answered) return Send(exchange);
  const HttpRoute& route = *exchange.route;
  if (route.pool == nullptr || exchange.body.size() < route.pool_from_bytes) {
    Handle(exchange);
    return Send(exchange);
  }
  if (!BeginJob()) {
    exchange.Refuse(ErrorResponse(
        absl::UnavailableError("the router shuts down: connect to another one, or again later")));
    return Send(exchange);
  }
  MHD_suspend_connection(exchange.connection);
  const bool queued = route.pool->TrySubmit([this, &exchange] {
    Handle(exchange);
    // The exchange may be gone with the next line.
    MHD_resume_connection(exchange.connection);
    EndJob();
  });
  if (!queued) {
    exchange.response = route.pool_full();
    exchange.answered = true;
    MHD_resume_connection(exchange.connection);
    EndJob();
  }
  return MHD_YES;
}

MHD_Result HttpServer::Impl::Send(Exchange& exchange) {
  const HttpResponse& response = exchange.response;
  MHD_Response* out = MHD_create_response_from_buffer(
      response.body.size(), const_cast<char*>(response.body.data()), MHD_RESPMEM_MUST_COPY);
  if (out == nullptr) return MHD_NO;
  MHD_add_response_header(out, MHD_HTTP_HEADER_CONTENT_TYPE,
                          std::string(response.content_type).c_str());
  for (const auto& [name, value] : response.headers) {
    if (Printable(value)) MHD_add_response_header(out, name.c_str(), value.c_str());
  }
  bool last = exchange.refused;  // the rest of a refused body must not be read as a request
  {
    absl::MutexLock lock(&mu);
    last = last || stopping;
  }
  if (last) MHD_add_response_header(out, MHD_HTTP_HEADER_CONNECTION, "close");
  exchange.entry->SetDeadline(options.clock->Now() + options.request_timeout);
  const MHD_Result result =
      MHD_queue_response(exchange.connection, static_cast<unsigned int>(response.status), out);
  MHD_destroy_response(out);
  return result;
}

MHD_Result HttpServer::Impl::OnRequest(void* self, MHD_Connection* connection, const char* url,
                                       const char* method, const char* /*version*/,
                                       const char* data, std::size_t* data_size, void** state) {
  auto* impl = static_cast<Impl*>(self);
  auto* exchange = static_cast<Exchange*>(*state);
  if (exchange == nullptr) {
    const MHD_ConnectionInfo* info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (info == nullptr || info->socket_context == nullptr) return MHD_NO;
    exchange = new Exchange(impl, connection,
                            static_cast<ConnectionTable::Connection*>(info->socket_context));
    *state = exchange;
    {
      absl::MutexLock lock(&impl->mu);
      ++impl->exchanges;
    }
    impl->Begin(*exchange, method, url);
    // An answer now is an answer without the body: the client waits for it before it sends, or
    // would send too much.
    if (exchange->refused && (exchange->declared > impl->options.max_body_bytes + kMostDropped ||
                              exchange->Header("Expect").has_value())) {
      return impl->Send(*exchange);
    }
    return MHD_YES;
  }
  if (*data_size > 0) {
    const bool go_on = impl->TakeBody(*exchange, std::string_view(data, *data_size));
    *data_size = 0;
    return go_on ? MHD_YES : MHD_NO;
  }
  return impl->Finish(*exchange);
}

void HttpServer::Impl::OnCompleted(void* self, MHD_Connection*, void** state,
                                   MHD_RequestTerminationCode how) {
  auto* impl = static_cast<Impl*>(self);
  auto* exchange = static_cast<Exchange*>(*state);
  if (exchange == nullptr) return;
  *state = nullptr;
  if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK && exchange->answered &&
      exchange->response.undelivered) {
    exchange->response.undelivered();
  }
  impl->connections.SetIdle(exchange->entry,
                            impl->options.clock->Now() + impl->options.idle_timeout);
  delete exchange;
  absl::MutexLock lock(&impl->mu);
  --impl->exchanges;
}

void HttpServer::Impl::OnConnection(void* self, MHD_Connection* connection, void** entry,
                                    MHD_ConnectionNotificationCode what) {
  auto* impl = static_cast<Impl*>(self);
  if (what == MHD_CONNECTION_NOTIFY_STARTED) {
    const MHD_ConnectionInfo* info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == nullptr) return;
    if (impl->connections.size() >= impl->options.max_connections) {
      impl->connections.CloseLongestIdle();
    }
    *entry = impl->connections.Add(info->connect_fd,
                                   impl->options.clock->Now() + impl->options.request_timeout);
  } else if (*entry != nullptr) {
    impl->connections.Remove(static_cast<ConnectionTable::Connection*>(*entry));
    *entry = nullptr;
  }
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options,
                                                              std::vector<HttpRoute> routes) {
  auto impl = std::make_unique<Impl>(options, std::move(routes));
  WARMPATH_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() { Shutdown(absl::ZeroDuration()); }

int HttpServer::port() const { return impl_->socket.port; }
std::size_t HttpServer::connections() const { return impl_->connections.size(); }
void HttpServer::CloseOverdue() { impl_->connections.CloseOverdue(impl_->options.clock->Now()); }
void HttpServer::Shutdown(absl::Duration grace) { impl_->Stop(grace); }

}  // namespace warmpath
