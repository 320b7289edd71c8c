#include "client/agent/engine/zmq_source.h"

#include <zmq.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace warmpath {
namespace {

constexpr std::uint64_t kEndSequence = ~std::uint64_t{0};
// More frames than any shape we know; the rest of a longer message is thrown away.
constexpr std::size_t kMaxFrames = 8;

void SetInt(void* socket, int option, int value) {
  zmq_setsockopt(socket, option, &value, sizeof value);
}

// One whole message without waiting. False: none there. Frames above kMaxFrames are dropped but
// counted in *frame_count.
bool Receive(void* socket, std::vector<std::string>* frames, std::size_t* frame_count) {
  frames->clear();
  *frame_count = 0;
  while (true) {
    zmq_msg_t part;
    zmq_msg_init(&part);
    // Later frames of a message are there once the first one is: libzmq hands over whole ones.
    if (zmq_msg_recv(&part, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&part);
      if (errno == EINTR) continue;
      return false;
    }
    if (++*frame_count <= kMaxFrames) {
      frames->emplace_back(static_cast<const char*>(zmq_msg_data(&part)), zmq_msg_size(&part));
    }
    const bool more = zmq_msg_more(&part) != 0;
    zmq_msg_close(&part);
    if (!more) return true;
  }
}

bool DecodeSequence(std::string_view bytes, std::uint64_t* seq) {
  if (bytes.size() != 8) return false;
  *seq = 0;
  for (const char c : bytes) *seq = (*seq << 8) | static_cast<unsigned char>(c);
  return true;
}

std::string EncodeSequence(std::uint64_t seq) {
  std::string bytes(8, '\0');
  for (int i = 7; i >= 0; --i, seq >>= 8)
    bytes[static_cast<std::size_t>(i)] = static_cast<char>(seq);
  return bytes;
}

absl::Status EndpointError(const char* what, const std::string& endpoint) {
  return absl::InvalidArgumentError(absl::StrCat(what, " endpoint \"", endpoint,
                                                 "\": ", zmq_strerror(zmq_errno()),
                                                 "; it should look like tcp://127.0.0.1:5557"));
}

}  // namespace

ZmqContext::ZmqContext() : context_(zmq_ctx_new()) {}
ZmqContext::~ZmqContext() { zmq_ctx_term(context_); }

void ZmqSource::SocketCloser::operator()(void* socket) const { zmq_close(socket); }

absl::StatusOr<std::unique_ptr<ZmqSource>> ZmqSource::Open(const ZmqContext& context,
                                                           const ZmqSourceOptions& options) {
  std::unique_ptr<ZmqSource> source(new ZmqSource(context, options));
  if (absl::Status status = source->Connect(); !status.ok()) return status;
  return source;
}

ZmqSource::ZmqSource(const ZmqContext& context, const ZmqSourceOptions& options)
    : context_(context.get()), options_(options) {}

ZmqSource::~ZmqSource() {
  if (sub_ != nullptr) zmq_socket_monitor(sub_.get(), nullptr, 0);
}

absl::Status ZmqSource::Connect() {
  static std::atomic<std::uint64_t> monitor_number{0};
  sub_.reset(zmq_socket(context_, ZMQ_SUB));
  monitor_.reset(zmq_socket(context_, ZMQ_PAIR));
  if (sub_ == nullptr || monitor_ == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no ZeroMQ socket: ", zmq_strerror(zmq_errno())));
  }
  SetInt(sub_.get(), ZMQ_LINGER, 0);
  SetInt(sub_.get(), ZMQ_RCVHWM, options_.high_water_mark);
  SetInt(sub_.get(), ZMQ_TCP_KEEPALIVE, 1);
  SetInt(sub_.get(), ZMQ_TCP_KEEPALIVE_IDLE, 30);
  SetInt(sub_.get(), ZMQ_IPV6, 1);
  zmq_setsockopt(sub_.get(), ZMQ_MAXMSGSIZE, &options_.max_message_bytes,
                 sizeof options_.max_message_bytes);
  zmq_setsockopt(sub_.get(), ZMQ_SUBSCRIBE, options_.topic.data(), options_.topic.size());

  // The monitor stands before the first connect, so that no event is missed.
  const std::string address = absl::StrCat("inproc://warmpath-monitor-", ++monitor_number);
  SetInt(monitor_.get(), ZMQ_LINGER, 0);
  if (zmq_socket_monitor(sub_.get(), address.c_str(),
                         ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0 ||
      zmq_connect(monitor_.get(), address.c_str()) != 0) {
    return absl::InternalError(
        absl::StrCat("no ZeroMQ socket monitor: ", zmq_strerror(zmq_errno())));
  }
  if (zmq_connect(sub_.get(), options_.events.c_str()) != 0) {
    return EndpointError("events", options_.events);
  }
  if (!options_.replay.empty()) {
    if (OpenReplaySocket() == nullptr) return EndpointError("replay", options_.replay);
  }
  return absl::OkStatus();
}

ZmqSource::Socket ZmqSource::OpenReplaySocket() const {
  Socket socket(zmq_socket(context_, ZMQ_DEALER));
  if (socket == nullptr) return nullptr;
  SetInt(socket.get(), ZMQ_LINGER, 0);
  SetInt(socket.get(), ZMQ_IPV6, 1);
  SetInt(socket.get(), ZMQ_RCVHWM, options_.high_water_mark);
  zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &options_.max_message_bytes,
                 sizeof options_.max_message_bytes);
  if (zmq_connect(socket.get(), options_.replay.c_str()) != 0) return nullptr;
  return socket;
}

void ZmqSource::AppendSockets(std::vector<void*>* sockets) const {
  sockets->push_back(sub_.get());
  sockets->push_back(monitor_.get());
  if (replay_ != nullptr) sockets->push_back(replay_.get());
}

bool ZmqSource::Poll(ZmqSourceSink* sink, std::size_t max_messages) {
  std::vector<Live> batch;
  bool drained = ReadLive(max_messages, &batch);
  // After the messages: one of a new connection can only have been read if the monitor already
  // holds the old one's end.
  const Link link = ReadMonitor();
  if (!link.disconnected) {
    if (link.connected_after) sink->OnConnected();
    Deliver(&batch, 0, batch.size(), sink);
    return !(PollReplay(sink, max_messages) && drained);
  }

  // What the old connection brought comes first. libzmq keeps it in the same queue.
  if (!drained)
    drained = ReadLive(batch.size() + static_cast<std::size_t>(options_.high_water_mark), &batch);
  const Link since = ReadMonitor();
  std::size_t split = batch.size();
  if (link.connected_after || since.connected_after || since.disconnected) {
    // Some of it may be the new connection's; one process counts without holes, so what does not
    // follow its forerunner is taken for the next process'. (Should the same process be back, the
    // sequencer finds out by a replay.)
    std::optional<std::uint64_t> previous = last_seq_;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      if (previous && batch[i].seq != *previous + 1) {
        split = i;
        break;
      }
      previous = batch[i].seq;
    }
  }
  Deliver(&batch, 0, split, sink);
  sink->OnDisconnected();
  last_seq_.reset();
  if (linked_) sink->OnConnected();
  Deliver(&batch, split, batch.size(), sink);
  return !(PollReplay(sink, max_messages) && drained);
}

bool ZmqSource::ReadLive(std::size_t max, std::vector<Live>* batch) {
  std::vector<std::string> frames;
  std::size_t count = 0;
  while (batch->size() < max) {
    if (!Receive(sub_.get(), &frames, &count)) return true;
    Live live{};
    if (count != 3 || !DecodeSequence(frames[1], &live.seq)) {
      ++counts_.malformed;
      continue;
    }
    live.payload = std::move(frames[2]);
    batch->push_back(std::move(live));
  }
  return false;
}

ZmqSource::Link ZmqSource::ReadMonitor() {
  Link link;
  std::vector<std::string> frames;
  std::size_t count = 0;
  while (Receive(monitor_.get(), &frames, &count)) {
    std::uint16_t event = 0;
    if (frames[0].size() < sizeof event) continue;
    std::memcpy(&event, frames[0].data(), sizeof event);
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
      linked_ = true;
      link.connected_after = true;
    } else if (event == ZMQ_EVENT_DISCONNECTED && linked_) {
      // A connection that never got through its handshake was nobody's.
      linked_ = false;
      link.disconnected = true;
      link.connected_after = false;
    }
  }
  return link;
}

void ZmqSource::Deliver(std::vector<Live>* batch, std::size_t begin, std::size_t end,
                        ZmqSourceSink* sink) {
  for (std::size_t i = begin; i < end; ++i) {
    Live& live = (*batch)[i];
    ++counts_.messages;
    last_seq_ = live.seq;
    sink->OnMessage(live.seq, std::move(live.payload));
  }
}

void ZmqSource::RequestReplay(std::uint64_t from, std::uint64_t attempt) {
  replay_.reset();
  if (options_.replay.empty()) return;
  replay_ = OpenReplaySocket();
  if (replay_ == nullptr) return;  // Out of sockets: the sequencer's idle timeout tries again.
  replay_attempt_ = attempt;
  const std::string seq = EncodeSequence(from);
  // Queued until the connection stands; a ROUTER wants [identity, "", sequence].
  if (zmq_send(replay_.get(), "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
      zmq_send(replay_.get(), seq.data(), seq.size(), ZMQ_DONTWAIT) < 0) {
    replay_.reset();
  }
}

void ZmqSource::CloseReplay(std::uint64_t attempt) {
  if (replay_ != nullptr && attempt == replay_attempt_) replay_.reset();
}

bool ZmqSource::PollReplay(ZmqSourceSink* sink, std::size_t max_messages) {
  std::vector<std::string> frames;
  std::size_t count = 0;
  for (std::size_t n = 0; n < max_messages; ++n) {
    // The sink may close or replace the socket at any message.
    if (replay_ == nullptr || !Receive(replay_.get(), &frames, &count)) return true;
    const std::size_t first = !frames.empty() && frames[0].empty() ? 1 : 0;
    // Without the delimiter: [sequence, payload], or [topic, sequence, payload].
    std::uint64_t seq = 0;
    if (count > kMaxFrames || (count - first != 2 && count - first != 3) ||
        !DecodeSequence(frames[count - 2], &seq)) {
      ++counts_.malformed;
      continue;
    }
    const std::uint64_t attempt = replay_attempt_;
    if (seq == kEndSequence && frames[count - 1].empty()) {
      sink->OnReplayEnd(attempt);
    } else {
      ++counts_.replayed;
      sink->OnReplayMessage(attempt, seq, frames[count - 1]);
    }
  }
  return false;
}

}  // namespace warmpath
