#include "client/replay/http_streams.h"

#include <curl/curl.h>

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace warmpath::replay {
namespace {

// Of an error answer, how much is kept for the message.
constexpr std::size_t kErrorBodyBytes = 512;

struct Stream {
  HttpPost post;
  curl_slist* headers = nullptr;
  absl::Status consumer_status;  // of on_bytes
  std::string error_body;

  ~Stream() { curl_slist_free_all(headers); }
};

long ResponseCode(CURL* easy) {
  long code = 0;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
  return code;
}

struct WriteTarget {
  Stream* stream;
  CURL* easy;
};

}  // namespace

struct HttpStreams::Impl {
  CURLM* multi = nullptr;
  struct Open {
    std::unique_ptr<Stream> stream;
    std::unique_ptr<WriteTarget> target;
  };
  absl::flat_hash_map<CURL*, Open> open;
  std::vector<CURL*> idle;  // handles kept for reuse

  ~Impl() {
    for (auto& [easy, entry] : open) {
      curl_multi_remove_handle(multi, easy);
      curl_easy_cleanup(easy);
    }
    for (CURL* easy : idle) curl_easy_cleanup(easy);
    if (multi != nullptr) curl_multi_cleanup(multi);
  }

  static std::size_t OnWrite(char* data, std::size_t size, std::size_t count, void* user) {
    auto* target = static_cast<WriteTarget*>(user);
    const std::size_t bytes = size * count;
    Stream& stream = *target->stream;
    if (ResponseCode(target->easy) != 200) {
      stream.error_body.append(
          data,
          std::min(bytes, kErrorBodyBytes - std::min(kErrorBodyBytes, stream.error_body.size())));
      return bytes;
    }
    stream.consumer_status = stream.post.on_bytes(std::string_view(data, bytes));
    return stream.consumer_status.ok() ? bytes : 0;
  }

  void Finish(CURL* easy, CURLcode result) {
    auto it = open.find(easy);
    if (it == open.end()) return;
    Open entry = std::move(it->second);
    open.erase(it);
    const long code = ResponseCode(easy);
    curl_multi_remove_handle(multi, easy);
    idle.push_back(easy);

    const Stream& stream = *entry.stream;
    absl::Status status;
    if (!stream.consumer_status.ok()) {
      status = stream.consumer_status;
    } else if (result != CURLE_OK) {
      status =
          absl::UnavailableError(absl::StrCat(stream.post.url, ": ", curl_easy_strerror(result)));
    } else if (code != 200) {
      status = absl::InternalError(
          absl::StrCat(stream.post.url, ": HTTP ", code, ": ", stream.error_body));
    }
    stream.post.on_done(status, result != CURLE_COULDNT_CONNECT);
  }
};

HttpStreams::HttpStreams(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpStreams::~HttpStreams() = default;

absl::StatusOr<std::unique_ptr<HttpStreams>> HttpStreams::Create() {
  static const CURLcode global = curl_global_init(CURL_GLOBAL_DEFAULT);
  if (global != CURLE_OK) {
    return absl::InternalError(absl::StrCat("libcurl: ", curl_easy_strerror(global)));
  }
  auto impl = std::make_unique<Impl>();
  impl->multi = curl_multi_init();
  if (impl->multi == nullptr) return absl::InternalError("libcurl: no multi handle");
  curl_multi_setopt(impl->multi, CURLMOPT_MAXCONNECTS, 1024L);
  return std::unique_ptr<HttpStreams>(new HttpStreams(std::move(impl)));
}

void HttpStreams::Start(HttpPost post) {
  CURL* easy = nullptr;
  if (impl_->idle.empty()) {
    easy = curl_easy_init();
  } else {
    easy = impl_->idle.back();
    impl_->idle.pop_back();
    curl_easy_reset(easy);
  }
  if (easy == nullptr) {
    post.on_done(absl::ResourceExhaustedError("libcurl: no handle"), false);
    return;
  }
  auto stream = std::make_unique<Stream>();
  stream->post = std::move(post);
  stream->headers = curl_slist_append(nullptr, "Content-Type: application/json");
  // curl would otherwise wait a second for a "100 Continue" before a large body.
  stream->headers = curl_slist_append(stream->headers, "Expect:");
  for (const auto& [name, value] : stream->post.headers) {
    stream->headers = curl_slist_append(stream->headers, absl::StrCat(name, ": ", value).c_str());
  }
  auto target = std::make_unique<WriteTarget>(WriteTarget{stream.get(), easy});
  curl_easy_setopt(easy, CURLOPT_URL, stream->post.url.c_str());
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, stream->post.body.data());
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                   static_cast<curl_off_t>(stream->post.body.size()));
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, stream->headers);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
  curl_easy_setopt(easy, CURLOPT_PROXY, "");  // no proxy from the environment
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, 5000L);
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS,
                   static_cast<long>(absl::ToInt64Milliseconds(stream->post.timeout)));
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &Impl::OnWrite);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, target.get());
  impl_->open.emplace(easy, Impl::Open{std::move(stream), std::move(target)});
  curl_multi_add_handle(impl_->multi, easy);
}

void HttpStreams::Poll(absl::Duration timeout) {
  int running = 0;
  curl_multi_perform(impl_->multi, &running);
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(impl_->multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    impl_->Finish(message->easy_handle, message->data.result);
  }
  const auto wait = std::max<std::int64_t>(0, absl::ToInt64Milliseconds(timeout));
  curl_multi_poll(impl_->multi, nullptr, 0, static_cast<int>(wait), nullptr);
}

void HttpStreams::Wake() { curl_multi_wakeup(impl_->multi); }

std::size_t HttpStreams::open() const { return impl_->open.size(); }

}  // namespace warmpath::replay
