// The public C++ client of warmpath-router: what a data-plane proxy needs.
// Only std and absl types here; gRPC stays inside the library.
//
//   auto client = warmpath::client::Client::Create({.address = "127.0.0.1:9002"});
//   auto pick = client->Pick({.model = "m", .tokens = ids});
//   ... send the request to pick->endpoint.address with pick->endpoint.headers ...
//   client->Report({.reservation_id = pick->reservation_id, .kind = OutcomeKind::kFinished});
#ifndef WARMPATH_CLIENT_LIB_INCLUDE_WARMPATH_CLIENT_H_
#define WARMPATH_CLIENT_LIB_INCLUDE_WARMPATH_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace warmpath::client {

struct ClientOptions {
  std::string address;                         // "host:port" of the router's gRPC port
  absl::Duration deadline = absl::Seconds(2);  // of each call, retries included
  int max_attempts = 3;                        // for UNAVAILABLE before the deadline
  std::string root_ca_pem;                     // empty: plaintext
};

// Borrowed members must live until Pick returns. Exactly one kind of prompt is used: the first of
// tokens, chain, openai_json, text that is not empty. With none of them only load counts.
struct PickArgs {
  std::string_view model;
  std::span<const std::uint32_t> tokens;
  std::span<const std::uint64_t> chain;  // with chain_block_size
  std::uint32_t chain_block_size = 0;
  std::string_view openai_json;
  std::string_view openai_path = "/v1/chat/completions";
  std::string_view text;
  std::string_view lora;
  std::optional<std::string_view> cache_salt;
  std::string_view session_key;
  // Whose request it is, at most 256 bytes. Counts in pools with tenant_fairness; empty: nobody's.
  std::string_view tenant;
  std::string_view prefix_aware_id;
  std::vector<std::string> exclude;  // endpoints or worker ids already tried
  std::string_view request_id;
  std::string_view policy;
  std::uint32_t expected_output_tokens = 0;
  absl::Duration lease;     // zero: the router's default
  absl::Duration max_wait;  // zero: the pool's setting
};

struct PickedEndpoint {
  std::string worker_id;
  std::uint32_t rank = 0;
  std::string address;                                       // "ip:port"
  std::vector<std::pair<std::string, std::string>> headers;  // to add to the request
};

enum class Freshness { kNone, kDegraded, kExact };

struct PickResult {
  PickedEndpoint endpoint;
  std::vector<PickedEndpoint> fallbacks;
  std::uint64_t reservation_id = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t predicted_cached_tokens = 0;
  absl::Duration predicted_ttft;
  Freshness freshness = Freshness::kNone;
  std::string policy;
  std::string reason;
  std::string request_id;
};

enum class OutcomeKind { kFirstToken, kProgress, kFinished, kFailed };

struct OutcomeArgs {
  std::uint64_t reservation_id = 0;
  OutcomeKind kind = OutcomeKind::kFinished;
  std::string_view served_by;  // when another endpoint than the picked one served
  std::optional<std::uint32_t> actual_cached_tokens;
  std::optional<std::uint32_t> actual_prompt_tokens;
  std::optional<std::uint32_t> output_tokens;
  std::optional<absl::Duration> ttft;
};

// Thread-safe. Calls block the calling thread up to the deadline.
class Client {
 public:
  // INVALID_ARGUMENT when the address is empty. Does not connect yet.
  static absl::StatusOr<std::unique_ptr<Client>> Create(ClientOptions options);
  virtual ~Client() = default;

  virtual absl::StatusOr<PickResult> Pick(const PickArgs& args) = 0;
  virtual absl::Status Report(const OutcomeArgs& args) = 0;
  // Many outcomes in few messages: the router's price per outcome is then a tenth. The result has
  // one status per outcome. Not OK when the router could not be asked; what is reported twice is
  // NOT_FOUND the second time.
  virtual absl::StatusOr<std::vector<absl::Status>> ReportAll(
      std::span<const OutcomeArgs> outcomes) = 0;
  // Returns once a connection stands, or DEADLINE_EXCEEDED naming the address.
  virtual absl::Status WaitConnected(absl::Duration timeout) = 0;
};

}  // namespace warmpath::client

#endif  // WARMPATH_CLIENT_LIB_INCLUDE_WARMPATH_CLIENT_H_
