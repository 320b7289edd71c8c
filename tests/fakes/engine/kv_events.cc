#include "tests/fakes/engine/kv_events.h"

#include "absl/strings/str_cat.h"
#include "core/base/strings.h"
#include "tests/fakes/engine/msgpack_writer.h"

namespace warmpath::engine {
namespace {

constexpr std::string_view kMedium = "GPU";
constexpr std::string_view kSpecKind = "full_attention";
constexpr std::uint64_t kGroup = 0;

template <typename T>
void UintArray(MsgpackWriter& w, const std::vector<T>& values) {
  w.Array(values.size());
  for (const T value : values) w.Uint(value);
}

void OptionalStr(MsgpackWriter& w, const std::optional<std::string>& value) {
  if (value) {
    w.Str(*value);
  } else {
    w.Nil();
  }
}

template <typename T>
void OptionalUint(MsgpackWriter& w, const std::optional<T>& value) {
  if (value) {
    w.Uint(*value);
  } else {
    w.Nil();
  }
}

// Writes fields with or without their names, so that both forms share one field order.
class EventWriter {
 public:
  EventWriter(MsgpackWriter& w, EventFormat format) : w_(w), map_(format == EventFormat::kMap) {}

  // `map_fields` and `slots` do not count the tag.
  void Begin(std::string_view tag, std::size_t map_fields, std::size_t slots) {
    if (map_) {
      w_.Map(map_fields + 1);
      w_.Str("type");
    } else {
      w_.Array(slots + 1);
    }
    w_.Str(tag);
  }
  MsgpackWriter& Field(std::string_view name) {
    if (map_) w_.Str(name);
    return w_;
  }
  bool map() const { return map_; }

 private:
  MsgpackWriter& w_;
  const bool map_;
};

void Write(EventWriter& e, const BlockStored& event) {
  e.Begin("BlockStored", 10, 11);
  UintArray(e.Field("block_hashes"), event.hashes);
  OptionalUint(e.Field("parent_block_hash"), event.parent);
  UintArray(e.Field("token_ids"), event.tokens);
  e.Field("block_size").Uint(event.block_size);
  OptionalUint(e.Field("lora_id"), event.lora_id);
  e.Field("medium").Str(kMedium);
  OptionalStr(e.Field("lora_name"), event.lora_name);
  MsgpackWriter& w = e.Field("extra_keys");
  w.Array(event.extra_keys.size());
  for (const std::vector<std::string>& keys : event.extra_keys) {
    if (keys.empty()) {
      w.Nil();
      continue;
    }
    w.Array(keys.size());
    for (const std::string& key : keys) w.Str(key);
  }
  e.Field("group_idx").Uint(kGroup);
  e.Field("kv_cache_spec_kind").Str(kSpecKind);
  // Never set for full attention: maps leave it out, the positional form has its slot.
  if (!e.map()) e.Field("kv_cache_spec_sliding_window").Nil();
}

void Write(EventWriter& e, const BlockRemoved& event) {
  e.Begin("BlockRemoved", 3, 3);
  MsgpackWriter& w = e.Field("block_hashes");
  w.Array(1);
  w.Uint(event.hash);
  e.Field("medium").Str(kMedium);
  e.Field("group_idx").Uint(kGroup);
}

void Write(EventWriter& e, const AllBlocksCleared&) { e.Begin("AllBlocksCleared", 0, 0); }

}  // namespace

absl::StatusOr<EventFormat> ParseEventFormat(std::string_view name) {
  if (name == "map") return EventFormat::kMap;
  if (name == "positional") return EventFormat::kPositional;
  return absl::InvalidArgumentError(
      absl::StrCat("event format \"", ToAbsl(name), "\" is unknown: use map or positional"));
}

std::string EncodeBatch(double ts, const std::vector<KvEvent>& events, Rank rank,
                        EventFormat format) {
  std::string out;
  MsgpackWriter w(&out);
  w.Array(3);
  w.Double(ts);
  w.Array(events.size());
  EventWriter e(w, format);
  for (const KvEvent& event : events) {
    std::visit([&e](const auto& alternative) { Write(e, alternative); }, event);
  }
  w.Uint(rank);
  return out;
}

}  // namespace warmpath::engine
