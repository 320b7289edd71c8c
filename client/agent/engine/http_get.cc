#include "client/agent/engine/http_get.h"

#include <curl/curl.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace warmpath {
namespace {

struct Body {
  std::string bytes;
  std::size_t max = 0;
  bool too_big = false;
};

std::size_t OnBytes(char* data, std::size_t size, std::size_t count, void* user) {
  auto* body = static_cast<Body*>(user);
  const std::size_t n = size * count;
  if (body->bytes.size() + n > body->max) {
    body->too_big = true;
    return 0;  // Anything but n makes libcurl give up.
  }
  body->bytes.append(data, n);
  return n;
}

class CurlGetter final : public HttpGetter {
 public:
  explicit CurlGetter(const HttpOptions& options) : options_(options) {
    // Initialised once per process, before a second thread can be in libcurl.
    static const CURLcode global = curl_global_init(CURL_GLOBAL_DEFAULT);
    (void)global;
    curl_ = curl_easy_init();
  }
  ~CurlGetter() override {
    if (curl_ != nullptr) curl_easy_cleanup(curl_);
  }
  CurlGetter(const CurlGetter&) = delete;
  CurlGetter& operator=(const CurlGetter&) = delete;

  absl::StatusOr<HttpReply> Get(const std::string& url) override {
    if (curl_ == nullptr) return absl::InternalError("libcurl gave no handle");
    Body body;
    body.max = options_.max_body_bytes;
    curl_easy_reset(curl_);  // Keeps the connection.
    curl_easy_setopt(curl_, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl_, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl_, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl_, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl_, CURLOPT_USERAGENT, "warmpath-agent");
    curl_easy_setopt(curl_, CURLOPT_CONNECTTIMEOUT_MS,
                     static_cast<long>(absl::ToInt64Milliseconds(options_.connect_timeout)));
    curl_easy_setopt(curl_, CURLOPT_TIMEOUT_MS,
                     static_cast<long>(absl::ToInt64Milliseconds(options_.timeout)));
    if (!options_.bearer_token.empty()) {
      curl_easy_setopt(curl_, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
      curl_easy_setopt(curl_, CURLOPT_XOAUTH2_BEARER, options_.bearer_token.c_str());
    }
    curl_easy_setopt(curl_, CURLOPT_WRITEFUNCTION, &OnBytes);
    curl_easy_setopt(curl_, CURLOPT_WRITEDATA, &body);
    const CURLcode code = curl_easy_perform(curl_);
    if (code != CURLE_OK) {
      const std::string what = absl::StrCat("GET ", url, ": ", curl_easy_strerror(code));
      if (body.too_big) {
        return absl::ResourceExhaustedError(
            absl::StrCat("GET ", url, ": body above ", options_.max_body_bytes, " bytes"));
      }
      if (code == CURLE_COULDNT_CONNECT) return absl::UnavailableError(what);
      if (code == CURLE_OPERATION_TIMEDOUT) return absl::DeadlineExceededError(what);
      return absl::InternalError(what);
    }
    long status = 0;
    curl_easy_getinfo(curl_, CURLINFO_RESPONSE_CODE, &status);
    return HttpReply{.status = static_cast<int>(status), .body = std::move(body.bytes)};
  }

 private:
  const HttpOptions options_;
  CURL* curl_ = nullptr;
};

}  // namespace

std::unique_ptr<HttpGetter> MakeCurlGetter(const HttpOptions& options) {
  return std::make_unique<CurlGetter>(options);
}

}  // namespace warmpath
