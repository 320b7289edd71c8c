// Writes msgpack as msgspec does (smallest widths), for payloads made by hand in tests.
#ifndef WARMPATH_TESTS_CLIENT_AGENT_EVENTS_MSGPACK_WRITER_H_
#define WARMPATH_TESTS_CLIENT_AGENT_EVENTS_MSGPACK_WRITER_H_

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/agent/events/engine_event.h"

namespace warmpath::testing {

class MsgpackWriter {
 public:
  MsgpackWriter& Byte(std::uint8_t b) {
    bytes_.push_back(static_cast<char>(b));
    return *this;
  }
  MsgpackWriter& Raw(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  MsgpackWriter& Nil() { return Byte(0xc0); }
  MsgpackWriter& Int(std::int64_t v) {
    if (v >= 0) return Uint(static_cast<std::uint64_t>(v));
    if (v >= -32) return Byte(static_cast<std::uint8_t>(v));
    return Byte(0xd3).BigEndian(static_cast<std::uint64_t>(v), 8);
  }
  MsgpackWriter& Uint(std::uint64_t v) {
    if (v < 0x80) return Byte(static_cast<std::uint8_t>(v));
    if (v <= 0xff) return Byte(0xcc).BigEndian(v, 1);
    if (v <= 0xffff) return Byte(0xcd).BigEndian(v, 2);
    if (v <= 0xffffffff) return Byte(0xce).BigEndian(v, 4);
    return Byte(0xcf).BigEndian(v, 8);
  }
  MsgpackWriter& Double(double v) {
    return Byte(0xcb).BigEndian(std::bit_cast<std::uint64_t>(v), 8);
  }
  MsgpackWriter& Str(std::string_view s) {
    if (s.size() < 32) {
      Byte(static_cast<std::uint8_t>(0xa0 | s.size()));
    } else {
      Byte(0xda).BigEndian(s.size(), 2);
    }
    return Raw(s);
  }
  MsgpackWriter& Bin(std::string_view s) { return Byte(0xc4).BigEndian(s.size(), 1).Raw(s); }
  MsgpackWriter& Array(std::size_t n) {
    if (n < 16) return Byte(static_cast<std::uint8_t>(0x90 | n));
    return Byte(0xdc).BigEndian(n, 2);
  }
  MsgpackWriter& Map(std::size_t n) {
    if (n < 16) return Byte(static_cast<std::uint8_t>(0x80 | n));
    return Byte(0xde).BigEndian(n, 2);
  }
  template <typename T>
  MsgpackWriter& Uints(const std::vector<T>& values) {
    Array(values.size());
    for (const T v : values) Uint(v);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  MsgpackWriter& BigEndian(std::uint64_t v, int width) {
    for (int i = width - 1; i >= 0; --i) Byte(static_cast<std::uint8_t>(v >> (8 * i)));
    return *this;
  }

  std::string bytes_;
};

// A batch of today's shape: outer array, tagged maps, rank 0. `ts` makes payloads differ.
inline std::string EncodeBatch(const std::vector<EngineEvent>& events, double ts = 1.0) {
  MsgpackWriter out;
  out.Array(3).Double(ts).Array(events.size());
  for (const EngineEvent& event : events) {
    if (const auto* stored = std::get_if<BlockStored>(&event)) {
      out.Map(8).Str("type").Str("BlockStored");
      out.Str("block_hashes").Uints(stored->block_hashes);
      out.Str("parent_block_hash");
      stored->parent_block_hash ? out.Uint(*stored->parent_block_hash) : out.Nil();
      out.Str("token_ids").Uints(stored->token_ids);
      out.Str("block_size").Uint(stored->block_size);
      out.Str("lora_id").Nil();
      out.Str("medium").Str(stored->medium.value_or("GPU"));
      out.Str("lora_name");
      stored->lora_name ? out.Str(*stored->lora_name) : out.Nil();
    } else if (const auto* removed = std::get_if<BlockRemoved>(&event)) {
      out.Map(3).Str("type").Str("BlockRemoved");
      out.Str("block_hashes").Uints(removed->block_hashes);
      out.Str("medium").Str(removed->medium.value_or("GPU"));
    } else {
      out.Map(1).Str("type").Str("AllBlocksCleared");
    }
  }
  out.Uint(0);
  return out.bytes();
}

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CLIENT_AGENT_EVENTS_MSGPACK_WRITER_H_
