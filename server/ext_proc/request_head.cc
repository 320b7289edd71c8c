#include "server/ext_proc/request_head.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

using ::envoy::config::core::v3::HeaderMap;
using ::envoy::config::core::v3::HeaderValue;

// Longer values are cut: they are only compared and logged.
constexpr std::size_t kMaxLabel = 256;
// The router refuses longer session keys; what follows in a longer one is left out.
constexpr std::size_t kMaxSessionKey = 1024;
constexpr std::size_t kMaxRequestId = 256;

enum class Known : std::size_t {
  kPath,
  kMethod,
  kContentType,
  kContentLength,
  kRequestId,
  kPrefer,
  // Session keys, the more specific first.
  kSessionId,
  kSessionToken,
  kSessionAffinity,
  kClaudeSession,
  // From here on: not for the worker. Each alias follows its newer name.
  kPrefixAwareId,
  kFairness,
  kFairnessAlias,
  kObjective,
  kObjectiveAlias,
  kRewrite,
  kRewriteAlias,
  kSloTtft,
  kSloTtftAlias,
  kSloTpot,
  kSloTpotAlias,
  kMaxWait,
  kCount,
};
constexpr std::size_t kKnown = static_cast<std::size_t>(Known::kCount);

constexpr std::array<std::string_view, kKnown> kNames = {
    ":path",
    ":method",
    "content-type",
    "content-length",
    kRequestIdHeader,
    "prefer",
    "x-session-id",
    "x-session-token",
    "x-session-affinity",
    "x-claude-code-session-id",
    "x-amzn-sagemaker-prefix-aware-id",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-model-name-rewrite",
    "x-gateway-model-name-rewrite",
    "x-llm-d-slo-ttft-ms",
    "x-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
    "x-warmpath-max-wait-ms",
};

// Never destroyed: callback threads may outlive main.
const StringMap<std::size_t>& Table() {
  static const auto* const table = [] {
    auto* map = new StringMap<std::size_t>;
    for (std::size_t i = 0; i < kKnown; ++i) map->emplace(kNames[i], i);
    return map;
  }();
  return *table;
}

std::string_view ValueOf(const HeaderValue& header) {
  return header.raw_value().empty() ? header.value() : header.raw_value();
}

class Headers {
 public:
  explicit Headers(const HeaderMap& headers) {
    for (const HeaderValue& header : headers.headers()) {
      const auto it = Table().find(std::string_view(header.key()));
      if (it == Table().end() || present_[it->second]) continue;
      present_[it->second] = true;
      values_[it->second] = ValueOf(header);
    }
  }

  bool Has(Known known) const { return present_[static_cast<std::size_t>(known)]; }
  std::string_view Get(Known known) const { return values_[static_cast<std::size_t>(known)]; }
  // The newer name's value, else the alias's, which is the next one of the list.
  std::string_view GetEither(Known known) const {
    return Has(known) ? Get(known) : Get(AliasOf(known));
  }
  static Known AliasOf(Known known) {
    return static_cast<Known>(static_cast<std::size_t>(known) + 1);
  }
  std::string_view NameOf(Known known) const {
    return kNames[static_cast<std::size_t>(Has(known) ? known : AliasOf(known))];
  }

 private:
  std::array<bool, kKnown> present_{};
  std::array<std::string_view, kKnown> values_;
};

std::string Cut(std::string_view value, std::size_t limit) {
  return std::string(value.substr(0, limit));
}

// Parts of a millisecond count as a whole one.
absl::Status ReadMillis(std::string_view name, std::string_view text, std::uint32_t* millis) {
  if (text.empty()) return absl::OkStatus();
  double value = 0;
  if (!absl::SimpleAtod(ToAbsl(text), &value) || !(value >= 0) ||
      value > std::numeric_limits<std::uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(name), ": send milliseconds, a number of 0 to 4294967295"));
  }
  *millis = static_cast<std::uint32_t>(std::ceil(value));
  return absl::OkStatus();
}

// RFC 7240: a list of preferences, of which ours has no value.
void ReadPrefer(const Headers& headers, RequestHead* head) {
  const std::string_view text = headers.Get(Known::kPrefer);
  if (text.empty()) return;
  std::size_t others = 0;
  for (absl::string_view part : absl::StrSplit(ToAbsl(text), ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (absl::EqualsIgnoreCase(part, "if-available")) {
      head->only_if_cached = true;
    } else if (!part.empty()) {
      ++others;
    }
  }
  // Other preferences may be meant for the worker.
  if (head->only_if_cached && others == 0) head->remove.emplace_back("prefer");
}

}  // namespace

absl::Status ReadRequestHead(const HeaderMap& map, RequestHead* head) {
  const Headers headers(map);
  const std::string_view path = headers.Get(Known::kPath);
  head->path = path.substr(0, path.find('?'));
  head->method = headers.Get(Known::kMethod);
  head->multipart =
      absl::StartsWithIgnoreCase(ToAbsl(headers.Get(Known::kContentType)), "multipart/");
  std::uint64_t length = 0;
  if (absl::SimpleAtoi(ToAbsl(headers.Get(Known::kContentLength)), &length)) {
    head->content_length = length;
  }

  head->has_request_id = !headers.Get(Known::kRequestId).empty();
  if (headers.Get(Known::kRequestId).size() <= kMaxRequestId) {
    head->request_id = headers.Get(Known::kRequestId);
  }
  for (const Known known :
       {Known::kSessionId, Known::kSessionToken, Known::kSessionAffinity, Known::kClaudeSession}) {
    if (!head->session_key.empty()) break;
    head->session_key = Cut(headers.Get(known), kMaxSessionKey);
  }
  head->prefix_aware_id = headers.Get(Known::kPrefixAwareId);
  head->model_rewrite = headers.GetEither(Known::kRewrite);
  head->fairness_id = Cut(headers.GetEither(Known::kFairness), kMaxLabel);
  head->objective = Cut(headers.GetEither(Known::kObjective), kMaxLabel);
  ReadPrefer(headers, head);
  for (auto known = static_cast<std::size_t>(Known::kPrefixAwareId); known < kKnown; ++known) {
    if (headers.Has(static_cast<Known>(known))) head->remove.emplace_back(kNames[known]);
  }
  if (headers.Has(Known::kPrefixAwareId) && head->prefix_aware_id.empty()) {
    return absl::InvalidArgumentError(
        "x-amzn-sagemaker-prefix-aware-id: is empty: send 1 to 64 printable characters, or leave "
        "it "
        "out");
  }
  WARMPATH_RETURN_IF_ERROR(ReadMillis(headers.NameOf(Known::kSloTtft),
                                      headers.GetEither(Known::kSloTtft), &head->slo_ttft_ms));
  WARMPATH_RETURN_IF_ERROR(ReadMillis(headers.NameOf(Known::kSloTpot),
                                      headers.GetEither(Known::kSloTpot), &head->slo_tpot_ms));
  return ReadMillis("x-warmpath-max-wait-ms", headers.Get(Known::kMaxWait), &head->max_wait_ms);
}

int ReadResponseHead(const HeaderMap& map, bool* event_stream) {
  int status = 0;
  *event_stream = false;
  for (const HeaderValue& header : map.headers()) {
    if (header.key() == ":status") {
      if (!absl::SimpleAtoi(ToAbsl(ValueOf(header)), &status)) status = 0;
    } else if (header.key() == "content-type") {
      *event_stream = absl::StartsWithIgnoreCase(ToAbsl(ValueOf(header)), "text/event-stream");
    }
  }
  return status;
}

}  // namespace warmpath
