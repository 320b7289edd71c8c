#include "core/routing/prefix_key.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <string_view>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

static_assert(std::endian::native == std::endian::little, "token ids are hashed as u32le");

constexpr std::size_t kMaxIdCharacters = 64;
constexpr std::uint32_t kUnitsPerToken = 4;

// Bytes that begin a UTF-8 code point; a stray continuation byte belongs to the one before it.
bool BeginsCodePoint(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// The first `limit` code points.
std::string_view CutCodePoints(std::string_view text, std::size_t limit) {
  if (text.size() <= limit) return text;
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (BeginsCodePoint(text[i]) && seen++ == limit) return text.substr(0, i);
  }
  return text;
}

std::uint64_t Hash(std::string_view id, const void* data, std::size_t bytes) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  // The length in front keeps (id, prompt) pairs apart that are equal when put together.
  const auto length = static_cast<std::uint32_t>(id.size());
  XXH3_64bits_update(&state, &length, sizeof(length));
  XXH3_64bits_update(&state, id.data(), id.size());
  XXH3_64bits_update(&state, data, bytes);
  return XXH3_64bits_digest(&state);
}

}  // namespace

absl::Status CheckPrefixAwareId(std::string_view id) {
  if (id.empty()) return absl::OkStatus();
  const auto characters =
      static_cast<std::size_t>(std::count_if(id.begin(), id.end(), BeginsCodePoint));
  const bool prints = std::none_of(id.begin(), id.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7F;
  });
  if (characters <= kMaxIdCharacters && prints && id.front() != ' ') return absl::OkStatus();
  return absl::InvalidArgumentError(
      "prefix_aware_id: send 1 to 64 printable characters, the first of them no space");
}

absl::StatusOr<PrefixKey> MakePrefixKey(const Query& query, std::uint32_t prefix_length) {
  if (absl::Status status = CheckPrefixAwareId(query.prefix_aware_id); !status.ok()) return status;
  PrefixKey key;
  std::string_view unit;
  std::size_t units = 0;
  if (!query.tokens.empty()) {
    const auto tokens = query.tokens.first(
        std::min<std::size_t>(query.tokens.size(), prefix_length / kUnitsPerToken));
    key.hash = Hash(query.prefix_aware_id, tokens.data(), tokens.size_bytes());
    unit = "token ids, 4 units each";
    units = tokens.size();
  } else if (!query.raw_text.empty()) {
    const std::string_view cut = query.raw_text.substr(0, prefix_length);
    key.hash = Hash(query.prefix_aware_id, cut.data(), cut.size());
    unit = "bytes of the text";
    units = cut.size();
  } else if (!query.chat_text.empty()) {
    const std::string_view cut = CutCodePoints(query.chat_text, prefix_length);
    key.hash = Hash(query.prefix_aware_id, cut.data(), cut.size());
    unit = "code points of the messages";
    units = static_cast<std::size_t>(std::count_if(cut.begin(), cut.end(), BeginsCodePoint));
  } else if (!query.chain.empty()) {
    return absl::InvalidArgumentError(
        "prompt: policy prefix_aware cuts its key from tokens or text, and chain hashes have "
        "neither; send tokens, text or the OpenAI body, or use policy marginal_cost");
  } else {
    key.hash = Hash(query.prefix_aware_id, nullptr, 0);
    unit = "bytes of an empty prompt";
  }
  key.note = absl::StrCat("prefix_aware: key of the first ", units, " ", ToAbsl(unit),
                          " (PrefixLength ", prefix_length, ")");
  return key;
}

}  // namespace warmpath
