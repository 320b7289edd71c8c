#include "tests/fakes/engine/msgpack_writer.h"

#include <bit>

namespace warmpath::engine {

void MsgpackWriter::BigEndian(std::uint64_t value, int bytes) {
  for (int shift = (bytes - 1) * 8; shift >= 0; shift -= 8) Byte((value >> shift) & 0xff);
}

void MsgpackWriter::Header(std::size_t size, unsigned fix, unsigned wide16) {
  if (size < 16) {
    Byte(fix | static_cast<unsigned>(size));
  } else if (size <= 0xffff) {
    Byte(wide16);
    BigEndian(size, 2);
  } else {
    Byte(wide16 + 1);
    BigEndian(size, 4);
  }
}

void MsgpackWriter::Uint(std::uint64_t value) {
  if (value < 0x80) {
    Byte(static_cast<unsigned>(value));
  } else if (value <= 0xff) {
    Byte(0xcc);
    BigEndian(value, 1);
  } else if (value <= 0xffff) {
    Byte(0xcd);
    BigEndian(value, 2);
  } else if (value <= 0xffffffff) {
    Byte(0xce);
    BigEndian(value, 4);
  } else {
    Byte(0xcf);
    BigEndian(value, 8);
  }
}

void MsgpackWriter::Double(double value) {
  Byte(0xcb);
  BigEndian(std::bit_cast<std::uint64_t>(value), 8);
}

void MsgpackWriter::Str(std::string_view value) {
  if (value.size() < 32) {
    Byte(0xa0 | static_cast<unsigned>(value.size()));
  } else if (value.size() <= 0xff) {
    Byte(0xd9);
    BigEndian(value.size(), 1);
  } else if (value.size() <= 0xffff) {
    Byte(0xda);
    BigEndian(value.size(), 2);
  } else {
    Byte(0xdb);
    BigEndian(value.size(), 4);
  }
  out_->append(value);
}

}  // namespace warmpath::engine
