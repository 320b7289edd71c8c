// A tokenizer without a vocabulary file: deterministic, the same in every process, and closed
// under a chat's life: what the engine generates, tokenized as part of the next prompt, gives the
// ids that were generated. (It is not any real model's tokenizer.)
//
//   "<|im_start|>" "<|im_end|>" "<|endoftext|>"   one id each
//   "t" and decimal digits of an ordinary id      that id: the text of a generated token
//   a word (letters, digits, "_", bytes >= 0x80)  one id per 32 bytes, by hash
//   any other byte                                its value
//   A single space before a word is part of the word.
//
// The ids of a text are a prefix of the ids of a longer one wherever the shorter one ends with a
// special token, a line break, or a whole word.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_TOKENIZER_H_
#define WARMPATH_TESTS_FAKES_ENGINE_TOKENIZER_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ids.h"

namespace warmpath::engine {

// Ids below kFirstWordId are bytes; [kFirstWordId, kEndOfWords) are words and generated tokens.
inline constexpr TokenId kFirstWordId = 256;
inline constexpr TokenId kEndOfWords = 151'643;
inline constexpr TokenId kEndOfText = 151'643;
inline constexpr TokenId kMessageStart = 151'644;
inline constexpr TokenId kMessageEnd = 151'645;

// Appends the ids of `text`.
void Tokenize(std::string_view text, std::vector<TokenId>* ids);

// The text of tokens [from, to) of a generated sequence: "t<id>", separated by single spaces, with
// a leading space unless from == 0, so that pieces of a stream join to the whole.
void AppendGeneratedText(std::span<const TokenId> generated, std::size_t from, std::size_t to,
                         std::string* text);

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_TOKENIZER_H_
