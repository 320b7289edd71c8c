#include "server/convert_feed.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/strings.h"

namespace warmpath {
namespace {

constexpr std::size_t kMaxRegisterBytes = 256 << 10;
constexpr int kMaxRankStateKeys = 64;
constexpr std::size_t kMaxKeyBytes = 64;
constexpr std::size_t kMaxReasonBytes = 256;

std::span<const ChainHash> Hashes(const google::protobuf::RepeatedField<std::uint64_t>& field) {
  return {field.data(), static_cast<std::size_t>(field.size())};
}

// Messages have engine_seq and engine_seq_valid.
template <typename M>
std::optional<std::uint64_t> EngineSeq(const M& message) {
  if (!message.engine_seq_valid()) return std::nullopt;
  return message.engine_seq();
}

absl::Status CheckCount(std::string_view field, int count) {
  if (static_cast<std::size_t>(count) <= kMaxHashesPerMessage) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": has ", count,
                                                 " hashes: send at most ", kMaxHashesPerMessage,
                                                 " in one message"));
}

// Such keys become metric labels: only short plain words, and few.
bool IsPlainWord(std::string_view key) {
  return !key.empty() && key.size() <= kMaxKeyBytes &&
         std::all_of(key.begin(), key.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

std::vector<std::pair<std::string, std::uint64_t>> Counts(
    const google::protobuf::Map<std::string, std::uint64_t>& map) {
  std::vector<std::pair<std::string, std::uint64_t>> counts;
  for (const auto& [key, count] : map) {
    if (counts.size() < kMaxRankStateKeys && IsPlainWord(key)) counts.emplace_back(key, count);
  }
  std::sort(counts.begin(), counts.end());
  return counts;
}

absl::Status FromProto(const v1::SnapshotBegin& m, FeedUpdate* result) {
  *result = SnapshotBeginUpdate{
      .delta_seq = m.delta_seq(),
      .rank = m.rank(),
      .epoch = m.epoch(),
      .reason = std::string_view(m.reason()).substr(0, kMaxReasonBytes),
  };
  return absl::OkStatus();
}

absl::Status FromProto(const v1::SnapshotChunk& m, FeedUpdate* result) {
  WARMPATH_RETURN_IF_ERROR(CheckCount("snapshot_chunk.hashes", m.hashes_size()));
  WARMPATH_ASSIGN_OR_RETURN(const Tier tier, TierFromProto(m.tier(), "snapshot_chunk.tier"));
  *result = SnapshotChunkUpdate{
      .delta_seq = m.delta_seq(), .rank = m.rank(), .tier = tier, .hashes = Hashes(m.hashes())};
  return absl::OkStatus();
}

absl::Status FromProto(const v1::SnapshotEnd& m, FeedUpdate* result) {
  *result = SnapshotEndUpdate{.delta_seq = m.delta_seq(),
                              .rank = m.rank(),
                              .engine_seq = EngineSeq(m),
                              .count = m.count(),
                              .xor_of_hashes = m.xor_(),
                              .no_holes = m.no_holes()};
  return absl::OkStatus();
}

absl::Status FromProto(const v1::CacheDelta& m, FeedUpdate* result) {
  WARMPATH_RETURN_IF_ERROR(
      CheckCount("delta.removed and delta.stored", m.removed_size() + m.stored_size()));
  WARMPATH_ASSIGN_OR_RETURN(const Tier tier, TierFromProto(m.tier(), "delta.tier"));
  *result = CacheDeltaUpdate{.delta_seq = m.delta_seq(),
                             .rank = m.rank(),
                             .tier = tier,
                             .removed = Hashes(m.removed()),
                             .stored = Hashes(m.stored()),
                             .engine_seq = EngineSeq(m),
                             .no_holes = m.no_holes()};
  return absl::OkStatus();
}

absl::Status FromProto(const v1::Cleared& m, FeedUpdate* result) {
  WARMPATH_ASSIGN_OR_RETURN(const Tier tier, TierFromProto(m.tier(), "cleared.tier"));
  *result = ClearedUpdate{
      .delta_seq = m.delta_seq(), .rank = m.rank(), .tier = tier, .engine_seq = EngineSeq(m)};
  return absl::OkStatus();
}

absl::Status FromProto(const v1::NewEpoch& m, FeedUpdate* result) {
  *result = NewEpochUpdate{.delta_seq = m.delta_seq(),
                           .rank = m.rank(),
                           .epoch = m.epoch(),
                           .kv_capacity_tokens = m.kv_capacity_tokens()};
  return absl::OkStatus();
}

absl::Status FromProto(const v1::Heartbeat& m, FeedUpdate* result) {
  HeartbeatUpdate update{.delta_seq = m.delta_seq(), .digests = {}};
  update.digests.reserve(static_cast<std::size_t>(m.digests_size()));
  for (const v1::RankDigest& digest : m.digests()) {
    WARMPATH_ASSIGN_OR_RETURN(const Tier tier,
                              TierFromProto(digest.tier(), "heartbeat.digests.tier"));
    update.digests.push_back({.rank = digest.rank(),
                              .tier = tier,
                              .count = digest.count(),
                              .xor_of_hashes = digest.xor_(),
                              .engine_seq = EngineSeq(digest)});
  }
  *result = std::move(update);
  return absl::OkStatus();
}

absl::Status FromProto(const v1::RankState& m, FeedUpdate* result) {
  RankStateUpdate update;
  update.rank = m.rank();
  update.engine_reachable = m.engine_reachable();
  for (const int cause : m.causes()) {
    // Values are those of core's enum plus one.
    if (cause < 1 || cause > static_cast<int>(kFreshnessCauseCount)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank_state.causes: ", cause, " is no cause of protocol version 1"));
    }
    update.causes.Set(static_cast<FreshnessCause>(cause - 1));
  }
  const double lag = m.event_lag_s();
  update.event_lag_s = lag >= 0 && lag < 1e9 ? lag : 0;
  update.skipped = Counts(m.skipped());
  update.events = Counts(m.events());
  *result = std::move(update);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tier> TierFromProto(v1::Tier tier, std::string_view field) {
  if (tier == v1::TIER_UNSPECIFIED) return Tier::kGpu;
  if (tier < v1::TIER_GPU || tier > v1::TIER_EXTERNAL) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(field), ": ", static_cast<int>(tier), " is no tier: send 1 to 4"));
  }
  return static_cast<Tier>(tier - 1);
}

absl::StatusOr<Registration> RegistrationFromProto(const v1::Register& m) {
  if (m.ByteSizeLong() > kMaxRegisterBytes) {
    return absl::InvalidArgumentError(absl::StrCat("register: has ", m.ByteSizeLong(),
                                                   " bytes: send at most ", kMaxRegisterBytes));
  }
  Registration r;
  r.protocol_min = m.protocol_min();
  r.protocol_max = m.protocol_max();
  r.features = m.features();
  r.agent_instance = m.agent_instance();
  r.worker_id = m.worker_id();
  r.model = m.model();
  r.aliases.assign(m.aliases().begin(), m.aliases().end());
  r.loras.assign(m.loras().begin(), m.loras().end());
  r.engine = m.engine();
  r.engine_version = m.engine_version();
  r.agent_version = m.agent_version();
  for (const v1::RankInfo& rank : m.ranks()) {
    const std::pair<const char*, double> rates[] = {
        {"prefill_tokens_per_s", rank.prefill_tokens_per_s()},
        {"host_copy_tokens_per_s", rank.host_copy_tokens_per_s()}};
    for (const auto& [field, rate] : rates) {
      if (rate >= 0 && rate < 1e12) continue;
      return absl::InvalidArgumentError(absl::StrCat("register.ranks[", rank.rank(), "].", field,
                                                     ": send tokens per second, or 0 for unknown"));
    }
    r.ranks.push_back({.rank = rank.rank(),
                       .address = rank.address(),
                       .epoch = rank.epoch(),
                       .engine_block_size = rank.engine_block_size(),
                       .kv_capacity_tokens = rank.kv_capacity_tokens(),
                       .has_events = rank.has_events(),
                       .prefill_tokens_per_s = rank.prefill_tokens_per_s(),
                       .shares_address = rank.shares_address(),
                       .host_copy_tokens_per_s = rank.host_copy_tokens_per_s()});
  }
  r.labels.assign(m.labels().begin(), m.labels().end());
  std::sort(r.labels.begin(), r.labels.end());
  return r;
}

absl::Status LoadUpdateFromProto(const v1::LoadReport& m, FeedUpdate* result) {
  if (!(m.kv_usage() >= 0 && m.kv_usage() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("load.kv_usage: is ", m.kv_usage(), ": send a share of 0 to 1"));
  }
  *result = LoadUpdate{.rank = m.rank(),
                       .running = m.running(),
                       .waiting = m.waiting(),
                       .kv_usage = m.kv_usage(),
                       .age = absl::Milliseconds(m.age_ms())};
  return absl::OkStatus();
}

absl::Status FeedUpdateFromProto(const v1::WorkerUpdate& update, FeedUpdate* result) {
  switch (update.update_case()) {
    case v1::WorkerUpdate::kRegister:
      return absl::InvalidArgumentError(
          "register: this stream is registered already: open a new one");
    case v1::WorkerUpdate::kSnapshotBegin:
      return FromProto(update.snapshot_begin(), result);
    case v1::WorkerUpdate::kSnapshotChunk:
      return FromProto(update.snapshot_chunk(), result);
    case v1::WorkerUpdate::kSnapshotEnd:
      return FromProto(update.snapshot_end(), result);
    case v1::WorkerUpdate::kDelta:
      return FromProto(update.delta(), result);
    case v1::WorkerUpdate::kCleared:
      return FromProto(update.cleared(), result);
    case v1::WorkerUpdate::kLoad:
      return LoadUpdateFromProto(update.load(), result);
    case v1::WorkerUpdate::kHeartbeat:
      return FromProto(update.heartbeat(), result);
    case v1::WorkerUpdate::kRankState:
      return FromProto(update.rank_state(), result);
    case v1::WorkerUpdate::kNewEpoch:
      return FromProto(update.new_epoch(), result);
    case v1::WorkerUpdate::UPDATE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("update: is empty or of a later protocol version");
}

void RegisteredToProto(const RegisteredReply& reply, absl::Duration heartbeat,
                       absl::Duration heartbeat_in, v1::Registered* message) {
  message->set_session(reply.session);
  message->set_routing_block_size(reply.routing_block_size);
  message->set_hash_seed(reply.hash_seed);
  message->set_protocol(reply.protocol);
  message->mutable_snapshot_ranks()->Add(reply.snapshot_ranks.begin(), reply.snapshot_ranks.end());
  message->set_heartbeat_ms(static_cast<std::uint32_t>(absl::ToInt64Milliseconds(heartbeat)));
  message->set_heartbeat_in_ms(static_cast<std::uint32_t>(absl::ToInt64Milliseconds(heartbeat_in)));
  message->set_max_hashes_per_message(static_cast<std::uint32_t>(kMaxHashesPerMessage));
}

}  // namespace warmpath
