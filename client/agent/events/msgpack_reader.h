// A bounded reader of msgpack over untrusted bytes. It never allocates, never reads past the
// end, and gives up for good on the first malformed byte.
//
// Format: https://github.com/msgpack/msgpack/blob/master/spec.md. All widths of all types are
// accepted everywhere (msgspec writes map16 headers for small maps of wide structs).
#ifndef WARMPATH_CLIENT_AGENT_EVENTS_MSGPACK_READER_H_
#define WARMPATH_CLIENT_AGENT_EVENTS_MSGPACK_READER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace warmpath {

class MsgpackReader {
 public:
  enum class Type : std::uint8_t {
    kEnd,
    kNil,
    kBool,
    kInt,
    kFloat,
    kString,
    kBytes,
    kArray,
    kMap,
    kExt,
    kInvalid
  };

  // Nesting that Skip follows.
  static constexpr int kMaxDepth = 32;

  // `bytes` must outlive the reader and all views it returns.
  explicit MsgpackReader(std::string_view bytes) : rest_(bytes) {}

  // Type of the next value; kEnd when no byte is left.
  Type Peek() const;

  // Each reads one value of its type and returns false, leaving the position, when the next value
  // has another type or does not fit. Truncated input fails every later call too.
  bool ReadNil();
  bool ReadBool(bool* value);
  // Any integer width; fails above INT64_MAX.
  bool ReadInt(std::int64_t* value);
  // The 64-bit pattern of a signed or unsigned integer.
  bool ReadBits(std::uint64_t* bits);
  // Integer in [0, max].
  bool ReadUnsigned(std::uint64_t max, std::uint64_t* value);
  // float32, float64, or an integer.
  bool ReadDouble(double* value);
  bool ReadString(std::string_view* value);
  bool ReadBytes(std::string_view* value);
  // Number of elements (pairs). Fails when the input left could not hold that many, so that a
  // caller may reserve that much.
  bool ReadArray(std::size_t* size);
  bool ReadMap(std::size_t* pairs);

  // Steps over one value of any type. False on malformed input or nesting above kMaxDepth.
  bool Skip();

  std::size_t remaining() const { return rest_.size(); }
  bool failed() const { return failed_; }

 private:
  bool SkipAt(int depth);
  bool Fail();
  // Looks at an integer without stepping over it.
  bool PeekInteger(std::uint64_t* bits, bool* negative);
  bool ReadBlob(Type type, std::string_view* value);
  bool ReadCount(Type type, std::size_t bytes_each, std::size_t* count);

  std::string_view rest_;
  bool failed_ = false;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_EVENTS_MSGPACK_READER_H_
