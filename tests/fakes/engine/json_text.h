// The few pieces of JSON text that the engine writes.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_JSON_TEXT_H_
#define WARMPATH_TESTS_FAKES_ENGINE_JSON_TEXT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/ids.h"

namespace warmpath::engine {

// AppendJsonQuoted, or null.
void AppendJsonQuotedOrNull(const std::optional<std::string>& value, std::string* out);
void AppendJsonArray(std::span<const TokenId> values, std::string* out);
void AppendJsonArray(std::span<const std::uint64_t> values, std::string* out);

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_JSON_TEXT_H_
