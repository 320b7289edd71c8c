#include "server/ext_proc/model_rewrite.h"

#include <simdjson.h>

#include "server/pick_json.h"

namespace warmpath {
namespace {

constexpr std::string_view kKey = "model";

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// A JSON string as text; empty when it is none.
std::string Unquote(std::string_view quoted) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  std::string_view text;
  if (parser.parse(quoted.data(), quoted.size()).get(root) != simdjson::SUCCESS) return "";
  if (root.get_string().get(text) != simdjson::SUCCESS) return "";
  return std::string(text);
}

// Steps over a text from left to right.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  std::size_t at() const { return at_; }
  bool AtEnd() const { return at_ >= text_.size(); }
  char Peek() const { return AtEnd() ? '\0' : text_[at_]; }
  bool Take(char c) {
    if (Peek() != c || AtEnd()) return false;
    ++at_;
    return true;
  }
  void SkipSpace() {
    while (!AtEnd() && IsSpace(text_[at_])) ++at_;
  }
  // False when the string does not end. REQUIRES: Peek() is a quote.
  bool SkipString() {
    for (++at_; !AtEnd(); ++at_) {
      if (text_[at_] == '\\') {
        ++at_;
      } else if (text_[at_] == '"') {
        ++at_;
        return true;
      }
    }
    at_ = text_.size();
    return false;
  }
  // A string, a number, a word, or all of an array or object. False when it does not end.
  bool SkipValue() {
    std::size_t depth = 0;
    while (!AtEnd()) {
      const char c = text_[at_];
      if (c == '"') {
        if (!SkipString()) return false;
        if (depth == 0) return true;
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}' || c == ']' || IsSpace(c))) return true;
      ++at_;
      if (c == '{' || c == '[') {
        ++depth;
      } else if ((c == '}' || c == ']') && --depth == 0) {
        return true;
      }
    }
    return false;
  }

 private:
  const std::string_view text_;
  std::size_t at_ = 0;
};

bool IsModelKey(std::string_view quoted) {
  const std::string_view key = quoted.substr(1, quoted.size() - 2);
  if (key.find('\\') == std::string_view::npos) return key == kKey;
  return Unquote(quoted) == kKey;
}

}  // namespace

ModelScan ScanModel(std::string_view json) {
  ModelScan scan;
  Cursor cursor(json);
  cursor.SkipSpace();
  if (!cursor.Take('{')) return scan;
  scan.object = true;
  scan.inside = cursor.at();
  for (;;) {
    cursor.SkipSpace();
    if (cursor.Take('}')) break;
    const std::size_t key = cursor.at();
    if (cursor.Peek() != '"' || !cursor.SkipString()) return scan;
    const bool is_model = IsModelKey(json.substr(key, cursor.at() - key));
    scan.empty = false;
    cursor.SkipSpace();
    if (!cursor.Take(':')) return scan;
    cursor.SkipSpace();
    const std::size_t value = cursor.at();
    if (!cursor.SkipValue()) return scan;
    if (is_model) scan.models.push_back({.begin = value, .end = cursor.at()});
    cursor.SkipSpace();
    if (!cursor.Take(',') && cursor.Peek() != '}') return scan;
  }
  cursor.SkipSpace();
  scan.complete = cursor.AtEnd();
  return scan;
}

std::string ModelOf(std::string_view json, const ModelScan& scan) {
  if (scan.models.empty()) return "";
  const ModelScan::Range& range = scan.models.front();
  return Unquote(json.substr(range.begin, range.end - range.begin));
}

void ReplaceModel(const ModelScan& scan, std::string_view model, std::string* json) {
  const std::string quoted = JsonQuote(model);
  if (scan.models.empty()) {
    json->insert(scan.inside, "\"model\":" + quoted + (scan.empty ? "" : ","));
    return;
  }
  std::string out;
  out.reserve(json->size() + quoted.size());
  std::size_t copied = 0;
  for (const ModelScan::Range& range : scan.models) {
    out.append(*json, copied, range.begin - copied);
    out += quoted;
    copied = range.end;
  }
  out.append(*json, copied);
  *json = std::move(out);
}

}  // namespace warmpath
