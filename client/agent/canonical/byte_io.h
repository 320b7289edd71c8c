// Little-endian fields in a byte string: the state file's own format.
#ifndef WARMPATH_CLIENT_AGENT_CANONICAL_BYTE_IO_H_
#define WARMPATH_CLIENT_AGENT_CANONICAL_BYTE_IO_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace warmpath {

class ByteWriter {
 public:
  explicit ByteWriter(std::string* out) : out_(out) {}

  template <typename T>
    requires std::is_unsigned_v<T>
  void Put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      out_->push_back(static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i)));
    }
  }
  void PutBytes(std::string_view bytes) {
    Put(static_cast<std::uint32_t>(bytes.size()));
    out_->append(bytes);
  }

 private:
  std::string* const out_;
};

// Reads give false, once and for ever, when the bytes run out.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <typename T>
    requires std::is_unsigned_v<T>
  bool Get(T* value) {
    if (rest_.size() < sizeof(T)) return Fail();
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bits |= std::uint64_t{static_cast<std::uint8_t>(rest_[i])} << (8 * i);
    }
    *value = static_cast<T>(bits);
    rest_.remove_prefix(sizeof(T));
    return true;
  }
  bool GetBytes(std::string_view* bytes) {
    std::uint32_t size = 0;
    if (!Get(&size) || rest_.size() < size) return Fail();
    *bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }
  std::size_t remaining() const { return rest_.size(); }
  std::string_view rest() const { return rest_; }

 private:
  bool Fail() {
    rest_ = {};
    return false;
  }

  std::string_view rest_;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_CANONICAL_BYTE_IO_H_
