// What a pick is asked with: plain values, independent of the wire.
#ifndef WARMPATH_CORE_ROUTING_QUERY_H_
#define WARMPATH_CORE_ROUTING_QUERY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "core/base/ids.h"

namespace warmpath {

// Who holds a reservation: 0 for unary and HTTP picks (held by a lease), else a stream's id.
using HolderId = std::uint64_t;

// Everything borrowed must live until Pick returns.
struct Query {
  // The prompt as chain hashes of the pool's routing block, in the request's hash domain. Empty
  // when nothing is known of the prompt: then only load counts.
  // Of text without a tokenizer: chunks of four bytes a token (chain_kind kText). Such a pick knows
  // only what earlier ones wrote, and claims nothing about events.
  std::span<const ChainHash> chain;
  ChainKind chain_kind = ChainKind::kTokens;
  // L, tokens. With text and no tokenizer an estimate (bytes / 4) and length_is_estimate is set.
  std::uint64_t prompt_tokens = 0;
  bool length_is_estimate = false;

  // What prefix_aware cuts its key from: the first of these that is not empty.
  std::span<const TokenId> tokens;  // unit: token x 4
  std::string_view raw_text;        // unit: byte
  std::string_view chat_text;       // unit: Unicode code point of the messages' text

  // Adapter the request needs: only workers that registered it are candidates. The chain must be in
  // that adapter's hash domain already.
  std::optional<std::string_view> lora;

  std::string_view session_key;
  std::string_view prefix_aware_id;
  std::string_view tenant;  // empty: none. Counts in pools with tenant_fairness only

  bool subset_present = false;
  std::vector<std::string_view> subset;   // "ip:port" or "ip"
  std::vector<std::string_view> exclude;  // "ip:port" or worker id

  std::int32_t priority = 0;
  std::uint64_t expected_output_tokens = 0;  // 0 unknown
  std::string_view request_id;               // empty: not idempotent
  HolderId holder = 0;
  absl::Duration lease;     // zero: the default; ignored with a holder
  absl::Duration max_wait;  // zero: the pool's
  std::string_view policy;  // empty: the pool's
  bool explain = false;
  bool reserve = true;  // false: Admin.Explain
  std::uint32_t max_fallbacks = 3;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_QUERY_H_
