#include "server/pick_request_reader.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "server/packed_varints.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {
namespace {

enum WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

// Takes a varint of at most five bytes from the front.
std::optional<std::uint64_t> TakeVarint(std::string_view* bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < bytes->size() && i < 5; ++i) {
    const auto byte = static_cast<unsigned char>((*bytes)[i]);
    value |= std::uint64_t{byte & 0x7Fu} << (7 * i);
    if (byte < 0x80) {
      bytes->remove_prefix(i + 1);
      return value;
    }
  }
  return std::nullopt;
}

// Takes a field's value from the front; of one with a length, its content. Nothing for what the
// fields of PickRequest do not look like.
std::optional<std::string_view> TakeValue(std::uint64_t wire_type, std::string_view* bytes) {
  std::size_t length = 0;
  switch (wire_type) {
    case kVarint: {
      while (length < bytes->size() && static_cast<unsigned char>((*bytes)[length]) >= 0x80) {
        ++length;
      }
      ++length;
      break;
    }
    case kFixed64:
      length = 8;
      break;
    case kFixed32:
      length = 4;
      break;
    case kLength: {
      const std::optional<std::uint64_t> value = TakeVarint(bytes);
      if (!value.has_value()) return std::nullopt;
      length = *value;
      break;
    }
    default:
      return std::nullopt;
  }
  if (length > bytes->size()) return std::nullopt;
  const std::string_view value = bytes->substr(0, length);
  bytes->remove_prefix(length);
  return value;
}

// A message with one list of token ids and no other prompt, taken apart.
struct Parts {
  std::string_view before;
  std::string_view ids;  // packed
  std::string_view after;
};

// Nothing for messages that must be left to protobuf, whether or not they are whole.
std::optional<Parts> TakeApart(std::string_view bytes) {
  using Request = v1::PickRequest;
  Parts parts;
  bool found = false;
  for (std::string_view left = bytes; !left.empty();) {
    const std::string_view field = left;
    const std::optional<std::uint64_t> tag = TakeVarint(&left);
    if (!tag.has_value() || *tag > std::numeric_limits<std::uint32_t>::max()) return std::nullopt;
    std::optional<std::string_view> value = TakeValue(*tag & 7, &left);
    if (!value.has_value()) return std::nullopt;
    switch (*tag >> 3) {
      case Request::kChainFieldNumber:
      case Request::kTextFieldNumber:
      case Request::kOpenaiFieldNumber:
        return std::nullopt;  // the last one counts, or it is told of the wrong type
      case Request::kTokensFieldNumber: {
        if (found || (*tag & 7) != kLength) return std::nullopt;
        found = true;
        // One field, packed, and nothing else.
        constexpr std::uint64_t kIdsTag = v1::TokenIds::kIdsFieldNumber << 3 | kLength;
        const std::optional<std::uint64_t> ids_tag = TakeVarint(&*value);
        if (ids_tag != kIdsTag) return std::nullopt;
        const std::optional<std::string_view> ids = TakeValue(kLength, &*value);
        if (!ids.has_value() || !value->empty()) return std::nullopt;
        parts = {
            .before = bytes.substr(0, bytes.size() - field.size()), .ids = *ids, .after = left};
        break;
      }
      default:
        break;
    }
  }
  if (!found) return std::nullopt;
  return parts;
}

}  // namespace

bool ReadPickRequest(std::string_view bytes, v1::PickRequest* request) {
  const auto size = static_cast<int>(bytes.size());
  if (bytes.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) return false;
  const std::optional<Parts> parts = TakeApart(bytes);
  if (!parts.has_value()) return request->ParseFromArray(bytes.data(), size);
  // Parsing one part after another is what protobuf does with the whole.
  v1::TokenIds* const tokens = request->release_tokens();  // keeps its memory from being freed
  bool ok;
  if (parts->after.empty()) {
    ok = request->ParseFromArray(parts->before.data(), static_cast<int>(parts->before.size()));
  } else {
    std::string rest;
    rest.reserve(parts->before.size() + parts->after.size());
    rest.append(parts->before);
    rest.append(parts->after);
    ok = request->ParseFromString(rest);
  }
  request->set_allocated_tokens(tokens != nullptr ? tokens : new v1::TokenIds);
  if (!ok) return false;
  request->mutable_tokens()->Clear();
  auto* const ids = request->mutable_tokens()->mutable_ids();
  const std::size_t count = CountVarints(parts->ids);
  if (count == 0) return parts->ids.empty();
  ids->Reserve(static_cast<int>(count));
  if (!DecodeShortVarints(parts->ids, ids->AddNAlreadyReserved(static_cast<int>(count)))) {
    return request->ParseFromArray(bytes.data(), size);
  }
  return true;
}

}  // namespace warmpath
