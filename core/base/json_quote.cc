#include "core/base/json_quote.h"

#include "absl/strings/str_cat.h"

namespace warmpath {

void AppendJsonQuoted(std::string_view text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (byte < 0x20) {
      absl::StrAppend(out, "\\u", absl::Hex(byte, absl::kZeroPad4));
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

std::string JsonQuoted(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 2);
  AppendJsonQuoted(text, &out);
  return out;
}

}  // namespace warmpath
