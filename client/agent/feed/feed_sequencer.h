// The state machine of one rank's event feed: which message comes next, was one lost, is this
// still the same engine process. Pure: no sockets, no clock; the owner brings messages and time
// and carries out what is asked through FeedActions.
//
// Facts it rests on (vLLM ZmqEventPublisher): sequences count 0, 1, 2, .. per publisher process
// and start again with it, so a sequence does not identify a process; losses happen in the PUB
// socket and show as holes; the replay socket serves a bounded buffer silently from its oldest
// message, and may lose frames and the end marker. Rules: docs/semantics.md "Sequence numbers".
//
// Not thread-safe; confined to its rank's feed.
#ifndef WARMPATH_CLIENT_AGENT_FEED_FEED_SEQUENCER_H_
#define WARMPATH_CLIENT_AGENT_FEED_FEED_SEQUENCER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "client/agent/canonical/canonical.h"
#include "client/agent/canonical/feed_cause.h"

namespace warmpath {

// Where a feed stood: kept in the state file.
struct FeedPosition {
  std::optional<std::uint64_t> last_seq;  // of the last applied message
  std::uint64_t last_payload_hash = 0;    // its XXH3-64
  // Unix seconds from the engine's process_start_time_seconds; absent when never seen.
  std::optional<double> process_start;

  friend bool operator==(const FeedPosition&, const FeedPosition&) = default;
};

// What the sequencer asks for, called from within its On* methods, in order. Implementations
// must not call back into the sequencer.
class FeedActions {
 public:
  virtual ~FeedActions() = default;
  // Decode and apply; `payload` is valid during the call only. `payload_hash` is its XXH3-64.
  // Sequences are consecutive between two NewEpoch or Loss calls. position() has this message.
  virtual void Apply(std::uint64_t seq, std::string_view payload, std::uint64_t payload_hash) = 0;
  // Ask the engine's replay socket for everything from `from` on, over a fresh socket. The owner
  // hands `attempt` back with each reply; replies of older attempts are ignored.
  virtual void RequestReplay(std::uint64_t from, std::uint64_t attempt) = 0;
  // The attempt is over (ended, timed out or superseded): close its socket.
  virtual void ReplayDone(std::uint64_t attempt) = 0;
  // Another engine process: clear the rank, draw a new epoch.
  virtual void NewEpoch(std::string_view reason) = 0;
  // Messages are lost for good before the next Apply.
  virtual void Loss(LossKind kind) = 0;
};

struct FeedOptions {
  bool replay = true;  // the engine has a replay endpoint
  absl::Duration replay_idle_timeout = absl::Seconds(2);
  // Attempts that bring nothing new before the loss is accepted.
  int max_replay_attempts = 3;
  absl::Duration probe_after = absl::Seconds(1);  // silence before the first probe
  absl::Duration probe_again = absl::Seconds(10);
  absl::Duration probe_max = absl::Seconds(60);
  // Live messages held back during a replay.
  std::size_t max_buffered_messages = 65536;
  std::size_t max_buffered_bytes = 64 << 20;
};

struct FeedCounts {
  std::uint64_t applied = 0;
  std::uint64_t duplicates = 0;  // dropped: applied before
  std::uint64_t gaps = 0;        // holes noticed
  std::uint64_t losses = 0;      // holes that no replay could fill
  std::uint64_t restarts = 0;    // new engine processes
  std::uint64_t replays = 0;     // requests made, probes included
  std::uint64_t replay_timeouts = 0;
  std::uint64_t buffer_dropped = 0;  // live messages over the bound (replayed later)
};

class FeedSequencer {
 public:
  // `actions` must outlive this.
  FeedSequencer(FeedOptions options, FeedActions* actions);

  // Once, first, when the SUB socket has been told to connect (so that nothing published from
  // here on is missed while the replay runs). `restored`: from the state file, when the owner has
  // restored the cache's state with it. May ask for a replay.
  void Start(absl::Time now, std::optional<FeedPosition> restored = std::nullopt);

  // A message of the live socket.
  void OnMessage(std::uint64_t seq, std::string payload, absl::Time now);
  // Replies of the replay socket, without the end marker; then the end marker.
  void OnReplayMessage(std::uint64_t attempt, std::uint64_t seq, std::string_view payload,
                       absl::Time now);
  void OnReplayEnd(std::uint64_t attempt, absl::Time now);
  // Events of the SUB socket's monitor. Order matters, since a sequence does not name its process:
  // hand over what the live socket already received before OnDisconnected, and call OnConnected
  // before reading on.
  void OnConnected(absl::Time now);
  void OnDisconnected(absl::Time now);
  // The engine's start time as scraped; a change means another process. Without replay, a restored
  // state counts only if this was called before the first message: scrape before Start.
  void OnProcessStart(double unix_seconds, absl::Time now);
  // At least every 100 ms, for time-outs and probes.
  void Tick(absl::Time now);

  // kResync, kGap (hole not yet filled), kLateJoin, kSilent as far as they hold now.
  FeedCauses causes() const;
  const FeedPosition& position() const { return position_; }
  const FeedCounts& counts() const { return counts_; }
  bool replaying() const { return purpose_ != Purpose::kNone; }
  bool connected() const { return connected_; }

 private:
  // Why a replay runs; decides what an answer that does not fit means.
  enum class Purpose : std::uint8_t {
    kNone,
    kFromStart,  // nothing applied of this process yet: from 0
    kFillGap,    // same process as far as known: from the last applied, to compare it
    kVerify,     // may be another process: from the last applied, which must come back
    kProbe,      // silence: from last + 1; the feed counts as current meanwhile
  };
  void BeginReplay(Purpose purpose, absl::Time now);
  void AskAgain(absl::Time now);
  void SendRequest(absl::Time now);
  void CloseAttempt();
  // How a process is caught up with, given what is known of it.
  Purpose CatchUp() const {
    return position_.last_seq.has_value() ? Purpose::kFillGap : Purpose::kFromStart;
  }
  bool CatchingUp() const { return purpose_ != Purpose::kNone && purpose_ != Purpose::kProbe; }
  void OnCatchUpReply(std::uint64_t seq, std::string_view payload, absl::Time now);
  // The attempt ended or failed: apply what was held back, then go live or ask again.
  void FinishAttempt(absl::Time now, bool give_up);
  // Applies held-back messages up to the first hole. True when none is left.
  bool DrainBuffer();
  void ApplyFirstBuffered();
  void OnTimeout(absl::Time now);
  void OnMaybeRestarted(std::uint64_t seq, std::string payload, absl::Time now);
  void StartNewEpoch(std::string_view reason);
  void OnLiveWithoutReplay(std::uint64_t seq, std::string_view payload);
  void ApplyNow(std::uint64_t seq, std::string_view payload);
  void AcceptLoss();
  void Buffer(std::uint64_t seq, std::string payload);
  void DropBuffer();
  void ScheduleProbe(absl::Time now, bool activity);
  // Whether this very message was applied, as far as remembered.
  bool SeenBefore(std::uint64_t seq, std::string_view payload) const;
  std::uint64_t NextSeq() const { return position_.last_seq ? *position_.last_seq + 1 : 0; }

  const FeedOptions options_;
  FeedActions* const actions_;
  FeedPosition position_;
  FeedCounts counts_;
  std::optional<double> scraped_start_;
  bool connected_ = false;
  bool unproven_ = false;  // restored state without replay: the next message must prove it
  bool heard_ = false;     // of this process: a message, or that it has none
  bool gap_open_ = false;

  Purpose purpose_ = Purpose::kNone;
  std::uint64_t attempt_ = 0;
  bool attempt_open_ = false;
  bool answered_ = false;    // this attempt: a reply that counts came
  bool progress_ = false;    // this attempt: a message was applied
  bool live_since_ = false;  // this attempt: a live message came
  int fruitless_ = 0;        // attempts in a row without progress
  absl::Time idle_deadline_ = absl::InfiniteFuture();
  absl::Time probe_at_ = absl::InfiniteFuture();
  absl::Duration probe_wait_;

  std::optional<std::uint64_t> last_live_;  // latest of the live socket on this connection
  std::map<std::uint64_t, std::string> buffer_;
  std::size_t buffered_bytes_ = 0;
  std::optional<std::uint64_t> highest_;  // sequence known to exist, applied or not
  // Payload hashes of the latest applied messages, at sequence modulo size.
  struct Remembered {
    std::uint64_t seq = ~std::uint64_t{0};
    std::uint64_t payload_hash = 0;
  };
  std::vector<Remembered> recent_;
};

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_FEED_FEED_SEQUENCER_H_
