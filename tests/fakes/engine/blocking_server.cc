#include "tests/fakes/engine/blocking_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

namespace warmpath::engine {
namespace {

// poll() for one descriptor, through interruptions. 0 on timeout.
int PollOne(int fd, short events, int timeout_ms) {
  pollfd item = {fd, events, 0};
  int n;
  do {
    n = poll(&item, 1, timeout_ms);
  } while (n < 0 && errno == EINTR);
  return n;
}

class SocketStream final : public httplib::Stream {
 public:
  SocketStream(int fd, int read_timeout_ms, int write_timeout_ms)
      : fd_(fd), read_timeout_ms_(read_timeout_ms), write_timeout_ms_(write_timeout_ms) {}

  bool HasBufferedBytes() const { return begin_ < end_; }

  bool is_readable() const override { return HasBufferedBytes() || PollOne(fd_, POLLIN, 0) > 0; }

  // False, too, when the client has closed its end: nobody will read the answer.
  bool is_writable() const override {
    if (PollOne(fd_, POLLOUT, 0) <= 0) return false;
    char byte;
    return recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
  }

  ssize_t read(char* out, std::size_t size) override {
    if (!HasBufferedBytes()) {
      const ssize_t n = Fill();
      if (n <= 0) return n;
    }
    const std::size_t n = std::min(size, end_ - begin_);
    std::memcpy(out, buffer_.data() + begin_, n);
    begin_ += n;
    return static_cast<ssize_t>(n);
  }

  ssize_t write(const char* data, std::size_t size) override {
    while (true) {
      const ssize_t n = send(fd_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n >= 0) return n;
      if (errno == EINTR) continue;
      if (errno != EAGAIN || PollOne(fd_, POLLOUT, write_timeout_ms_) <= 0) return -1;
    }
  }

  // Nobody here asks who the client is.
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return fd_; }

 private:
  ssize_t Fill() {
    while (true) {
      const ssize_t n = recv(fd_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (n >= 0) {
        begin_ = 0;
        end_ = static_cast<std::size_t>(n);
        return n;
      }
      if (errno == EINTR) continue;
      if (errno != EAGAIN || PollOne(fd_, POLLIN, read_timeout_ms_) <= 0) return -1;
    }
  }

  const int fd_;
  const int read_timeout_ms_;
  const int write_timeout_ms_;
  std::array<char, 16'384> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

// True when a request, or the end of the connection, can be read.
bool WaitForRequest(int fd, int stop_fd, int timeout_ms) {
  std::array<pollfd, 2> items = {{{fd, POLLIN, 0}, {stop_fd, POLLIN, 0}}};
  int n;
  do {
    n = poll(items.data(), items.size(), timeout_ms);
  } while (n < 0 && errno == EINTR);
  return n > 0 && items[1].revents == 0 && (items[0].revents & POLLIN) != 0;
}

}  // namespace

BlockingServer::BlockingServer() : stop_fd_(eventfd(0, EFD_CLOEXEC)) {}

BlockingServer::~BlockingServer() {
  if (stop_fd_ >= 0) close(stop_fd_);
}

void BlockingServer::DeepenBacklog(int backlog) { ::listen(svr_sock_, backlog); }

void BlockingServer::StopNow() {
  const std::uint64_t one = 1;
  // Fails only if there is no eventfd; then idle connections last until their timeout.
  [[maybe_unused]] const ssize_t n = ::write(stop_fd_, &one, sizeof(one));
  stop();
}

bool BlockingServer::process_and_close_socket(socket_t sock) {
  SocketStream stream(sock, static_cast<int>(read_timeout_sec_ * 1'000),
                      static_cast<int>(write_timeout_sec_ * 1'000));
  const int keep_alive_ms = static_cast<int>(keep_alive_timeout_sec_ * 1'000);
  bool ok = true;
  bool closed = false;
  while (ok && !closed &&
         (stream.HasBufferedBytes() || WaitForRequest(sock, stop_fd_, keep_alive_ms))) {
    ok = process_request(stream, /*close_connection=*/false, closed, [](httplib::Request& request) {
      // The library would compress every JSON body for clients that merely could read it.
      request.headers.erase("Accept-Encoding");
    });
  }
  shutdown(sock, SHUT_RDWR);
  close(sock);
  return ok;
}

}  // namespace warmpath::engine
