#include "server/worker_stream.h"

#include <algorithm>
#include <utility>

#include "core/base/log.h"
#include "core/base/status.h"
#include "server/convert_feed.h"

namespace warmpath {

// Outlives the reactor when the fleet still holds it: it then leads nowhere.
class WorkerStream::Sink final : public FeedSink {
 public:
  explicit Sink(WorkerStream* stream) : stream_(stream) {}

  void Send(FeedReply reply) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (stream_ != nullptr) stream_->Queue(std::move(reply));
  }
  void Close(absl::Status status) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (stream_ != nullptr) stream_->BidiReactor::Close(status);
  }
  void Detach() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    stream_ = nullptr;
  }

 private:
  absl::Mutex mu_;
  WorkerStream* stream_ ABSL_GUARDED_BY(mu_);
};

WorkerStream::WorkerStream(Fleet* fleet, HeartbeatSlots* heartbeats, std::string peer)
    : fleet_(fleet),
      heartbeats_(heartbeats),
      peer_(std::move(peer)),
      sink_(std::make_shared<Sink>(this)) {}

absl::Status WorkerStream::OnMessage(v1::WorkerUpdate& update) {
  if (feed_ == nullptr) {
    if (update.update_case() != v1::WorkerUpdate::kRegister) {
      return absl::InvalidArgumentError("update: the first update of a stream must be register");
    }
    const absl::Status status = Register(update.register_());
    if (!status.ok()) {
      Log(LogLevel::kWarn, "worker refused",
          {{"worker", update.register_().worker_id()}, {"agent", peer_}, {"why", status}});
    }
    return status;
  }
  const absl::Status status = Apply(update);
  if (!status.ok()) {
    Log(LogLevel::kWarn, "worker stream ended by an error",
        {{"worker", worker_id_}, {"agent", peer_}, {"why", status}});
  }
  return status;
}

absl::Status WorkerStream::Apply(const v1::WorkerUpdate& update) {
  FeedUpdate converted;
  for (const v1::LoadReport& load : update.heartbeat().loads()) {
    WARMPATH_RETURN_IF_ERROR(LoadUpdateFromProto(load, &converted));
    WARMPATH_RETURN_IF_ERROR(feed_->OnUpdate(update.session(), converted));
  }
  WARMPATH_RETURN_IF_ERROR(FeedUpdateFromProto(update, &converted));
  return feed_->OnUpdate(update.session(), converted);
}

absl::Status WorkerStream::Register(const v1::Register& message) {
  absl::StatusOr<Registration> registration = RegistrationFromProto(message);
  if (!registration.ok()) return registration.status();
  absl::StatusOr<std::unique_ptr<WorkerFeed>> feed = fleet_->Register(*registration, peer_, sink_);
  if (!feed.ok()) return feed.status();
  feed_ = *std::move(feed);
  worker_id_ = registration->worker_id;
  Log(LogLevel::kInfo, "worker registered",
      {{"worker", worker_id_},
       {"model", registration->model},
       {"ranks", registration->ranks.size()},
       {"engine", registration->engine},
       {"agent", peer_}});
  for (const RankSpec& rank : registration->ranks) {
    if (rank.has_events) continue;
    Log(LogLevel::kWarn,
        "worker sends no cache events: its prefixes are only guessed; enable the engine's KV "
        "events and give the agent its event endpoint",
        {{"worker", worker_id_}, {"rank", rank.rank}});
  }
  return absl::OkStatus();
}

bool WorkerStream::NextResponse(v1::RouterUpdate* response) noexcept {
  if (registered_.has_value()) {
    if (!heartbeat_slot_) heartbeat_slot_ = heartbeats_->Take();
    RegisteredToProto(*registered_, heartbeats_->heartbeat(),
                      heartbeats_->UntilNext(*heartbeat_slot_), response->mutable_registered());
    registered_.reset();
    return true;
  }
  if (!resyncs_.empty()) {
    const auto it = resyncs_.begin();
    v1::Resync* resync = response->mutable_resync();
    resync->set_rank(it->second.rank);
    resync->set_reason(it->second.reason);
    resync->set_backoff_ms(
        static_cast<std::uint32_t>(absl::ToInt64Milliseconds(it->second.backoff)));
    resyncs_.erase(it);
    return true;
  }
  if (drain_reply_.has_value()) {
    response->mutable_drain()->set_on(drain_reply_->on);
    drain_reply_.reset();
    return true;
  }
  if (ack_.has_value()) {
    response->mutable_ack()->set_delta_seq(*ack_);
    ack_.reset();
    return true;
  }
  return false;
}

void WorkerStream::Queue(FeedReply reply) {
  {
    absl::MutexLock lock(&mu());
    if (auto* registered = std::get_if<RegisteredReply>(&reply)) {
      registered_ = std::move(*registered);
    } else if (auto* resync = std::get_if<ResyncReply>(&reply)) {
      resyncs_.insert_or_assign(resync->rank, std::move(*resync));
    } else if (auto* drain = std::get_if<DrainReply>(&reply)) {
      drain_reply_ = *drain;
    } else {
      ack_ = std::max(ack_.value_or(0), std::get<AckReply>(reply).delta_seq);
    }
  }
  Wake();
}

void WorkerStream::OnEnd() {
  // First: afterwards no call from the fleet reaches this object.
  sink_->Detach();
  {
    absl::MutexLock lock(&mu());
    if (heartbeat_slot_) heartbeats_->GiveBack(*heartbeat_slot_);
  }
  if (feed_ == nullptr) return;
  feed_->OnClosed();
  Log(LogLevel::kInfo, "worker stream closed", {{"worker", worker_id_}, {"agent", peer_}});
}

}  // namespace warmpath
