// SageMaker's routing strategies as its documentation describes them, configured under its names,
// asked over HTTP with its header.
#include <httplib.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/load.h"
#include "tests/server/test_router.h"

namespace warmpath::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kInstances = 4;
constexpr char kHeader[] = "X-Amzn-SageMaker-Prefix-Aware-Id";

RouterConfig ConfigFor(const std::string& settings) {
  const auto config = LoadConfig("pools:\n  - name: m\n" + settings, "endpoint.yaml");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : RouterConfig();
}

// An endpoint with some instances.
class Endpoint {
 public:
  explicit Endpoint(const std::string& settings) : router_(ConfigFor(settings)) {
    for (int i = 0; i < kInstances; ++i) {
      instances_.push_back(std::make_unique<TestWorker>(
          router_, TestWorker::Options{.id = absl::StrCat("i", i),
                                       .address = absl::StrCat("10.0.0.", i, ":8000")}));
      instances_.back()->Join();
    }
    client_ = std::make_unique<httplib::Client>("127.0.0.1", router_.app().pick_port());
    client_->set_tcp_nodelay(true);
  }

  struct Choice {
    int status = 0;
    std::string instance;
    std::string reason;
    std::string body;
  };

  Choice Invoke(const std::string& path, const std::string& body, const char* id = nullptr) {
    httplib::Headers headers{{"x-warmpath-path", path}};
    if (id != nullptr) headers.emplace(kHeader, id);
    const auto answer = client_->Post("/v1/pick", headers, body, "application/json");
    Choice choice{.status = answer->status,
                  .instance = answer->get_header_value("x-gateway-destination-endpoint"),
                  .reason = answer->get_header_value("x-warmpath-reason"),
                  .body = answer->body};
    if (answer->status == 200) {
      last_ = std::stoull(answer->get_header_value("x-warmpath-reservation-id"));
    }
    return choice;
  }
  // One that has ended before the next comes.
  Choice InvokeToItsEnd(const std::string& path, const std::string& body,
                        const char* id = nullptr) {
    const Choice choice = Invoke(path, body, id);
    EXPECT_EQ(choice.status, 200) << choice.body;
    router_.FinishRequest(last_);
    return choice;
  }
  Choice Chat(const std::string& text, const char* id = nullptr) {
    return InvokeToItsEnd("/v1/chat/completions", ChatBody(text), id);
  }
  static std::string ChatBody(const std::string& text) {
    return absl::StrCat(R"({"model":"m","messages":[{"role":"user","content":")", text, R"("}]})");
  }
  static std::string TextBody(const std::string& text) {
    return absl::StrCat(R"({"model":"m","prompt":")", text, R"("})");
  }

 private:
  TestRouter router_;
  std::vector<std::unique_ptr<TestWorker>> instances_;
  std::unique_ptr<httplib::Client> client_;
  std::uint64_t last_ = 0;
};

std::string PrefixAware(int length, int threshold) {
  return absl::StrCat(
      "    RoutingStrategy: PREFIX_AWARE\n    PrefixAwareRoutingConfig:\n      PrefixLength: ",
      length, "\n      ConcurrencyThreshold: ", threshold, "\n");
}

TEST(SageMakerTest, RequestsWithTheSamePrefixGoToTheSameInstance) {
  Endpoint endpoint(PrefixAware(1024, 32));
  std::set<std::string> instances;
  for (int c = 0; c < 24; ++c) {
    const std::string prefix = absl::StrCat(c, std::string(1100, 'p'));
    const auto home = endpoint.Chat(prefix);
    EXPECT_EQ(home.reason, "prefix_key");
    instances.insert(home.instance);
    EXPECT_EQ(endpoint.Chat(prefix + " and then something else").instance, home.instance);
    EXPECT_EQ(endpoint.Chat(prefix + std::string(5000, 'x')).instance, home.instance);
  }
  EXPECT_EQ(instances.size(), static_cast<std::size_t>(kInstances)) << "prefixes are spread";
}

TEST(SageMakerTest, TheIdentifierSeparatesApplications) {
  Endpoint endpoint(PrefixAware(1024, 32));
  const std::string prompt(2000, 'p');
  std::set<std::string> instances;
  for (int app = 0; app < 24; ++app) {
    const std::string id = absl::StrCat("application ", app);
    const std::string home = endpoint.Chat(prompt, id.c_str()).instance;
    EXPECT_EQ(endpoint.Chat(prompt, id.c_str()).instance, home);
    instances.insert(home);
  }
  EXPECT_EQ(instances.size(), static_cast<std::size_t>(kInstances));
}

TEST(SageMakerTest, ChatsCountCharactersOfTheMessagesAndTextCountsBytes) {
  Endpoint endpoint(PrefixAware(1024, 32));
  // 1,023 characters of three bytes each, and one more that differs: within the prefix.
  std::string wide;
  for (int i = 0; i < 1023; ++i) wide += "\xe2\x82\xac";
  std::set<std::string> chat_within;
  std::set<std::string> chat_beyond;
  std::set<std::string> text_beyond;
  for (int i = 0; i < 16; ++i) {
    const std::string letter(1, static_cast<char>('a' + i));
    chat_within.insert(endpoint.Chat(wide + letter).instance);
    chat_beyond.insert(endpoint.Chat(wide + "x" + letter).instance);
    text_beyond.insert(
        endpoint.InvokeToItsEnd("/v1/completions", Endpoint::TextBody(wide + letter)).instance);
  }
  EXPECT_GT(chat_within.size(), 1u) << "the 1,024th character counts";
  EXPECT_EQ(chat_beyond.size(), 1u) << "the 1,025th does not";
  EXPECT_EQ(text_beyond.size(), 1u) << "byte 3,070 of a text does not";
}

TEST(SageMakerTest, AtTheThresholdAnInstanceWithMoreCapacityTakesOver) {
  Endpoint endpoint(PrefixAware(1024, 3));
  const std::string body = Endpoint::ChatBody(std::string(2000, 'p'));
  std::map<std::string, int> open;
  std::string home;
  for (int i = 0; i < 3; ++i) {
    const auto choice = endpoint.Invoke("/v1/chat/completions", body);
    EXPECT_EQ(choice.reason, "prefix_key");
    home = choice.instance;
    ++open[choice.instance];
  }
  EXPECT_EQ(open.size(), 1u);
  // The home is at its threshold: the others take turns, by requests in flight.
  for (int i = 0; i < 9; ++i) {
    const auto choice = endpoint.Invoke("/v1/chat/completions", body);
    EXPECT_EQ(choice.reason, "overflow");
    EXPECT_NE(choice.instance, home);
    ++open[choice.instance];
  }
  EXPECT_EQ(open.size(), static_cast<std::size_t>(kInstances));
  for (const auto& [instance, count] : open) EXPECT_EQ(count, 3) << instance;
  EXPECT_EQ(endpoint.Invoke("/v1/chat/completions", body).reason, "all_at_threshold");
}

TEST(SageMakerTest, TheIdentifierHasItsLimits) {
  Endpoint endpoint(PrefixAware(1024, 32));
  const std::string body = Endpoint::ChatBody("x");
  const auto status = [&](const std::string& id) {
    return endpoint.Invoke("/v1/chat/completions", body, id.c_str()).status;
  };
  EXPECT_EQ(status("a"), 200);
  EXPECT_EQ(status(std::string(64, 'a')), 200);
  EXPECT_EQ(status("with space inside"), 200);
  EXPECT_EQ(status(std::string(65, 'a')), 400);
  EXPECT_EQ(status(""), 400);
  EXPECT_THAT(endpoint.Invoke("/v1/chat/completions", body, std::string(65, 'a').c_str()).body,
              HasSubstr("1 to 64 printable characters"));
}

TEST(SageMakerTest, LeastOutstandingRequestsFillsEvenly) {
  Endpoint endpoint("    RoutingStrategy: LEAST_OUTSTANDING_REQUESTS\n");
  std::map<std::string, int> open;
  for (int i = 0; i < 5 * kInstances; ++i) {
    ++open[endpoint.Invoke("/v1/chat/completions", Endpoint::ChatBody("same")).instance];
  }
  for (const auto& [instance, count] : open) EXPECT_EQ(count, 5) << instance;
}

TEST(SageMakerTest, RandomIsRandom) {
  Endpoint endpoint("    RoutingStrategy: RANDOM\n");
  std::map<std::string, int> seen;
  for (int i = 0; i < 200; ++i) ++seen[endpoint.Chat("same").instance];
  ASSERT_EQ(seen.size(), static_cast<std::size_t>(kInstances));
  for (const auto& [instance, count] : seen) EXPECT_GT(count, 20) << instance;
}

}  // namespace
}  // namespace warmpath::testing
