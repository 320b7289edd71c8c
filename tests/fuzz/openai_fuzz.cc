// Any bytes as the body of an OpenAI request. The first byte chooses the path.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/hashing/chain_hash.h"
#include "core/prompt/openai_request.h"

namespace {

// Not assert: must also hold in optimised builds.
void Require(bool holds) {
  if (!holds) std::abort();
}

constexpr std::string_view kPaths[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                       "/invocations"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view path = kPaths[data[0] % 4];
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const warmpath::OpenAiLimits limits{.max_depth = 32, .max_tokens = 100};
  const auto request = warmpath::ParseOpenAiRequest(path, body, limits);
  if (!request.ok()) {
    Require(!request.status().message().empty());
    return 0;
  }
  Require(request->tokens.size() <= limits.max_tokens);
  const std::string_view text = request->canonical_text;
  // A body can not become a prompt much larger than itself.
  Require(text.size() <= 8 * body.size() + 64);
  Require(request->has_tokens ? text.empty() : true);
  const auto again = warmpath::ParseOpenAiRequest(path, body, limits);
  Require(again.ok() && again->canonical_text == text);

  const std::uint64_t seed =
      warmpath::TextDomainSeed(request->model, std::nullopt, request->cache_salt);
  std::vector<warmpath::ChainHash> chain;
  warmpath::AppendTextChain(seed, 64, text, &chain);
  Require(chain.size() == text.size() / 64);
  std::vector<warmpath::ChainHash> head;
  warmpath::AppendTextChain(seed, 64, text.substr(0, text.size() / 2), &head);
  Require(std::equal(head.begin(), head.end(), chain.begin()));
  return 0;
}
