// Picks over HTTP as load balancers make them (docs/http-api.md), over real connections.
#include <httplib.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/test_router.h"
#include "tests/testing/fake_clock.h"

namespace warmpath::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kJson[] = "application/json";
constexpr char kChat[] = R"({"model":"m","messages":[{"role":"user","content":"hello there"}]})";

class PickApiWireTest : public ::testing::Test {
 protected:
  void SetUp() override {
    a_.Join();
    b_.Join();
    client_.set_read_timeout(10);
    client_.set_keep_alive(true);
    client_.set_tcp_nodelay(true);  // httplib sends headers and body apart
  }

  httplib::Result Raw(httplib::Headers headers, const std::string& body = kChat) {
    headers.emplace("x-warmpath-path", "/v1/chat/completions");
    return client_.Post("/v1/pick", headers, body, kJson);
  }

  FakeClock clock_;
  TestRouter router_{RouterConfig{}, &clock_};
  TestWorker a_{router_, {.id = "a", .address = "10.0.0.1:8000"}};
  TestWorker b_{router_, {.id = "b", .address = "10.0.0.2:8000"}};
  httplib::Client client_{"127.0.0.1", router_.app().pick_port()};
};

TEST_F(PickApiWireTest, TheClientsBodyAsItIsGivesTheEndpointInHeaders) {
  const auto answer = Raw({{"x-request-id", "req-1"}});
  ASSERT_EQ(answer->status, 200) << answer->body;
  const std::string endpoint = answer->get_header_value("x-gateway-destination-endpoint");
  EXPECT_THAT(endpoint, ::testing::AnyOf("10.0.0.1:8000", "10.0.0.2:8000"));
  EXPECT_EQ(answer->get_header_value("x-warmpath-fallbacks"),
            endpoint == "10.0.0.1:8000" ? "10.0.0.2:8000" : "10.0.0.1:8000");
  EXPECT_EQ(answer->get_header_value("x-request-id"), "req-1");
  EXPECT_FALSE(answer->has_header("X-data-parallel-rank"));
  EXPECT_THAT(answer->body, AllOf(HasSubstr(absl::StrCat("\"address\":\"", endpoint, "\"")),
                                  HasSubstr("\"request_id\":\"req-1\"")));
  const std::string id = answer->get_header_value("x-warmpath-reservation-id");
  EXPECT_EQ(router_.PoolStats("m").open_reservations(), 1u);
  const auto outcome = client_.Post(
      "/v1/outcome", absl::StrCat(R"({"kind":"FINISHED","reservation_id":)", id, "}"), kJson);
  EXPECT_EQ(outcome->status, 200) << outcome->body;
  EXPECT_EQ(router_.PoolStats("m").open_reservations(), 0u);
}

TEST_F(PickApiWireTest, ControlHeadersAreReadAndTheBodyGoesBeforeThem) {
  EXPECT_EQ(Raw({{"x-gateway-destination-endpoint-subset", "10.0.0.2:8000, 10.0.0.9"}})
                ->get_header_value("x-gateway-destination-endpoint"),
            "10.0.0.2:8000");
  EXPECT_EQ(Raw({{"X-Gateway-Destination-Endpoint-Subset", ""}})->status, 503);
  EXPECT_EQ(Raw({{"x-warmpath-exclude", "10.0.0.1:8000,b"}})->status, 503);
  EXPECT_EQ(Raw({{"x-warmpath-exclude", "a"}})->get_header_value("x-gateway-destination-endpoint"),
            "10.0.0.2:8000");
  EXPECT_EQ(Raw({{"x-llm-d-model-name-rewrite", "other"}})->status, 404);
  EXPECT_EQ(
      Raw({{"x-llm-d-model-name-rewrite", "m"}}, R"({"model":"other","messages":[]})")->status,
      200);
  const auto wrong = Raw({{"x-warmpath-max-wait-ms", "soon"}});
  EXPECT_EQ(wrong->status, 400);
  EXPECT_THAT(wrong->body, HasSubstr("x-warmpath-max-wait-ms: send a whole number"));
  EXPECT_EQ(Raw({{"x-amzn-sagemaker-prefix-aware-id", std::string(65, 'x')}})->status, 400);

  // The JSON form: its own fields first.
  const auto json = client_.Post("/v1/pick", {{"x-request-id", "header"}},
                                 R"({"model":"m","tokens":[1],"request_id":"body"})", kJson);
  EXPECT_EQ(json->get_header_value("x-request-id"), "body");
}

TEST_F(PickApiWireTest, ARetryWithTheSameRequestIdTakesThePlaceOfTheFirst) {
  ASSERT_EQ(Raw({{"x-request-id", "r"}})->status, 200);
  ASSERT_EQ(Raw({{"x-request-id", "r"}, {"x-warmpath-exclude", "10.0.0.1:8000"}})->status, 200);
  EXPECT_EQ(router_.PoolStats("m").open_reservations(), 1u);
}

TEST_F(PickApiWireTest, PreferIfAvailableRefusesAColdWorkerAndReservesNothing) {
  const auto answer = Raw({{"prefer", "if-available"}});
  EXPECT_EQ(answer->status, 412) << answer->body;
  EXPECT_EQ(router_.PoolStats("m").open_reservations(), 0u);
}

TEST_F(PickApiWireTest, ErrorsAreJsonWithTheRightStatus) {
  EXPECT_EQ(Raw({}, "{")->status, 400);
  EXPECT_THAT(Raw({}, R"({"messages":[]})")->body, HasSubstr("model: is empty"));
  const auto page = client_.Get("/metrics");
  EXPECT_EQ(page->status, 404) << "pages for operators are on the other listener";
  EXPECT_THAT(page->body, HasSubstr(R"("code":"NOT_FOUND")"));
  const auto method = client_.Get("/v1/pick");
  EXPECT_EQ(method->status, 405);
  EXPECT_EQ(method->get_header_value("Allow"), "POST");
  EXPECT_EQ(client_.Post("/healthz", "", kJson)->get_header_value("Allow"), "GET, HEAD");
  EXPECT_EQ(client_.Get("/healthz")->status, 200);
  EXPECT_EQ(client_.Head("/readyz")->status, 200);
}

// Turn by turn, as a balancer sees it: first with, then without outcomes.
TEST_F(PickApiWireTest, Fault23_AConversationStaysOnItsWorkerAndItsHistoryCounts) {
  TestWorker c(router_, {.id = "c", .address = "10.0.0.3:8000"});
  c.Join();
  for (const bool reports : {true, false}) {
    for (int chat = 0; chat < 6; ++chat) {
      std::string messages = absl::StrCat(R"({"role":"system","content":"chat )", chat, reports,
                                          " ", std::string(3000, 's'), "\"}");
      std::string home;
      std::uint64_t known = 0;
      for (int turn = 0; turn < 5; ++turn) {
        const std::string body = absl::StrCat(R"({"model":"m","messages":[)", messages,
                                              R"(],"temperature":)", turn, ",\"stream\":true}");
        const auto answer = Raw({}, body);
        ASSERT_EQ(answer->status, 200) << answer->body;
        const std::string endpoint = answer->get_header_value("x-gateway-destination-endpoint");
        const auto cached = std::stoull(answer->get_header_value("x-warmpath-cached-tokens"));
        EXPECT_THAT(answer->body, HasSubstr("\"freshness\":\"FRESHNESS_NONE\""));
        if (turn == 0) {
          home = endpoint;
        } else {
          EXPECT_EQ(endpoint, home) << "chat " << chat << " turn " << turn;
          EXPECT_GT(cached, known) << "each turn is known by the next one";
        }
        known = cached;
        clock_.Advance(absl::Seconds(2));  // the prompt is computed meanwhile
        if (reports) {
          client_.Post("/v1/outcome",
                       absl::StrCat(R"({"kind":"FINISHED","reservation_id":)",
                                    answer->get_header_value("x-warmpath-reservation-id"), "}"),
                       kJson);
        }
        absl::StrAppend(&messages, R"(,{"role":"assistant","content":"answer )", turn,
                        R"("},{"role":"user","content":"question )", turn, std::string(600, 'q'),
                        "\"}");
      }
    }
  }
}

TEST_F(PickApiWireTest, Fault25_LargeBodiesPassUpToTheConfiguredLimit) {
  const auto body = [](std::size_t size) {
    return absl::StrCat(R"({"model":"m","messages":[{"role":"user","content":")",
                        std::string(size, 'x'), R"("}]})");
  };
  for (const std::size_t size : {60'000u, 70'000u, 130'000u, 300'000u, 4'000'000u}) {
    const auto answer = Raw({}, body(size));
    ASSERT_EQ(answer->status, 200) << size << " " << answer->body;
  }
  // Known again, long as it is.
  EXPECT_GT(std::stoull(Raw({}, body(4'000'000))->get_header_value("x-warmpath-cached-tokens")),
            990'000u);
  const auto refused = Raw({}, body(8u << 20));
  EXPECT_EQ(refused->status, 413);
  EXPECT_THAT(refused->body, HasSubstr("raise server.max_message_bytes"));
}

TEST_F(PickApiWireTest, OutcomesAreSmall) {
  const auto report = [this](std::size_t size) {
    std::string body = R"({"kind":"FINISHED","reservation_id":0})";
    body.append(size - body.size(), ' ');
    return client_.Post("/v1/outcome", body, kJson);
  };
  EXPECT_NE(report(65'536)->status, 413);
  const auto refused = report(65'537);
  EXPECT_EQ(refused->status, 413);
  EXPECT_THAT(refused->body, HasSubstr("larger than 65536 bytes"));
}

TEST_F(PickApiWireTest, AnEmptyBodyIsRoutedByLoad) {
  httplib::Headers headers{{"x-warmpath-path", "/v1/models"},
                           {"x-gateway-model-name-rewrite", "m"}};
  const auto answer = client_.Post("/v1/pick", headers, "", kJson);
  EXPECT_EQ(answer->status, 200) << answer->body;
}

}  // namespace
}  // namespace warmpath::testing
