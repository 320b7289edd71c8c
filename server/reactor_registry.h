// The open streams of one kind: bounds how many there are, and ends them all on shutdown.
#ifndef WARMPATH_SERVER_REACTOR_REGISTRY_H_
#define WARMPATH_SERVER_REACTOR_REGISTRY_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace warmpath {

// A stream that can be asked to end. Implementations take only their own lock.
class Drainable {
 public:
  virtual ~Drainable() = default;
  // Answers what was read, then ends with the status.
  virtual void Drain(const absl::Status& status) = 0;
  // For streams with deadlines of their own.
  virtual void Tick(absl::Time now) { static_cast<void>(now); }
};

// Thread-safe. Lock order: registry, then a stream's own.
class ReactorRegistry {
 public:
  // `setting`: what sets the limit, for the error; empty: server.max_WHAT_streams.
  ReactorRegistry(std::string what, std::size_t limit, std::string setting = "")
      : what_(std::move(what)),
        setting_(setting.empty() ? absl::StrCat("server.max_", what_, "_streams")
                                 : std::move(setting)),
        limit_(limit) {}

  // UNAVAILABLE once draining; RESOURCE_EXHAUSTED at the limit. Then the stream is not a member
  // and must end by itself.
  absl::Status Add(Drainable* stream) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!drain_status_.ok()) return drain_status_;
    if (open_.size() >= limit_) {
      return absl::ResourceExhaustedError(
          absl::StrCat(limit_, " ", what_, " streams are open, which is the limit: raise ",
                       setting_, " or close some"));
    }
    open_.insert(stream);
    return absl::OkStatus();
  }

  // No call of Drain on the stream is under way or follows. Idempotent.
  void Remove(Drainable* stream) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    open_.erase(stream);
  }

  // Ends all streams and refuses new ones with this status.
  void DrainAll(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    drain_status_ = status;
    for (Drainable* stream : open_) stream->Drain(status);
  }

  void TickAll(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    for (Drainable* stream : open_) stream->Tick(now);
  }

  std::size_t size() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return open_.size();
  }

 private:
  const std::string what_;
  const std::string setting_;
  const std::size_t limit_;
  mutable absl::Mutex mu_;
  absl::Status drain_status_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<Drainable*> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace warmpath

#endif  // WARMPATH_SERVER_REACTOR_REGISTRY_H_
