// Just enough MessagePack to write KV events byte for byte as msgspec does: integers in their
// shortest form, floats always 64 bits, strings and arrays with the shortest header.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_MSGPACK_WRITER_H_
#define WARMPATH_TESTS_FAKES_ENGINE_MSGPACK_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace warmpath::engine {

// Appends to a string that the caller owns. Whoever announces an array or map of n writes n
// values or pairs after it.
class MsgpackWriter {
 public:
  explicit MsgpackWriter(std::string* out) : out_(out) {}

  void Nil() { Byte(0xc0); }
  void Uint(std::uint64_t value);
  void Double(double value);
  void Str(std::string_view value);
  void Array(std::size_t size) { Header(size, 0x90, 0xdc); }
  void Map(std::size_t size) { Header(size, 0x80, 0xde); }

 private:
  void Byte(unsigned value) { out_->push_back(static_cast<char>(value)); }
  void BigEndian(std::uint64_t value, int bytes);
  void Header(std::size_t size, unsigned fix, unsigned wide16);

  std::string* out_;
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_MSGPACK_WRITER_H_
