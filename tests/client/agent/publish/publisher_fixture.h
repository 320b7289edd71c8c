// A Publisher with a thread that plays the agent's engine thread, against a FakeRouter.
#ifndef WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_PUBLISHER_FIXTURE_H_
#define WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_PUBLISHER_FIXTURE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "client/agent/publish/publisher.h"
#include "client/agent/publish/router_channel.h"
#include "tests/client/agent/publish/fake_router.h"

namespace warmpath::testing {

// The publisher with a thread that plays the engine thread.
class Driven {
 public:
  explicit Driven(const FakeRouter& router, SessionOptions session = {}, RouterOptions how = {}) {
    PublisherOptions options;
    options.router = router.address();
    options.worker = "w";
    options.session = session;
    options.first_backoff = absl::Milliseconds(5);
    options.max_backoff = absl::Milliseconds(50);
    options.refused_backoff = absl::Milliseconds(50);
    how.address = router.address();
    auto channel = MakeRouterChannel(how);
    publisher_ = std::make_unique<Publisher>(options, *channel, SystemClock(), 1, [this] {
      absl::MutexLock lock(&mu_);
      wake_ = true;
    });
    register_.set_worker_id("w");
    v1::RankInfo* info = register_.add_ranks();
    info->set_epoch(100);
    info->set_has_events(true);
    thread_ = std::thread([this] { Run(); });
  }
  ~Driven() { Stop(); }

  void Stop() {
    {
      absl::MutexLock lock(&mu_);
      stop_ = true;
      wake_ = true;
    }
    if (thread_.joinable()) thread_.join();
    publisher_.reset();
  }

  // On the engine thread; waits for it.
  void Do(std::function<void()> work) {
    absl::Notification done;
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return;
      work_ = [&] {
        work();
        done.Notify();
      };
      wake_ = true;
    }
    done.WaitForNotification();
  }
  void Announce() {
    Do([this] { publisher_->SetRegister(register_); });
  }
  void Change(std::vector<ChainHash> removed, std::vector<ChainHash> stored) {
    Do([&] {
      for (const ChainHash hash : removed) held_.erase(hash);
      for (const ChainHash hash : stored) held_.insert(hash);
      ++seq_;
      const BlockChanges changes{.removed = removed, .stored = stored};
      publisher_->Offer(0, {&changes, 1}, seq_, /*no_holes=*/false);
    });
  }
  void NewEpoch(Epoch epoch) {
    Do([&] {
      held_.clear();
      publisher_->NewEpoch(0, epoch);
    });
  }

  Publisher& publisher() { return *publisher_; }
  v1::Register& registration() { return register_; }
  const RouterModel::Set& held() const { return held_; }
  std::vector<PublisherEvent> events() {
    absl::MutexLock lock(&mu_);
    return events_;
  }
  bool AwaitEvents(std::size_t n) {
    absl::MutexLock lock(&mu_);
    const std::pair<std::vector<PublisherEvent>*, std::size_t> both(&events_, n);
    return mu_.AwaitWithTimeout(
        absl::Condition(
            +[](const std::pair<std::vector<PublisherEvent>*, std::size_t>* p) {
              return p->first->size() >= p->second;
            },
            &both),
        absl::Seconds(15));
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        absl::MutexLock lock(&mu_);
        mu_.AwaitWithTimeout(absl::Condition(&wake_), absl::Milliseconds(10));
        wake_ = false;
        work = std::exchange(work_, nullptr);
        if (stop_) return;
      }
      // Without the lock: the publisher wakes us under its own.
      if (work) work();
      publisher_->Tick();
      std::vector<PublisherEvent> events = publisher_->TakeEvents();
      {
        absl::MutexLock lock(&mu_);
        events_.insert(events_.end(), events.begin(), events.end());
      }
      if (!give_snapshots) continue;
      while (const auto rank = publisher_->SnapshotWanted()) {
        RankSnapshot snapshot{.rank = *rank, .engine_seq = seq_};
        for (const ChainHash hash : held_) {
          snapshot.held[0].push_back(hash);
          snapshot.digests[0].Insert(hash);
        }
        publisher_->GiveSnapshot(std::move(snapshot));
      }
    }
  }

 public:
  std::atomic<bool> give_snapshots = true;

 private:
  absl::Mutex mu_;
  bool wake_ = false;
  bool stop_ = false;
  std::function<void()> work_;
  std::vector<PublisherEvent> events_;
  std::unique_ptr<Publisher> publisher_;
  v1::Register register_;
  RouterModel::Set held_;  // changed in Do, read by the thread
  std::uint64_t seq_ = 0;
  std::thread thread_;
};

inline grpc::Status Serve(FakeRouter::Stream& stream) {
  if (!stream.Accept()) return grpc::Status::OK;
  return stream.Serve();
}

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CLIENT_AGENT_PUBLISH_PUBLISHER_FIXTURE_H_
