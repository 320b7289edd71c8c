#include "client/agent/events/vllm_decoder.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <simdjson.h>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/events/msgpack_writer.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::MsgpackWriter;
using testing::StatusIs;

std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

// ---- The recorded payloads of every era -------------------------------------------------------

EngineHash JsonHash(simdjson::dom::element value) {
  if (value.is_uint64()) return value.get_uint64();
  if (value.is_int64()) return static_cast<EngineHash>(std::int64_t{value.get_int64()});
  // A digest counts by its last eight bytes.
  const std::string digest = FromHex(std::string_view(value["bytes"]));
  EngineHash hash = 0;
  for (const char c : digest.substr(digest.size() - 8)) {
    hash = hash << 8 | static_cast<std::uint8_t>(c);
  }
  return hash;
}

std::optional<std::string> JsonText(simdjson::dom::element object, std::string_view key) {
  simdjson::dom::element value;
  if (object[key].get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return std::string(std::string_view(value));
}

std::optional<std::int64_t> JsonInt(simdjson::dom::element object, std::string_view key) {
  simdjson::dom::element value;
  if (object[key].get(value) != simdjson::SUCCESS || value.is_null()) return std::nullopt;
  return std::int64_t{value.get_int64()};
}

std::vector<EngineHash> JsonHashes(simdjson::dom::element object) {
  std::vector<EngineHash> hashes;
  for (const simdjson::dom::element hash : object["block_hashes"]) hashes.push_back(JsonHash(hash));
  return hashes;
}

void ExpectStored(const BlockStored& event, simdjson::dom::element expected) {
  EXPECT_EQ(event.block_hashes, JsonHashes(expected));
  simdjson::dom::element parent;
  const bool has_parent =
      expected["parent_block_hash"].get(parent) == simdjson::SUCCESS && !parent.is_null();
  ASSERT_EQ(event.parent_block_hash.has_value(), has_parent);
  if (has_parent) {
    EXPECT_EQ(*event.parent_block_hash, JsonHash(parent));
  }
  std::vector<TokenId> tokens;
  for (const simdjson::dom::element token : expected["token_ids"]) {
    tokens.push_back(static_cast<TokenId>(std::uint64_t{token.get_uint64()}));
  }
  EXPECT_EQ(event.token_ids, tokens);
  EXPECT_EQ(event.block_size, JsonInt(expected, "block_size"));
  EXPECT_EQ(event.lora_id, JsonInt(expected, "lora_id"));
  EXPECT_EQ(event.medium, JsonText(expected, "medium"));
  EXPECT_EQ(event.lora_name, JsonText(expected, "lora_name"));
  EXPECT_EQ(event.group_idx.has_value(), JsonInt(expected, "group_idx").has_value());
  EXPECT_EQ(event.group_idx.value_or(0), JsonInt(expected, "group_idx").value_or(0));
  EXPECT_EQ(event.kv_cache_spec_kind, JsonText(expected, "kv_cache_spec_kind"));
  EXPECT_EQ(event.kv_cache_spec_sliding_window, JsonInt(expected, "kv_cache_spec_sliding_window"));
  EXPECT_EQ(event.session_id, JsonText(expected, "session_id"));
  std::optional<std::string> salt = JsonText(expected, "cache_salt");
  simdjson::dom::element metadata;
  if (expected["metadata"].get(metadata) == simdjson::SUCCESS) {
    salt = JsonText(metadata, "cache_salt");
  }
  EXPECT_EQ(event.cache_salt, salt);
  simdjson::dom::element keys;
  const bool has_keys = expected["extra_keys"].get(keys) == simdjson::SUCCESS && !keys.is_null();
  ASSERT_EQ(event.extra_keys.has_value(), has_keys);
  if (!has_keys) return;
  ASSERT_EQ(event.extra_keys->size(), keys.get_array().size());
  for (std::size_t i = 0; i < event.extra_keys->size(); ++i) {
    ASSERT_TRUE(keys.at(i).is_null()) << "the vectors hold no other extra keys";
    EXPECT_THAT((*event.extra_keys)[i], IsEmpty());
  }
}

TEST(VllmDecoderTest, EveryRecordedPayloadDecodesToItsContent) {
  simdjson::dom::parser parser;
  const simdjson::dom::element file =
      parser.load(std::string(WARMPATH_TEST_DATA) + "/kv_events.json");
  int decoded = 0;
  for (const simdjson::dom::element vector : file["vectors"]) {
    const std::string_view name = vector["name"];
    if (name == "SL") continue;  // SGLang's load report: another socket
    SCOPED_TRACE(name);
    const auto batch = DecodeKvEvents(FromHex(std::string_view(vector["hex"])));
    ASSERT_THAT(batch, IsOk());
    const simdjson::dom::element expected = vector["decoded"];
    EXPECT_EQ(batch->ts, double{expected["ts"]});
    EXPECT_EQ(batch->rank, JsonInt(expected, "data_parallel_rank"));
    EXPECT_EQ(batch->skipped.Total(), 0u);
    ASSERT_EQ(batch->events.size(), expected["events"].get_array().size());
    for (std::size_t i = 0; i < batch->events.size(); ++i) {
      const simdjson::dom::element event = expected["events"].at(i);
      const std::string_view type = event["type"];
      if (type == "BlockStored") {
        ASSERT_TRUE(std::holds_alternative<BlockStored>(batch->events[i]));
        ExpectStored(std::get<BlockStored>(batch->events[i]), event);
      } else if (type == "BlockRemoved") {
        ASSERT_TRUE(std::holds_alternative<BlockRemoved>(batch->events[i]));
        const auto& removed = std::get<BlockRemoved>(batch->events[i]);
        EXPECT_EQ(removed.block_hashes, JsonHashes(event));
        EXPECT_EQ(removed.medium, JsonText(event, "medium"));
        EXPECT_EQ(removed.group_idx.has_value(), JsonInt(event, "group_idx").has_value());
      } else {
        EXPECT_EQ(type, "AllBlocksCleared");
        EXPECT_TRUE(std::holds_alternative<AllBlocksCleared>(batch->events[i]));
      }
    }
    ++decoded;
  }
  EXPECT_EQ(decoded, 10);
}

// ---- What the wire may hold besides -----------------------------------------------------------

// A good store of one block named `hash`, positional, first era.
void PutStore(MsgpackWriter& out, std::uint64_t hash) {
  out.Array(6).Str("BlockStored").Array(1).Uint(hash).Nil().Array(2).Uint(1).Uint(2).Uint(2).Nil();
}

BlockStored OnlyStore(std::string_view payload) {
  const auto batch = DecodeKvEvents(payload);
  EXPECT_THAT(batch, IsOk());
  if (!batch.ok() || batch->events.size() != 1) {
    ADD_FAILURE() << "expected one event, skipped " << (batch.ok() ? batch->skipped.Total() : 0);
    return {};
  }
  return std::get<BlockStored>(batch->events[0]);
}

TEST(VllmDecoderTest, Fault07_BadEventCostsOnlyItself) {
  using Put = void (*)(MsgpackWriter&);
  struct Case {
    const char* what;
    Put put;
    SkipCause cause;
  };
  const Case cases[] = {
      {"not a container", [](MsgpackWriter& o) { o.Uint(5); }, SkipCause::kMalformed},
      {"empty array", [](MsgpackWriter& o) { o.Array(0); }, SkipCause::kMalformed},
      {"tag is no string", [](MsgpackWriter& o) { o.Array(1).Uint(1); }, SkipCause::kMalformed},
      {"too few slots", [](MsgpackWriter& o) { o.Array(2).Str("BlockStored").Array(0); },
       SkipCause::kMalformed},
      {"map without a tag", [](MsgpackWriter& o) { o.Map(1).Str("block_hashes").Array(0); },
       SkipCause::kMalformed},
      {"store without tokens",
       [](MsgpackWriter& o) {
         o.Map(2).Str("type").Str("BlockStored").Str("block_hashes").Array(0);
       },
       SkipCause::kMalformed},
      {"removal without hashes", [](MsgpackWriter& o) { o.Map(1).Str("type").Str("BlockRemoved"); },
       SkipCause::kMalformed},
      {"negative token",
       [](MsgpackWriter& o) {
         o.Array(6).Str("BlockStored").Array(1).Uint(1).Nil().Array(1).Int(-1).Uint(1).Nil();
       },
       SkipCause::kMalformed},
      {"token above 32 bits",
       [](MsgpackWriter& o) {
         o.Array(6)
             .Str("BlockStored")
             .Array(1)
             .Uint(1)
             .Nil()
             .Array(1)
             .Uint(1ULL << 32)
             .Uint(1)
             .Nil();
       },
       SkipCause::kMalformed},
      {"digest too short",
       [](MsgpackWriter& o) { o.Array(2).Str("BlockRemoved").Array(1).Bin("1234567"); },
       SkipCause::kMalformed},
      {"hash is a string",
       [](MsgpackWriter& o) { o.Array(2).Str("BlockRemoved").Array(1).Str("12345678"); },
       SkipCause::kMalformed},
      {"unknown type", [](MsgpackWriter& o) { o.Array(2).Str("BlockInactive").Array(0); },
       SkipCause::kUnknownType},
      {"unknown type as a map", [](MsgpackWriter& o) { o.Map(1).Str("type").Str("TierCleared"); },
       SkipCause::kUnknownType},
      {"unknown medium",
       [](MsgpackWriter& o) { o.Array(3).Str("BlockRemoved").Array(1).Uint(1).Str("PAPER"); },
       SkipCause::kUnknownMedium},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    MsgpackWriter out;
    out.Array(3).Double(1).Array(3);
    PutStore(out, 11);
    c.put(out);
    PutStore(out, 22);
    out.Uint(3);
    const auto batch = DecodeKvEvents(out.bytes());
    ASSERT_THAT(batch, IsOk());
    ASSERT_EQ(batch->events.size(), 2u);
    EXPECT_THAT(std::get<BlockStored>(batch->events[0]).block_hashes, ElementsAre(11));
    EXPECT_THAT(std::get<BlockStored>(batch->events[1]).block_hashes, ElementsAre(22));
    EXPECT_EQ(batch->skipped.Of(c.cause), 1u);
    EXPECT_EQ(batch->skipped.Total(), 1u);
    EXPECT_EQ(batch->rank, 3);
  }
}

TEST(VllmDecoderTest, BrokenFramingKeepsTheEventsBefore) {
  MsgpackWriter out;
  out.Array(2).Double(1).Array(3);
  PutStore(out, 11);
  out.Byte(0xc1).Byte(0).Byte(0);
  const auto batch = DecodeKvEvents(out.bytes());
  ASSERT_THAT(batch, IsOk());
  EXPECT_EQ(batch->events.size(), 1u);
  EXPECT_EQ(batch->skipped.Of(SkipCause::kMalformed), 2u);
}

TEST(VllmDecoderTest, MapKeysComeInAnyOrderAndUnknownOnesAreIgnored) {
  MsgpackWriter out;
  out.Array(2).Double(1).Array(1).Map(9);
  out.Str("event_version").Map(1).Str("major").Uint(2);
  out.Uint(7).Str("a key that is no string");
  out.Str("block_size").Uint(2);
  out.Str("token_ids").Array(2).Uint(5).Uint(6);
  out.Str("origin").Str("REUSED");
  out.Str("medium").Str("cpu");
  out.Str("block_hashes").Array(1).Uint(9);
  out.Str("type").Str("BlockStored");
  out.Str("parent_block_hash").Uint(8);
  const BlockStored event = OnlyStore(out.bytes());
  EXPECT_THAT(event.block_hashes, ElementsAre(9));
  EXPECT_EQ(event.parent_block_hash, 8u);
  EXPECT_THAT(event.token_ids, ElementsAre(5, 6));
  EXPECT_EQ(event.block_size, 2u);
  EXPECT_EQ(event.origin, "REUSED");
  EXPECT_EQ(event.tier, Tier::kHost);
}

TEST(VllmDecoderTest, BatchMayBeAMap) {
  MsgpackWriter out;
  out.Map(4).Str("data_parallel_rank").Uint(1).Str("ts").Double(2.5).Str("more").Array(0);
  out.Str("events").Array(1);
  PutStore(out, 11);
  const auto batch = DecodeKvEvents(out.bytes());
  ASSERT_THAT(batch, IsOk());
  EXPECT_EQ(batch->ts, 2.5);
  EXPECT_EQ(batch->rank, 1);
  EXPECT_EQ(batch->events.size(), 1u);
}

TEST(VllmDecoderTest, MoreSlotsThanKnownAreIgnored) {
  MsgpackWriter out;
  out.Array(5).Double(1).Array(1);
  out.Array(14).Str("BlockStored").Array(1).Uint(9).Nil().Array(1).Uint(4).Uint(1).Nil();
  out.Str("GPU").Str("adapter").Array(1).Nil().Uint(2).Str("mla_attention").Nil();
  out.Str("later").Map(0);
  out.Uint(1).Str("later").Nil();
  const BlockStored event = OnlyStore(out.bytes());
  EXPECT_EQ(event.lora_name, "adapter");
  EXPECT_EQ(event.group_idx, 2u);
  EXPECT_EQ(event.kv_cache_spec_kind, "mla_attention");
}

TEST(VllmDecoderTest, ExtraKeysOfEveryShape) {
  MsgpackWriter out;
  out.Array(2).Double(1).Array(1);
  out.Array(9).Str("BlockStored").Array(2).Uint(1).Uint(2).Nil().Array(2).Uint(4).Uint(5).Uint(1);
  out.Nil().Str("GPU").Str("l").Array(2);
  out.Array(9);
  out.Str("l");
  out.Array(2).Str("img").Int(-3);
  out.Bin("digest");
  out.Array(3).Str("lora").Str("l").Str("/path");
  out.Array(3).Str("mm").Str("img2").Uint(4);
  out.Array(2).Str("cache_salt").Str("s");
  out.Array(2).Str("prompt_embeds").Bin("digest");
  out.Uint(7);
  out.Array(0);
  out.Nil();
  const BlockStored event = OnlyStore(out.bytes());
  using Kind = ExtraKey::Kind;
  ASSERT_TRUE(event.extra_keys.has_value());
  ASSERT_EQ(event.extra_keys->size(), 2u);
  EXPECT_THAT((*event.extra_keys)[0],
              ElementsAre(ExtraKey{Kind::kBare, "l", 0}, ExtraKey{Kind::kItem, "img", -3},
                          ExtraKey{Kind::kUnknown, "", 0}, ExtraKey{Kind::kLora, "l", 0},
                          ExtraKey{Kind::kItem, "img2", 4}, ExtraKey{Kind::kSalt, "s", 0},
                          ExtraKey{Kind::kUnknown, "", 0}, ExtraKey{Kind::kUnknown, "", 0},
                          ExtraKey{Kind::kUnknown, "", 0}));
  EXPECT_THAT((*event.extra_keys)[1], IsEmpty());
}

TEST(VllmDecoderTest, TokenPairsGiveTheirFirst) {
  MsgpackWriter out;
  out.Array(2).Double(1).Array(1);
  out.Array(6).Str("BlockStored").Array(1).Uint(1).Nil();
  out.Array(2).Array(2).Uint(4).Uint(5).Array(2).Uint(5).Uint(6);
  out.Uint(2).Nil();
  EXPECT_THAT(OnlyStore(out.bytes()).token_ids, ElementsAre(4, 5));
}

TEST(VllmDecoderTest, NoBatchIsAnErrorThatSaysWhy) {
  EXPECT_THAT(DecodeKvEvents(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(DecodeKvEvents("\x01"), StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr("neither an array nor a map")));
  EXPECT_THAT(DecodeKvEvents("\x91\x01"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("two slots")));
  EXPECT_THAT(DecodeKvEvents("\x92\xa1x\x90"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("time stamp")));
  EXPECT_THAT(DecodeKvEvents("\x92\x01\x01"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("list of events")));
  DecodeLimits limits;
  limits.max_payload_bytes = 2;
  EXPECT_THAT(DecodeKvEvents("\x92\x01\x90", limits),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 bytes")));
}

TEST(VllmDecoderTest, LimitsSkipTheEventThatExceedsThem) {
  MsgpackWriter out;
  out.Array(2).Double(1).Array(2);
  out.Array(9).Str("BlockStored").Array(1).Uint(1).Nil().Array(1).Uint(4).Uint(1).Nil().Str("GPU");
  out.Nil().Array(1).Array(8);
  for (int i = 0; i < 8; ++i) out.Nil();
  PutStore(out, 11);
  DecodeLimits limits;
  limits.max_extra_keys = 8;
  const auto batch = DecodeKvEvents(out.bytes(), limits);
  ASSERT_THAT(batch, IsOk());
  EXPECT_EQ(batch->events.size(), 1u);
  EXPECT_EQ(batch->skipped.Of(SkipCause::kMalformed), 1u);
  limits = {};
  limits.max_events = 1;
  EXPECT_THAT(DecodeKvEvents(out.bytes(), limits), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(VllmDecoderTest, TruncatedAndFlippedBytesNeverCrash) {
  simdjson::dom::parser parser;
  const simdjson::dom::element file =
      parser.load(std::string(WARMPATH_TEST_DATA) + "/kv_events.json");
  Random random(7);
  for (const simdjson::dom::element vector : file["vectors"]) {
    const std::string payload = FromHex(std::string_view(vector["hex"]));
    for (std::size_t n = 0; n < payload.size(); ++n) {
      DecodeKvEvents(payload.substr(0, n)).IgnoreError();
    }
    for (int i = 0; i < 2000; ++i) {
      std::string mutated = payload;
      for (std::uint64_t k = random.Below(4) + 1; k > 0; --k) {
        mutated[random.Below(mutated.size())] = static_cast<char>(random());
      }
      DecodeKvEvents(mutated).IgnoreError();
    }
  }
}

TEST(VllmDecoderTest, MediaMapToTiers) {
  const std::pair<const char*, Tier> cases[] = {{"GPU", Tier::kGpu},
                                                {"gpu", Tier::kGpu},
                                                {"CPU", Tier::kHost},
                                                {"cpu", Tier::kHost},
                                                {"CPU_PINNED", Tier::kHost},
                                                {"CPU_TIER1", Tier::kHost},
                                                {"CPU_TIER2", Tier::kDisk},
                                                {"DISK", Tier::kDisk},
                                                {"STORAGE", Tier::kDisk},
                                                {"FS", Tier::kDisk},
                                                {"OBJ", Tier::kExternal},
                                                {"EXTERNAL", Tier::kExternal},
                                                {"SHARED_STORAGE", Tier::kExternal}};
  for (const auto& [medium, expected] : cases) {
    Tier tier = Tier::kGpu;
    EXPECT_TRUE(ParseTier(medium, std::nullopt, &tier)) << medium;
    EXPECT_EQ(tier, expected) << medium;
  }
  Tier tier = Tier::kDisk;
  EXPECT_TRUE(ParseTier(std::nullopt, std::nullopt, &tier));
  EXPECT_EQ(tier, Tier::kGpu);
  EXPECT_TRUE(ParseTier("GPU", "REMOTE", &tier));
  EXPECT_EQ(tier, Tier::kExternal);
  EXPECT_TRUE(ParseTier("GPU", "LOCAL", &tier));
  EXPECT_EQ(tier, Tier::kGpu);
  EXPECT_FALSE(ParseTier("", std::nullopt, &tier));
}

}  // namespace
}  // namespace warmpath
