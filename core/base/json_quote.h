// A text as a JSON string, with its quotation marks.
#ifndef WARMPATH_CORE_BASE_JSON_QUOTE_H_
#define WARMPATH_CORE_BASE_JSON_QUOTE_H_

#include <string>
#include <string_view>

namespace warmpath {

// Escapes what RFC 8259 says must be. Bytes of 0x80 and above pass as they are: whether they are
// UTF-8 is the caller's business.
void AppendJsonQuoted(std::string_view text, std::string* out);
std::string JsonQuoted(std::string_view text);

}  // namespace warmpath

#endif  // WARMPATH_CORE_BASE_JSON_QUOTE_H_
