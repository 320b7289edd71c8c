// The way to a router over TLS, and what its options may not be.
#include <fstream>
#include <sstream>
#include <string>

#include "absl/time/clock.h"
#include "client/agent/publish/router_channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/publish/fake_router.h"
#include "tests/client/agent/publish/publisher_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using testing::Driven;
using testing::FakeRouter;
using ::testing::HasSubstr;
using testing::RouterModel;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// What leaves the node is encrypted, and both ends know each other.
TEST(PublisherTlsTest, RegistersOverTlsWithBothSidesVerified) {
  const std::string folder = WARMPATH_TEST_DATA "/tls/";
  grpc::SslServerCredentialsOptions tls(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  tls.pem_root_certs = ReadFile(folder + "ca.pem");
  tls.pem_key_cert_pairs.push_back(
      {ReadFile(folder + "router.key"), ReadFile(folder + "router.pem")});
  FakeRouter router(grpc::SslServerCredentials(tls));
  router.AddScript(&testing::Serve);
  const RouterOptions good{.address = "",
                           .ca_file = folder + "ca.pem",
                           .cert_file = folder + "agent.pem",
                           .key_file = folder + "agent.key",
                           .server_name = ""};
  const auto last_error = [&router](const RouterOptions& how) {
    Driven driven(router, {}, how);
    driven.Announce();
    const absl::Time deadline = absl::Now() + absl::Seconds(15);
    while (driven.publisher().View().last_error.empty() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(2));
    }
    return driven.publisher().View().last_error;
  };
  {
    Driven driven(router, {}, good);
    driven.Announce();
    driven.Change({}, {1, 2});
    ASSERT_TRUE(router.Await([&](RouterModel& model) { return model.held() == driven.held(); }));
  }
  RouterOptions named = good;
  named.server_name = "router.test";
  {
    Driven driven(router, {}, named);
    driven.Announce();
    EXPECT_TRUE(driven.AwaitEvents(1));
  }
  const int streams = router.streams();
  EXPECT_NE(last_error({}), "") << "plaintext";
  RouterOptions other_name = good;
  other_name.server_name = "somebody.else";
  EXPECT_NE(last_error(other_name), "");
  RouterOptions nobody = good;
  nobody.cert_file.clear();
  nobody.key_file.clear();
  EXPECT_NE(last_error(nobody), "") << "no certificate of the agent's own";
  EXPECT_EQ(router.streams(), streams);
}

TEST(RouterChannelTest, NamesTheFileThatCanNotBeRead) {
  EXPECT_THAT(MakeRouterChannel({.address = "a:1", .ca_file = "/nonexistent.pem"}),
              testing::StatusIs(absl::StatusCode::kNotFound, HasSubstr("router-ca")));
  EXPECT_THAT(MakeRouterChannel({.address = "a:1", .cert_file = "/x", .key_file = "/y"}),
              testing::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("router-cert")));
}

}  // namespace
}  // namespace warmpath
