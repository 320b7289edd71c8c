#include "tests/fakes/engine/event_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/strings.h"

namespace warmpath::engine {
namespace {

constexpr std::size_t kMaxRememberedDrops = 1'000;
constexpr std::uint64_t kEndOfReplay = ~std::uint64_t{0};
constexpr int kPubHwm = 100'000;  // vLLM's default.

std::array<char, 8> BigEndian(std::uint64_t value) {
  std::array<char, 8> bytes;
  for (int i = 7; i >= 0; --i, value >>= 8) bytes[i] = static_cast<char>(value & 0xff);
  return bytes;
}

std::uint64_t ReadBigEndian(const zmq::message_t& frame) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value = value << 8 | frame.data<unsigned char>()[i];
  return value;
}

// libzmq's way of saying "any free port".
std::string WithWildcardPort(std::string endpoint) {
  if (endpoint.ends_with(":0")) endpoint.replace(endpoint.size() - 1, 1, "*");
  return endpoint;
}

absl::Status BindTo(zmq::socket_t& socket, const std::string& endpoint, std::string* bound) {
  try {
    socket.bind(WithWildcardPort(endpoint));
    *bound = socket.get(zmq::sockopt::last_endpoint);
    return absl::OkStatus();
  } catch (const zmq::error_t& error) {
    return absl::UnavailableError(absl::StrCat("cannot bind ", endpoint, ": ", error.what(),
                                               ": choose another port or stop its owner"));
  }
}

}  // namespace

absl::StatusOr<ReplayShape> ParseReplayShape(std::string_view name) {
  if (name == "old") return ReplayShape::kOld;
  if (name == "new") return ReplayShape::kNew;
  return absl::InvalidArgumentError(
      absl::StrCat("replay shape \"", ToAbsl(name), "\" is unknown: use old or new"));
}

absl::StatusOr<std::unique_ptr<EventPublisher>> EventPublisher::Create(
    zmq::context_t* context, const PublisherOptions& options) {
  try {
    std::unique_ptr<EventPublisher> publisher(new EventPublisher(context, options));
    if (absl::Status status = publisher->Bind(); !status.ok()) return status;
    return publisher;
  } catch (const zmq::error_t& error) {
    return absl::UnavailableError(absl::StrCat("cannot make ZeroMQ sockets: ", error.what()));
  }
}

EventPublisher::EventPublisher(zmq::context_t* context, const PublisherOptions& options)
    : options_(options),
      drop_seqs_(options.drop_seqs.begin(), options.drop_seqs.end()),
      pub_(*context, zmq::socket_type::pub),
      router_(*context, zmq::socket_type::router),
      drop_rate_(options.drop_rate),
      random_(options.drop_seed) {
  pub_.set(zmq::sockopt::sndhwm, kPubHwm);
  // Long enough for a subscriber to read what a stopping engine sent, short enough to stop.
  pub_.set(zmq::sockopt::linger, 500);
  router_.set(zmq::sockopt::sndhwm, options.replay_hwm);
  router_.set(zmq::sockopt::linger, 0);
}

EventPublisher::~EventPublisher() {
  if (replay_thread_.joinable()) {
    const std::uint64_t one = 1;
    // An eventfd write of 1 can only fail if the counter is near 2^64.
    if (write(stop_fd_, &one, sizeof(one)) == sizeof(one)) replay_thread_.join();
  }
  if (stop_fd_ >= 0) close(stop_fd_);
}

absl::Status EventPublisher::Bind() {
  if (absl::Status status = BindTo(pub_, options_.endpoint, &endpoint_); !status.ok()) {
    return status;
  }
  if (options_.replay_endpoint.empty()) return absl::OkStatus();
  if (absl::Status status = BindTo(router_, options_.replay_endpoint, &replay_endpoint_);
      !status.ok()) {
    return status;
  }
  stop_fd_ = eventfd(0, EFD_CLOEXEC);
  if (stop_fd_ < 0) return absl::ResourceExhaustedError("no file descriptor for the replay thread");
  replay_thread_ = std::thread([this] { ServeReplay(); });
  return absl::OkStatus();
}

std::uint64_t EventPublisher::Publish(std::string payload) {
  auto shared = std::make_shared<const std::string>(std::move(payload));
  std::uint64_t seq = 0;
  bool drop = false;
  {
    // Into the buffer before the wire: whoever has seen a sequence number can replay up to it.
    absl::MutexLock lock(&mu_);
    seq = next_seq_++;
    buffer_.push_back({seq, shared});
    if (buffer_.size() > options_.buffer_steps) buffer_.pop_front();
    drop = DrawDrop(seq);
  }
  if (drop) return seq;
  const std::array<char, 8> seq_bytes = BigEndian(seq);
  pub_.send(zmq::buffer(options_.topic), zmq::send_flags::sndmore);
  pub_.send(zmq::buffer(seq_bytes), zmq::send_flags::sndmore);
  pub_.send(zmq::buffer(*shared), zmq::send_flags::dontwait);
  return seq;
}

bool EventPublisher::DrawDrop(std::uint64_t seq) {
  // Always drawn, so that the n-th message's fate depends on the seed alone.
  bool drop = random_.Unit() < drop_rate_;
  if (drop_next_ > 0) {
    --drop_next_;
    drop = true;
  }
  drop = drop || drop_seqs_.contains(seq);
  if (drop) {
    dropped_.push_back(seq);
    if (dropped_.size() > kMaxRememberedDrops) dropped_.pop_front();
  }
  return drop;
}

void EventPublisher::DropNext(std::uint64_t count) {
  absl::MutexLock lock(&mu_);
  drop_next_ = count;
}

void EventPublisher::SetDropRate(double rate) {
  absl::MutexLock lock(&mu_);
  drop_rate_ = rate;
}

std::vector<std::uint64_t> EventPublisher::dropped() const {
  absl::MutexLock lock(&mu_);
  return {dropped_.begin(), dropped_.end()};
}

void EventPublisher::ServeReplay() {
  while (true) {
    std::array<zmq::pollitem_t, 2> items = {
        {{router_.handle(), 0, ZMQ_POLLIN, 0}, {nullptr, stop_fd_, ZMQ_POLLIN, 0}}};
    try {
      zmq::poll(items.data(), items.size(), std::chrono::milliseconds(-1));
      if (items[1].revents != 0) return;
      if (items[0].revents == 0) continue;
      std::vector<zmq::message_t> frames;
      do {
        zmq::message_t frame;
        if (!router_.recv(frame)) break;
        // A request has three frames; more are read and thrown away with the request.
        if (frames.size() < 4) frames.push_back(std::move(frame));
      } while (router_.get(zmq::sockopt::rcvmore));
      if (frames.size() == 3 && frames[1].size() == 0 && frames[2].size() == 8) {
        Replay(frames[0], ReadBigEndian(frames[2]));
      }
    } catch (const zmq::error_t& error) {
      if (error.num() == ETERM) return;
      // EINTR, or a reader that went away in the middle: the next request is unaffected.
    }
  }
}

void EventPublisher::Replay(const zmq::message_t& identity, std::uint64_t from) {
  std::vector<Message> messages;
  {
    absl::MutexLock lock(&mu_);
    const auto first = std::find_if(buffer_.begin(), buffer_.end(),
                                    [from](const Message& m) { return m.seq >= from; });
    messages.assign(first, buffer_.end());
  }
  const auto send = [&](std::string_view topic, std::uint64_t seq, std::string_view payload) {
    const std::array<char, 8> seq_bytes = BigEndian(seq);
    router_.send(zmq::buffer(identity.data(), identity.size()), zmq::send_flags::sndmore);
    router_.send(zmq::const_buffer(), zmq::send_flags::sndmore);
    if (options_.replay_shape == ReplayShape::kNew) {
      router_.send(zmq::buffer(topic), zmq::send_flags::sndmore);
    }
    router_.send(zmq::buffer(seq_bytes), zmq::send_flags::sndmore);
    router_.send(zmq::buffer(payload), zmq::send_flags::none);
  };
  for (const Message& message : messages) send(options_.topic, message.seq, *message.payload);
  send("", kEndOfReplay, "");
}

}  // namespace warmpath::engine
