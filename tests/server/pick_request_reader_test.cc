#include "server/pick_request_reader.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/packed_varints.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;

// Varints of one to `most` bytes.
std::string Packed(Random& random, std::size_t count, int most, std::vector<std::uint32_t>* ids) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = 7 * (1 + random.Below(static_cast<std::uint64_t>(most)));
    std::uint64_t id = random() & ((std::uint64_t{1} << bits) - 1) & 0xFFFFFFFF;
    ids->push_back(static_cast<std::uint32_t>(id));
    for (; id >= 0x80; id >>= 7) bytes.push_back(static_cast<char>(id | 0x80));
    bytes.push_back(static_cast<char>(id));
  }
  return bytes;
}

TEST(PackedVarintsTest, EveryLengthOfListAndOfNumber) {
  Random random(1);
  for (std::size_t count = 0; count < 400; ++count) {
    std::vector<std::uint32_t> ids;
    const std::string bytes = Packed(random, count, 4, &ids);
    ASSERT_EQ(CountVarints(bytes), count);
    std::vector<std::uint32_t> decoded(count);
    ASSERT_TRUE(DecodeShortVarints(bytes, decoded.data()));
    ASSERT_EQ(decoded, ids);
  }
}

TEST(PackedVarintsTest, ManyEndsAreCounted) {
  const std::string bytes(100'000, '\x01');
  EXPECT_EQ(CountVarints(bytes), 100'000u);
  EXPECT_EQ(CountVarints(std::string(100'000, '\x81')), 0u);
}

// At each place of a chunk: what is too long, and what does not end.
TEST(PackedVarintsTest, LongAndEndlessOnesAreRefused) {
  for (std::size_t before = 0; before < 150; ++before) {
    for (const std::size_t after : {std::size_t{0}, std::size_t{1}, std::size_t{150}}) {
      std::vector<std::uint32_t> out(1000);
      const std::string head(before, '\x07');
      const std::string tail(after, '\x07');
      EXPECT_TRUE(DecodeShortVarints(head + "\xFF\xFF\xFF\x7F" + tail, out.data()));
      EXPECT_EQ(out[before], (1u << 28) - 1);
      for (const std::size_t length : {5u, 6u, 8u, 9u, 10u, 70u}) {
        EXPECT_FALSE(
            DecodeShortVarints(head + std::string(length - 1, '\x80') + '\x01' + tail, out.data()));
      }
      if (after == 0) {
        EXPECT_FALSE(DecodeShortVarints(head + "\x80", out.data()));
      }
    }
  }
}

v1::PickRequest AnyRequest(Random& random) {
  v1::PickRequest request;
  if (random.Below(4) > 0) request.set_model("model");
  switch (random.Below(8)) {
    case 0:
      request.set_text("text");
      break;
    case 1:
      request.mutable_chain()->add_hashes(random());
      break;
    case 2:
      request.mutable_openai()->set_json("{}");
      break;
    case 3:
      break;
    default: {
      auto* const ids = request.mutable_tokens()->mutable_ids();
      const std::uint64_t count = random.Below(100);
      const std::uint64_t most = random.Below(10) == 0 ? 0xFFFFFFFF : 150'000;
      for (std::uint64_t i = 0; i < count; ++i)
        ids->Add(static_cast<std::uint32_t>(random.Below(most)));
    }
  }
  if (random.Below(3) == 0) request.set_lora("adapter");
  if (random.Below(3) == 0) request.add_multimodal()->set_id("image");
  if (random.Below(3) == 0) request.add_subset("10.0.0.1:1");
  if (random.Below(3) == 0) request.set_priority(-1);
  if (random.Below(3) == 0) request.set_request_id("id");
  if (random.Below(3) == 0) request.set_explain(true);
  return request;
}

// The same verdict, and the same message.
void ExpectAsProtobuf(std::string_view bytes, v1::PickRequest* reused) {
  v1::PickRequest expected;
  const bool ok = expected.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  ASSERT_EQ(ReadPickRequest(bytes, reused), ok);
  if (!ok) return;
  ASSERT_EQ(reused->prompt_case(), expected.prompt_case());
  ASSERT_EQ(reused->SerializeAsString(), expected.SerializeAsString());
}

TEST(PickRequestReaderTest, AgreesWithProtobuf) {
  Random random(7);
  v1::PickRequest reused;
  for (int i = 0; i < 20'000; ++i) {
    SCOPED_TRACE(i);
    std::string bytes = AnyRequest(random).SerializeAsString();
    // Concatenated messages are one message: fields come twice, in any order, of any prompt.
    if (random.Below(4) == 0) bytes += AnyRequest(random).SerializeAsString();
    for (std::uint64_t n = random.Below(4); n > 0 && !bytes.empty(); --n) {
      const std::size_t at = random.Below(bytes.size());
      switch (random.Below(4)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.Below(8)));
          break;
        case 2:
          bytes.resize(at);
          break;
        case 3:
          bytes.insert(at, 1, static_cast<char>(random()));
          break;
      }
    }
    ExpectAsProtobuf(bytes, &reused);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(PickRequestReaderTest, FormsThatOnlyProtobufKnows) {
  v1::PickRequest reused;
  using namespace std::string_view_literals;
  for (const std::string_view bytes : {
           ""sv,
           "\x12\x00"sv,                                  // tokens without a list
           "\x12\x02\x0A\x00"sv,                          // an empty list
           "\x12\x02\x08\x05"sv,                          // a number of its own
           "\x12\x05\x0A\x01\x05\x08\x06"sv,              // and one after a list
           "\x12\x03\x0A\x01\x05\x12\x03\x0A\x01\x06"sv,  // two prompts: one list
           "\x12\x03\x0A\x01\x05\x22\x01x"sv,             // the text counts
           "\x12\x03\x0A\x01\x85"sv,                      // does not end
           "\x12\x03\x0A\x02\x05"sv,                      // is longer than its message
           "\x12\x04\x0A\x01\x05"sv,                      // is longer than the bytes
           "\x10\x05"sv,                                  // tokens of another type
           "\x12\x03\x0A\x01\x05\x07"sv,                  // a tag of no type
           "\x12\x03\x0A\x01\x05\x0A\x02\xFF\xFE"sv,      // a model in no UTF-8
           "\x12\x08\x0A\x06\xFF\xFF\xFF\xFF\x0F\x01"sv,  // 2^32 - 1
           "\x92\x80\x80\x80\x10\x03\x0A\x01\x05"sv,      // a tag of more than 32 bits
       }) {
    ExpectAsProtobuf(bytes, &reused);
  }
}

TEST(PickRequestReaderTest, NothingOfTheLastRequestStays) {
  v1::PickRequest first;
  first.set_model("m");
  first.set_lora("adapter");
  first.add_exclude("w");
  for (std::uint32_t i = 0; i < 100; ++i) first.mutable_tokens()->add_ids(i);
  v1::PickRequest second;
  second.mutable_tokens()->add_ids(200'000);
  v1::PickRequest reused;
  ASSERT_TRUE(ReadPickRequest(first.SerializeAsString(), &reused));
  const int capacity = reused.tokens().ids().Capacity();
  ASSERT_TRUE(ReadPickRequest(second.SerializeAsString(), &reused));
  EXPECT_EQ(reused.SerializeAsString(), second.SerializeAsString());
  EXPECT_THAT(reused.tokens().ids(), ElementsAre(200'000u));
  EXPECT_EQ(reused.tokens().ids().Capacity(), capacity) << "its memory does";
}

}  // namespace
}  // namespace warmpath
