// The one base of all bidirectional streams. It enforces what gRPC's callback API leaves to its
// user, so that services only say what to do with a message and what to send next:
//  - Finish exactly once, always, and never while a write is in flight;
//  - one read and one write at a time; the next read starts only after the last message has been
//    dealt with (that is the back-pressure), and not while the derived class asks to pause;
//  - reactions run at the same time as each other: all state is behind mu();
//  - an exception in a derived class ends the stream with INTERNAL (gRPC would swallow it, and the
//    server could then never shut down);
//  - deletion in OnDone and nowhere else.
//
// Sending is by pull: the derived class keeps what it wants to send in its own, bounded state and
// hands it out in NextResponse. Call Wake() after that state grew.
//
// Lock order: registry or fleet locks, then mu(). gRPC never runs a reaction inline from
// StartRead, StartWrite or Finish, so calling them under mu() is safe.
#ifndef WARMPATH_SERVER_BIDI_REACTOR_H_
#define WARMPATH_SERVER_BIDI_REACTOR_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "server/reactor_registry.h"
#include "server/status_convert.h"

namespace warmpath {

template <class Request, class Response>
class BidiReactor : public grpc::ServerBidiReactor<Request, Response>, public Drainable {
 public:
  // Starts the first read, or ends the stream when `registry` refuses it. To be called once, by the
  // method handler, after construction (so that derived classes are whole).
  void Begin(ReactorRegistry* registry) ABSL_LOCKS_EXCLUDED(mu_) {
    registry_ = registry;
    const absl::Status admitted = registry_->Add(this);
    absl::MutexLock lock(&mu_);
    if (!admitted.ok()) close_ = admitted;
    Advance();
  }

  // Ends the stream now: what is pending is dropped. Idempotent; the first status stays.
  void Close(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    CloseLocked(status);
  }

  // Ends the stream once all pending responses are sent and all holds are released.
  void Drain(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    DrainLocked(status);
  }

  // State may have something to send, or room to read.
  void Wake() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    Advance();
  }

  // --- gRPC's reactions.
  void OnReadDone(bool ok) final ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      if (!ok) {
        reading_ = false;
        no_more_reads_ = true;
        if (!drain_.has_value()) drain_ = absl::OkStatus();  // the client sent all it had
        Advance();
        return;
      }
      if (close_.has_value() || drain_.has_value()) {
        reading_ = false;  // too late: the client learns from the status that this one was not done
        return;
      }
      busy_ = true;
    }
    // Without mu(): the handler may take locks that rank before it.
    absl::Status status;
    try {
      status = OnMessage(request_);
    } catch (const std::exception& error) {
      status = absl::InternalError(absl::StrCat("unexpected: ", error.what()));
    } catch (...) {
      status = absl::InternalError("unexpected exception");
    }
    absl::MutexLock lock(&mu_);
    reading_ = false;
    busy_ = false;
    if (!status.ok()) CloseLocked(status);
    Advance();
  }

  void OnWriteDone(bool ok) final ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) CloseLocked(absl::CancelledError("the client is gone"));
    Advance();
  }

  void OnCancel() final ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    CloseLocked(absl::CancelledError("the client is gone"));
  }

  void OnDone() final ABSL_LOCKS_EXCLUDED(mu_) {
    if (registry_ != nullptr) registry_->Remove(this);
    {
      // gRPC waits for reactions to return, but not for work elsewhere: who released the last hold
      // has started Finish and may still be on the way out of mu().
      absl::MutexLock lock(&mu_);
    }
    try {
      OnEnd();
    } catch (...) {  // nothing is left to tell; the derived class must not throw here
    }
    delete this;
  }

 protected:
  ~BidiReactor() override = default;

  // One message, read whole. Not called concurrently with itself or OnEnd. Not OK ends the stream
  // with that status. Without mu() held.
  virtual absl::Status OnMessage(Request& request) = 0;

  // Fills in the next response (already cleared) and returns true, or returns false. Under mu().
  virtual bool NextResponse(Response* response) noexcept ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) = 0;

  // True when NextResponse would have another one at once. Under mu().
  virtual bool MoreResponses() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) { return false; }

  // True while no further message should be read, e.g. because responses pile up. Under mu().
  virtual bool PauseReads() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) { return false; }

  // The stream is over and no other call of this object is under way or follows. Without mu().
  virtual void OnEnd() {}

  absl::Mutex& mu() const ABSL_LOCK_RETURNED(mu_) { return mu_; }

  // Work elsewhere refers to this object: it stays alive, and Finish waits, until the same number
  // of ReleaseHold calls. Release as soon as the work is done or dropped.
  void AddHold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) { ++holds_; }
  void ReleaseHold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) {
    --holds_;
    Advance();
  }
  // Drain, for derived classes. In OnMessage it takes effect when that returns.
  void DrainLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) {
    if (!drain_.has_value()) drain_ = status;
    Advance();
  }
  // The stream is about to end: new work is pointless.
  bool Closed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu()) { return close_.has_value(); }

 private:
  void CloseLocked(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!close_.has_value()) close_ = status;
    Advance();
  }

  // Starts whatever may start now.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (finished_) return;
    if (!close_.has_value() && !writing_) {
      response_.Clear();
      if (NextResponse(&response_)) {
        writing_ = true;
        // With more to come, the bytes may leave together with the next message's. Never the first
        // one's: it carries the initial metadata, and gRPC reports such a write as done only when
        // something else makes it send, which may be never.
        grpc::WriteOptions options;
        if (std::exchange(wrote_before_, true) && MoreResponses()) options.set_buffer_hint();
        this->StartWrite(&response_, options);
      } else if (drain_.has_value() && holds_ == 0 && !busy_) {
        close_ = *drain_;  // nothing to send, nothing being worked on
      }
    }
    if (close_.has_value()) {
      if (writing_ || holds_ > 0) return;
      finished_ = true;
      this->Finish(ToGrpcStatus(*close_));
      return;
    }
    if (!drain_.has_value() && !reading_ && !no_more_reads_ && !PauseReads()) {
      reading_ = true;
      this->StartRead(&request_);
    }
  }

  ReactorRegistry* registry_ = nullptr;  // set once, before any reaction
  mutable absl::Mutex mu_;
  Request request_;  // owned by gRPC while reading_, else by the reaction
  Response response_;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // a read is under way or its message dealt with
  bool busy_ ABSL_GUARDED_BY(mu_) = false;     // OnMessage runs: its answer is still to come
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool wrote_before_ ABSL_GUARDED_BY(mu_) = false;
  bool no_more_reads_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  int holds_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<absl::Status> drain_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> close_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_BIDI_REACTOR_H_
