// The HTTP server by itself: what it bounds, whom it cuts off, how it stops.
#include "server/http/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/work_pool.h"
#include "tests/testing/fake_clock.h"

namespace warmpath::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

bool Soon(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

// One connection, as bytes.
class Connection {
 public:
  explicit Connection(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    timeval timeout{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    const int yes = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool Send(const std::string& bytes) {
    return send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // One whole response; empty when the peer closed before it.
  std::string Read() {
    while (true) {
      const std::size_t head = buffer_.find("\r\n\r\n");
      if (head != std::string::npos) {
        const std::size_t at = buffer_.find("Content-Length: ");
        std::size_t length = 0;
        if (at < head) {
          (void)absl::SimpleAtoi(buffer_.substr(at + 16, buffer_.find('\r', at) - at - 16),
                                 &length);
        }
        if (buffer_.size() >= head + 4 + length) {
          const std::string response = buffer_.substr(0, head + 4 + length);
          buffer_.erase(0, response.size());
          return response;
        }
      }
      if (!Receive()) return "";
    }
  }
  // Waits for the peer's end.
  bool IsClosed() {
    while (Receive()) {
    }
    return ended_;
  }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  bool Receive() {
    char bytes[4096];
    const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
    ended_ = n == 0 || (n < 0 && errno == ECONNRESET);
    if (n > 0) buffer_.append(bytes, static_cast<std::size_t>(n));
    return n > 0;
  }

  int fd_;
  bool ended_ = false;
  std::string buffer_;
};

std::string Get(const std::string& path) {
  return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n\r\n");
}
std::string Post(const std::string& path, const std::string& body, const std::string& more = "") {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\n", more,
                      "Content-Length: ", body.size(), "\r\n\r\n", body);
}

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    options_.clock = &clock_;
    options_.max_body_bytes = 10'000;
  }

  void Start() {
    std::vector<HttpRoute> routes;
    routes.push_back({.method = "GET", .path = "/small", .handler = [](HttpRequest&) {
                        HttpResponse response;
                        response.body = "small";
                        return response;
                      }});
    routes.push_back({.method = "POST", .path = "/echo", .handler = [](HttpRequest& request) {
                        HttpResponse response;
                        response.body = request.body;
                        response.headers.emplace_back("x-seen",
                                                      request.Header("X-Sent").value_or("none"));
                        return response;
                      }});
    // Answers when the test lets it.
    routes.push_back({.method = "POST",
                      .path = "/slow",
                      .handler =
                          [this](HttpRequest&) {
                            ++slow_running_;
                            go_on_.WaitForNotification();
                            HttpResponse response;
                            response.body = "slow";
                            response.undelivered = [this] { ++undelivered_; };
                            return response;
                          },
                      .pool = &pool_,
                      .pool_from_bytes = 0,
                      .pool_full =
                          [] {
                            return ErrorResponse(absl::ResourceExhaustedError("full"),
                                                 absl::Milliseconds(1200));
                          }});
    auto server = HttpServer::Start(options_, std::move(routes));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  int port() const { return server_->port(); }
  // The server's one thread is done with all that came before.
  void Settle() {
    Connection c(port());
    c.Send(Get("/small"));
    EXPECT_THAT(c.Read(), HasSubstr("small"));
  }

  FakeClock clock_;
  HttpServer::Options options_;
  WorkPool pool_{1, 1};
  absl::Notification go_on_;
  std::atomic<int> slow_running_{0};
  std::atomic<int> undelivered_{0};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, OneConnectionServesManyRequestsAlsoAtOnce) {
  Start();
  Connection c(port());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(c.Send(Post("/echo", "hello", "x-sent: yes\r\n")));
    EXPECT_THAT(c.Read(),
                AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("x-seen: yes"), HasSubstr("hello")));
  }
  c.Send(Get("/small") + Post("/echo", "b") + Get("/none"));
  EXPECT_THAT(c.Read(), HasSubstr("small"));
  EXPECT_THAT(c.Read(), HasSubstr("x-seen: none"));
  EXPECT_THAT(c.Read(), StartsWith("HTTP/1.1 404"));
}

TEST_F(HttpServerTest, LargeBodiesAreRefusedHoweverTheyCome) {
  Start();
  {
    Connection c(port());
    c.Send(Post("/echo", std::string(10'000, 'x')));
    EXPECT_THAT(c.Read(), StartsWith("HTTP/1.1 200"));
    c.Send(Post("/echo", std::string(10'001, 'x')));
    EXPECT_THAT(c.Read(), AllOf(StartsWith("HTTP/1.1 413"), HasSubstr("Connection: close"),
                                HasSubstr("raise server.max_message_bytes")));
    EXPECT_TRUE(c.IsClosed());
  }
  {
    // In chunks, and more than would be read: the connection ends.
    Connection c(port());
    c.Send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    const std::string chunk = absl::StrCat("10000\r\n", std::string(65'536, 'x'), "\r\n");
    int sent = 0;
    while (sent < 1000 && c.Send(chunk)) ++sent;
    EXPECT_LT(sent, 200);
  }
  {
    // Who asks first is told without sending.
    Connection c(port());
    c.Send(
        "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 20000\r\n\r\n");
    EXPECT_THAT(c.Read(), StartsWith("HTTP/1.1 413"));
    Connection d(port());
    d.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\nabc");
    EXPECT_THAT(d.Read(), StartsWith("HTTP/1.1 413"));
  }
  Connection c(port());
  c.Send("POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_THAT(c.Read(), StartsWith("HTTP/1.1 100"));
  c.Send("ok");
  EXPECT_THAT(c.Read(), AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("ok")));
}

TEST_F(HttpServerTest, AllBodiesTogetherAreBounded) {
  options_.max_memory = 25'000;
  Start();
  std::vector<std::unique_ptr<Connection>> holders;
  for (int i = 0; i < 2; ++i) {
    holders.push_back(std::make_unique<Connection>(port()));
    holders.back()->Send(Post("/slow", std::string(10'000, 'x')));
    ASSERT_TRUE(
        Soon([&] { return slow_running_ + pool_.queued() == i + 1u && slow_running_ == 1; }));
  }
  Connection c(port());
  c.Send(Post("/echo", std::string(10'000, 'x')));
  EXPECT_THAT(c.Read(), AllOf(StartsWith("HTTP/1.1 429"), HasSubstr("Retry-After: 1"),
                              HasSubstr("server.http_memory_bytes")));
  Connection small(port());
  small.Send(Post("/echo", "x"));
  EXPECT_THAT(small.Read(), StartsWith("HTTP/1.1 200"));
  go_on_.Notify();
  for (const auto& holder : holders) EXPECT_THAT(holder->Read(), StartsWith("HTTP/1.1 200"));
  Connection again(port());
  again.Send(Post("/echo", std::string(10'000, 'x')));
  EXPECT_THAT(again.Read(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, LargeHeadersEndTheConnection) {
  Start();
  Connection c(port());
  c.Send(absl::StrCat("GET /small HTTP/1.1\r\nHost: x\r\nx-large: ", std::string(100'000, 'h'),
                      "\r\n\r\n"));
  EXPECT_THAT(c.Read(), Not(StartsWith("HTTP/1.1 200")));
  EXPECT_TRUE(c.IsClosed());
}

// --- Time

TEST_F(HttpServerTest, ANewConnectionMustAskSoon) {
  Start();
  Connection silent(port());
  Connection slow(port());
  ASSERT_TRUE(Soon([&] { return server_->connections() == 2; }));
  slow.Send("GET /small HTTP/1.1\r\nHo");
  clock_.Advance(absl::Seconds(9));
  slow.Send("st: x\r\nx-a: ");
  server_->CloseOverdue();
  EXPECT_EQ(server_->connections(), 2u);
  clock_.Advance(absl::Seconds(2));
  server_->CloseOverdue();
  EXPECT_TRUE(silent.IsClosed());
  EXPECT_TRUE(slow.IsClosed());
  EXPECT_TRUE(Soon([&] { return server_->connections() == 0; }));
}

TEST_F(HttpServerTest, ABodyThatTricklesIsCutOff) {
  Start();
  Connection c(port());
  c.Send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n");
  ASSERT_TRUE(Soon([&] { return server_->connections() == 1; }));
  for (int second = 0; second < 9; ++second) {
    clock_.Advance(absl::Seconds(1));
    EXPECT_TRUE(c.Send("x"));
    server_->CloseOverdue();
  }
  EXPECT_EQ(server_->connections(), 1u);
  clock_.Advance(absl::Seconds(2));
  server_->CloseOverdue();
  EXPECT_TRUE(c.IsClosed());
}

TEST_F(HttpServerTest, AnIdleConnectionIsKeptForItsTimeAndNotLonger) {
  Start();
  Connection c(port());
  for (int i = 0; i < 3; ++i) {
    c.Send(Get("/small"));
    EXPECT_THAT(c.Read(), HasSubstr("small"));
    Settle();
    clock_.Advance(absl::Seconds(74));
    server_->CloseOverdue();
  }
  c.Send(Get("/small"));
  EXPECT_THAT(c.Read(), HasSubstr("small"));
  Settle();
  clock_.Advance(absl::Seconds(76));
  server_->CloseOverdue();
  EXPECT_TRUE(c.IsClosed());
}

// --- Work pool

TEST_F(HttpServerTest, WhatWaitsForAPoolHoldsUpNobodyAndAFullPoolRefuses) {
  Start();
  Connection first(port());
  Connection second(port());
  first.Send(Post("/slow", "1"));
  ASSERT_TRUE(Soon([&] { return slow_running_ == 1; }));
  second.Send(Post("/slow", "2"));
  ASSERT_TRUE(Soon([&] { return pool_.queued() == 1; }));
  Connection third(port());
  third.Send(Post("/slow", "3"));
  EXPECT_THAT(third.Read(), AllOf(StartsWith("HTTP/1.1 429"), HasSubstr("Retry-After: 2"),
                                  HasSubstr("\"retry_after_ms\":1200")));
  Connection other(port());
  other.Send(Get("/small"));
  EXPECT_THAT(other.Read(), HasSubstr("small"));
  go_on_.Notify();
  EXPECT_THAT(first.Read(), HasSubstr("slow"));
  EXPECT_THAT(second.Read(), HasSubstr("slow"));
  EXPECT_EQ(undelivered_, 0);
}

TEST_F(HttpServerTest, AnAnswerThatNobodyTakesIsKnown) {
  Start();
  Connection c(port());
  c.Send(Post("/slow", "1"));
  ASSERT_TRUE(Soon([&] { return slow_running_ == 1; }));
  clock_.Advance(absl::Seconds(20));
  server_->CloseOverdue();  // shuts the socket of the waiting one, too
  go_on_.Notify();
  EXPECT_TRUE(Soon([&] { return undelivered_ == 1; }));
}

// --- The end

TEST_F(HttpServerTest, ShutdownAnswersWhatArrivedAndClosesTheRestWithinASecond) {
  Start();
  std::vector<std::unique_ptr<Connection>> idle;
  for (int i = 0; i < 100; ++i) {
    idle.push_back(std::make_unique<Connection>(port()));
    idle.back()->Send(Get("/small"));
    ASSERT_THAT(idle.back()->Read(), HasSubstr("small"));
  }
  Connection busy(port());
  busy.Send(Post("/slow", "1"));
  ASSERT_TRUE(Soon([&] { return slow_running_ == 1; }));
  std::thread later([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    go_on_.Notify();
  });
  const auto start = std::chrono::steady_clock::now();
  server_->Shutdown(absl::Milliseconds(800));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  later.join();
  EXPECT_LT(took.count(), 1.0);
  EXPECT_THAT(busy.Read(), AllOf(HasSubstr("slow"), HasSubstr("Connection: close")));
  for (const auto& connection : idle) EXPECT_TRUE(connection->IsClosed());
}

// --- Idle connections cost memory only.

TEST_F(HttpServerTest, FiveHundredIdleConnectionsDoNotSlowARequest) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 1200) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
    setrlimit(RLIMIT_NOFILE, &files);
  }
  Start();
  Connection c(port());
  const auto median = [&] {
    std::vector<double> seconds;
    for (int i = 0; i < 301; ++i) {
      const auto start = std::chrono::steady_clock::now();
      c.Send(Get("/small"));
      EXPECT_THAT(c.Read(), Not(IsEmpty()));
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::nth_element(seconds.begin(), seconds.begin() + 150, seconds.end());
    return seconds[150];
  };
  median();  // warm
  const double alone = median();
  std::vector<std::unique_ptr<Connection>> idle;
  for (int i = 0; i < 500; ++i) {
    idle.push_back(std::make_unique<Connection>(port()));
    idle.back()->Send(Get("/small"));
    ASSERT_THAT(idle.back()->Read(), HasSubstr("small"));
  }
  ASSERT_EQ(server_->connections(), 501u);
  const double crowded = median();
  RecordProperty("alone_us", static_cast<int>(alone * 1e6));
  RecordProperty("crowded_us", static_cast<int>(crowded * 1e6));
  // Generous: another process may take the machine meanwhile. A thread per connection, or a scan of
  // all of them for each request, costs more.
  EXPECT_LT(crowded, 3 * alone + 0.002);
}

TEST_F(HttpServerTest, BeyondTheLimitTheLongestIdleConnectionMakesRoom) {
  options_.max_connections = 16;
  Start();
  Connection busy(port());
  busy.Send(Post("/slow", "1"));
  ASSERT_TRUE(Soon([&] { return slow_running_ == 1; }));
  std::vector<std::unique_ptr<Connection>> idle;
  for (int i = 0; i < 15; ++i) {
    idle.push_back(std::make_unique<Connection>(port()));
    idle.back()->Send(Get("/small"));
    ASSERT_THAT(idle.back()->Read(), HasSubstr("small"));
  }
  // The first one speaks again: now the second has been idle for longest.
  idle[0]->Send(Get("/small"));
  ASSERT_THAT(idle[0]->Read(), HasSubstr("small"));
  Connection another(port());
  another.Send(Get("/small"));
  EXPECT_THAT(another.Read(), HasSubstr("small"));
  EXPECT_TRUE(idle[1]->IsClosed());
  EXPECT_TRUE(Soon([&] { return server_->connections() == 16; }));
  idle[0]->Send(Get("/small"));
  EXPECT_THAT(idle[0]->Read(), HasSubstr("small"));
  go_on_.Notify();
  EXPECT_THAT(busy.Read(), HasSubstr("slow")) << "however long it takes";
}

TEST_F(HttpServerTest, AFloodOfSilentConnectionsKeepsNobodyOut) {
  options_.max_connections = 64;
  Start();
  // The clock stands still: none of them ends by its time.
  std::vector<std::unique_ptr<Connection>> flood;
  for (int i = 0; i < 300; ++i) flood.push_back(std::make_unique<Connection>(port()));
  Connection c(port());
  c.Send(Get("/small"));
  ASSERT_THAT(c.Read(), HasSubstr("small"));
  ASSERT_TRUE(Soon([&] { return server_->connections() <= 64; }));
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(flood[static_cast<std::size_t>(i)]->IsClosed()) << i;
}

}  // namespace
}  // namespace warmpath::testing
