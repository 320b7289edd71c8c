#include "tests/fakes/engine/json_text.h"

#include <charconv>

#include "core/base/json_quote.h"

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

void AppendJsonQuotedOrNull(const std::optional<std::string>& value, std::string* out) {
  if (value) {
    AppendJsonQuoted(*value, out);
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
