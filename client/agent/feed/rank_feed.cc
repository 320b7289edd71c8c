#include "client/agent/feed/rank_feed.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"

namespace warmpath {
namespace {

// After a write error the state file is tried anew with every so many batches: a full disk must
// not cost a rewrite per batch.
constexpr std::uint64_t kJournalRetryBatches = 1024;

}  // namespace

RankFeed::RankFeed(RankFeedOptions options, const Clock& clock, RankFeedListener* listener)
    : options_(std::move(options)),
      clock_(clock),
      listener_(listener),
      canonical_(options_.canonical),
      sequencer_(options_.feed, this) {}

absl::Status RankFeed::Start() {
  std::optional<FeedPosition> restored;
  absl::Status status;
  if (!options_.journal_path.empty()) {
    absl::StatusOr<RestoredState> state = StateJournal::Load(options_.journal_path, &canonical_);
    if (state.ok()) {
      epoch_ = state->epoch;
      restored = state->position;
      if (!state->truncated.empty()) {
        status = absl::DataLossError("state file " + options_.journal_path + ": " +
                                     state->truncated + "; what comes before it is used");
      }
    } else if (!absl::IsNotFound(state.status())) {
      status = state.status();
    }
  }
  if (!restored.has_value()) DrawEpoch();
  if (!options_.journal_path.empty()) {
    auto journal = StateJournal::Open(options_.journal_path, options_.agent_instance, epoch_,
                                      restored.value_or(FeedPosition()), canonical_);
    if (journal.ok()) {
      journal_ = *std::move(journal);
    } else {
      ++events_.journal_errors;
      status.Update(journal.status());
    }
  }
  sequencer_.Start(clock_.Now(), restored);
  return status;
}

void RankFeed::DrawEpoch() {
  const auto now =
      static_cast<Epoch>(std::max<std::int64_t>(0, absl::ToUnixNanos(clock_.WallNow())));
  epoch_ = std::max(epoch_ + 1, now);
}

void RankFeed::OnMessage(std::uint64_t seq, std::string payload) {
  sequencer_.OnMessage(seq, std::move(payload), clock_.Now());
}

void RankFeed::OnReplayMessage(std::uint64_t attempt, std::uint64_t seq, std::string_view payload) {
  sequencer_.OnReplayMessage(attempt, seq, payload, clock_.Now());
}

void RankFeed::OnReplayEnd(std::uint64_t attempt) { sequencer_.OnReplayEnd(attempt, clock_.Now()); }

void RankFeed::OnConnected() { sequencer_.OnConnected(clock_.Now()); }

void RankFeed::OnDisconnected() { sequencer_.OnDisconnected(clock_.Now()); }

void RankFeed::OnProcessStart(double unix_seconds) {
  const std::optional<double> before = sequencer_.position().process_start;
  sequencer_.OnProcessStart(unix_seconds, clock_.Now());
  const std::optional<double> after = sequencer_.position().process_start;
  if (after.has_value() && after != before && journal_ != nullptr) {
    Journal(journal_->AppendProcessStart(*after));
  }
}

void RankFeed::Tick() { sequencer_.Tick(clock_.Now()); }

void RankFeed::RenewEpoch(Epoch at_least) {
  DrawEpoch();
  epoch_ = std::max(epoch_, at_least);
  if (journal_ != nullptr) Journal(journal_->Reset(epoch_, sequencer_.position(), canonical_));
  listener_->OnNewEpoch(options_.rank, epoch_, "the router knew a later epoch");
}

std::array<SetDigest, kTierCount> RankFeed::digests() const {
  std::array<SetDigest, kTierCount> all;
  for (std::size_t t = 0; t < kTierCount; ++t) all[t] = canonical_.digest(kAllTiers[t]);
  return all;
}

SkipCounts RankFeed::skipped() const {
  SkipCounts all = canonical_.skipped();
  all += decoder_skipped_;
  return all;
}

void RankFeed::Apply(std::uint64_t seq, std::string_view payload, std::uint64_t payload_hash) {
  std::vector<BlockChanges> changes;
  const absl::StatusOr<EngineBatch> batch = DecodeKvEvents(payload, options_.decode);
  if (batch.ok()) {
    for (const EngineEvent& event : batch->events) {
      if (std::holds_alternative<BlockStored>(event)) {
        ++events_.stored;
      } else if (std::holds_alternative<BlockRemoved>(event)) {
        ++events_.removed;
      } else {
        ++events_.cleared;
      }
    }
    if (batch->rank.has_value() && *batch->rank != static_cast<std::int64_t>(options_.rank)) {
      ++events_.wrong_rank;
    }
    decoder_skipped_ += batch->skipped;
    engine_ts_ = batch->ts;
    changes = canonical_.Apply(*batch);
  } else {
    ++events_.bad_batches;
    changes = canonical_.MarkLoss(LossKind::kGap);
  }
  if (journal_ != nullptr) {
    Journal(journal_->AppendBatch(seq, payload_hash, payload));
    const bool due = journal_ok_ || sequencer_.counts().applied % kJournalRetryBatches == 0;
    if (due && journal_->WantsCompaction()) {
      Journal(journal_->Reset(epoch_, sequencer_.position(), canonical_));
    }
  }
  listener_->OnChanges(options_.rank, changes, seq);
}

void RankFeed::RequestReplay(std::uint64_t from, std::uint64_t attempt) {
  listener_->RequestReplay(options_.rank, from, attempt);
}

void RankFeed::ReplayDone(std::uint64_t attempt) { listener_->ReplayDone(options_.rank, attempt); }

void RankFeed::NewEpoch(std::string_view reason) {
  canonical_.Clear();
  engine_ts_ = 0;
  DrawEpoch();
  if (journal_ != nullptr) Journal(journal_->Reset(epoch_, sequencer_.position(), canonical_));
  listener_->OnNewEpoch(options_.rank, epoch_, reason);
}

void RankFeed::Loss(LossKind kind) {
  const std::vector<BlockChanges> changes = canonical_.MarkLoss(kind);
  if (journal_ != nullptr) Journal(journal_->AppendLoss(kind));
  if (!changes.empty()) {
    // The position is still that before the hole.
    listener_->OnChanges(options_.rank, changes, engine_seq());
  }
}

void RankFeed::Journal(const absl::Status& status) {
  journal_ok_ = status.ok();
  if (!status.ok()) ++events_.journal_errors;
}

}  // namespace warmpath
