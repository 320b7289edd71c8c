// An engine's two event sockets, driven by the test: a PUB and a ROUTER on free loopback ports,
// served by a thread of their own.
#ifndef WARMPATH_TESTS_CLIENT_AGENT_ENGINE_FAKE_PUBLISHER_H_
#define WARMPATH_TESTS_CLIENT_AGENT_ENGINE_FAKE_PUBLISHER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace warmpath::testing {

enum class ReplayShape { kPlain, kWithTopic };

struct ReplayBehaviour {
  ReplayShape shape = ReplayShape::kPlain;
  std::set<std::uint64_t> drop;  // sequences left out
  bool send_end = true;
  std::vector<std::vector<std::string>> extra;  // sent first, as they are
};

class FakePublisher {
 public:
  FakePublisher();
  ~FakePublisher();

  // Endpoints; the same after Restart.
  const std::string& events() const { return events_; }
  const std::string& replay() const { return replay_; }

  // Sends a live message; Keep makes one known to replays; Emit does both.
  void Publish(std::uint64_t seq, std::string payload, std::string topic = "");
  void PublishFrames(std::vector<std::string> frames);
  void Keep(std::uint64_t seq, std::string payload);
  void Emit(std::uint64_t seq, const std::string& payload) {
    Keep(seq, payload);
    Publish(seq, payload);
  }
  void Forget();  // everything kept
  void SetReplay(ReplayBehaviour behaviour);

  // Until a subscription has arrived at the PUB socket of this process; at most 10 s.
  void WaitForSubscriber();
  void WaitForRequests(int n);
  std::uint64_t last_request() const;
  int requests() const;

  // Closes both sockets, as the death of the process would; Restart opens them again.
  void Stop();
  void Restart();

 private:
  void Run();
  void Call(std::function<void()> work);  // on the thread, waits for it
  void Open();
  void Close();
  void Answer();
  void Await(const std::function<bool()>& condition);

  std::string events_;
  std::string replay_;

  mutable absl::Mutex mu_;
  std::vector<std::function<void()>> work_ ABSL_GUARDED_BY(mu_);
  std::map<std::uint64_t, std::string> kept_ ABSL_GUARDED_BY(mu_);
  ReplayBehaviour behaviour_ ABSL_GUARDED_BY(mu_);
  int subscribers_ ABSL_GUARDED_BY(mu_) = 0;
  int requests_ ABSL_GUARDED_BY(mu_) = 0;
  std::uint64_t last_request_ ABSL_GUARDED_BY(mu_) = 0;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;

  // Of the thread.
  void* context_ = nullptr;
  void* pub_ = nullptr;
  void* router_ = nullptr;
  std::thread thread_;
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CLIENT_AGENT_ENGINE_FAKE_PUBLISHER_H_
