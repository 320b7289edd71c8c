// The whole agent, and its HTTP client, against real HTTP servers on loopback.
#include "client/agent/app.h"

#include <httplib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/agent/engine/http_get.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/engine/fake_publisher.h"
#include "tests/client/agent/events/msgpack_events.h"
#include "tests/client/agent/publish/fake_router.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::FakePublisher;
using testing::FakeRouter;
using ::testing::HasSubstr;
using testing::RouterModel;
using testing::StatusIs;

// An engine's HTTP server.
class EngineServer {
 public:
  EngineServer() {
    server_.set_keep_alive_timeout(1);
    server_.Get("/health", [](const httplib::Request&, httplib::Response&) {});
    server_.Get("/metrics", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(
          "process_start_time_seconds 1000\nvllm:num_requests_running{engine=\"0\"} 2\n"
          "vllm:cache_config_info{engine=\"0\",block_size=\"4\",num_gpu_blocks=\"101\"} 1\n",
          "text/plain");
    });
    server_.Get("/v1/models", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(R"({"data":[{"id":"m"}]})", "application/json");
    });
    server_.Get("/large", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(std::string(5000, 'x'), "text/plain");
    });
    server_.Get("/slow", [](const httplib::Request&, httplib::Response& response) {
      absl::SleepFor(absl::Milliseconds(400));
      response.set_content("late", "text/plain");
    });
    server_.Get("/moved", [](const httplib::Request&, httplib::Response& response) {
      response.set_redirect("/metrics");
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~EngineServer() { Stop(); }
  void Stop() {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }

 private:
  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

TEST(CurlGetterTest, GetsAndTellsFailuresApart) {
  EngineServer server;
  const auto http = MakeCurlGetter({.connect_timeout = absl::Milliseconds(200),
                                    .timeout = absl::Milliseconds(200),
                                    .max_body_bytes = 4096});
  const auto good = http->Get(server.url() + "/v1/models");
  ASSERT_THAT(good, testing::IsOk());
  EXPECT_EQ(good->status, 200);
  EXPECT_EQ(good->body, R"({"data":[{"id":"m"}]})");
  EXPECT_EQ(http->Get(server.url() + "/nothing")->status, 404);
  EXPECT_EQ(http->Get(server.url() + "/moved")->status, 302) << "redirects are not followed";
  EXPECT_THAT(http->Get(server.url() + "/large"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("above 4096 bytes")));
  EXPECT_THAT(http->Get(server.url() + "/slow"),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("/slow")));
  EXPECT_THAT(http->Get("file:///etc/passwd"), StatusIs(absl::StatusCode::kInternal));
  // A proxy of the environment is not asked.
  setenv("http_proxy", "http://127.0.0.1:1", 1);
  EXPECT_THAT(http->Get(server.url() + "/health"), testing::IsOk());
  unsetenv("http_proxy");
  server.Stop();
  EXPECT_THAT(http->Get(server.url() + "/health"), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(CurlGetterTest, SendsTheKeyOnlyIfThereIsOne) {
  httplib::Server server;
  server.Get("/", [](const httplib::Request& request, httplib::Response& response) {
    response.set_content(request.get_header_value("Authorization"), "text/plain");
  });
  const std::string url = absl::StrCat("http://127.0.0.1:", server.bind_to_any_port("127.0.0.1"));
  std::thread thread([&] { server.listen_after_bind(); });
  while (!server.is_running()) std::this_thread::yield();
  EXPECT_EQ(MakeCurlGetter()->Get(url)->body, "");
  EXPECT_EQ(MakeCurlGetter({.bearer_token = "k 1"})->Get(url)->body, "Bearer k 1");
  server.stop();
  thread.join();
}

class AppTest : public ::testing::Test {
 protected:
  AppTest() {
    folder_ = std::filesystem::temp_directory_path() / absl::StrCat("app_test_", getpid());
    std::filesystem::create_directories(folder_);
    router_.AddScript([](FakeRouter::Stream& stream) {
      return stream.Accept(4) ? stream.Serve() : grpc::Status::OK;
    });
    config_.routers.push_back({.address = router_.address()});
    config_.metrics_port = 0;
    config_.ports_file = folder_ / "ports.json";
    EngineConfig& engine = config_.engines.emplace_back();
    engine.http = server_.url();
    engine.worker_id = "one";
    engine.events = publisher_.events();
    engine.replay = publisher_.replay();
    engine.state_file = folder_ / "one";
    engine.scrape_interval_ms = 50;
  }
  ~AppTest() override { std::filesystem::remove_all(folder_); }

  static std::string Get(int port, const std::string& path, int* status) {
    httplib::Client client("127.0.0.1", port);
    const auto result = client.Get(path);
    *status = result ? result->status : -1;
    return result ? result->body : "";
  }

  std::filesystem::path folder_;
  FakeRouter router_;
  FakePublisher publisher_;
  EngineServer server_;
  AgentConfig config_;
};

TEST_F(AppTest, AKeyFileThatCanNotBeReadIsNamed) {
  config_.engines[0].api_key_file = folder_ / "key";
  ASSERT_THAT(CompleteConfig(&config_), testing::IsOk());
  EXPECT_THAT(AgentApp::Start(config_, SystemClock()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("api_key_file: can not read")));
}

TEST_F(AppTest, RunsSeveralEnginesAndSaysHowTheyAre) {
  EngineConfig second;  // without events
  second.http = server_.url();
  second.worker_id = "two";
  config_.engines.push_back(second);
  ASSERT_THAT(CompleteConfig(&config_), testing::IsOk());
  publisher_.Keep(0, testing::StoredBatch(100, 1, {1, 2, 3, 4}, 4));
  auto app = AgentApp::Start(config_, SystemClock());
  ASSERT_THAT(app, testing::IsOk());
  const int port = (*app)->metrics_port();

  std::ifstream file(config_.ports_file);
  std::stringstream ports;
  ports << file.rdbuf();
  EXPECT_EQ(ports.str(), absl::StrCat("{\"metrics\": ", port, "}\n"));

  const absl::Time deadline = absl::Now() + absl::Seconds(15);
  int status = 0;
  std::string page;
  const auto shows = [&page](const char* line) { return page.find(line) != std::string::npos; };
  while (!shows("warmpath_agent_engine_seq{worker=\"one\",rank=\"0\"} 0") ||
         !shows("warmpath_agent_engine_up{worker=\"two\"} 1") || !(*app)->Ready()) {
    ASSERT_LT(absl::Now(), deadline) << page;
    page = Get(port, "/metrics", &status);
  }
  EXPECT_EQ(status, 200);
  EXPECT_EQ(Get(port, "/healthz", &status), "ok\n");
  Get(port, "/readyz", &status);
  EXPECT_EQ(status, 200);
  for (const char* suffix : {".id", ".block", ".rank0"}) {
    const auto state = std::filesystem::status(config_.engines[0].state_file + suffix);
    EXPECT_EQ(state.permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write)
        << suffix;
  }
  router_.Stop();
  while (status != 503) {
    ASSERT_LT(absl::Now(), deadline);
    Get(port, "/readyz", &status);
  }
}

TEST_F(AppTest, AFailedStartNamesTheKey) {
  ASSERT_THAT(CompleteConfig(&config_), testing::IsOk());
  {
    AgentConfig config = config_;
    config.ports_file = "/nonexistent/ports.json";
    EXPECT_THAT(AgentApp::Start(config, SystemClock()),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("ports_file")));
  }
  {
    AgentConfig config = config_;
    config.routers[0].ca_file = "/nonexistent/ca.pem";
    EXPECT_THAT(AgentApp::Start(config, SystemClock()),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("router-ca")));
  }
  auto app = AgentApp::Start(config_, SystemClock());
  ASSERT_THAT(app, testing::IsOk());
  AgentConfig config = config_;
  config.metrics_port = static_cast<std::uint32_t>((*app)->metrics_port());
  EXPECT_THAT(AgentApp::Start(config, SystemClock()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("metrics_port")));
}

}  // namespace
}  // namespace warmpath
