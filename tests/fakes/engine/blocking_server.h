// cpp-httplib's server with a connection loop of our own. The library's loop (0.11) looks at every
// idle keep-alive connection a hundred times a second, which costs 1.2 ms of CPU per second and
// connection; this one sleeps in poll() until there is a request, and can see that a client hung
// up while its answer is computed.
#ifndef WARMPATH_TESTS_FAKES_ENGINE_BLOCKING_SERVER_H_
#define WARMPATH_TESTS_FAKES_ENGINE_BLOCKING_SERVER_H_

#include "httplib.h"

namespace warmpath::engine {

class BlockingServer final : public httplib::Server {
 public:
  BlockingServer();
  // REQUIRES: stopped.
  ~BlockingServer() override;

  // After binding. The library listens with a backlog of 5: in a burst of new connections the
  // kernel would drop SYNs, and those clients would try again after a second.
  void DeepenBacklog(int backlog);

  // stop(), with idle connections closed at once.
  void StopNow();

 private:
  bool process_and_close_socket(socket_t sock) override;

  int stop_fd_;  // An eventfd: readable for good once the server stops.
};

}  // namespace warmpath::engine

#endif  // WARMPATH_TESTS_FAKES_ENGINE_BLOCKING_SERVER_H_
