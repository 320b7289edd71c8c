#include "server/http/listen_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "server/config/schema.h"

namespace warmpath {
namespace {

constexpr int kBacklog = 1024;

int PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

// -1 with errno set.
int Bind(const addrinfo& where) {
  const int fd = socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int yes = 1;
  // For restarts while old connections linger. Not SO_REUSEPORT, with which a second router would
  // share the port unnoticed.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(fd, where.ai_addr, where.ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<ListenSocket> ListenOn(const std::string& address, const std::string& setting) {
  WARMPATH_RETURN_IF_ERROR(CheckAddress(address));
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  std::string why;
  if (const int error =
          getaddrinfo(host.c_str(), address.substr(colon + 1).c_str(), &hints, &found);
      error != 0) {
    why = gai_strerror(error);
  } else {
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      const int fd = Bind(*one);
      if (fd >= 0) return ListenSocket{.fd = fd, .port = PortOf(fd)};
      why = std::generic_category().message(errno);
    }
  }
  return absl::UnavailableError(
      absl::StrCat("can not listen for HTTP on ", address, " (", why,
                   "): another program uses the port, or the address is not this machine's; "
                   "change ",
                   setting));
}

}  // namespace warmpath
