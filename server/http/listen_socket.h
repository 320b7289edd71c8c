// A TCP socket that listens.
#ifndef WARMPATH_SERVER_HTTP_LISTEN_SOCKET_H_
#define WARMPATH_SERVER_HTTP_LISTEN_SOCKET_H_

#include <string>

#include "absl/status/statusor.h"

namespace warmpath {

struct ListenSocket {
  int fd = -1;  // not blocking; the caller's to close
  int port = 0;
};

// `address` is host:port, the host a name or an address, port 0 a free one. INVALID_ARGUMENT for
// what is none; UNAVAILABLE naming the address and `setting`, the configuration key to change, when
// it can not be bound. A port that another socket listens on is refused.
absl::StatusOr<ListenSocket> ListenOn(const std::string& address, const std::string& setting);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_HTTP_LISTEN_SOCKET_H_
