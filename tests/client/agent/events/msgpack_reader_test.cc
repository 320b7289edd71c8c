#include "client/agent/events/msgpack_reader.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/client/agent/events/msgpack_writer.h"

namespace warmpath {
namespace {

using testing::MsgpackWriter;
using Type = MsgpackReader::Type;
using std::string_literals::operator""s;

TEST(MsgpackReaderTest, ReadsIntegersOfEveryWidth) {
  const std::vector<std::pair<std::string, std::int64_t>> cases = {
      {"\x00"s, 0},
      {"\x7f"s, 127},
      {"\xe0"s, -32},
      {"\xff"s, -1},
      {"\xcc\xff"s, 255},
      {"\xcd\xff\xff"s, 65535},
      {"\xce\xff\xff\xff\xff"s, 4294967295},
      {"\xcf\x7f\xff\xff\xff\xff\xff\xff\xff"s, std::numeric_limits<std::int64_t>::max()},
      {"\xd0\x80"s, -128},
      {"\xd1\x80\x00"s, -32768},
      {"\xd2\x80\x00\x00\x00"s, -2147483648LL},
      {"\xd3\x80\x00\x00\x00\x00\x00\x00\x00"s, std::numeric_limits<std::int64_t>::min()},
      {"\xd3\x00\x00\x00\x00\x00\x00\x00\x07"s, 7},
  };
  for (const auto& [bytes, expected] : cases) {
    MsgpackReader in(bytes);
    std::int64_t value = 99;
    ASSERT_TRUE(in.ReadInt(&value)) << expected;
    EXPECT_EQ(value, expected);
    EXPECT_EQ(in.remaining(), 0u);
    MsgpackReader bits_in(bytes);
    std::uint64_t bits = 0;
    ASSERT_TRUE(bits_in.ReadBits(&bits));
    EXPECT_EQ(bits, static_cast<std::uint64_t>(expected));
    MsgpackReader unsigned_in(bytes);
    EXPECT_EQ(unsigned_in.ReadUnsigned(~std::uint64_t{0}, &bits), expected >= 0);
  }
}

TEST(MsgpackReaderTest, LargeUnsignedIsABitPatternButNoInt) {
  const std::string bytes = "\xcf\xff\xff\xff\xff\xff\xff\xff\xff"s;
  MsgpackReader in(bytes);
  std::int64_t value = 0;
  EXPECT_FALSE(in.ReadInt(&value));
  EXPECT_EQ(in.remaining(), 9u) << "a refusal leaves the position";
  std::uint64_t bits = 0;
  ASSERT_TRUE(in.ReadBits(&bits));
  EXPECT_EQ(bits, ~std::uint64_t{0});
}

TEST(MsgpackReaderTest, UnsignedRefusesAboveTheMaximum) {
  const std::string bytes = "\xcd\x01\x00"s;
  MsgpackReader in(bytes);
  std::uint64_t value = 0;
  EXPECT_FALSE(in.ReadUnsigned(255, &value));
  EXPECT_TRUE(in.ReadUnsigned(256, &value));
  EXPECT_EQ(value, 256u);
}

TEST(MsgpackReaderTest, ReadsFloatsAndIntegersAsDouble) {
  const std::string bytes = "\xca\x3f\xc0\x00\x00\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x05\xff"s;
  MsgpackReader in(bytes);
  double value = 0;
  ASSERT_TRUE(in.ReadDouble(&value));
  EXPECT_EQ(value, 1.5);
  ASSERT_TRUE(in.ReadDouble(&value));
  EXPECT_EQ(value, 1.5);
  ASSERT_TRUE(in.ReadDouble(&value));
  EXPECT_EQ(value, 5);
  ASSERT_TRUE(in.ReadDouble(&value));
  EXPECT_EQ(value, -1);
}

TEST(MsgpackReaderTest, ReadsBlobsOfEveryWidth) {
  const std::vector<std::string> strings = {"\xa2hi"s, "\xd9\x02hi"s, "\xda\x00\x02hi"s,
                                            "\xdb\x00\x00\x00\x02hi"s};
  for (const std::string& bytes : strings) {
    MsgpackReader in(bytes);
    std::string_view value;
    EXPECT_FALSE(in.ReadBytes(&value));
    ASSERT_TRUE(in.ReadString(&value));
    EXPECT_EQ(value, "hi");
  }
  const std::vector<std::string> blobs = {"\xc4\x02hi"s, "\xc5\x00\x02hi"s,
                                          "\xc6\x00\x00\x00\x02hi"s};
  for (const std::string& bytes : blobs) {
    MsgpackReader in(bytes);
    std::string_view value;
    EXPECT_FALSE(in.ReadString(&value));
    ASSERT_TRUE(in.ReadBytes(&value));
    EXPECT_EQ(value, "hi");
  }
}

TEST(MsgpackReaderTest, SmallMapUnderAWideHeader) {
  // What msgspec writes for a struct of 16 slots or more of which one is set.
  const std::string bytes = "\xde\x00\x01\xa1k\x01"s;
  MsgpackReader in(bytes);
  std::size_t pairs = 0;
  ASSERT_TRUE(in.ReadMap(&pairs));
  EXPECT_EQ(pairs, 1u);
  ASSERT_TRUE(in.Skip());
  ASSERT_TRUE(in.Skip());
  EXPECT_EQ(in.Peek(), Type::kEnd);
}

TEST(MsgpackReaderTest, RefusesCountsThatCanNotFit) {
  for (const std::string& bytes : {"\xdd\xff\xff\xff\xff"s, "\xdf\x80\x00\x00\x00"s, "\x92\x01"s,
                                   "\x81\x01"s, "\xdc\x00\x02\x01"s}) {
    MsgpackReader in(bytes);
    std::size_t n = 0;
    EXPECT_FALSE(in.ReadArray(&n) || in.ReadMap(&n));
    EXPECT_TRUE(in.failed());
    EXPECT_EQ(in.Peek(), Type::kInvalid);
  }
}

TEST(MsgpackReaderTest, SkipsEveryTypeAndNothingMore) {
  MsgpackWriter out;
  out.Array(9).Nil().Byte(0xc3).Int(-70000).Double(2.5).Str("abc").Bin("xyz");
  out.Map(1).Str("k").Array(2).Uint(1).Uint(2);
  out.Raw("\xd5\x01pq"s);       // fixext 2
  out.Raw("\xc7\x03\x01rst"s);  // ext 8
  out.Uint(77);
  MsgpackReader in(out.bytes());
  ASSERT_TRUE(in.Skip());
  std::uint64_t value = 0;
  ASSERT_TRUE(in.ReadBits(&value));
  EXPECT_EQ(value, 77u);
}

TEST(MsgpackReaderTest, EveryTruncationFails) {
  MsgpackWriter out;
  out.Array(6).Int(-70000).Double(2.5).Str("abc").Bin("xyz").Map(1).Str("k").Uint(70000);
  out.Raw("\xc7\x03\x01rst"s);
  const std::string& whole = out.bytes();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    MsgpackReader in(std::string_view(whole).substr(0, n));
    EXPECT_FALSE(in.Skip()) << n;
    EXPECT_TRUE(in.failed()) << n;
  }
}

TEST(MsgpackReaderTest, DepthIsBounded) {
  const std::string fits = std::string(MsgpackReader::kMaxDepth, '\x91') + "\x01";
  MsgpackReader in(fits);
  EXPECT_TRUE(in.Skip());
  const std::string deep = std::string(100000, '\x91') + "\x01";
  MsgpackReader deep_in(deep);
  EXPECT_FALSE(deep_in.Skip());
}

TEST(MsgpackReaderTest, ReservedByteIsInvalid) {
  MsgpackReader in("\xc1");
  EXPECT_EQ(in.Peek(), Type::kInvalid);
  EXPECT_FALSE(in.Skip());
}

}  // namespace
}  // namespace warmpath
