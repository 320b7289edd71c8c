#include "client/agent/feed/feed_sequencer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "client/agent/feed/payload_hash.h"

namespace warmpath {
namespace {

// The end marker's sequence; never a message's.
constexpr std::uint64_t kNoSeq = std::numeric_limits<std::uint64_t>::max();

// How far a live message may lag behind a replay and still be recognised.
constexpr std::size_t kRemembered = 8192;

// process_start_time_seconds has a resolution of 10 ms.
bool SameStart(double a, double b) { return std::abs(a - b) < 0.5; }

}  // namespace

FeedSequencer::FeedSequencer(FeedOptions options, FeedActions* actions)
    : options_(options),
      actions_(actions),
      probe_wait_(options.probe_again),
      recent_(kRemembered) {}

void FeedSequencer::Start(absl::Time now, std::optional<FeedPosition> restored) {
  const bool has_state = restored.has_value() && restored->last_seq.has_value();
  if (has_state) position_ = *restored;
  if (options_.replay) {
    BeginReplay(has_state ? Purpose::kVerify : Purpose::kFromStart, now);
  } else {
    unproven_ = has_state;
  }
}

void FeedSequencer::OnMessage(std::uint64_t seq, std::string payload, absl::Time now) {
  if (seq == kNoSeq) return;
  connected_ = true;
  heard_ = true;
  live_since_ = true;
  if (!options_.replay) {
    OnLiveWithoutReplay(seq, payload);
    return;
  }
  ScheduleProbe(now, true);
  if (last_live_.has_value() && seq <= *last_live_) {
    if (SeenBefore(seq, payload)) {
      ++counts_.duplicates;
    } else {
      OnMaybeRestarted(seq, std::move(payload), now);
    }
    return;
  }
  last_live_ = seq;
  highest_ = std::max(highest_.value_or(0), seq);
  if (CatchingUp()) {
    Buffer(seq, std::move(payload));
    return;
  }
  if (seq == NextSeq()) {
    ApplyNow(seq, payload);
    return;
  }
  if (seq < NextSeq()) {
    // The live socket lags behind a replay that already brought this message; anything else under
    // this sequence comes from another process.
    if (SeenBefore(seq, payload)) {
      ++counts_.duplicates;
    } else {
      OnMaybeRestarted(seq, std::move(payload), now);
    }
    return;
  }
  ++counts_.gaps;
  gap_open_ = true;
  Buffer(seq, std::move(payload));
  BeginReplay(CatchUp(), now);
}

void FeedSequencer::OnMaybeRestarted(std::uint64_t seq, std::string payload, absl::Time now) {
  // What was held back came before this message: of the former process, if there are two.
  DropBuffer();
  last_live_ = seq;
  highest_ = seq;
  Buffer(seq, std::move(payload));
  BeginReplay(position_.last_seq ? Purpose::kVerify : Purpose::kFromStart, now);
}

void FeedSequencer::OnLiveWithoutReplay(std::uint64_t seq, std::string_view payload) {
  if (unproven_) {
    unproven_ = false;
    const bool same_process = position_.process_start && scraped_start_ &&
                              SameStart(*position_.process_start, *scraped_start_);
    if (!same_process || seq != NextSeq()) {
      StartNewEpoch("the state file is not of this engine process, or messages came since");
    }
  }
  if (position_.last_seq.has_value() && seq <= *position_.last_seq) {
    if (SeenBefore(seq, payload)) {
      ++counts_.duplicates;
      return;
    }
    StartNewEpoch("the sequence went back");
  }
  if (seq > NextSeq()) {
    ++counts_.gaps;
    AcceptLoss();
  }
  ApplyNow(seq, payload);
}

void FeedSequencer::OnReplayMessage(std::uint64_t attempt, std::uint64_t seq,
                                    std::string_view payload, absl::Time now) {
  if (!attempt_open_ || attempt != attempt_ || seq == kNoSeq) return;
  idle_deadline_ = now + options_.replay_idle_timeout;
  heard_ = true;
  if (purpose_ != Purpose::kProbe) {
    OnCatchUpReply(seq, payload, now);
  } else if (seq >= NextSeq()) {
    // The tail was lost. Ask once more, from the last applied message, so that a process that
    // was exchanged unnoticed is told from this one.
    ++counts_.gaps;
    gap_open_ = true;
    BeginReplay(CatchUp(), now);
  }
}

void FeedSequencer::OnCatchUpReply(std::uint64_t seq, std::string_view payload, absl::Time now) {
  const bool first = !answered_;
  if (first && purpose_ != Purpose::kFromStart) {
    const std::uint64_t last = *position_.last_seq;
    if (seq < last) return;  // a server that sends more than it was asked for
    answered_ = true;
    const bool last_came_back = seq == last && PayloadHash(payload) == position_.last_payload_hash;
    if ((seq == last || purpose_ == Purpose::kVerify) && !last_came_back) {
      StartNewEpoch("the engine answers with another message than it had sent");
      BeginReplay(Purpose::kFromStart, now);
      return;
    }
    purpose_ = Purpose::kFillGap;  // proven, or not asked for
    if (last_came_back) return;
  }
  answered_ = true;
  if (seq < NextSeq()) return;
  if (seq > NextSeq()) {
    if (!first) {
      // The replay socket itself lost frames.
      highest_ = std::max(highest_.value_or(0), seq);
      FinishAttempt(now, false);
      return;
    }
    // The engine keeps nothing older.
    AcceptLoss();
  }
  ApplyNow(seq, payload);
}

void FeedSequencer::OnReplayEnd(std::uint64_t attempt, absl::Time now) {
  if (!attempt_open_ || attempt != attempt_) return;
  heard_ = true;
  if (purpose_ == Purpose::kProbe) {
    CloseAttempt();
    purpose_ = Purpose::kNone;
    ScheduleProbe(now, live_since_);
    return;
  }
  if (!answered_ && purpose_ != Purpose::kFromStart) {
    // Asked from the last applied message on, the same process would have had at least that.
    if (purpose_ == Purpose::kFillGap) DropBuffer();
    StartNewEpoch("the engine does not have the last message that was applied");
    BeginReplay(Purpose::kFromStart, now);
    return;
  }
  FinishAttempt(now, false);
}

bool FeedSequencer::DrainBuffer() {
  while (!buffer_.empty()) {
    const auto first = buffer_.begin();
    if (first->first > NextSeq()) return false;
    const auto node = buffer_.extract(first);
    buffered_bytes_ -= node.mapped().size();
    if (node.key() < NextSeq()) {
      ++counts_.duplicates;
    } else {
      ApplyNow(node.key(), node.mapped());
    }
  }
  return true;
}

void FeedSequencer::FinishAttempt(absl::Time now, bool give_up) {
  CloseAttempt();
  const bool drained = DrainBuffer();
  fruitless_ = progress_ ? 0 : fruitless_ + 1;
  const bool more = !drained || (highest_.has_value() && *highest_ >= NextSeq());
  if (more && !give_up && fruitless_ < options_.max_replay_attempts) {
    AskAgain(now);
    return;
  }
  while (!DrainBuffer()) {
    AcceptLoss();
    ApplyFirstBuffered();
  }
  highest_ = position_.last_seq;
  purpose_ = Purpose::kNone;
  fruitless_ = 0;
  gap_open_ = false;
  ScheduleProbe(now, true);
}

void FeedSequencer::ApplyFirstBuffered() {
  const auto node = buffer_.extract(buffer_.begin());
  buffered_bytes_ -= node.mapped().size();
  ApplyNow(node.key(), node.mapped());
}

void FeedSequencer::OnTimeout(absl::Time now) {
  ++counts_.replay_timeouts;
  if (purpose_ == Purpose::kProbe) {
    CloseAttempt();
    purpose_ = Purpose::kNone;
    ScheduleProbe(now, live_since_);
    return;
  }
  CloseAttempt();
  fruitless_ = progress_ ? 0 : fruitless_ + 1;
  // An engine that is down can not answer: wait for it. One that publishes but does not answer is
  // taken as one without replay.
  if (!connected_ || fruitless_ < options_.max_replay_attempts) {
    AskAgain(now);
  } else if (purpose_ == Purpose::kVerify) {
    StartNewEpoch("the replay endpoint does not answer");
    BeginReplay(Purpose::kFromStart, now);
  } else {
    FinishAttempt(now, true);
  }
}

void FeedSequencer::OnConnected(absl::Time now) {
  connected_ = true;
  if (!options_.replay) return;
  last_live_.reset();
  if (CatchingUp()) {
    if (answered_) return;
    // Asked when nothing was there to answer, or before the live socket could fill the rest in.
    DropBuffer();
    fruitless_ = 0;
    AskAgain(now);
  } else if (position_.last_seq.has_value()) {
    BeginReplay(Purpose::kVerify, now);
  }
}

void FeedSequencer::OnDisconnected(absl::Time now) {
  connected_ = false;
  last_live_.reset();
  DropBuffer();
  if (!options_.replay) {
    unproven_ = false;
    StartNewEpoch("disconnected from the engine");
    return;
  }
  BeginReplay(position_.last_seq ? Purpose::kVerify : Purpose::kFromStart, now);
}

void FeedSequencer::OnProcessStart(double unix_seconds, absl::Time now) {
  if (!std::isfinite(unix_seconds)) return;
  scraped_start_ = unix_seconds;
  if (!position_.process_start.has_value()) {
    if (!unproven_) position_.process_start = unix_seconds;
    return;
  }
  if (SameStart(*position_.process_start, unix_seconds)) return;
  if (!options_.replay) {
    unproven_ = false;
    StartNewEpoch("the engine's start time changed");
    scraped_start_ = unix_seconds;
    position_.process_start = unix_seconds;
    return;
  }
  position_.process_start = unix_seconds;
  if (position_.last_seq.has_value()) BeginReplay(Purpose::kVerify, now);
}

void FeedSequencer::Tick(absl::Time now) {
  if (attempt_open_ && now >= idle_deadline_) {
    OnTimeout(now);
  } else if (purpose_ == Purpose::kNone && now >= probe_at_) {
    BeginReplay(Purpose::kProbe, now);
  }
}

FeedCauses FeedSequencer::causes() const {
  FeedCauses causes;
  causes.Set(FeedCause::kResync, CatchingUp());
  causes.Set(FeedCause::kGap, gap_open_);
  causes.Set(FeedCause::kLateJoin, unproven_);
  causes.Set(FeedCause::kSilent, !heard_);
  return causes;
}

void FeedSequencer::BeginReplay(Purpose purpose, absl::Time now) {
  CloseAttempt();
  purpose_ = purpose;
  fruitless_ = 0;
  SendRequest(now);
}

void FeedSequencer::AskAgain(absl::Time now) {
  CloseAttempt();
  if (purpose_ == Purpose::kFromStart) purpose_ = CatchUp();
  SendRequest(now);
}

void FeedSequencer::SendRequest(absl::Time now) {
  ++attempt_;
  ++counts_.replays;
  attempt_open_ = true;
  answered_ = false;
  progress_ = false;
  live_since_ = false;
  idle_deadline_ = now + options_.replay_idle_timeout;
  const bool compare = purpose_ == Purpose::kFillGap || purpose_ == Purpose::kVerify;
  actions_->RequestReplay(compare ? *position_.last_seq : NextSeq(), attempt_);
}

void FeedSequencer::CloseAttempt() {
  if (!attempt_open_) return;
  attempt_open_ = false;
  idle_deadline_ = absl::InfiniteFuture();
  actions_->ReplayDone(attempt_);
}

void FeedSequencer::StartNewEpoch(std::string_view reason) {
  ++counts_.restarts;
  position_ = FeedPosition();
  scraped_start_.reset();
  highest_.reset();
  std::fill(recent_.begin(), recent_.end(), Remembered());
  gap_open_ = false;
  heard_ = false;
  actions_->NewEpoch(reason);
}

void FeedSequencer::ApplyNow(std::uint64_t seq, std::string_view payload) {
  const std::uint64_t hash = PayloadHash(payload);
  position_.last_seq = seq;
  position_.last_payload_hash = hash;
  if (!position_.process_start.has_value()) position_.process_start = scraped_start_;
  recent_[seq % recent_.size()] = {seq, hash};
  ++counts_.applied;
  progress_ = true;
  heard_ = true;
  actions_->Apply(seq, payload, hash);
}

void FeedSequencer::AcceptLoss() {
  ++counts_.losses;
  actions_->Loss(position_.last_seq.has_value() ? LossKind::kGap : LossKind::kMissedStart);
}

void FeedSequencer::Buffer(std::uint64_t seq, std::string payload) {
  if (buffer_.size() >= options_.max_buffered_messages ||
      buffered_bytes_ + payload.size() > options_.max_buffered_bytes) {
    ++counts_.buffer_dropped;  // highest_ remembers to ask for it
    return;
  }
  buffered_bytes_ += payload.size();
  buffer_.emplace(seq, std::move(payload));
}

void FeedSequencer::DropBuffer() {
  buffer_.clear();
  buffered_bytes_ = 0;
  highest_ = position_.last_seq;
}

void FeedSequencer::ScheduleProbe(absl::Time now, bool activity) {
  if (activity) {
    probe_at_ = now + options_.probe_after;
    probe_wait_ = options_.probe_again;
    return;
  }
  probe_at_ = now + probe_wait_;
  probe_wait_ = std::min(2 * probe_wait_, options_.probe_max);
}

bool FeedSequencer::SeenBefore(std::uint64_t seq, std::string_view payload) const {
  const Remembered& entry = recent_[seq % recent_.size()];
  return entry.seq == seq && entry.payload_hash == PayloadHash(payload);
}

}  // namespace warmpath
