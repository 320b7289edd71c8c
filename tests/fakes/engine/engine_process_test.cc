// The program itself: its ready line, its signals, its exit codes.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "simdjson.h"

extern char** environ;

namespace warmpath::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A child with its stdout read from; killed at the end if it still runs.
class Child {
 public:
  explicit Child(std::vector<std::string> args) {
    int fds[2];
    EXPECT_EQ(pipe(fds), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, fds[0]);
    posix_spawn_file_actions_addclose(&actions, fds[1]);
    args.insert(args.begin(), WARMPATH_ENGINE_BINARY);
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    for (char c; read(fds[0], &c, 1) == 1 && c != '\n';) line_.push_back(c);
    close(fds[0]);
  }
  ~Child() {
    if (pid_ > 0) Stop(SIGKILL);
  }

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // The first line it wrote; empty if it ended without one.
  const std::string& line() const { return line_; }
  pid_t pid() const { return pid_; }

  // The exit code, or minus the signal that ended it.
  int Stop(int signal) {
    kill(pid_, signal);
    return Wait();
  }
  int Wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  std::string line_;
};

TEST(EngineProcessTest, SaysItsPortsServesAndStops) {
  Child child({"--ranks=2", "--replay-endpoint", "tcp://127.0.0.1:0", "--speed-factor=100",
               "--model=m", "--lora=a,b"});
  simdjson::dom::parser parser;
  simdjson::dom::element ready;
  ASSERT_EQ(parser.parse(child.line()).get(ready), simdjson::SUCCESS) << child.line();
  EXPECT_EQ(std::int64_t(ready["pid"]), child.pid());
  EXPECT_EQ(ready["events"].get_array().size(), 2u);
  EXPECT_EQ(ready["replay"].get_array().size(), 2u);
  const std::string url{ready["http"].get_string().value()};
  EXPECT_THAT(url, StartsWith("http://127.0.0.1:"));
  // Rank 1 is one port above rank 0.
  const auto port = [&](const char* name, int rank) {
    const std::string endpoint{ready[name].get_array().at(rank).get_string().value()};
    return std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
  };
  EXPECT_EQ(port("events", 1), port("events", 0) + 1);
  EXPECT_EQ(port("replay", 1), port("replay", 0) + 1);

  httplib::Client client(url);
  const auto reply =
      client.Post("/v1/completions", R"({"model":"a","prompt":"hi there"})", "application/json");
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->status, 200) << reply->body;

  // The same port again, twice: refused while it is taken, free after a kill -9.
  const std::string http_port = absl::StrCat("--port=", url.substr(url.rfind(':') + 1));
  Child second({http_port});
  EXPECT_EQ(second.line(), "");
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_EQ(child.Stop(SIGKILL), -SIGKILL);
  Child third({http_port, absl::StrCat("--events-endpoint=tcp://127.0.0.1:", port("events", 0))});
  EXPECT_THAT(third.line(), HasSubstr(url));
  EXPECT_EQ(third.Stop(SIGTERM), 0);
}

TEST(EngineProcessTest, BadFlagsEndWithTwo) {
  for (const char* flag : {"--profile=70b", "--event-format=xml", "--replay-shape=round",
                           "--drop-seqs=1,x", "--block-size=0", "--events-endpoint=5557"}) {
    Child child({flag});
    EXPECT_EQ(child.line(), "") << flag;
    EXPECT_EQ(child.Wait(), 2) << flag;
  }
}

}  // namespace
}  // namespace warmpath::engine
