#include "tests/fakes/engine/json_text.h"

#include <charconv>

namespace warmpath::engine {
namespace {

template <typename T>
void AppendArray(std::span<const T> values, std::string* out) {
  char digits[24];
  out->push_back('[');
  bool first = true;
  for (const T value : values) {
    if (!first) out->push_back(',');
    first = false;
    out->append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
  }
  out->push_back(']');
}

}  // namespace

void AppendJsonString(std::string_view value, std::string* out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out->push_back('"');
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out->append("\\u00");
      out->push_back(kHex[static_cast<unsigned char>(c) >> 4]);
      out->push_back(kHex[c & 15]);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

void AppendJsonStringOrNull(const std::optional<std::string>& value, std::string* out) {
  if (value) {
    AppendJsonString(*value, out);
  } else {
    out->append("null");
  }
}

void AppendJsonArray(std::span<const TokenId> values, std::string* out) {
  AppendArray(values, out);
}

void AppendJsonArray(std::span<const std::uint64_t> values, std::string* out) {
  AppendArray(values, out);
}

}  // namespace warmpath::engine
