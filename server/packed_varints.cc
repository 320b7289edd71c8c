#include "server/packed_varints.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace warmpath {
namespace {

static_assert(std::endian::native == std::endian::little, "bytes are read as numbers");

constexpr std::uint64_t kTopBits = 0x8080808080808080;
constexpr std::size_t kChunk = 64;  // bytes whose ends fit one word
constexpr std::size_t kMostBytes = 4;

std::uint64_t Load64(const char* from) {
  std::uint64_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

// The top bit of each byte that ends a varint, which is one without its top bit.
std::uint64_t Ends(const char* from) { return ~Load64(from) & kTopBits; }

// The ends of a chunk: bit i for byte i.
std::uint64_t EndMask(const char* chunk) {
  std::uint64_t mask = 0;
  for (std::size_t i = 0; i < kChunk / 8; ++i) {
    // Multiplying gathers the eight top bits in the topmost byte, in order: no two meet.
    mask |= ((Ends(chunk + 8 * i) >> 7) * 0x0102040810204080 >> 56) << (8 * i);
  }
  return mask;
}

// What to keep of the four bytes from the beginning of a varint of so many bytes.
constexpr std::array<std::uint32_t, 8> kKeep = {0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF, 0, 0, 0};

}  // namespace

std::size_t CountVarints(std::string_view bytes) {
  const char* from = bytes.data();
  std::size_t left = bytes.size();
  std::size_t count = 0;
  while (left >= 8) {
    // Eight counters of a byte each, for as long as none overflows.
    const std::size_t words = std::min<std::size_t>(left / 8, 255);
    std::uint64_t counters = 0;
    for (std::size_t i = 0; i < words; ++i) counters += Ends(from + 8 * i) >> 7;
    constexpr std::uint64_t kEvenBytes = 0x00FF00FF00FF00FF;
    const std::uint64_t pairs = (counters & kEvenBytes) + ((counters >> 8) & kEvenBytes);
    count += pairs * 0x0001000100010001 >> 48;
    from += 8 * words;
    left -= 8 * words;
  }
  for (; left > 0; --left) count += static_cast<unsigned char>(*from++) < 0x80 ? 1 : 0;
  return count;
}

bool DecodeShortVarints(std::string_view bytes, std::uint32_t* out) {
  const char* const data = bytes.data();
  const std::size_t size = bytes.size();
  std::uint32_t* next = out;
  std::size_t start = 0;  // of the next varint
  std::size_t longest = 0;
  std::size_t chunk = 0;
  // Whole chunks, but for the last bytes: four are read wherever a varint begins.
  for (; chunk + kChunk + kMostBytes <= size; chunk += kChunk) {
    for (std::uint64_t ends = EndMask(data + chunk); ends != 0; ends &= ends - 1) {
      const std::size_t after = chunk + static_cast<std::size_t>(std::countr_zero(ends)) + 1;
      const std::size_t length = after - start;
      longest = std::max(longest, length);
      std::uint32_t word;
      std::memcpy(&word, data + start, sizeof(word));
      *next++ = word & kKeep[length & 7];
      start = after;
    }
  }
  for (std::size_t i = chunk; i < size; ++i) {
    if (static_cast<unsigned char>(data[i]) >= 0x80) continue;
    const std::size_t length = i + 1 - start;
    longest = std::max(longest, length);
    std::uint32_t word = 0;
    std::memcpy(&word, data + start, std::min(length, kMostBytes));
    *next++ = word;
    start = i + 1;
  }
  if (longest > kMostBytes || start != size) return false;
  // Takes the top bits out. A loop of its own, which compilers turn into vector instructions.
  const auto count = static_cast<std::size_t>(next - out);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t word = out[i];
    out[i] = (word & 0x7F) | ((word >> 1) & 0x3F80) | ((word >> 2) & 0x1FC000) |
             ((word >> 3) & 0xFE00000);
  }
  return true;
}

}  // namespace warmpath
