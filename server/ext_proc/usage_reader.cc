#include "server/ext_proc/usage_reader.h"

#include <simdjson.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace warmpath {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

constexpr std::string_view kUsage = "\"usage\"";
constexpr std::string_view kData = "data:";
constexpr std::size_t kMaxDepth = 64;

std::optional<std::uint32_t> Number(const object& from, std::string_view name) {
  std::uint64_t value = 0;
  if (from.at_key(name).get_uint64().get(value) != simdjson::SUCCESS) return std::nullopt;
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>(value, std::numeric_limits<std::uint32_t>::max()));
}

std::optional<std::uint32_t> Either(const object& from, std::string_view a, std::string_view b) {
  const std::optional<std::uint32_t> value = Number(from, a);
  return value.has_value() ? value : Number(from, b);
}

std::optional<Usage> FromUsage(const object& usage) {
  Usage out;
  out.prompt_tokens = Either(usage, "prompt_tokens", "input_tokens");
  out.output_tokens = Either(usage, "completion_tokens", "output_tokens");
  object details;
  if (usage.at_key("prompt_tokens_details").get_object().get(details) == simdjson::SUCCESS ||
      usage.at_key("input_tokens_details").get_object().get(details) == simdjson::SUCCESS) {
    out.cached_tokens = Number(details, "cached_tokens");
  }
  if (!out.cached_tokens.has_value()) out.cached_tokens = Number(usage, "cache_read_input_tokens");
  if (!out.prompt_tokens && !out.output_tokens && !out.cached_tokens) return std::nullopt;
  return out;
}

std::optional<Usage> FromBody(const object& body) {
  object usage;
  if (body.at_key("usage").get_object().get(usage) == simdjson::SUCCESS) return FromUsage(usage);
  for (const std::string_view wrapper : {"response", "message"}) {
    object inner;
    if (body.at_key(wrapper).get_object().get(inner) == simdjson::SUCCESS &&
        inner.at_key("usage").get_object().get(usage) == simdjson::SUCCESS) {
      return FromUsage(usage);
    }
  }
  return std::nullopt;
}

bool Parse(simdjson::dom::parser& parser, std::string_view json, object* out) {
  if (json.empty() || parser.allocate(json.size(), kMaxDepth) != simdjson::SUCCESS) return false;
  return parser.parse(json.data(), json.size()).get_object().get(*out) == simdjson::SUCCESS;
}

// The object that begins at json[at], up to its closing brace; empty when it does not end.
std::string_view ObjectAt(std::string_view json, std::size_t at) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = at; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return json.substr(at, i + 1 - at);
    }
  }
  return {};
}

// The last `"usage": {` of a text whose beginning is missing. Inside of a JSON string the quotes
// would have a backslash before them, so that the key's own closing quote does not match.
std::optional<Usage> FromTail(std::string_view tail) {
  for (std::size_t at = tail.rfind(kUsage); at != std::string_view::npos && at > 0;
       at = tail.rfind(kUsage, at - 1)) {
    const std::size_t colon = tail.find_first_not_of(" \t\r\n", at + kUsage.size());
    if (colon == std::string_view::npos || tail[colon] != ':') continue;
    const std::size_t brace = tail.find_first_not_of(" \t\r\n", colon + 1);
    if (brace == std::string_view::npos || tail[brace] != '{') continue;
    simdjson::dom::parser parser;
    object usage;
    if (Parse(parser, ObjectAt(tail, brace), &usage)) return FromUsage(usage);
  }
  return std::nullopt;
}

}  // namespace

void UsageReader::Read(std::string_view chunk) {
  if (event_stream_) {
    ReadStream(chunk);
    return;
  }
  if (chunk.size() > kMaxKept) {
    chunk.remove_prefix(chunk.size() - kMaxKept);
    kept_.clear();
    cut_ = true;
  }
  kept_ += chunk;
  // Twice the bound, so that a byte is moved at most once on average.
  if (kept_.size() > 2 * kMaxKept) {
    kept_.erase(0, kept_.size() - kMaxKept);
    cut_ = true;
  }
}

void UsageReader::ReadStream(std::string_view chunk) {
  while (!chunk.empty()) {
    const std::size_t end = chunk.find('\n');
    if (end == std::string_view::npos) {
      if (!skipping_ && kept_.size() + chunk.size() <= kMaxKept) {
        kept_ += chunk;
      } else {
        skipping_ = true;
        kept_.clear();
      }
      return;
    }
    if (!skipping_ && kept_.empty()) {
      TakeLine(chunk.substr(0, end));
    } else if (!skipping_ && kept_.size() + end <= kMaxKept) {
      kept_ += chunk.substr(0, end);
      TakeLine(kept_);
    }
    skipping_ = false;
    kept_.clear();
    chunk.remove_prefix(end + 1);
  }
}

void UsageReader::TakeLine(std::string_view line) {
  if (line.size() > kMaxKept || !line.starts_with(kData)) return;
  const std::size_t at = line.find(kUsage);
  if (at == std::string_view::npos) return;
  // Engines send "usage":null with each event before the last one.
  const std::size_t value = line.find_first_not_of(" :", at + kUsage.size());
  if (value == std::string_view::npos || line[value] != '{') return;
  found_ = line.substr(kData.size());
}

std::optional<Usage> UsageReader::Finish() {
  if (event_stream_ && !kept_.empty() && !skipping_) TakeLine(kept_);  // no newline at the end
  const std::string body = std::exchange(event_stream_ ? found_ : kept_, std::string());
  kept_.clear();
  if (cut_) return FromTail(body);
  simdjson::dom::parser parser;
  object root;
  if (!Parse(parser, body, &root)) return std::nullopt;
  return FromBody(root);
}

}  // namespace warmpath
