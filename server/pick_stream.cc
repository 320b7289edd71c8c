#include "server/pick_stream.h"

#include <memory>
#include <utility>

#include "core/base/strings.h"
#include "server/outcome_batch.h"
#include "server/status_convert.h"

namespace warmpath {
namespace {

constexpr std::size_t kInstanceBytes = 16;

void SetResult(const PickResult& result, v1::PickStreamResponse* response) {
  if (result.status.ok()) return;
  response->set_status_code(static_cast<int>(result.status.code()));
  response->set_status_message(CutMessage(ToStd(result.status.message())));
  response->set_retry_after_ms(
      static_cast<std::uint32_t>(absl::ToInt64Milliseconds(result.retry_after)));
}

}  // namespace

absl::Status PickStream::OnMessage(v1::PickStreamRequest& request) {
  const bool first = std::exchange(first_, false);
  v1::PickStreamResponse response;
  response.set_tag(request.tag());
  switch (request.message_case()) {
    case v1::PickStreamRequest::kPick:
      if (backend_->IsHeavy(request.pick())) {
        PickInPool(request);
        return absl::OkStatus();
      }
      PickNow(request.pick(), &response);
      break;
    case v1::PickStreamRequest::kOutcome: {
      const absl::Status status = backend_->Report(request.outcome());
      SetResult({status, absl::ZeroDuration()}, &response);
      if (status.ok()) response.mutable_outcome();
      break;
    }
    case v1::PickStreamRequest::kOutcomes: {
      const absl::Status status =
          ReportBatch(*backend_, request.outcomes(), response.mutable_outcomes());
      SetResult({status, absl::ZeroDuration()}, &response);
      if (!status.ok()) response.clear_outcomes();
      break;
    }
    case v1::PickStreamRequest::kHello:
      if (first) {
        Hello(request.hello(), &response);
      } else {
        SetResult({absl::InvalidArgumentError("hello: must be the first message of the stream"),
                   absl::ZeroDuration()},
                  &response);
      }
      break;
    case v1::PickStreamRequest::MESSAGE_NOT_SET:
      SetResult({absl::InvalidArgumentError("message: set one of pick, outcome, outcomes, hello"),
                 absl::ZeroDuration()},
                &response);
      break;
  }
  Push(std::move(response));
  return absl::OkStatus();
}

bool PickStream::NextResponse(v1::PickStreamResponse* response) noexcept {
  if (pending_.empty()) return false;
  response->Swap(&pending_.front());
  pending_.pop_front();
  return true;
}

void PickStream::Hello(const v1::PickStreamHello& hello, v1::PickStreamResponse* response) {
  if (hello.client_instance().size() != kInstanceBytes) {
    SetResult({absl::InvalidArgumentError(
                   absl::StrCat("hello.client_instance: has ", hello.client_instance().size(),
                                " bytes: send ", kInstanceBytes, " random bytes")),
               absl::ZeroDuration()},
              response);
    return;
  }
  client_instance_ = hello.client_instance();
  response->mutable_hello()->set_adopted_reservations(
      backend_->AdoptHolder(client_instance_, holder_));
}

void PickStream::PickNow(const v1::PickRequest& request, v1::PickStreamResponse* response) {
  const PickResult result =
      backend_->Pick(request, holder_, /*reserve=*/true, response->mutable_pick());
  if (result.status.ok()) return;
  response->clear_pick();
  SetResult(result, response);
}

void PickStream::PickInPool(v1::PickStreamRequest& request) {
  // The reactor's message is needed for the next read: the job takes the contents along.
  auto taken = std::make_shared<v1::PickStreamRequest>();
  taken->Swap(&request);
  {
    absl::MutexLock lock(&mu());
    AddHold();
    ++in_pool_;
  }
  const auto done = [this](v1::PickStreamResponse response) {
    absl::MutexLock lock(&mu());
    --in_pool_;
    pending_.push_back(std::move(response));
    ReleaseHold();
  };
  const bool queued = pool_->TrySubmit([this, taken, done] {
    v1::PickStreamResponse response;
    response.set_tag(taken->tag());
    bool gone;
    {
      absl::MutexLock lock(&mu());
      gone = Closed();
    }
    if (!gone) {
      try {
        PickNow(taken->pick(), &response);
      } catch (const std::exception& error) {
        response.clear_pick();
        SetResult(
            {absl::InternalError(absl::StrCat("unexpected: ", error.what())), absl::ZeroDuration()},
            &response);
      }
    }
    done(std::move(response));
  });
  if (queued) return;
  v1::PickStreamResponse response;
  response.set_tag(taken->tag());
  SetResult(RefusedByQueue(), &response);
  done(std::move(response));
}

void PickStream::Push(v1::PickStreamResponse response) {
  absl::MutexLock lock(&mu());
  pending_.push_back(std::move(response));
  // The caller returns to OnReadDone, which sends.
}

}  // namespace warmpath
