#include "tests/client/agent/engine/fake_publisher.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace warmpath::testing {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(10);

std::string Encode(std::uint64_t seq) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(seq >> shift));
  return bytes;
}

void Send(void* socket, const std::vector<std::string>& frames) {
  for (std::size_t i = 0; i < frames.size(); ++i) {
    zmq_send(socket, frames[i].data(), frames[i].size(), i + 1 < frames.size() ? ZMQ_SNDMORE : 0);
  }
}

std::vector<std::string> Receive(void* socket) {
  std::vector<std::string> frames;
  int more = 1;
  while (more != 0) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    if (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&part);
      return {};
    }
    frames.emplace_back(static_cast<char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
    more = zmq_msg_more(&part);
    zmq_msg_close(&part);
  }
  return frames;
}

std::string Endpoint(void* socket) {
  char text[256];
  std::size_t size = sizeof text;
  EXPECT_EQ(zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, text, &size), 0);
  return text;
}

// Whether nobody listens at tcp://127.0.0.1:PORT.
bool IsFree(const std::string& endpoint) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(endpoint.substr(endpoint.rfind(':') + 1))));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool is_free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return is_free;
}

}  // namespace

FakePublisher::FakePublisher() : context_(zmq_ctx_new()) {
  Open();
  thread_ = std::thread([this] { Run(); });
}

FakePublisher::~FakePublisher() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  thread_.join();
  Close();
  zmq_ctx_term(context_);
}

void FakePublisher::Open() {
  // XPUB is PUB with the subscriptions shown.
  pub_ = zmq_socket(context_, ZMQ_XPUB);
  router_ = zmq_socket(context_, ZMQ_ROUTER);
  const int verbose = 1;
  zmq_setsockopt(pub_, ZMQ_XPUB_VERBOSE, &verbose, sizeof verbose);
  // What was published before Stop still leaves.
  const int pub_linger = 2000;
  const int router_linger = 0;
  zmq_setsockopt(pub_, ZMQ_LINGER, &pub_linger, sizeof pub_linger);
  zmq_setsockopt(router_, ZMQ_LINGER, &router_linger, sizeof router_linger);
  // Below the ports that the kernel hands out: there a client that knocks while this publisher is
  // away may reach another process, or connect to itself.
  std::random_device random;
  std::uniform_int_distribution<int> port(20'000, 32'000);
  // The old sockets' ports take a moment to become free again.
  const absl::Time deadline = absl::Now() + kPatience;
  const auto bind = [&](void* socket, const std::string& endpoint) {
    while (zmq_bind(socket, endpoint.empty()
                                ? absl::StrCat("tcp://127.0.0.1:", port(random)).c_str()
                                : endpoint.c_str()) != 0) {
      ASSERT_LT(absl::Now(), deadline) << zmq_strerror(zmq_errno());
      std::this_thread::yield();
    }
  };
  bind(pub_, events_);
  bind(router_, replay_);
  events_ = Endpoint(pub_);
  replay_ = Endpoint(router_);
}

void FakePublisher::Close() {
  if (pub_ != nullptr) zmq_close(pub_);
  if (router_ != nullptr) zmq_close(router_);
  pub_ = nullptr;
  router_ = nullptr;
}

void FakePublisher::Run() {
  while (true) {
    std::vector<std::function<void()>> work;
    {
      absl::MutexLock lock(&mu_);
      if (stop_) return;
      work.swap(work_);
    }
    for (const auto& item : work) item();
    if (pub_ == nullptr) {
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(
          absl::Condition(
              +[](std::vector<std::function<void()>>* w) { return !w->empty(); }, &work_),
          absl::Milliseconds(5));
      continue;
    }
    zmq_pollitem_t items[] = {{pub_, 0, ZMQ_POLLIN, 0}, {router_, 0, ZMQ_POLLIN, 0}};
    zmq_poll(items, 2, 1);
    while (!Receive(pub_).empty()) {
      absl::MutexLock lock(&mu_);
      ++subscribers_;
    }
    Answer();
  }
}

void FakePublisher::Answer() {
  while (true) {
    const std::vector<std::string> request = Receive(router_);
    if (request.empty()) return;
    // vLLM's own rule: exactly [identity, "", sequence].
    if (request.size() != 3 || !request[1].empty() || request[2].size() != 8) continue;
    std::uint64_t from = 0;
    for (const char c : request[2]) from = from << 8 | static_cast<unsigned char>(c);
    absl::MutexLock lock(&mu_);
    const auto reply = [&](const std::string& seq, const std::string& payload) {
      std::vector<std::string> frames = {request[0], ""};
      if (behaviour_.shape == ReplayShape::kWithTopic) frames.emplace_back("");
      frames.push_back(seq);
      frames.push_back(payload);
      Send(router_, frames);
    };
    for (std::vector<std::string> frames : behaviour_.extra) {
      frames.insert(frames.begin(), request[0]);
      Send(router_, frames);
    }
    for (auto it = kept_.lower_bound(from); it != kept_.end(); ++it) {
      if (!behaviour_.drop.contains(it->first)) reply(Encode(it->first), it->second);
    }
    if (behaviour_.send_end) reply(std::string(8, '\xff'), "");
    ++requests_;
    last_request_ = from;
  }
}

void FakePublisher::Call(std::function<void()> work) {
  absl::Notification done;
  {
    absl::MutexLock lock(&mu_);
    work_.push_back([&] {
      work();
      done.Notify();
    });
  }
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
}

void FakePublisher::Publish(std::uint64_t seq, std::string payload, std::string topic) {
  PublishFrames({std::move(topic), Encode(seq), std::move(payload)});
}

void FakePublisher::PublishFrames(std::vector<std::string> frames) {
  Call([this, frames = std::move(frames)] { Send(pub_, frames); });
}

void FakePublisher::Keep(std::uint64_t seq, std::string payload) {
  absl::MutexLock lock(&mu_);
  kept_[seq] = std::move(payload);
}

void FakePublisher::Forget() {
  absl::MutexLock lock(&mu_);
  kept_.clear();
}

void FakePublisher::SetReplay(ReplayBehaviour behaviour) {
  absl::MutexLock lock(&mu_);
  behaviour_ = std::move(behaviour);
}

void FakePublisher::Await(const std::function<bool()>& condition) {
  absl::MutexLock lock(&mu_);
  ASSERT_TRUE(
      mu_.AwaitWithTimeout(absl::Condition(
                               +[](const std::function<bool()>* c) { return (*c)(); }, &condition),
                           kPatience));
}

void FakePublisher::WaitForSubscriber() {
  Await([this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return subscribers_ > 0; });
}

void FakePublisher::WaitForRequests(int n) {
  Await([this, n]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return requests_ >= n; });
}

std::uint64_t FakePublisher::last_request() const {
  absl::MutexLock lock(&mu_);
  return last_request_;
}

int FakePublisher::requests() const {
  absl::MutexLock lock(&mu_);
  return requests_;
}

void FakePublisher::Stop() {
  Call([this] {
    Close();
    // ZeroMQ's own thread closes the listeners a moment later; who connected until then would find
    // neither a refusal nor an answer.
    const absl::Time deadline = absl::Now() + kPatience;
    for (const std::string* endpoint : {&events_, &replay_}) {
      while (!IsFree(*endpoint)) {
        ASSERT_LT(absl::Now(), deadline) << *endpoint << " is still in use";
        std::this_thread::yield();
      }
    }
  });
  absl::MutexLock lock(&mu_);
  subscribers_ = 0;
}

void FakePublisher::Restart() {
  Call([this] {
    Close();
    {
      absl::MutexLock lock(&mu_);
      subscribers_ = 0;
    }
    Open();
  });
}

}  // namespace warmpath::testing
