#include "tests/fakes/engine/kv_events.h"

#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/engine/msgpack_reader_for_test.h"
#include "tests/fakes/engine/msgpack_writer.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::engine {
namespace {

using ::testing::HasSubstr;
using ::warmpath::testing::StatusIs;

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

// The store, removal and clearing of the wire vectors "VD" and "VE", which msgspec's own encoder
// wrote from structs declared as in vLLM.
std::vector<KvEvent> VectorEvents() {
  return {BlockStored{.hashes = {0xDAB6C1D2E3F40516},
                      .parent = std::nullopt,
                      .tokens = {151644, 872, 198, 9064},
                      .block_size = 4,
                      .lora_id = std::nullopt,
                      .lora_name = std::nullopt,
                      .extra_keys = {{}}},
          BlockRemoved{0xDAB6C1D2E3F40516}, AllBlocksCleared{}};
}

TEST(KvEventsTest, MapsEqualMsgspecByteForByte) {
  EXPECT_EQ(
      Hex(EncodeBatch(1700000000.5, VectorEvents(), 0, EventFormat::kMap)),
      "93cb41d954fc40200000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfdab6"
      "c1d2e3f40516b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f69647394ce0002505ccd0368ccc6"
      "cd2368aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0"
      "aa65787472615f6b65797391c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae6675"
      "6c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf"
      "dab6c1d2e3f40516a66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73"
      "436c656172656400");
}

TEST(KvEventsTest, PositionalEventsEqualMsgspecByteForByte) {
  EXPECT_EQ(
      Hex(EncodeBatch(1700000000.5, VectorEvents(), 0, EventFormat::kPositional)),
      "93cb41d954fc40200000939cab426c6f636b53746f72656491cfdab6c1d2e3f40516c094ce0002505ccd0368ccc6"
      "cd236804c0a3475055c091c000ae66756c6c5f617474656e74696f6ec094ac426c6f636b52656d6f76656491cfda"
      "b6c1d2e3f40516a34750550091b0416c6c426c6f636b73436c656172656400");
}

TEST(KvEventsTest, LoraSaltAndParentAreWhereVllmPutsThem) {
  const BlockStored stored = {.hashes = {1, 2},
                              .parent = 0xFFFFFFFFFFFFFFFF,
                              .tokens = {7, 8},
                              .block_size = 1,
                              .lora_id = 3,
                              .lora_name = "sql",
                              .extra_keys = {{"sql", "salt"}, {"sql"}}};
  const MsgpackValue map =
      MsgpackReaderForTest::Read(EncodeBatch(1, {stored}, 5, EventFormat::kMap));
  EXPECT_EQ(map[2].uint, 5u);
  const MsgpackValue& event = map[1][0];
  EXPECT_EQ(event["parent_block_hash"].uint, 0xFFFFFFFFFFFFFFFF);
  EXPECT_EQ(event["lora_id"].uint, 3u);
  EXPECT_EQ(event["lora_name"].str, "sql");
  EXPECT_EQ(event["extra_keys"][0][1].str, "salt");
  EXPECT_EQ(event["extra_keys"][1].array.size(), 1u);

  const MsgpackValue positional =
      MsgpackReaderForTest::Read(EncodeBatch(1, {stored}, 5, EventFormat::kPositional));
  EXPECT_EQ(positional[1][0].array.size(), 12u);
  EXPECT_EQ(positional[1][0][7].str, "sql");
  EXPECT_EQ(positional[1][0][8][0][0].str, "sql");
}

TEST(KvEventsTest, FormatNamesAreChecked) {
  EXPECT_EQ(*ParseEventFormat("positional"), EventFormat::kPositional);
  EXPECT_THAT(ParseEventFormat("xml"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("map or positional")));
}

TEST(MsgpackWriterTest, EveryWidthIsTheShortest) {
  std::string out;
  MsgpackWriter w(&out);
  for (const std::uint64_t n :
       {0ull, 127ull, 128ull, 255ull, 256ull, 65535ull, 65536ull, 4294967295ull, 4294967296ull}) {
    w.Uint(n);
  }
  EXPECT_EQ(Hex(out), "007fcc80ccffcd0100cdffffce00010000ceffffffffcf0000000100000000");
  out.clear();
  for (const std::size_t n : {15u, 16u, 65535u, 65536u}) w.Array(n);
  for (const std::size_t n : {15u, 16u}) w.Map(n);
  EXPECT_EQ(Hex(out), "9fdc0010dcffffdd000100008fde0010");
  for (const std::size_t n : {0u, 31u, 32u, 255u, 256u, 65535u, 65536u}) {
    out.clear();
    w.Str(std::string(n, 'x'));
    const std::size_t header = n < 32 ? 1 : n < 256 ? 2 : n < 65536 ? 3 : 5;
    EXPECT_EQ(out.size(), n + header);
  }
  out.clear();
  w.Str("ab");
  w.Nil();
  w.Double(-2.5);
  EXPECT_EQ(Hex(out), "a26162c0cbc004000000000000");
}

}  // namespace
}  // namespace warmpath::engine
