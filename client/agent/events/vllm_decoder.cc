#include "client/agent/events/vllm_decoder.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/agent/events/msgpack_reader.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

using Type = MsgpackReader::Type;

// Fields of all events, by name. A positional event is a list of these by slot.
enum class Field : std::uint8_t {
  kBlockHashes,
  kParent,
  kTokenIds,
  kBlockSize,
  kLoraId,
  kMedium,
  kLoraName,
  kExtraKeys,
  kGroupIdx,
  kSpecKind,
  kSlidingWindow,
  kLocality,
  kOwnership,
  kSessionId,
  kCacheSalt,
  kOrigin,
  kUnknown,
};

Field FieldOf(std::string_view name) {
  struct Named {
    std::string_view name;
    Field field;
  };
  static constexpr Named kNames[] = {
      {"block_hashes", Field::kBlockHashes},
      {"parent_block_hash", Field::kParent},
      {"token_ids", Field::kTokenIds},
      {"block_size", Field::kBlockSize},
      {"lora_id", Field::kLoraId},
      {"medium", Field::kMedium},
      {"lora_name", Field::kLoraName},
      {"extra_keys", Field::kExtraKeys},
      {"group_idx", Field::kGroupIdx},
      {"kv_cache_spec_kind", Field::kSpecKind},
      {"kv_cache_spec_sliding_window", Field::kSlidingWindow},
      {"locality", Field::kLocality},
      {"ownership", Field::kOwnership},
      {"session_id", Field::kSessionId},
      {"cache_salt", Field::kCacheSalt},
      {"origin", Field::kOrigin},
  };
  for (const Named& named : kNames) {
    if (named.name == name) return named.field;
  }
  return Field::kUnknown;
}

// Slots after the tag, newest era that was positional.
constexpr Field kStoredSlots[] = {Field::kBlockHashes, Field::kParent,       Field::kTokenIds,
                                  Field::kBlockSize,   Field::kLoraId,       Field::kMedium,
                                  Field::kLoraName,    Field::kExtraKeys,    Field::kGroupIdx,
                                  Field::kSpecKind,    Field::kSlidingWindow};
constexpr Field kRemovedSlots[] = {Field::kBlockHashes, Field::kMedium, Field::kGroupIdx};

// Reads one event's fields into a BlockStored, which has all of them.
class EventReader {
 public:
  // `keys_left`: how many more extra keys the batch may hold.
  EventReader(MsgpackReader& in, const DecodeLimits& limits, std::size_t* keys_left)
      : in_(in), limits_(limits), keys_left_(keys_left) {}

  bool ReadField(Field field) {
    switch (field) {
      case Field::kBlockHashes:
        return ReadHashes(&event_.block_hashes);
      case Field::kParent:
        return in_.ReadNil() || ReadHash(&event_.parent_block_hash.emplace());
      case Field::kTokenIds:
        return ReadTokens(&event_.token_ids);
      case Field::kBlockSize: {
        std::uint64_t size = 0;
        if (!in_.ReadUnsigned(std::uint32_t{1} << 20, &size)) return false;
        event_.block_size = static_cast<std::uint32_t>(size);
        return true;
      }
      case Field::kLoraId:
        return in_.ReadNil() || in_.ReadInt(&event_.lora_id.emplace());
      case Field::kMedium:
        return ReadText(&event_.medium);
      case Field::kLoraName:
        // SGLang 0.5.18 puts a map of metadata where vLLM has the LoRA name.
        return in_.Peek() == Type::kMap ? ReadMapFields() : ReadText(&event_.lora_name);
      case Field::kExtraKeys:
        return in_.ReadNil() || ReadExtraKeys(&event_.extra_keys.emplace());
      case Field::kGroupIdx: {
        if (in_.ReadNil()) return true;
        std::uint64_t group = 0;
        if (!in_.ReadUnsigned(std::numeric_limits<std::uint32_t>::max(), &group)) return false;
        event_.group_idx = static_cast<std::uint32_t>(group);
        return true;
      }
      case Field::kSpecKind:
        return ReadText(&event_.kv_cache_spec_kind);
      case Field::kSlidingWindow:
        return in_.ReadNil() || in_.ReadInt(&event_.kv_cache_spec_sliding_window.emplace());
      case Field::kLocality:
        return ReadText(&event_.locality);
      case Field::kOwnership:
        return ReadText(&event_.ownership);
      case Field::kSessionId:
        return ReadText(&event_.session_id);
      case Field::kCacheSalt:
        return ReadText(&event_.cache_salt);
      case Field::kOrigin:
        return ReadText(&event_.origin);
      case Field::kUnknown:
        return in_.Skip();
    }
    return false;
  }

  // The pairs of the map that comes next. "type" is an unknown field here: read before.
  bool ReadMapFields() {
    std::size_t pairs = 0;
    if (!in_.ReadMap(&pairs)) return false;
    for (std::size_t i = 0; i < pairs; ++i) {
      std::string_view key;
      if (in_.Peek() == Type::kString) {
        if (!in_.ReadString(&key)) return false;
      } else if (!in_.Skip()) {
        return false;
      }
      if (!ReadField(FieldOf(key))) return false;
      if (key == "block_hashes") has_hashes_ = true;
      if (key == "token_ids") has_tokens_ = true;
    }
    return true;
  }

  BlockStored& event() { return event_; }
  bool has_hashes() const { return has_hashes_; }
  bool has_tokens() const { return has_tokens_; }

 private:
  bool ReadHash(EngineHash* hash) {
    if (in_.Peek() == Type::kInt) return in_.ReadBits(hash);
    std::string_view digest;
    if (!in_.ReadBytes(&digest) || digest.size() < sizeof(EngineHash)) return false;
    // The same 64 bits that the integer form of the digest has: its last eight bytes.
    EngineHash bits = 0;
    for (const char c : digest.substr(digest.size() - sizeof(EngineHash))) {
      bits = bits << 8 | static_cast<std::uint8_t>(c);
    }
    *hash = bits;
    return true;
  }

  bool ReadHashes(std::vector<EngineHash>* hashes) {
    std::size_t n = 0;
    if (!in_.ReadArray(&n)) return false;
    hashes->clear();
    hashes->reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      if (!ReadHash(&hashes->emplace_back())) return false;
    }
    return true;
  }

  bool ReadToken(TokenId* token) {
    std::uint64_t value = 0;
    if (in_.Peek() == Type::kArray) {
      // SGLang with EAGLE: (token, next token); the block's own token is the first.
      std::size_t n = 0;
      if (!in_.ReadArray(&n) || n != 2) return false;
      if (!in_.ReadUnsigned(std::numeric_limits<TokenId>::max(), &value) || !in_.Skip()) {
        return false;
      }
    } else if (!in_.ReadUnsigned(std::numeric_limits<TokenId>::max(), &value)) {
      return false;
    }
    *token = static_cast<TokenId>(value);
    return true;
  }

  bool ReadTokens(std::vector<TokenId>* tokens) {
    std::size_t n = 0;
    if (!in_.ReadArray(&n)) return false;
    tokens->clear();
    tokens->reserve(n);
    for (std::size_t i = 0; i < n; ++i) {
      if (!ReadToken(&tokens->emplace_back())) return false;
    }
    return true;
  }

  bool ReadBoundedString(std::string* text) {
    std::string_view view;
    if (!in_.ReadString(&view) || view.size() > limits_.max_string_bytes) return false;
    text->assign(view);
    return true;
  }

  bool ReadText(std::optional<std::string>* text) {
    if (in_.ReadNil()) {
      text->reset();
      return true;
    }
    return ReadBoundedString(&text->emplace());
  }

  // ["id", offset] and the tagged forms; anything else well-formed becomes kUnknown.
  bool ReadTupleKey(ExtraKey* key) {
    std::size_t n = 0;
    if (!in_.ReadArray(&n)) return false;
    if (n < 2 || in_.Peek() != Type::kString) return SkipValues(n);
    if (!ReadBoundedString(&key->text)) return false;
    --n;
    if (n == 1 && in_.Peek() == Type::kInt) {
      key->kind = ExtraKey::Kind::kItem;
      return in_.ReadInt(&key->offset);
    }
    const std::string tag = std::exchange(key->text, std::string());
    if (in_.Peek() != Type::kString) return SkipValues(n);
    if (tag == "mm" && n == 2) {
      if (!ReadBoundedString(&key->text)) return false;
      if (in_.Peek() != Type::kInt) return SkipValues(1);
      key->kind = ExtraKey::Kind::kItem;
      return in_.ReadInt(&key->offset);
    }
    if (tag == "lora" || (tag == "cache_salt" && n == 1)) {
      key->kind = tag == "lora" ? ExtraKey::Kind::kLora : ExtraKey::Kind::kSalt;
      return ReadBoundedString(&key->text) && SkipValues(n - 1);
    }
    return SkipValues(n);
  }

  bool SkipValues(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      if (!in_.Skip()) return false;
    }
    return true;
  }

  bool ReadExtraKey(ExtraKey* key) {
    switch (in_.Peek()) {
      case Type::kString:
        key->kind = ExtraKey::Kind::kBare;
        return ReadBoundedString(&key->text);
      case Type::kArray:
        return ReadTupleKey(key);
      default:
        return in_.Skip();
    }
  }

  bool ReadExtraKeys(std::vector<std::vector<ExtraKey>>* all) {
    std::size_t blocks = 0;
    if (!in_.ReadArray(&blocks) || !TakeKeys(blocks)) return false;
    all->resize(blocks);
    for (std::vector<ExtraKey>& keys : *all) {
      if (in_.ReadNil()) continue;
      std::size_t n = 0;
      if (!in_.ReadArray(&n) || !TakeKeys(n)) return false;
      for (std::size_t i = 0; i < n; ++i) {
        if (!ReadExtraKey(&keys.emplace_back())) return false;
      }
    }
    return true;
  }

  bool TakeKeys(std::size_t n) {
    if (n > *keys_left_) return false;
    *keys_left_ -= n;
    return true;
  }

  MsgpackReader& in_;
  const DecodeLimits& limits_;
  std::size_t* const keys_left_;
  BlockStored event_;
  bool has_hashes_ = false;
  bool has_tokens_ = false;
};

bool IsKnownTag(std::string_view tag) {
  return tag == "BlockStored" || tag == "BlockRemoved" || tag == "AllBlocksCleared";
}

// The tag of a map event, wherever in the map it stands. `in` is a copy.
bool FindTag(MsgpackReader in, std::string_view* tag) {
  std::size_t pairs = 0;
  if (!in.ReadMap(&pairs)) return false;
  for (std::size_t i = 0; i < pairs; ++i) {
    std::string_view key;
    if (in.Peek() == Type::kString) {
      if (!in.ReadString(&key)) return false;
    } else if (!in.Skip()) {
      return false;
    }
    if (key == "type") return in.ReadString(tag);
    if (!in.Skip()) return false;
  }
  return false;
}

// Reads slots of a positional event after its tag; slots beyond the known ones are ignored.
template <std::size_t N>
bool ReadSlots(const Field (&slots)[N], std::size_t required, std::size_t present,
               EventReader& reader, MsgpackReader& in) {
  if (present < required) return false;
  for (std::size_t i = 0; i < present; ++i) {
    if (i < N ? !reader.ReadField(slots[i]) : !in.Skip()) return false;
  }
  return true;
}

// Decodes the one event in `in`. Returns nullopt and the cause when it is to be skipped.
std::optional<EngineEvent> DecodeEvent(MsgpackReader in, const DecodeLimits& limits,
                                       std::size_t* keys_left, SkipCause* cause) {
  *cause = SkipCause::kMalformed;
  EventReader reader(in, limits, keys_left);
  std::string_view tag;
  const bool is_map = in.Peek() == Type::kMap;
  std::size_t slots = 0;
  if (is_map) {
    if (!FindTag(in, &tag)) return std::nullopt;
  } else if (!in.ReadArray(&slots) || slots == 0 || !in.ReadString(&tag)) {
    return std::nullopt;
  }
  if (!IsKnownTag(tag)) {
    *cause = SkipCause::kUnknownType;
    return std::nullopt;
  }
  if (tag == "AllBlocksCleared") return AllBlocksCleared{};

  const bool stored = tag == "BlockStored";
  if (is_map) {
    if (!reader.ReadMapFields() || !reader.has_hashes()) return std::nullopt;
    if (stored && !reader.has_tokens()) return std::nullopt;
  } else if (stored ? !ReadSlots(kStoredSlots, 5, slots - 1, reader, in)
                    : !ReadSlots(kRemovedSlots, 1, slots - 1, reader, in)) {
    return std::nullopt;
  }
  BlockStored& event = reader.event();
  if (!ParseTier(event.medium, event.locality, &event.tier)) {
    *cause = SkipCause::kUnknownMedium;
    return std::nullopt;
  }
  if (stored) return std::move(event);
  BlockRemoved removed;
  removed.block_hashes = std::move(event.block_hashes);
  removed.medium = std::move(event.medium);
  removed.tier = event.tier;
  removed.group_idx = event.group_idx;
  removed.locality = std::move(event.locality);
  removed.ownership = std::move(event.ownership);
  return removed;
}

// Reads the events array at `in`.
bool DecodeEvents(MsgpackReader& in, std::string_view payload, const DecodeLimits& limits,
                  EngineBatch* batch) {
  std::size_t n = 0;
  if (!in.ReadArray(&n) || n > limits.max_events) return false;
  std::size_t keys_left = limits.max_extra_keys;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t begin = payload.size() - in.remaining();
    if (!in.Skip()) {
      // The framing is broken from here on: the events before it stand.
      batch->skipped.Add(SkipCause::kMalformed, n - i);
      return true;
    }
    const std::size_t end = payload.size() - in.remaining();
    SkipCause cause = SkipCause::kMalformed;
    std::optional<EngineEvent> event =
        DecodeEvent(MsgpackReader(payload.substr(begin, end - begin)), limits, &keys_left, &cause);
    if (event.has_value()) {
      batch->events.push_back(*std::move(event));
    } else {
      batch->skipped.Add(cause);
    }
  }
  return true;
}

void ReadRank(MsgpackReader& in, EngineBatch* batch) {
  std::int64_t rank = 0;
  if (in.ReadInt(&rank)) {
    batch->rank = rank;
  } else {
    in.Skip();
  }
}

absl::Status NoBatch(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("KV event payload: ", ToAbsl(what)));
}

}  // namespace

absl::StatusOr<EngineBatch> DecodeKvEvents(std::string_view payload, const DecodeLimits& limits) {
  if (payload.size() > limits.max_payload_bytes) {
    return NoBatch(
        absl::StrCat(payload.size(), " bytes are above the limit of ", limits.max_payload_bytes));
  }
  MsgpackReader in(payload);
  EngineBatch batch;
  bool has_events = false;
  if (in.Peek() == Type::kArray) {
    std::size_t slots = 0;
    if (!in.ReadArray(&slots) || slots < 2) return NoBatch("the batch has fewer than two slots");
    if (!in.ReadDouble(&batch.ts)) return NoBatch("the time stamp is not a number");
    has_events = DecodeEvents(in, payload, limits, &batch);
    if (has_events && slots > 2 && !in.failed()) ReadRank(in, &batch);
  } else if (in.Peek() == Type::kMap) {
    std::size_t pairs = 0;
    if (!in.ReadMap(&pairs)) return NoBatch("truncated");
    for (std::size_t i = 0; i < pairs && !in.failed(); ++i) {
      std::string_view key;
      if (in.Peek() == Type::kString ? !in.ReadString(&key) : !in.Skip()) break;
      if (key == "ts") {
        if (!in.ReadDouble(&batch.ts)) return NoBatch("the time stamp is not a number");
      } else if (key == "events" && !has_events) {
        has_events = DecodeEvents(in, payload, limits, &batch);
        if (!has_events) break;
      } else if (key == "data_parallel_rank") {
        ReadRank(in, &batch);
      } else {
        in.Skip();
      }
    }
  } else {
    return NoBatch("neither an array nor a map");
  }
  if (!has_events) return NoBatch("no readable list of events");
  if (!std::isfinite(batch.ts)) batch.ts = 0;
  return batch;
}

}  // namespace warmpath
