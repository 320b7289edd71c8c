// MessagePack -> a tree of values, for tests only: trusts its input and throws on anything else.
// Written apart from the agent's decoder, so that the two can not share a mistake.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_MSGPACK_READER_FOR_TEST_H_
#define WARMPATH_TESTS_FAKES_ENGINE_MSGPACK_READER_FOR_TEST_H_

#include <bit>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace warmpath::engine {

struct MsgpackValue {
  enum class Type { kNil, kUint, kDouble, kStr, kArray, kMap } type = Type::kNil;
  std::uint64_t uint = 0;
  double number = 0;
  std::string str = {};
  std::vector<MsgpackValue> array = {};
  std::map<std::string, MsgpackValue> map = {};

  bool nil() const { return type == Type::kNil; }
  const MsgpackValue& operator[](const char* key) const { return map.at(key); }
  const MsgpackValue& operator[](int index) const { return array.at(index); }
};

class MsgpackReaderForTest {
 public:
  static MsgpackValue Read(std::string_view bytes) {
    MsgpackReaderForTest reader(bytes);
    MsgpackValue value = reader.Value();
    if (reader.at_ != bytes.size()) throw std::runtime_error("bytes after the value");
    return value;
  }

 private:
  explicit MsgpackReaderForTest(std::string_view bytes) : bytes_(bytes) {}

  std::uint64_t Big(int n) {
    std::uint64_t value = 0;
    for (int i = 0; i < n; ++i) value = value << 8 | static_cast<unsigned char>(bytes_.at(at_++));
    return value;
  }
  MsgpackValue Str(std::size_t n) {
    MsgpackValue value{.type = MsgpackValue::Type::kStr};
    value.str = std::string(bytes_.substr(at_, n));
    if (value.str.size() != n) throw std::runtime_error("string cut short");
    at_ += n;
    return value;
  }
  MsgpackValue Array(std::size_t n) {
    MsgpackValue value{.type = MsgpackValue::Type::kArray};
    for (std::size_t i = 0; i < n; ++i) value.array.push_back(Value());
    return value;
  }
  MsgpackValue Map(std::size_t n) {
    MsgpackValue value{.type = MsgpackValue::Type::kMap};
    for (std::size_t i = 0; i < n; ++i) {
      std::string key = Value().str;
      value.map.emplace(std::move(key), Value());
    }
    return value;
  }
  MsgpackValue Uint(std::uint64_t n) { return {.type = MsgpackValue::Type::kUint, .uint = n}; }
  MsgpackValue Value() {
    const std::uint64_t tag = Big(1);
    if (tag < 0x80) return Uint(tag);
    if (tag < 0x90) return Map(tag & 15);
    if (tag < 0xa0) return Array(tag & 15);
    if (tag < 0xc0) return Str(tag & 31);
    switch (tag) {
      case 0xc0:
        return {};
      case 0xcb:
        return {.type = MsgpackValue::Type::kDouble, .number = std::bit_cast<double>(Big(8))};
      case 0xcc:
        return Uint(Big(1));
      case 0xcd:
        return Uint(Big(2));
      case 0xce:
        return Uint(Big(4));
      case 0xcf:
        return Uint(Big(8));
      case 0xd9:
        return Str(Big(1));
      case 0xda:
        return Str(Big(2));
      case 0xdc:
        return Array(Big(2));
      case 0xdd:
        return Array(Big(4));
      case 0xde:
        return Map(Big(2));
      default:
        throw std::runtime_error("unexpected tag");
    }
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_MSGPACK_READER_FOR_TEST_H_
