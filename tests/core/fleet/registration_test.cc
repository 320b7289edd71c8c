// What Register accepts, and what it refuses with which words.
#include "core/fleet/registration.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/fleet_harness.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const Registration& registration, const std::string& words) {
  EXPECT_THAT(ValidateRegistration(registration),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)));
}

TEST(ValidateRegistrationTest, AcceptsAFullOne) {
  Registration registration = MakeRegistration("node-7.gpu_0:a", 4);
  registration.aliases = {"llama-latest"};
  registration.loras = {"sql", "chat"};
  registration.labels = {{"zone", "a"}};
  EXPECT_THAT(ValidateRegistration(registration), IsOk());
}

TEST(ValidateRegistrationTest, NamesTheFieldThatIsWrong) {
  const Registration good = MakeRegistration("w");
  Registration bad = good;
  bad.agent_instance = "short";
  ExpectRefused(bad, "agent_instance: 5 bytes; must be 16");

  for (const std::string& id : {std::string(), std::string("a b"), std::string("a/b"),
                                std::string("a\n"), std::string(129, 'x')}) {
    bad = good;
    bad.worker_id = id;
    ExpectRefused(bad, "worker_id: must be 1 to 128 letters");
  }
  bad = good;
  bad.model = "";
  ExpectRefused(bad, "model: must not be empty");
  bad.model = std::string(257, 'm');
  ExpectRefused(bad, "model: 257 bytes; at most 256");
  bad.model = std::string("m\0x", 3);
  ExpectRefused(bad, "model: must not contain control characters");
  bad = good;
  bad.aliases = std::vector<std::string>(65, "a");
  ExpectRefused(bad, "aliases: 65 entries; at most 64");
  bad = good;
  bad.loras = std::vector<std::string>(1025, "a");
  ExpectRefused(bad, "loras: 1025 entries; at most 1024");
  bad = good;
  bad.loras = {"llama"};
  ExpectRefused(bad, "loras: 'llama' is also the model's own name");
  bad = good;
  bad.labels = std::vector<std::pair<std::string, std::string>>(65, {"k", "v"});
  ExpectRefused(bad, "labels: 65 entries; at most 64");
  bad = MakeRegistration("w", 4);
  for (int i = 0; i < 255; ++i) bad.loras.push_back(std::string(250, 'x') + std::to_string(i));
  EXPECT_THAT(ValidateRegistration(bad), IsOk());
  for (int i = 255; i < 270; ++i) bad.loras.push_back(std::string(250, 'x') + std::to_string(i));
  ExpectRefused(bad, "at most 262144");
}

TEST(ValidateRegistrationTest, NamesTheRankThatIsWrong) {
  const Registration good = MakeRegistration("w", 2);
  Registration bad = good;
  bad.ranks.clear();
  ExpectRefused(bad, "ranks: must list at least one");
  bad = MakeRegistration("w", 257);
  ExpectRefused(bad, "ranks: 257 entries; at most 256");
  bad = good;
  bad.ranks[1].rank = 0;
  ExpectRefused(bad, "ranks[1].rank: 0; ranks must be 0..1, each once");
  bad.ranks[1].rank = 2;
  ExpectRefused(bad, "ranks[1].rank: 2; ranks must be 0..1, each once");
  bad = good;
  bad.ranks[1].address = "nowhere";
  ExpectRefused(bad, "ranks[1].address: 'nowhere' is not of the form ip:port");
  for (const char* address : {":", ":80", "h:", "h:0", "h:65536", "h:8x", "h:-1", "http://h:80/",
                              "a b:80", "h:80,i:80"}) {
    bad.ranks[1].address = address;
    ExpectRefused(bad, "is not of the form ip:port");
  }
  for (const char* address : {"h:1", "pod-7.svc.local:65535", "[::1]:8000"}) {
    bad.ranks[1].address = address;
    EXPECT_THAT(ValidateRegistration(bad), IsOk()) << address;
  }
  bad = good;
  bad.ranks[0].epoch = 0;
  ExpectRefused(bad, "ranks[0].epoch: must be the Unix time in nanoseconds, not 0");
  bad.ranks[0].epoch = std::uint64_t{1} << 63;
  ExpectRefused(bad,
                "ranks[0].epoch: must be the Unix time in nanoseconds, not 9223372036854775808");
  bad.ranks[0].epoch = (std::uint64_t{1} << 63) - 1;
  EXPECT_THAT(ValidateRegistration(bad), IsOk());
  bad = good;
  bad.ranks[0].engine_block_size = 0;
  ExpectRefused(bad, "ranks[0].engine_block_size: 0; must be 1..");
  bad.ranks[0].has_events = false;
  EXPECT_THAT(ValidateRegistration(bad), IsOk()) << "without events nothing is known of blocks";
  bad = good;
  for (const double rate : {std::numeric_limits<double>::quiet_NaN(), -1.0, 1e-300, 0.5, 1.1e9,
                            std::numeric_limits<double>::infinity()}) {
    bad.ranks[0].prefill_tokens_per_s = rate;
    ExpectRefused(bad, "ranks[0].prefill_tokens_per_s");
    bad = good;
    bad.ranks[0].host_copy_tokens_per_s = rate;
    ExpectRefused(bad, "ranks[0].host_copy_tokens_per_s");
    bad = good;
  }
}

TEST(ValidateRegistrationTest, RefusesAnUnknownProtocol) {
  Registration registration = MakeRegistration("w");
  registration.protocol_min = 2;
  registration.protocol_max = 3;
  EXPECT_THAT(ValidateRegistration(registration),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("speaks versions 2 to 3, this router speaks 1")));
  registration.protocol_min = 1;
  EXPECT_THAT(ValidateRegistration(registration), IsOk());
}

TEST(BlockSizeTest, IsTheSmallestMultipleOfTheFirstEngineBlockFrom64On) {
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> cases = {
      {1, 64}, {16, 64}, {32, 64}, {48, 96}, {64, 64}, {65, 65}, {528, 528}};
  for (const auto& [engine, routing] : cases) {
    Registration registration = MakeRegistration("w");
    registration.ranks[0].engine_block_size = engine;
    EXPECT_EQ(DeriveBlockSize({}, registration), routing) << engine;
  }
  PoolConfig configured;
  configured.routing_block_size = 128;
  EXPECT_EQ(DeriveBlockSize(configured, MakeRegistration("w")), 128u);
}

TEST(FleetConfigTest, NamesTheSettingThatIsOutOfBounds) {
  EXPECT_THAT(ValidateFleetConfig({}), IsOk());
  FakeClock clock;
  const auto expect_refused = [&clock](const FleetConfig& config, const std::string& words) {
    EXPECT_THAT(Fleet::Create(config, &clock, 1),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words)));
  };
  FleetConfig config;
  config.pools.resize(1);
  expect_refused(config, "pools: a name must have");
  config.pools[0].name = "a";
  config.pools[0].prefix_aware.prefix_length = 1023;
  expect_refused(config, "pools['a']: prefix_aware.prefix_length: 1023; must be 1024..65536");
  config.pools[0].prefix_aware = {.prefix_length = 1024, .concurrency_threshold = 1025};
  expect_refused(config, "concurrency_threshold: 1025; must be 1..1024");
  config.pools[0].prefix_aware = {};
  config.pools[0].index_bound_bytes = 0;
  expect_refused(config, "index_bound_bytes");
  config.pools[0].index_bound_bytes = 1 << 20;
  config.pools[0].max_wait = -absl::Seconds(1);
  expect_refused(config, "max_wait");
  config.pools[0].max_wait = absl::ZeroDuration();
  config.pools.push_back(config.pools[0]);
  expect_refused(config, "pools['a']: the name stands for another pool");
  config.pools[1].name = "b";
  config.pools[1].aliases = {"a"};
  expect_refused(config, "pools['b'].aliases: 'a'");
  config.pools[1].aliases = {"c"};
  config.max_pools = 1;
  expect_refused(config, "max_pools: 1;");
  config.max_pools = 2;
  config.heartbeat = absl::ZeroDuration();
  expect_refused(config, "heartbeat");
  config.heartbeat = absl::Seconds(2);
  EXPECT_THAT(Fleet::Create(config, &clock, 1), IsOk());
}

}  // namespace
}  // namespace warmpath::testing
