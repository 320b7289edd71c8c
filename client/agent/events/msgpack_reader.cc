#include "client/agent/events/msgpack_reader.h"

#include <bit>
#include <limits>

namespace warmpath {
namespace {

// How the bytes of one value are laid out: `fixed` bytes after the first byte hold a big-endian
// number (a length for blobs and containers, the value itself for numbers).
struct Shape {
  MsgpackReader::Type type;
  std::uint8_t width;  // bytes of the number; 0: it is in the first byte
  std::uint8_t extra;  // bytes to skip between number and payload (ext type)
};

Shape ShapeOf(std::uint8_t b) {
  using Type = MsgpackReader::Type;
  if (b <= 0x7f || b >= 0xe0) return {Type::kInt, 0, 0};
  if (b <= 0x8f) return {Type::kMap, 0, 0};
  if (b <= 0x9f) return {Type::kArray, 0, 0};
  if (b <= 0xbf) return {Type::kString, 0, 0};
  switch (b) {
    case 0xc0:
      return {Type::kNil, 0, 0};
    case 0xc2:
    case 0xc3:
      return {Type::kBool, 0, 0};
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return {Type::kBytes, static_cast<std::uint8_t>(1 << (b - 0xc4)), 0};
    case 0xc7:
    case 0xc8:
    case 0xc9:
      return {Type::kExt, static_cast<std::uint8_t>(1 << (b - 0xc7)), 1};
    case 0xca:
      return {Type::kFloat, 4, 0};
    case 0xcb:
      return {Type::kFloat, 8, 0};
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
      return {Type::kInt, static_cast<std::uint8_t>(1 << (b - 0xcc)), 0};
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
      return {Type::kInt, static_cast<std::uint8_t>(1 << (b - 0xd0)), 0};
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
      return {Type::kExt, 0, 1};
    case 0xd9:
    case 0xda:
    case 0xdb:
      return {Type::kString, static_cast<std::uint8_t>(1 << (b - 0xd9)), 0};
    case 0xdc:
    case 0xdd:
      return {Type::kArray, static_cast<std::uint8_t>(2 << (b - 0xdc)), 0};
    case 0xde:
    case 0xdf:
      return {Type::kMap, static_cast<std::uint8_t>(2 << (b - 0xde)), 0};
    default:
      return {Type::kInvalid, 0, 0};  // 0xc1 is reserved
  }
}

std::uint64_t BigEndian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<std::uint8_t>(c);
  return value;
}

// The length that the first byte itself carries.
std::uint64_t InlineLength(std::uint8_t b) {
  if (b >= 0x80 && b <= 0x9f) return b & 0x0fU;
  if (b >= 0xa0 && b <= 0xbf) return b & 0x1fU;
  if (b >= 0xd4 && b <= 0xd8) return std::uint64_t{1} << (b - 0xd4);
  return 0;
}

std::uint8_t FirstByte(std::string_view bytes) { return static_cast<std::uint8_t>(bytes.front()); }

}  // namespace

MsgpackReader::Type MsgpackReader::Peek() const {
  if (failed_) return Type::kInvalid;
  if (rest_.empty()) return Type::kEnd;
  return ShapeOf(FirstByte(rest_)).type;
}

bool MsgpackReader::Fail() {
  failed_ = true;
  return false;
}

bool MsgpackReader::ReadNil() {
  if (Peek() != Type::kNil) return false;
  rest_.remove_prefix(1);
  return true;
}

bool MsgpackReader::ReadBool(bool* value) {
  if (Peek() != Type::kBool) return false;
  *value = FirstByte(rest_) == 0xc3;
  rest_.remove_prefix(1);
  return true;
}

bool MsgpackReader::PeekInteger(std::uint64_t* bits, bool* negative) {
  if (Peek() != Type::kInt) return false;
  const std::uint8_t b = FirstByte(rest_);
  const std::size_t width = ShapeOf(b).width;
  if (rest_.size() < 1 + width) return Fail();
  if (width == 0) {
    *bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int8_t>(b)));
  } else {
    *bits = BigEndian(rest_.substr(1, width));
    const bool is_signed = b >= 0xd0;
    if (is_signed && width < 8 && (*bits >> (8 * width - 1)) != 0) {
      *bits |= ~std::uint64_t{0} << (8 * width);
    }
  }
  // 0xcf holds unsigned values; only fixints below zero and the d-forms are negative.
  *negative = (b >= 0xe0 || (b >= 0xd0 && b <= 0xd3)) && (*bits >> 63) != 0;
  return true;
}

bool MsgpackReader::ReadBits(std::uint64_t* bits) {
  bool negative = false;
  if (!PeekInteger(bits, &negative)) return false;
  rest_.remove_prefix(1 + ShapeOf(FirstByte(rest_)).width);
  return true;
}

bool MsgpackReader::ReadInt(std::int64_t* value) {
  std::uint64_t bits = 0;
  bool negative = false;
  if (!PeekInteger(&bits, &negative)) return false;
  if (!negative && bits > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return false;
  }
  *value = static_cast<std::int64_t>(bits);
  rest_.remove_prefix(1 + ShapeOf(FirstByte(rest_)).width);
  return true;
}

bool MsgpackReader::ReadUnsigned(std::uint64_t max, std::uint64_t* value) {
  std::uint64_t bits = 0;
  bool negative = false;
  if (!PeekInteger(&bits, &negative) || negative || bits > max) return false;
  *value = bits;
  rest_.remove_prefix(1 + ShapeOf(FirstByte(rest_)).width);
  return true;
}

bool MsgpackReader::ReadDouble(double* value) {
  const Type type = Peek();
  if (type == Type::kInt) {
    std::uint64_t bits = 0;
    bool negative = false;
    if (!PeekInteger(&bits, &negative)) return false;
    *value =
        negative ? static_cast<double>(static_cast<std::int64_t>(bits)) : static_cast<double>(bits);
    rest_.remove_prefix(1 + ShapeOf(FirstByte(rest_)).width);
    return true;
  }
  if (type != Type::kFloat) return false;
  const std::size_t width = ShapeOf(FirstByte(rest_)).width;
  if (rest_.size() < 1 + width) return Fail();
  const std::uint64_t bits = BigEndian(rest_.substr(1, width));
  *value = width == 4 ? std::bit_cast<float>(static_cast<std::uint32_t>(bits))
                      : std::bit_cast<double>(bits);
  rest_.remove_prefix(1 + width);
  return true;
}

bool MsgpackReader::ReadBlob(Type type, std::string_view* value) {
  if (Peek() != type) return false;
  const std::uint8_t b = FirstByte(rest_);
  const Shape shape = ShapeOf(b);
  const std::size_t header = std::size_t{1} + shape.width + shape.extra;
  if (rest_.size() < header) return Fail();
  const std::uint64_t length =
      shape.width == 0 ? InlineLength(b) : BigEndian(rest_.substr(1, shape.width));
  if (rest_.size() - header < length) return Fail();
  *value = rest_.substr(header, length);
  rest_.remove_prefix(header + length);
  return true;
}

bool MsgpackReader::ReadString(std::string_view* value) { return ReadBlob(Type::kString, value); }

bool MsgpackReader::ReadBytes(std::string_view* value) { return ReadBlob(Type::kBytes, value); }

bool MsgpackReader::ReadCount(Type type, std::size_t bytes_each, std::size_t* count) {
  if (Peek() != type) return false;
  const std::uint8_t b = FirstByte(rest_);
  const std::size_t header = std::size_t{1} + ShapeOf(b).width;
  if (rest_.size() < header) return Fail();
  const std::uint64_t n = header == 1 ? InlineLength(b) : BigEndian(rest_.substr(1, header - 1));
  if ((rest_.size() - header) / bytes_each < n) return Fail();
  *count = n;
  rest_.remove_prefix(header);
  return true;
}

bool MsgpackReader::ReadArray(std::size_t* size) { return ReadCount(Type::kArray, 1, size); }

bool MsgpackReader::ReadMap(std::size_t* pairs) { return ReadCount(Type::kMap, 2, pairs); }

bool MsgpackReader::Skip() { return SkipAt(0); }

bool MsgpackReader::SkipAt(int depth) {
  if (depth > kMaxDepth) return Fail();
  switch (Peek()) {
    case Type::kNil:
    case Type::kBool:
      rest_.remove_prefix(1);
      return true;
    case Type::kInt:
    case Type::kFloat: {
      double ignored = 0;
      return ReadDouble(&ignored);
    }
    case Type::kString:
    case Type::kBytes:
    case Type::kExt: {
      std::string_view ignored;
      return ReadBlob(Peek(), &ignored);
    }
    case Type::kArray: {
      std::size_t n = 0;
      if (!ReadArray(&n)) return false;
      for (std::size_t i = 0; i < n; ++i) {
        if (!SkipAt(depth + 1)) return false;
      }
      return true;
    }
    case Type::kMap: {
      std::size_t n = 0;
      if (!ReadMap(&n)) return false;
      for (std::size_t i = 0; i < 2 * n; ++i) {
        if (!SkipAt(depth + 1)) return false;
      }
      return true;
    }
    case Type::kEnd:
    case Type::kInvalid:
      break;
  }
  return Fail();
}

}  // namespace warmpath
