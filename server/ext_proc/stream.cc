#include "server/ext_proc/stream.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace warmpath {
namespace {

PickResult Unexpected(const char* what) {
  return {absl::InternalError(absl::StrCat("unexpected: ", what)), absl::ZeroDuration()};
}

}  // namespace

absl::Status ExtProcStream::OnMessage(ProcessingRequest& request) {
  ProcessingResponses answers;
  machine_.OnMessage(request, &answers);
  if (machine_.wants_pick()) {
    if (machine_.PickIsHeavy()) {
      PickInPool();
      return absl::OkStatus();
    }
    machine_.RunPick(&answers);
  }
  absl::MutexLock lock(&mu());
  Push(std::move(answers));
  return absl::OkStatus();
}

bool ExtProcStream::NextResponse(ProcessingResponse* response) noexcept {
  if (pending_.empty()) return false;
  response->Swap(&pending_.front());
  pending_.pop_front();
  return true;
}

// REQUIRES: the message that made the machine want a pick had no answer of its own.
void ExtProcStream::PickInPool() {
  {
    absl::MutexLock lock(&mu());
    picking_ = true;
    AddHold();
  }
  const auto done = [this](ProcessingResponses answers) {
    absl::MutexLock lock(&mu());
    picking_ = false;
    Push(std::move(answers));
    ReleaseHold();
  };
  const bool queued = pool_->TrySubmit([this, done] {
    bool gone;
    {
      absl::MutexLock lock(&mu());
      gone = Closed();
    }
    ProcessingResponses answers;
    if (!gone) {
      try {
        machine_.RunPick(&answers);
      } catch (const std::exception& error) {
        answers.clear();
        machine_.RefusePick(Unexpected(error.what()), &answers);
      }
    }
    done(std::move(answers));
  });
  if (queued) return;
  ProcessingResponses answers;
  machine_.RefusePick(RefusedByQueue(), &answers);
  done(std::move(answers));
}

void ExtProcStream::Push(ProcessingResponses answers) {
  for (ProcessingResponse& answer : answers) pending_.push_back(std::move(answer));
  request_answered_ = request_answered_ || machine_.request_answered();
  // After a refusal the proxy has no more use for the stream, even if it does not say so.
  if (machine_.refused() || (draining_ && request_answered_)) DrainLocked(absl::OkStatus());
}

void ExtProcStream::Drain(const absl::Status&) {
  absl::MutexLock lock(&mu());
  draining_ = true;
  // With OK the proxy goes on by itself; an error would fail the client's request.
  if (request_answered_) DrainLocked(absl::OkStatus());
}

void ExtProcStream::Tick(absl::Time now) {
  absl::MutexLock lock(&mu());
  if (now < answer_by_ || request_answered_ || picking_) return;
  request_answered_ = true;
  const Refusal refusal = {
      .status = absl::DeadlineExceededError(
          "the request did not arrive as a whole in time: send it faster, or raise "
          "ext_proc.request_timeout"),
      .http_status = 408,
      .reason = "request_timeout",
      .retry_after = {}};
  ProcessingResponses answers;
  AppendRefusal(refusal, "", &answers);
  stats_->CountRefusal(refusal.http_status, refusal.reason);
  pending_.push_back(std::move(answers.front()));
  DrainLocked(absl::OkStatus());
}

}  // namespace warmpath
