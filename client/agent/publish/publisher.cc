#include "client/agent/publish/publisher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"
#include "warmpath/v1/worker_events.grpc.pb.h"

namespace warmpath {
namespace {

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::UnavailableError("the router ended the stream");
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// Only an operator, or the other agent's end, makes the next attempt fare better.
bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) ||
         absl::IsAlreadyExists(status) || absl::IsAborted(status) ||
         absl::IsUnimplemented(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnauthenticated(status);
}

}  // namespace

// Writes are started from outside its reactions, hence the one hold, which goes when reads end.
class Publisher::Stream final : public grpc::ClientBidiReactor<v1::WorkerUpdate, v1::RouterUpdate> {
 public:
  Stream(Publisher* owner, const std::shared_ptr<grpc::Channel>& channel)
      : owner_(owner), stub_(v1::WorkerEvents::NewStub(channel)) {}

  void Start() {
    stub_->async()->Publish(&context_, this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }
  void Write() { StartWrite(&outgoing_); }
  void Cancel() { context_.TryCancel(); }
  v1::WorkerUpdate* outgoing() { return &outgoing_; }

  void OnReadDone(bool ok) override {
    if (!ok) {
      owner_->OnReadsEnded();
      RemoveHold();
      return;
    }
    owner_->OnRead(incoming_);
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override { owner_->OnWritten(ok); }
  void OnDone(const grpc::Status& status) override {
    Publisher* const owner = owner_;
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): it may go with this object.
    const grpc::Status copy = status;
    // Before the owner hears of it: its destructor may be waiting to take the channel away. Reads
    // have ended, so the owner does not touch this object any more.
    delete this;
    owner->OnDone(copy);
  }

 private:
  Publisher* const owner_;
  const std::unique_ptr<v1::WorkerEvents::Stub> stub_;
  grpc::ClientContext context_;
  v1::RouterUpdate incoming_;  // between StartRead and OnReadDone gRPC's
  v1::WorkerUpdate outgoing_;  // between StartWrite and OnWriteDone gRPC's, else the owner's
};

Publisher::Publisher(PublisherOptions options, std::shared_ptr<grpc::Channel> channel,
                     const Clock& clock, std::uint64_t random_seed, std::function<void()> wake)
    : options_(std::move(options)),
      channel_(std::move(channel)),
      clock_(clock),
      wake_(std::move(wake)),
      log_every_(absl::Seconds(10)),
      session_(options_.session, random_seed),
      random_(random_seed ^ 0x9e3779b97f4a7c15ULL),
      backoff_(options_.first_backoff) {}

Publisher::~Publisher() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
  CloseStream(absl::CancelledError("the agent stops"));
  mu_.Await(absl::Condition(
      +[](Stream** stream) { return *stream == nullptr; }, &stream_));
}

void Publisher::SetRegister(const v1::Register& registration) {
  absl::MutexLock lock(&mu_);
  const bool changed = session_.SetRegister(registration);
  if (changed && has_register_ && stream_ != nullptr) {
    CloseStream(absl::CancelledError("the registration changed"));
  }
  has_register_ = true;
  Pump();
}

void Publisher::Offer(Rank rank, std::span<const BlockChanges> changes,
                      std::optional<std::uint64_t> engine_seq, bool no_holes) {
  absl::MutexLock lock(&mu_);
  session_.Offer(rank, changes, engine_seq, no_holes);
  Pump();
}

void Publisher::NewEpoch(Rank rank, Epoch epoch) {
  absl::MutexLock lock(&mu_);
  session_.NewEpoch(rank, epoch);
  Pump();
}

void Publisher::SetLoad(Rank rank, const RankLoad& load) {
  absl::MutexLock lock(&mu_);
  session_.SetLoad(rank, load);
  Pump();
}

void Publisher::SetVerdict(Rank rank, const RankVerdict& verdict) {
  absl::MutexLock lock(&mu_);
  session_.SetVerdict(rank, verdict);
  Pump();
}

std::vector<PublisherEvent> Publisher::TakeEvents() {
  absl::MutexLock lock(&mu_);
  return std::exchange(events_, {});
}

std::optional<Rank> Publisher::SnapshotWanted() const {
  absl::MutexLock lock(&mu_);
  return session_.SnapshotWanted(clock_.Now());
}

void Publisher::GiveSnapshot(RankSnapshot snapshot) {
  absl::MutexLock lock(&mu_);
  session_.GiveSnapshot(std::move(snapshot));
  Pump();
}

void Publisher::Refuse(const absl::Status& why) {
  absl::MutexLock lock(&mu_);
  CloseStream(why);
}

void Publisher::Tick() {
  absl::MutexLock lock(&mu_);
  const absl::Time now = clock_.Now();
  if (stream_ == nullptr) {
    if (has_register_ && !stopping_ && now >= retry_at_) StartStream();
    return;
  }
  if (!session_.registered() && now - stream_since_ > options_.register_timeout) {
    CloseStream(absl::DeadlineExceededError("the router does not answer the registration"));
  } else if (session_.Stalled(now)) {
    CloseStream(absl::DeadlineExceededError("the router acknowledges nothing any more"));
  }
  Pump();
}

absl::Time Publisher::TickDue() const {
  absl::MutexLock lock(&mu_);
  // The end of a write goes on by itself.
  const bool can_write = stream_ != nullptr && !writing_ && !reads_ended_ && !closed_by_us_;
  return can_write ? session_.heartbeat_at() : absl::InfiniteFuture();
}

void Publisher::StartStream() {
  ++streams_;
  stream_since_ = clock_.Now();
  writing_ = false;
  reads_ended_ = false;
  closed_by_us_.reset();
  session_.OnStreamStart(stream_since_);
  // StartCall runs none of our reactions on this thread.
  stream_ = new Stream(this, channel_);
  stream_->Start();
  Pump();
}

void Publisher::Pump() {
  if (stream_ == nullptr || writing_ || reads_ended_ || closed_by_us_) return;
  if (!session_.Next(clock_.Now(), stream_->outgoing())) return;
  writing_ = true;
  stream_->Write();
}

void Publisher::CloseStream(absl::Status why) {
  if (stream_ == nullptr || closed_by_us_) return;
  closed_by_us_ = std::move(why);
  // Once reads have ended the status is on its way, and OnDone may be deleting the stream.
  if (!reads_ended_) stream_->Cancel();
}

void Publisher::OnRead(const v1::RouterUpdate& update) {
  bool wake = false;
  {
    absl::MutexLock lock(&mu_);
    if (closed_by_us_) return;
    const bool was_registered = session_.registered();
    const bool was_draining = session_.draining();
    const absl::Status status = session_.OnMessage(update, clock_.Now());
    if (!status.ok()) {
      CloseStream(status);
      return;
    }
    if (!was_registered && session_.registered()) {
      backoff_ = options_.first_backoff;
      events_.push_back(
          {.kind = PublisherEvent::Kind::kRegistered, .routing_block = session_.routing_block()});
      Log(LogLevel::kInfo, "registered",
          {{"worker", options_.worker},
           {"router", options_.router},
           {"routing_block", session_.routing_block()}});
    }
    if (session_.draining() != was_draining) {
      Log(LogLevel::kInfo, session_.draining() ? "an operator drains the worker" : "drain ended",
          {{"worker", options_.worker}, {"router", options_.router}});
    }
    // Not for acks, which are most of what comes.
    wake = !update.has_ack();
    Pump();
  }
  if (wake) wake_();
}

void Publisher::OnReadsEnded() {
  absl::MutexLock lock(&mu_);
  reads_ended_ = true;
}

void Publisher::OnWritten(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  if (ok) Pump();
}

void Publisher::OnDone(const grpc::Status& grpc_status) {
  {
    absl::MutexLock lock(&mu_);
    const absl::Status status = closed_by_us_ ? *closed_by_us_ : FromGrpc(grpc_status);
    Report(status, session_.registered());
    session_.OnStreamEnd();
    // A changed registration is to be known at once.
    const bool again = closed_by_us_ && absl::IsCancelled(*closed_by_us_);
    retry_at_ = clock_.Now() + (again ? absl::ZeroDuration() : Backoff(status));
    wake_();
    // The last access: the destructor may go on as soon as the mutex is free.
    stream_ = nullptr;
  }
}

absl::Duration Publisher::Backoff(const absl::Status& status) {
  const double jitter = 0.8 + 0.4 * random_.Unit();
  if (IsRefusal(status)) {
    ++refused_;
    if (!absl::StrContains(status.message(), "stale epoch")) {
      return options_.refused_backoff * jitter;
    }
    // There is a remedy of our own: new epochs, and then nothing to wait for.
    events_.push_back({.kind = PublisherEvent::Kind::kStaleEpoch});
  }
  const absl::Duration wait = backoff_ * jitter;
  backoff_ = std::min(backoff_ * 1.6, options_.max_backoff);
  return wait;
}

void Publisher::Report(const absl::Status& status, bool was_registered) {
  last_error_ = status.ToString();
  if (stopping_) return;
  std::uint64_t suppressed = 0;
  // The end of a good session is news; failed attempts come in rows.
  if (!was_registered && !log_every_.Due(&suppressed)) return;
  Log(was_registered || !IsRefusal(status) ? LogLevel::kWarn : LogLevel::kError,
      was_registered ? "router stream ended" : "can not register",
      {{"worker", options_.worker},
       {"router", options_.router},
       {"why", status},
       {"suppressed", suppressed}});
}

PublisherView Publisher::View() const {
  absl::MutexLock lock(&mu_);
  return PublisherView{.router = options_.router,
                       .registered = session_.registered(),
                       .routing_block = session_.routing_block(),
                       .delta_seq = session_.delta_seq(),
                       .acked = session_.acked(),
                       .unacked = session_.unacked(),
                       .pending = session_.pending(),
                       .streams = streams_,
                       .refused = refused_,
                       .last_error = last_error_,
                       .draining = session_.draining(),
                       .counts = session_.counts()};
}

}  // namespace warmpath
