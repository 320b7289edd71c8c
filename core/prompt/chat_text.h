// From the JSON of a chat to its texts. For the .cc files of this folder: knows the JSON library.
#ifndef WARMPATH_CORE_PROMPT_CHAT_TEXT_H_
#define WARMPATH_CORE_PROMPT_CHAT_TEXT_H_

#include <simdjson.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace warmpath {

struct ChatTexts {
  std::string canonical;  // core/prompt/canonical_text.h
  // The text of all messages and nothing else, up to `content_limit` bytes and what completes the
  // part that reaches it.
  std::string content;
  std::size_t content_limit = 0;
};

// What stands before the messages.
void AppendChatHead(const simdjson::dom::object& body, std::string* canonical);

// `field` is the list's name, for errors. INVALID_ARGUMENT names what is not as it should be.
absl::Status AppendMessages(std::string_view field, const simdjson::dom::element& messages,
                            ChatTexts* texts);

// JSON in one form only: keys sorted, no white space, numbers in their shortest form. With
// `shorten`, long strings are replaced by their length and hash: an image in the body is a megabyte
// of base64, but not a million characters of prompt.
void AppendCanonicalJson(const simdjson::dom::element& value, bool shorten, std::string* out);

}  // namespace warmpath

#endif  // WARMPATH_CORE_PROMPT_CHAT_TEXT_H_
