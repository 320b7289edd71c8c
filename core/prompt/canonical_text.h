// The canonical text of a prompt: what is compared between requests while no tokenizer is at hand.
//
// Two requests have the same canonical text exactly if an engine would be given the same prompt, as
// far as the body tells: it holds tools, documents and template options, then each message with its
// role, its other members, all parts of its content and its tool calls. It does not hold the order
// of keys, white space between JSON tokens, null and empty members, sampling options, stream flags,
// or who asks. The model, the LoRA adapter and the cache salt are left to the hash domain
// (TextDomainSeed in core/hashing/chain_hash.h).
//
// The order is that of chat templates, and nothing in it depends on what comes later: a
// conversation that grows keeps its earlier text as a strict prefix, and two prompts that begin
// alike have texts that begin alike, also inside one message.
//
// Content stands in it as it is, in UTF-8. What separates the pieces are bytes that UTF-8 never
// contains, so that no content can look like a separator.
#ifndef WARMPATH_CORE_PROMPT_CANONICAL_TEXT_H_
#define WARMPATH_CORE_PROMPT_CANONICAL_TEXT_H_

#include <string>
#include <string_view>

namespace warmpath {

// Separators. Values are of no meaning outside one process: chains of text are not kept.
enum class TextMark : unsigned char {
  kCompletion = 0xF5,  // the text of a completion follows, to the end
  kHead = 0xF6,        // something that is rendered before the messages: its name, then JSON
  kMessage = 0xF7,     // a role, then the message's pieces
  kMember = 0xF8,      // a name, then JSON
  kText = 0xF9,        // a part of text
  kPart = 0xFA,        // a part of another kind, as JSON
  kToolCall = 0xFB,    // JSON
  kDigest = 0xFC,      // stands for a long string: its length and hash
  kString = 0xFD,      // a string within JSON; ends with kEnd
  kEnd = 0xFF,         // of a name, a role, a message
};

inline void AppendMark(TextMark mark, std::string* out) { out->push_back(static_cast<char>(mark)); }

// Of a completion's prompt.
void AppendCanonicalCompletion(std::string_view prompt, std::string* out);

// Of a user's message that is text only.
void AppendCanonicalUserText(std::string_view text, std::string* out);

}  // namespace warmpath

#endif  // WARMPATH_CORE_PROMPT_CANONICAL_TEXT_H_
