// Everything pure about one rank, put together: sequencer -> decoder -> canonical -> listener,
// with the journal beside it. The ZeroMQ source drives it; the publisher listens.
//
//   engine sockets -> RankFeed -> RankFeedListener (one Coalescer per router session)
//
// Not thread-safe; one thread (or lock) per feed.
#ifndef WARMPATH_CLIENT_AGENT_FEED_RANK_FEED_H_
#define WARMPATH_CLIENT_AGENT_FEED_RANK_FEED_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/agent/canonical/block_changes.h"
#include "client/agent/canonical/canonical.h"
#include "client/agent/canonical/feed_cause.h"
#include "client/agent/events/vllm_decoder.h"
#include "client/agent/feed/feed_sequencer.h"
#include "client/agent/feed/state_journal.h"
#include "core/base/clock.h"
#include "core/base/ids.h"

namespace warmpath {

struct RankFeedOptions {
  Rank rank = 0;
  CanonicalOptions canonical;
  FeedOptions feed;
  DecodeLimits decode;
  std::string journal_path;  // empty: no state file
  AgentInstance agent_instance{};
};

// Called from within RankFeed's methods; must not call back into it except const getters.
class RankFeedListener {
 public:
  virtual ~RankFeedListener() = default;
  // After each applied batch, also when nothing changed (the sequence did). The journal has the
  // batch already.
  virtual void OnChanges(Rank rank, std::span<const BlockChanges> changes,
                         std::optional<std::uint64_t> engine_seq) = 0;
  // The rank is empty now and lives in another epoch: register it anew, then a snapshot.
  virtual void OnNewEpoch(Rank rank, Epoch epoch, std::string_view reason) = 0;
  // See FeedActions.
  virtual void RequestReplay(Rank rank, std::uint64_t from, std::uint64_t attempt) = 0;
  virtual void ReplayDone(Rank rank, std::uint64_t attempt) = 0;
};

class RankFeed final : private FeedActions {
 public:
  // `clock` and `listener` must outlive this. `clock` gives Now for the sequencer and WallNow for
  // epochs.
  RankFeed(RankFeedOptions options, const Clock& clock, RankFeedListener* listener);

  // Restores from the state file if there is one, draws an epoch otherwise, and starts the
  // sequencer. Call when the SUB socket is connecting. The returned status says why a state file
  // was left aside or can not be written; the feed runs in any case.
  absl::Status Start();

  // Inputs: see FeedSequencer.
  void OnMessage(std::uint64_t seq, std::string payload);
  void OnReplayMessage(std::uint64_t attempt, std::uint64_t seq, std::string_view payload);
  void OnReplayEnd(std::uint64_t attempt);
  void OnConnected();
  void OnDisconnected();
  void OnProcessStart(double unix_seconds);
  void Tick();

  // Engine blocks of the GPU tier that can hold a prefix; 0 unknown.
  void SetGpuCapacity(std::uint64_t blocks) { canonical_.SetCapacity(Tier::kGpu, blocks); }
  // The same engine process under another epoch, at least `at_least`: a router knew a later one
  // than this agent drew (a lost state file, a clock set back). What is held stays.
  void RenewEpoch(Epoch at_least);

  Epoch epoch() const { return epoch_; }
  // Empty: the view is EXACT at engine_seq().
  FeedCauses causes() const { return sequencer_.causes() | canonical_.causes(); }
  std::optional<std::uint64_t> engine_seq() const { return sequencer_.position().last_seq; }
  // Engine clock (Unix seconds) of the last applied batch; 0 before the first. For the lag.
  double engine_ts() const { return engine_ts_; }
  std::array<SetDigest, kTierCount> digests() const;
  const Canonical& canonical() const { return canonical_; }
  const FeedSequencer& sequencer() const { return sequencer_; }
  // Events and blocks left out, by cause, decoder and canonical together.
  SkipCounts skipped() const;
  // Events applied, by kind.
  struct EventCounts {
    std::uint64_t stored = 0;
    std::uint64_t removed = 0;
    std::uint64_t cleared = 0;
    std::uint64_t bad_batches = 0;  // payloads that were no batch: their content is a loss
    std::uint64_t wrong_rank = 0;   // batches whose own rank differs from the socket's
    std::uint64_t journal_errors = 0;
  };
  const EventCounts& events() const { return events_; }
  // The state file does not hold the state of now: a restart would start from replay. Passes when a
  // later write succeeds, but for a file that could not be opened at the start.
  bool journal_failing() const {
    return !options_.journal_path.empty() && (journal_ == nullptr || !journal_ok_);
  }

 private:
  void Apply(std::uint64_t seq, std::string_view payload, std::uint64_t payload_hash) override;
  void RequestReplay(std::uint64_t from, std::uint64_t attempt) override;
  void ReplayDone(std::uint64_t attempt) override;
  void NewEpoch(std::string_view reason) override;
  void Loss(LossKind kind) override;
  // Notes how a write to the state file went.
  void Journal(const absl::Status& status);
  void DrawEpoch();

  const RankFeedOptions options_;
  const Clock& clock_;
  RankFeedListener* const listener_;
  Canonical canonical_;
  FeedSequencer sequencer_;
  std::unique_ptr<StateJournal> journal_;
  bool journal_ok_ = true;
  Epoch epoch_ = 0;
  double engine_ts_ = 0;
  SkipCounts decoder_skipped_;
  EventCounts events_;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_FEED_RANK_FEED_H_
