#include "core/prompt/chat_text.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/prompt/canonical_text.h"

namespace warmpath {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

using NamedMember = std::pair<std::string_view, element>;

constexpr std::size_t kLongString = 512;  // bytes

absl::Status Wrong(std::string_view field, std::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": must be ", ToAbsl(wanted)));
}

// Null, "", [] and {} mean nothing: clients send them or leave them out.
bool IsNothing(const element& value) {
  switch (value.type()) {
    case element_type::NULL_VALUE:
      return true;
    case element_type::STRING:
      return value.get_string().value_unsafe().empty();
    case element_type::ARRAY: {
      const array items = value.get_array().value_unsafe();
      return !(items.begin() != items.end());
    }
    case element_type::OBJECT: {
      const object members = value.get_object().value_unsafe();
      return !(members.begin() != members.end());
    }
    default:
      return false;
  }
}

void AppendString(std::string_view text, bool shorten, std::string* out) {
  if (shorten && text.size() > kLongString) {
    const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
    AppendMark(TextMark::kDigest, out);
    absl::StrAppend(out, text.size(), ":", absl::Hex(hash.high64), ":", absl::Hex(hash.low64));
  } else {
    AppendMark(TextMark::kString, out);
    out->append(text);
  }
  AppendMark(TextMark::kEnd, out);
}

template <typename Number>
void AppendNumber(Number number, std::string* out) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), number);
  out->append(digits, end.ptr);
}

// Stable, so that of a key given twice the order is kept.
void SortByName(std::vector<NamedMember>* members) {
  std::stable_sort(members->begin(), members->end(),
                   [](const NamedMember& a, const NamedMember& b) { return a.first < b.first; });
}

class MessageWriter {
 public:
  explicit MessageWriter(ChatTexts* texts) : texts_(texts), out_(&texts->canonical) {}

  absl::Status Write(std::string_view field, const element& value) {
    object message;
    if (value.get_object().get(message) != simdjson::SUCCESS) return Wrong(field, "an object");
    std::optional<element> role;
    std::optional<element> content;
    std::optional<element> tool_calls;
    others_.clear();
    for (const auto [name, member] : message) {
      const std::string_view key = name;
      if (IsNothing(member)) continue;
      if (key == "role" && !role.has_value()) {
        role = member;
      } else if (key == "content" && !content.has_value()) {
        content = member;
      } else if (key == "tool_calls" && !tool_calls.has_value()) {
        tool_calls = member;
      } else {
        others_.emplace_back(key, member);
      }
    }
    AppendMark(TextMark::kMessage, out_);
    std::string_view text;
    if (role.has_value() && role->get_string().get(text) != simdjson::SUCCESS) {
      return Wrong(absl::StrCat(ToAbsl(field), ".role"), "a string");
    }
    out_->append(text);
    AppendMark(TextMark::kEnd, out_);
    SortByName(&others_);
    for (const auto& [name, member] : others_) {
      AppendMark(TextMark::kMember, out_);
      out_->append(name);
      AppendMark(TextMark::kEnd, out_);
      AppendCanonicalJson(member, /*shorten=*/false, out_);
    }
    if (content.has_value()) {
      WARMPATH_RETURN_IF_ERROR(Content(absl::StrCat(ToAbsl(field), ".content"), *content));
    }
    if (tool_calls.has_value()) ToolCalls(*tool_calls);
    AppendMark(TextMark::kEnd, out_);
    return absl::OkStatus();
  }

 private:
  void Text(std::string_view text) {
    AppendMark(TextMark::kText, out_);
    out_->append(text);
    if (texts_->content.size() < texts_->content_limit) texts_->content.append(text);
  }

  // A string, or a list of parts.
  absl::Status Content(std::string_view field, const element& content) {
    std::string_view whole;
    if (content.get_string().get(whole) == simdjson::SUCCESS) {
      Text(whole);
      return absl::OkStatus();
    }
    array parts;
    if (content.get_array().get(parts) != simdjson::SUCCESS) {
      return Wrong(field, "a string or a list of parts");
    }
    std::size_t index = 0;
    for (const element part : parts) {
      WARMPATH_RETURN_IF_ERROR(Part(field, index++, part));
    }
    return absl::OkStatus();
  }

  absl::Status Part(std::string_view list, std::size_t index, const element& part) {
    std::string_view text;
    if (part.get_string().get(text) == simdjson::SUCCESS) {  // some clients send bare strings
      Text(text);
      return absl::OkStatus();
    }
    const auto field = [&] { return absl::StrCat(ToAbsl(list), "[", index, "]"); };
    object members;
    if (part.get_object().get(members) != simdjson::SUCCESS) return Wrong(field(), "an object");
    element value;
    if (members.at_key("text").get(value) != simdjson::SUCCESS || value.is_null()) {
      AppendMark(TextMark::kPart, out_);  // an image, an audio clip, a file
      AppendCanonicalJson(part, /*shorten=*/true, out_);
      return absl::OkStatus();
    }
    if (value.get_string().get(text) != simdjson::SUCCESS) {
      return Wrong(absl::StrCat(field(), ".text"), "a string");
    }
    Text(text);
    return absl::OkStatus();
  }

  void ToolCalls(const element& calls) {
    array items;
    if (calls.get_array().get(items) != simdjson::SUCCESS) {
      AppendMark(TextMark::kToolCall, out_);
      AppendCanonicalJson(calls, /*shorten=*/false, out_);
      return;
    }
    for (const element call : items) {
      AppendMark(TextMark::kToolCall, out_);
      AppendCanonicalJson(call, /*shorten=*/false, out_);
    }
  }

  ChatTexts* const texts_;
  std::string* const out_;
  std::vector<NamedMember> others_;
};

}  // namespace

void AppendCanonicalJson(const element& value, bool shorten, std::string* out) {
  switch (value.type()) {
    case element_type::STRING:
      AppendString(value.get_string().value_unsafe(), shorten, out);
      return;
    case element_type::INT64:
      AppendNumber(value.get_int64().value_unsafe(), out);
      break;
    case element_type::UINT64:
      AppendNumber(value.get_uint64().value_unsafe(), out);
      break;
    case element_type::DOUBLE:
      AppendNumber(value.get_double().value_unsafe(), out);
      break;
    case element_type::BOOL:
      out->push_back(value.get_bool().value_unsafe() ? 't' : 'f');
      return;
    case element_type::NULL_VALUE:
      out->push_back('n');
      return;
    case element_type::ARRAY: {
      const array items = value.get_array().value_unsafe();
      out->push_back('[');
      for (const element item : items) AppendCanonicalJson(item, shorten, out);
      out->push_back(']');
      return;
    }
    case element_type::OBJECT: {
      const object given = value.get_object().value_unsafe();
      std::vector<NamedMember> members;
      for (const auto [name, member] : given) members.emplace_back(name, member);
      SortByName(&members);
      out->push_back('{');
      for (const auto& [name, member] : members) {
        AppendString(name, /*shorten=*/false, out);
        AppendCanonicalJson(member, shorten, out);
      }
      out->push_back('}');
      return;
    }
  }
  AppendMark(TextMark::kEnd, out);  // of a number
}

void AppendChatHead(const object& body, std::string* canonical) {
  // What chat templates put before the first message, or what chooses the template.
  for (const std::string_view name : {"chat_template", "chat_template_kwargs", "reasoning_effort",
                                      "documents", "tools", "functions", "instructions"}) {
    element value;
    if (body.at_key(name).get(value) != simdjson::SUCCESS || IsNothing(value)) continue;
    AppendMark(TextMark::kHead, canonical);
    canonical->append(name);
    AppendMark(TextMark::kEnd, canonical);
    AppendCanonicalJson(value, /*shorten=*/false, canonical);
  }
}

absl::Status AppendMessages(std::string_view field, const element& messages, ChatTexts* texts) {
  array items;
  if (messages.get_array().get(items) != simdjson::SUCCESS) return Wrong(field, "a list");
  MessageWriter writer(texts);
  std::size_t index = 0;
  for (const element item : items) {
    WARMPATH_RETURN_IF_ERROR(writer.Write(absl::StrCat(ToAbsl(field), "[", index++, "]"), item));
  }
  return absl::OkStatus();
}

}  // namespace warmpath
