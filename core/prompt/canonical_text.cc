#include "core/prompt/canonical_text.h"

namespace warmpath {

void AppendCanonicalCompletion(std::string_view prompt, std::string* out) {
  AppendMark(TextMark::kCompletion, out);
  out->append(prompt);
}

void AppendCanonicalUserText(std::string_view text, std::string* out) {
  AppendMark(TextMark::kMessage, out);
  out->append("user");
  AppendMark(TextMark::kEnd, out);
  if (!text.empty()) {
    AppendMark(TextMark::kText, out);
    out->append(text);
  }
  AppendMark(TextMark::kEnd, out);
}

}  // namespace warmpath
