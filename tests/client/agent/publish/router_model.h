// The receiving side of the Publish protocol as a plain model: applies updates to sets and notes
// every breach of the protocol.
#ifndef WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_ROUTER_MODEL_H_
#define WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_ROUTER_MODEL_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "warmpath/v1/worker_events.pb.h"

namespace warmpath::testing {

class RouterModel {
 public:
  using Set = std::set<std::uint64_t>;
  struct Rank {
    std::uint64_t epoch = 0;
    std::map<v1::Tier, Set> held;
    std::optional<std::uint64_t> engine_seq;
    std::optional<std::map<v1::Tier, Set>> building;
    bool whole = false;
    bool no_holes = false;  // as the last message says
    int snapshots = 0;
    std::vector<v1::FreshnessCause> causes;
    bool reachable = true;
    std::optional<v1::LoadReport> load;
    int loads = 0;
  };

  // A new stream with this session.
  void Begin(std::uint64_t session) {
    session_ = session;
    delta_seq_ = 0;
    for (auto& [rank, state] : ranks) {
      state.building.reset();
      state.no_holes = false;
    }
  }

  void Apply(const v1::WorkerUpdate& update) {
    if (update.has_register_()) {
      registration = update.register_();
      if (update.session() != 0) Breach("register with a session");
      for (const auto& info : registration.ranks()) {
        Rank& rank = ranks[info.rank()];
        if (rank.epoch != info.epoch()) rank = Rank();
        rank.epoch = info.epoch();
      }
      return;
    }
    if (update.session() != session_) Breach("wrong session");
    switch (update.update_case()) {
      case v1::WorkerUpdate::kSnapshotBegin: {
        const auto& message = update.snapshot_begin();
        Rank& rank = Numbered(message);
        if (message.epoch() != rank.epoch) Breach("snapshot of another epoch");
        rank.building.emplace();
        ++rank.snapshots;
        break;
      }
      case v1::WorkerUpdate::kSnapshotChunk: {
        const auto& message = update.snapshot_chunk();
        Rank& rank = Numbered(message);
        Bound(message.hashes_size());
        if (!rank.building) return Breach("chunk without begin");
        for (const std::uint64_t hash : message.hashes()) {
          if (!(*rank.building)[message.tier()].insert(hash).second) Breach("hash twice");
        }
        break;
      }
      case v1::WorkerUpdate::kSnapshotEnd: {
        const auto& message = update.snapshot_end();
        Rank& rank = Numbered(message);
        if (!rank.building) return Breach("end without begin");
        std::uint64_t count = 0;
        std::uint64_t xor_hash = 0;
        for (const auto& [tier, set] : *rank.building) {
          count += set.size();
          for (const std::uint64_t hash : set) xor_hash ^= hash;
        }
        if (count != message.count() || xor_hash != message.xor_()) Breach("snapshot mismatch");
        rank.held = *rank.building;
        rank.building.reset();
        rank.whole = true;
        rank.no_holes = message.no_holes();
        Seq(rank, message);
        break;
      }
      case v1::WorkerUpdate::kDelta: {
        const auto& message = update.delta();
        Rank& rank = Numbered(message);
        Bound(message.removed_size() + message.stored_size());
        if (rank.building) Breach("delta inside a snapshot");
        if (!rank.whole) Breach("delta before the first snapshot");
        for (const std::uint64_t hash : message.removed()) {
          if (rank.held[message.tier()].erase(hash) == 0) ++removed_twice;
        }
        for (const std::uint64_t hash : message.stored()) rank.held[message.tier()].insert(hash);
        rank.no_holes = message.no_holes();
        Seq(rank, message);
        break;
      }
      case v1::WorkerUpdate::kNewEpoch: {
        const auto& message = update.new_epoch();
        Rank& rank = Numbered(message);
        if (message.epoch() <= rank.epoch) Breach("epoch goes back");
        rank.epoch = message.epoch();
        rank.held.clear();
        rank.building.reset();
        rank.engine_seq.reset();
        rank.whole = false;
        rank.no_holes = false;
        break;
      }
      case v1::WorkerUpdate::kHeartbeat: {
        ++heartbeats;
        if (update.heartbeat().delta_seq() != delta_seq_) Breach("heartbeat's delta_seq");
        for (const auto& digest : update.heartbeat().digests()) Audit(digest);
        for (const auto& load : update.heartbeat().loads()) Load(load);
        break;
      }
      case v1::WorkerUpdate::kLoad:
        Load(update.load());
        break;
      case v1::WorkerUpdate::kRankState: {
        Rank& rank = ranks[update.rank_state().rank()];
        rank.reachable = update.rank_state().engine_reachable();
        for (const auto& [cause, n] : update.rank_state().skipped()) skipped[cause] = n;
        rank.causes.clear();
        for (const int cause : update.rank_state().causes()) {
          rank.causes.push_back(static_cast<v1::FreshnessCause>(cause));
        }
        break;
      }
      default:
        Breach("unknown update");
    }
  }

  std::uint64_t delta_seq() const { return delta_seq_; }
  const Set& held(std::uint32_t rank = 0, v1::Tier tier = v1::TIER_GPU) {
    return ranks[rank].held[tier];
  }

  v1::Register registration;
  std::map<std::uint32_t, Rank> ranks;
  std::map<std::string, std::uint64_t> skipped;  // as last told
  int heartbeats = 0;
  int digests = 0;
  int removed_twice = 0;
  std::vector<std::string> breaches;  // empty in every good test

 private:
  void Breach(std::string what) {
    breaches.push_back(absl::StrCat(what, " at delta_seq ", delta_seq_));
  }
  void Load(const v1::LoadReport& load) {
    ranks[load.rank()].load = load;
    ++ranks[load.rank()].loads;
  }
  void Bound(int hashes) {
    if (hashes > 4096) Breach("more than 4,096 hashes");
  }
  template <typename Message>
  Rank& Numbered(const Message& message) {
    if (message.delta_seq() != ++delta_seq_) Breach("hole in delta_seq");
    return ranks[message.rank()];
  }
  template <typename Message>
  void Seq(Rank& rank, const Message& message) {
    if (!message.engine_seq_valid()) return;
    if (rank.engine_seq && *rank.engine_seq > message.engine_seq()) Breach("engine_seq goes back");
    rank.engine_seq = message.engine_seq();
  }
  void Audit(const v1::RankDigest& digest) {
    ++digests;
    std::uint64_t xor_hash = 0;
    const Set& set = ranks[digest.rank()].held[digest.tier()];
    for (const std::uint64_t hash : set) xor_hash ^= hash;
    if (set.size() != digest.count() || xor_hash != digest.xor_()) {
      Breach(absl::StrCat("audit of rank ", digest.rank(), " tier ", digest.tier(), ": held ",
                          set.size(), " xor ", xor_hash, ", told ", digest.count(), " xor ",
                          digest.xor_()));
    }
  }

  std::uint64_t session_ = 0;
  std::uint64_t delta_seq_ = 0;
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_ROUTER_MODEL_H_
