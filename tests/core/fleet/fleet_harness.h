// A fleet on a fake clock, and agents that are driven by hand.
#ifndef WARMPATH_TESTS_CORE_FLEET_FLEET_HARNESS_H_
#define WARMPATH_TESTS_CORE_FLEET_FLEET_HARNESS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/fleet/feed.h"
#include "core/fleet/fleet_impl.h"
#include "core/fleet/pool.h"
#include "core/fleet/worker.h"
#include "core/index/index.h"
#include "tests/testing/fake_clock.h"

namespace warmpath::testing {

using Hashes = std::vector<ChainHash>;

// Keeps what was sent. Thread-safe.
class RecordingSink final : public FeedSink {
 public:
  void Send(FeedReply reply) override {
    absl::MutexLock lock(&mu_);
    replies_.push_back(std::move(reply));
  }
  void Close(absl::Status status) override {
    absl::MutexLock lock(&mu_);
    if (!closed_.has_value()) closed_ = std::move(status);
  }

  template <typename T>
  std::vector<T> All() const {
    absl::MutexLock lock(&mu_);
    std::vector<T> found;
    for (const FeedReply& reply : replies_) {
      if (const T* match = std::get_if<T>(&reply)) found.push_back(*match);
    }
    return found;
  }
  // "reason@rank" of each Resync since the last call.
  std::vector<std::string> TakeResyncs() {
    std::vector<std::string> reasons;
    for (const ResyncReply& resync : TakeResyncReplies()) {
      reasons.push_back(absl::StrCat(resync.reason, "@", resync.rank));
    }
    return reasons;
  }
  std::vector<ResyncReply> TakeResyncReplies() {
    absl::MutexLock lock(&mu_);
    std::vector<ResyncReply> found;
    for (; seen_ < replies_.size(); ++seen_) {
      if (const auto* resync = std::get_if<ResyncReply>(&replies_[seen_])) {
        found.push_back(*resync);
      }
    }
    return found;
  }
  std::optional<absl::Status> closed() const {
    absl::MutexLock lock(&mu_);
    return closed_;
  }

 private:
  mutable absl::Mutex mu_;
  std::vector<FeedReply> replies_ ABSL_GUARDED_BY(mu_);
  std::size_t seen_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<absl::Status> closed_ ABSL_GUARDED_BY(mu_);
};

inline Registration MakeRegistration(std::string worker_id, std::size_t ranks = 1) {
  Registration registration;
  registration.agent_instance = std::string(16, 'a');
  registration.worker_id = std::move(worker_id);
  registration.model = "llama";
  registration.engine = "vllm";
  for (Rank rank = 0; rank < ranks; ++rank) {
    registration.ranks.push_back({.rank = rank,
                                  .address = absl::StrCat("10.0.0.1:", 8000 + rank),
                                  .epoch = 100,
                                  .engine_block_size = 16,
                                  .kv_capacity_tokens = 64'000,
                                  .has_events = true});
  }
  return registration;
}

// One agent's stream to a fleet. Sends in sequence unless told otherwise.
class TestAgent {
 public:
  TestAgent(Fleet& fleet, Registration registration, std::string peer = "10.0.0.1:5000")
      : fleet_(fleet), registration_(std::move(registration)), peer_(std::move(peer)) {}

  Registration& registration() { return registration_; }
  RecordingSink& sink() { return *sink_; }
  SessionId session() const { return session_; }
  std::uint64_t seq() const { return seq_; }
  // The largest delta_seq that was not skipped.
  std::uint64_t delivered() const { return delivered_; }
  bool connected() const { return feed_ != nullptr; }

  absl::Status Register() {
    auto sink = std::make_shared<RecordingSink>();
    auto feed = fleet_.Register(registration_, peer_, sink);
    if (!feed.ok()) return feed.status();
    sink_ = std::move(sink);
    feed_ = *std::move(feed);
    seq_ = 0;
    delivered_ = 0;
    const auto registered = sink_->All<RegisteredReply>();
    if (registered.size() != 1) return absl::InternalError("no Registered");
    registered_ = registered[0];
    session_ = registered_.session;
    return absl::OkStatus();
  }
  const RegisteredReply& registered() const { return registered_; }

  void Close() {
    feed_->OnClosed();
    feed_.reset();
  }

  absl::Status Send(const FeedUpdate& update) { return feed_->OnUpdate(session_, update); }
  absl::Status SendAs(SessionId session, const FeedUpdate& update) {
    return feed_->OnUpdate(session, update);
  }

  // What the messages from here on say of holes.
  void SayNoHoles(bool no_holes) { no_holes_ = no_holes; }

  // A message is lost on the way.
  void Skip() { ++seq_; }

  absl::Status Begin(Rank rank = 0, Epoch epoch = 0) {
    return Send(SnapshotBeginUpdate{.delta_seq = Next(),
                                    .rank = rank,
                                    .epoch = epoch != 0 ? epoch : registration_.ranks[rank].epoch,
                                    .reason = "test"});
  }
  absl::Status Chunk(const Hashes& hashes, Tier tier = Tier::kGpu, Rank rank = 0) {
    return Send(
        SnapshotChunkUpdate{.delta_seq = Next(), .rank = rank, .tier = tier, .hashes = hashes});
  }
  absl::Status End(std::uint64_t count, std::uint64_t xor_of_hashes,
                   std::optional<std::uint64_t> engine_seq = std::nullopt, Rank rank = 0) {
    return Send(SnapshotEndUpdate{.delta_seq = Next(),
                                  .rank = rank,
                                  .engine_seq = engine_seq,
                                  .count = count,
                                  .xor_of_hashes = xor_of_hashes,
                                  .no_holes = no_holes_});
  }
  // Begin, one chunk of the GPU tier, End.
  absl::Status Snapshot(const Hashes& hashes, std::optional<std::uint64_t> engine_seq = 0,
                        Rank rank = 0) {
    absl::Status status = Begin(rank);
    status.Update(Chunk(hashes, Tier::kGpu, rank));
    status.Update(End(hashes.size(), Xor(hashes), engine_seq, rank));
    return status;
  }
  absl::Status Delta(const Hashes& removed, const Hashes& stored,
                     std::optional<std::uint64_t> engine_seq = std::nullopt, Tier tier = Tier::kGpu,
                     Rank rank = 0) {
    return Send(CacheDeltaUpdate{.delta_seq = Next(),
                                 .rank = rank,
                                 .tier = tier,
                                 .removed = removed,
                                 .stored = stored,
                                 .engine_seq = engine_seq,
                                 .no_holes = no_holes_});
  }
  absl::Status Cleared(Tier tier = Tier::kGpu,
                       std::optional<std::uint64_t> engine_seq = std::nullopt, Rank rank = 0) {
    return Send(
        ClearedUpdate{.delta_seq = Next(), .rank = rank, .tier = tier, .engine_seq = engine_seq});
  }
  absl::Status NewEpoch(Epoch epoch, Rank rank = 0) {
    registration_.ranks[rank].epoch = epoch;
    return Send(NewEpochUpdate{.delta_seq = Next(), .rank = rank, .epoch = epoch});
  }
  // A heartbeat that claims to hold these in the GPU tier of rank 0.
  absl::Status Heartbeat(const Hashes& held,
                         std::optional<std::uint64_t> engine_seq = std::nullopt) {
    HeartbeatUpdate update{.delta_seq = seq_, .digests = {}};
    update.digests.push_back({.rank = 0,
                              .tier = Tier::kGpu,
                              .count = held.size(),
                              .xor_of_hashes = Xor(held),
                              .engine_seq = engine_seq});
    return Send(update);
  }
  absl::Status State(CauseSet causes, bool reachable = true, Rank rank = 0) {
    return Send(RankStateUpdate{.rank = rank, .engine_reachable = reachable, .causes = causes});
  }

  static std::uint64_t Xor(const Hashes& hashes) {
    std::uint64_t x = 0;
    for (const ChainHash hash : hashes) x ^= hash;
    return x;
  }

 private:
  std::uint64_t Next() { return delivered_ = ++seq_; }

  Fleet& fleet_;
  Registration registration_;
  const std::string peer_;
  std::shared_ptr<RecordingSink> sink_;
  std::unique_ptr<WorkerFeed> feed_;
  RegisteredReply registered_;
  SessionId session_ = 0;
  std::uint64_t seq_ = 0;
  std::uint64_t delivered_ = 0;
  bool no_holes_ = false;
};

// What one target says of itself.
struct Glance {
  Lifecycle lifecycle = Lifecycle::kJoining;
  Freshness freshness = Freshness::kNone;
  std::string causes;  // names, comma separated

  friend bool operator==(const Glance&, const Glance&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Glance& g) {
    return out << "{" << LifecycleName(g.lifecycle) << " " << FreshnessName(g.freshness) << "("
               << g.causes << ")}";
  }
};

class FleetHarness {
 public:
  explicit FleetHarness(FleetConfig config = {}, FleetImpl::IndexFactory create_index = CreateIndex)
      : fleet_(std::make_unique<FleetImpl>(std::move(config), &clock_, 1, create_index)) {}

  Fleet& operator*() { return *fleet_; }
  Fleet* operator->() { return fleet_.get(); }
  FakeClock& clock() { return clock_; }

  // Time passes, with a tick at the end.
  void Pass(absl::Duration by) {
    clock_.Advance(by);
    fleet_->Tick();
  }

  std::optional<TargetView> View(std::string_view worker_id, Rank rank = 0) {
    for (const WorkerView& worker : fleet_->ListWorkers("")) {
      if (worker.worker_id == worker_id) return worker.targets.at(rank);
    }
    return std::nullopt;
  }
  Glance Look(std::string_view worker_id, Rank rank = 0) {
    const auto view = View(worker_id, rank);
    if (!view.has_value()) return {Lifecycle::kLost, Freshness::kNone, "no such worker"};
    std::string causes;
    for (const FreshnessCause cause : view->causes.ToVector()) {
      const std::string_view name = FreshnessCauseName(cause);
      absl::StrAppend(&causes, causes.empty() ? "" : ",", std::string(name));
    }
    return {view->lifecycle, view->freshness, causes};
  }
  // Sorted.
  Hashes Dump(std::string_view worker_id, Tier tier = Tier::kGpu, Rank rank = 0,
              DumpHeader* header = nullptr) {
    Hashes hashes;
    const auto dumped = fleet_->Dump(worker_id, rank, tier, KnowledgeSource::kEvents, &hashes);
    if (!dumped.ok()) return {0xdeadbeef};
    if (header != nullptr) *header = *dumped;
    std::sort(hashes.begin(), hashes.end());
    return hashes;
  }

  std::shared_ptr<Pool> PoolOf(std::string_view model = "llama") {
    return fleet_->Resolve(model)->pool;
  }
  // Whether the worker's rank may be picked.
  bool Eligible(std::string_view worker_id, Rank rank = 0) {
    for (const auto& pool : fleet_->Pools()) {
      absl::MutexLock lock(&pool->mu());
      for (const TargetState& target : pool->targets()) {
        if (target.in_use && target.worker_id == worker_id && target.spec.rank == rank) {
          return target.eligible();
        }
      }
    }
    return false;
  }
  TargetId TargetOf(std::string_view worker_id, Rank rank = 0) {
    const auto pool = PoolOf();
    absl::MutexLock lock(&pool->mu());
    for (TargetId id = 0; id < pool->targets().size(); ++id) {
      const TargetState& target = pool->targets()[id];
      if (target.in_use && target.worker_id == worker_id && target.spec.rank == rank) return id;
    }
    return kNoTarget;
  }
  // Opens a reservation as a pick would.
  ReservationId Reserve(std::string_view worker_id) {
    const TargetId target = TargetOf(worker_id);
    const auto pool = PoolOf();
    absl::MutexLock lock(&pool->mu());
    Reservation reservation;
    reservation.target = target;
    reservation.prompt_tokens = 1000;
    return pool->ledger().Open(std::move(reservation), {}, clock_.Now());
  }
  std::uint64_t OpenReservations() {
    const auto pool = PoolOf();
    absl::MutexLock lock(&pool->mu());
    return pool->ledger().open();
  }
  std::uint64_t ClosedBy(CloseCause cause) {
    const auto pool = PoolOf();
    absl::MutexLock lock(&pool->mu());
    return pool->ledger().closed()[static_cast<std::size_t>(cause)];
  }
  // Depth, in blocks, that picks credit the target with.
  std::uint32_t CreditedDepth(std::string_view worker_id, const Hashes& chain) {
    const TargetId target = TargetOf(worker_id);
    const auto pool = PoolOf();
    MatchResult match;
    pool->index().Match(chain, &match);
    absl::MutexLock lock(&pool->mu());
    for (const SlotMatch& slot : match.slots) {
      if (slot.slot == pool->targets()[target].slot) return slot.gpu_depth;
    }
    return 0;
  }

 private:
  FakeClock clock_;
  std::unique_ptr<FleetImpl> fleet_;
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CORE_FLEET_FLEET_HARNESS_H_
