#include "tests/fakes/engine/http_api.h"

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/json_quote.h"
#include "core/base/status.h"
#include "httplib.h"
#include "tests/fakes/engine/blocking_server.h"
#include "tests/fakes/engine/connection_threads.h"
#include "tests/fakes/engine/debug_api.h"
#include "tests/fakes/engine/job.h"
#include "tests/fakes/engine/json_text.h"
#include "tests/fakes/engine/metrics_text.h"
#include "tests/fakes/engine/openai_request.h"
#include "tests/fakes/engine/responses.h"

namespace warmpath::engine {
namespace {

using httplib::Request;
using httplib::Response;

constexpr char kJson[] = "application/json";
constexpr char kRankHeader[] = "X-data-parallel-rank";
// The version whose wire formats this engine speaks by default.
constexpr char kVersion[] = "0.26.0+warmpath";
constexpr int kListenBacklog = 1'024;
constexpr int kKeepAliveSeconds = 30;
// How soon a waiting handler notices that the server stops.
constexpr absl::Duration kWaitSlice = absl::Milliseconds(250);

void Fail(const absl::Status& status, Response& response) {
  response.status = HttpStatusOf(status);
  response.set_content(ErrorBody(status, response.status), kJson);
}

std::int64_t UnixSeconds() { return absl::ToUnixSeconds(SystemClock().WallNow()); }

// Without SO_REUSEPORT, which is cpp-httplib's default and would let a second engine share the
// port in silence.
void SocketOptions(int socket) {
  const int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
}

}  // namespace

class HttpApi::Impl {
 public:
  explicit Impl(Engine* engine) : engine_(engine) {}

  ~Impl() {
    stopping_ = true;
    server_.StopNow();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start() {
    const EngineOptions& options = engine_->options();
    const std::size_t threads = options.http_threads;
    server_.new_task_queue = [threads] { return new ConnectionThreads(threads); };
    server_.set_socket_options(SocketOptions);
    server_.set_tcp_nodelay(true);
    server_.set_keep_alive_max_count(1'000'000'000);
    server_.set_keep_alive_timeout(kKeepAliveSeconds);
    server_.set_payload_max_length(options.max_body_bytes);
    AddRoutes();
    AddDebugRoutes(&server_, engine_);
    if (options.port == 0) {
      port_ = server_.bind_to_any_port(options.host);
    } else {
      port_ = server_.bind_to_port(options.host, options.port) ? options.port : -1;
    }
    if (port_ < 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen on ", options.host, ":",
                                                 options.port,
                                                 ": choose another --port or stop its owner"));
    }
    server_.DeepenBacklog(kListenBacklog);
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // The socket listens already, but stop() does nothing before the accepting loop runs.
    while (!server_.is_running()) std::this_thread::yield();
    return absl::OkStatus();
  }

  int port() const { return port_; }

 private:
  // What one streamed response needs between two calls of its content provider.
  struct Stream {
    Stream(std::shared_ptr<Job> j, EngineRank* r, std::uint64_t id, std::int64_t created)
        : job(std::move(j)), rank(r), writer(*job, id, created) {}
    std::shared_ptr<Job> job;
    EngineRank* rank;
    ResponseWriter writer;
    std::uint32_t delivered = 0;
  };

  void AddRoutes();
  void AddErrorPages();
  void Generate(const Request& request, Response& response, RequestKind kind);
  void RespondWhole(const std::shared_ptr<Job>& job, EngineRank* rank, Response& response);
  bool StreamMore(Stream& stream, httplib::DataSink& sink);
  void Tokenize(const Request& request, Response& response);
  void Render(const Request& request, Response& response, RequestKind kind);
  void ListModels(Response& response);
  void ResetPrefixCache(Response& response);

  Engine* const engine_;
  BlockingServer server_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> next_response_id_{1};
  int port_ = -1;
  std::thread thread_;
};

void HttpApi::Impl::AddRoutes() {
  server_.Post("/v1/completions", [this](const Request& request, Response& response) {
    Generate(request, response, RequestKind::kCompletion);
  });
  server_.Post("/v1/chat/completions", [this](const Request& request, Response& response) {
    Generate(request, response, RequestKind::kChat);
  });
  server_.Post("/v1/completions/render", [this](const Request& request, Response& response) {
    Render(request, response, RequestKind::kCompletion);
  });
  server_.Post("/v1/chat/completions/render", [this](const Request& request, Response& response) {
    Render(request, response, RequestKind::kChat);
  });
  server_.Post("/tokenize",
               [this](const Request& request, Response& response) { Tokenize(request, response); });
  PostWithoutBody(&server_, "/reset_prefix_cache",
                  [this](const Request&, Response& response) { ResetPrefixCache(response); });
  server_.Get("/v1/models", [this](const Request&, Response& response) { ListModels(response); });
  server_.Get("/health", [](const Request&, Response& response) { response.status = 200; });
  server_.Get("/version", [](const Request&, Response& response) {
    response.set_content(absl::StrCat("{\"version\":\"", kVersion, "\"}"), kJson);
  });
  server_.Get("/metrics", [this](const Request&, Response& response) {
    response.set_content(MetricsText(*engine_), "text/plain; version=0.0.4; charset=utf-8");
  });
  AddErrorPages();
}

void HttpApi::Impl::AddErrorPages() {
  server_.set_error_handler([](const Request& request, Response& response) {
    if (!response.body.empty()) return;
    const absl::Status status =
        response.status == 404
            ? absl::NotFoundError(absl::StrCat("no such endpoint: ", request.method, " ",
                                               absl::Utf8SafeCEscape(request.path)))
            : absl::InvalidArgumentError("the request can not be served: check method and size");
    response.set_content(ErrorBody(status, response.status), kJson);
  });
  server_.set_exception_handler([](const Request&, Response& response, std::exception_ptr) {
    response.status = 500;
    response.set_content(ErrorBody(absl::InternalError("unexpected exception"), 500), kJson);
  });
}

void HttpApi::Impl::Generate(const Request& request, Response& response, RequestKind kind) {
  absl::StatusOr<GenerateRequest> parsed =
      ParseGenerateRequest(request.body, kind, engine_->options().models);
  if (!parsed.ok()) return Fail(parsed.status(), response);
  const absl::StatusOr<EngineRank*> rank =
      engine_->ChooseRank(request.get_header_value(kRankHeader));
  if (!rank.ok()) return Fail(rank.status(), response);
  const bool streamed = parsed->stream;
  auto job = std::make_shared<Job>(*std::move(parsed), engine_->options().stream_interval);
  if (const absl::Status status = (*rank)->Submit(job); !status.ok()) {
    return Fail(status, response);
  }
  response.set_header(kRankHeader, absl::StrCat((*rank)->rank()));
  if (!streamed) return RespondWhole(job, *rank, response);

  auto stream = std::make_shared<Stream>(std::move(job), *rank, next_response_id_++, UnixSeconds());
  response.set_chunked_content_provider(
      "text/event-stream",
      [this, stream](std::size_t, httplib::DataSink& sink) { return StreamMore(*stream, sink); },
      // A client that left early still holds blocks; for an ended job this does nothing.
      [stream](bool) { stream->rank->Cancel(stream->job); });
}

void HttpApi::Impl::RespondWhole(const std::shared_ptr<Job>& job, EngineRank* rank,
                                 Response& response) {
  Job::Progress progress;
  do {
    progress = job->Wait(0, kWaitSlice);
  } while (!progress.finished && !progress.aborted && !stopping_);
  if (!progress.finished) {
    rank->Cancel(job);
    return Fail(absl::UnavailableError("the engine is shutting down"), response);
  }
  const ResponseWriter writer(*job, next_response_id_++, UnixSeconds());
  response.set_content(writer.Whole(progress.cached_tokens), kJson);
}

bool HttpApi::Impl::StreamMore(Stream& stream, httplib::DataSink& sink) {
  const Job::Progress progress = stream.job->Wait(stream.delivered, kWaitSlice);
  if (stopping_ || (progress.aborted && !progress.finished)) return false;
  if (progress.produced == stream.delivered) return sink.is_writable();
  std::string data;
  if (stream.delivered == 0) data = stream.writer.StreamStart();
  data += stream.writer.StreamChunk(stream.delivered, progress.produced);
  stream.delivered = progress.produced;
  if (progress.finished) data += stream.writer.StreamEnd(progress.cached_tokens);
  if (!sink.write(data.data(), data.size())) return false;
  if (progress.finished) sink.done();
  return true;
}

void HttpApi::Impl::Tokenize(const Request& request, Response& response) {
  const absl::StatusOr<std::vector<TokenId>> ids =
      ParseTokenizeRequest(request.body, engine_->options().models);
  if (!ids.ok()) return Fail(ids.status(), response);
  std::string body =
      absl::StrCat("{\"count\":", ids->size(),
                   ",\"max_model_len\":", engine_->rank(0).CapacityTokens(), ",\"tokens\":");
  AppendJsonArray(*ids, &body);
  body.append(",\"token_strs\":null}");
  response.set_content(body, kJson);
}

void HttpApi::Impl::Render(const Request& request, Response& response, RequestKind kind) {
  const absl::StatusOr<GenerateRequest> parsed =
      ParseGenerateRequest(request.body, kind, engine_->options().models);
  if (!parsed.ok()) return Fail(parsed.status(), response);
  std::string body =
      absl::StrCat("{\"request_id\":\"render-", next_response_id_++, "\",\"token_ids\":");
  AppendJsonArray(parsed->prompt, &body);
  absl::StrAppend(&body,
                  ",\"features\":null,\"sampling_params\":{\"max_tokens\":", parsed->max_tokens,
                  "},\"model\":");
  AppendJsonQuoted(parsed->model, &body);
  absl::StrAppend(&body, ",\"stream\":", parsed->stream ? "true" : "false", ",\"cache_salt\":");
  AppendJsonQuotedOrNull(parsed->cache_salt, &body);
  body.append(",\"priority\":0,\"kv_transfer_params\":null}");
  // Completions may hold several prompts and render to a list; chats render to one.
  response.set_content(kind == RequestKind::kCompletion ? absl::StrCat("[", body, "]") : body,
                       kJson);
}

void HttpApi::Impl::ListModels(Response& response) {
  const Models& models = engine_->options().models;
  std::string body = "{\"object\":\"list\",\"data\":[";
  const auto append = [&](const std::string& id, const std::optional<std::string>& parent) {
    body.append("{\"id\":");
    AppendJsonQuoted(id, &body);
    absl::StrAppend(
        &body, ",\"object\":\"model\",\"created\":", absl::ToUnixSeconds(engine_->start_time()),
        ",\"owned_by\":\"warmpath\",\"root\":");
    AppendJsonQuoted(id, &body);
    body.append(",\"parent\":");
    AppendJsonQuotedOrNull(parent, &body);
    absl::StrAppend(&body, ",\"max_model_len\":", engine_->rank(0).CapacityTokens(), "}");
  };
  append(models.base, std::nullopt);
  for (const std::string& lora : models.loras) {
    body.push_back(',');
    append(lora, models.base);
  }
  body.append("]}");
  response.set_content(body, kJson);
}

void HttpApi::Impl::ResetPrefixCache(Response& response) {
  absl::Status first_error;
  for (std::size_t r = 0; r < engine_->rank_count(); ++r) {
    const absl::Status status = engine_->rank(r).ResetPrefixCache();
    if (first_error.ok()) first_error = status;
  }
  if (!first_error.ok()) return Fail(first_error, response);
  response.set_content("{\"success\":true}", kJson);
}

HttpApi::HttpApi(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpApi::~HttpApi() = default;
int HttpApi::port() const { return impl_->port(); }

absl::StatusOr<std::unique_ptr<HttpApi>> HttpApi::Start(Engine* engine) {
  auto impl = std::make_unique<Impl>(engine);
  WARMPATH_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<HttpApi>(new HttpApi(std::move(impl)));
}

}  // namespace warmpath::engine
