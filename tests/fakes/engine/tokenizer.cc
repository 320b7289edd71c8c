#include "tests/fakes/engine/tokenizer.h"

#include <array>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "xxhash.h"

namespace warmpath::engine {
namespace {

constexpr std::size_t kMaxWordBytes = 32;

constexpr std::array<std::pair<std::string_view, TokenId>, 3> kSpecials = {
    {{"<|im_start|>", kMessageStart}, {"<|im_end|>", kMessageEnd}, {"<|endoftext|>", kEndOfText}}};

bool IsWordByte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') ||
         (byte >= '0' && byte <= '9') || byte == '_' || byte >= 0x80;
}

// The id that "t<digits>" names, or 0. Only the shortest spelling counts.
TokenId GeneratedId(std::string_view word) {
  if (word.size() < 2 || word.size() > 7 || word[0] != 't' || word[1] == '0') return 0;
  TokenId id = 0;
  for (const char c : word.substr(1)) {
    if (c < '0' || c > '9') return 0;
    id = id * 10 + static_cast<TokenId>(c - '0');
  }
  return id >= kFirstWordId && id < kEndOfWords ? id : 0;
}

// With its leading space, if any, but for generated words: a client that trims an answer still
// gets the answer's ids.
TokenId WordId(std::string_view word) {
  const std::string_view bare = word[0] == ' ' ? word.substr(1) : word;
  if (const TokenId id = GeneratedId(bare); id != 0) return id;
  const std::uint64_t hash = XXH3_64bits(word.data(), word.size());
  return kFirstWordId + static_cast<TokenId>(hash % (kEndOfWords - kFirstWordId));
}

}  // namespace

void Tokenize(std::string_view text, std::vector<TokenId>* ids) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (text[at] == '<') {
      bool special = false;
      for (const auto& [name, id] : kSpecials) {
        if (!text.substr(at).starts_with(name)) continue;
        ids->push_back(id);
        at += name.size();
        special = true;
        break;
      }
      if (special) continue;
    }
    std::size_t end = at + (text[at] == ' ' ? 1 : 0);
    const std::size_t limit = end + kMaxWordBytes;
    const std::size_t word_start = end;
    while (end < text.size() && end < limit && IsWordByte(text[end])) ++end;
    if (end == word_start) {
      ids->push_back(static_cast<unsigned char>(text[at]));
      ++at;
    } else {
      ids->push_back(WordId(text.substr(at, end - at)));
      at = end;
    }
  }
}

void AppendGeneratedText(std::span<const TokenId> generated, std::size_t from, std::size_t to,
                         std::string* text) {
  for (std::size_t i = from; i < to; ++i) {
    absl::StrAppend(text, i == 0 ? "t" : " t", generated[i]);
  }
}

}  // namespace warmpath::engine
