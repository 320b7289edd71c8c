#include <fstream>
#include <string>
#include <vector>

#include "core/fleet/registration.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/document.h"
#include "server/config/load.h"
#include "server/config/schema.h"
#include "server/flags.h"
#include "server/metrics.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::warmpath::testing::IsOk;
using ::warmpath::testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::StatusOr<RouterConfig> Load(std::string_view yaml) { return LoadConfig(yaml, "r.yaml"); }

TEST(ConfigTest, AnEmptyFileGivesTheDefaults) {
  for (const char* yaml : {"", "# nothing\n", "server:\nfleet: {}\n"}) {
    const auto config = Load(yaml);
    ASSERT_THAT(config, IsOk()) << yaml;
    EXPECT_EQ(EffectiveYaml(*config), EffectiveYaml(RouterConfig()));
  }
}

TEST(ConfigTest, ReadsEveryKindOfValue) {
  const auto config = Load(R"(
server:
  grpc_address: "[::1]:0"
  max_message_bytes: 2MiB
  drain_delay: 1500ms
fleet:
  create_pools: false
  max_workers: 12
pool_defaults:
  policy: round_robin
  max_wait_ms: 2000
  index_bound_bytes: 1073741824
  prefix_aware:
    prefix_length: 2048
pools:
  - name: a
    aliases: [b, "c d"]
    routing_block_size: 128
  - {name: d, policy: random}
)");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->server.grpc_address, "[::1]:0");
  EXPECT_EQ(config->server.max_message_bytes, 2u << 20);
  EXPECT_EQ(config->server.drain_delay, absl::Milliseconds(1500));
  EXPECT_FALSE(config->fleet.create_pools);
  EXPECT_EQ(config->fleet.max_workers, 12u);
  ASSERT_EQ(config->fleet.pools.size(), 2u);
  const PoolConfig& a = config->fleet.pools[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_THAT(a.aliases, ElementsAre("b", "c d"));
  EXPECT_EQ(a.routing_block_size, 128u);
  // Inherited from pool_defaults.
  EXPECT_EQ(a.policy, "round_robin");
  EXPECT_EQ(a.max_wait, absl::Seconds(2));
  EXPECT_EQ(a.index_bound_bytes, 1ull << 30);
  EXPECT_EQ(a.prefix_aware.prefix_length, 2048u);
  EXPECT_EQ(config->fleet.pools[1].policy, "random");
  EXPECT_EQ(config->fleet.pools[1].routing_block_size, 0u);
}

TEST(ConfigTest, PoolsInheritDefaultsThatStandBelowThem) {
  const auto config = Load("pools: [{name: a}]\npool_defaults: {policy: session}\n");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->fleet.pools[0].policy, "session");
}

TEST(ConfigTest, TheEffectiveConfigurationReadsBackTheSame) {
  RouterConfig config;
  config.server.grpc_address = "127.0.0.1:1";
  config.fleet.defaults.max_wait = absl::Milliseconds(250);
  config.fleet.pools.resize(2);
  config.fleet.pools[0].name = "quote \" and \\ back";
  config.fleet.pools[0].aliases = {"x", "y: z"};
  config.fleet.pools[1].name = "b";
  config.fleet.pools[1].prefix_aware.concurrency_threshold = 7;
  const std::string yaml = EffectiveYaml(config);
  const auto again = Load(yaml);
  ASSERT_THAT(again, IsOk()) << yaml;
  EXPECT_EQ(EffectiveYaml(*again), yaml);
  EXPECT_EQ(again->fleet.pools[0].name, config.fleet.pools[0].name);
  EXPECT_EQ(again->fleet.pools[1].prefix_aware.concurrency_threshold, 7u);
}

TEST(ConfigTest, AllErrorsAtOnceEachWithLineAndRemedy) {
  const auto config = Load(
      "server:\n"
      "  grpc_adress: \"x:1\"\n"
      "  http_address: nowhere\n"
      "  max_message_bytes: 1KiB\n"
      "  drain_delay: soon\n"
      "flet: {}\n"
      "pool_defaults:\n"
      "  policy: fastest\n"
      "pools:\n"
      "  - name: a\n"
      "  - name: a\n"
      "    max_wait_ms: -1\n"
      "    nonsense: 1\n");
  ASSERT_THAT(config, StatusIs(kInvalid));
  EXPECT_THAT(
      std::string(config.status().message()),
      AllOf(HasSubstr("r.yaml:2: server.grpc_adress: unknown key: did you mean grpc_address?"),
            HasSubstr("r.yaml:3: server.http_address: write host:port"),
            HasSubstr("r.yaml:4: server.max_message_bytes: 1KiB is out of bounds: write 64KiB to"),
            HasSubstr("r.yaml:5: server.drain_delay: \"soon\" is no duration: write a number"),
            HasSubstr("r.yaml:6: flet: unknown key: did you mean fleet?"),
            HasSubstr("r.yaml:8: pool_defaults.policy: \"fastest\" is unknown: use one of "
                      "marginal_cost"),
            HasSubstr("r.yaml:11: pools[1]: the model name \"a\" is used twice"),
            HasSubstr("r.yaml:12: pools[1].max_wait_ms: \"-1\" is no whole number"),
            HasSubstr("r.yaml:13: pools[1].nonsense: unknown key: remove it or use one of")));
}

TEST(ConfigTest, BadShapesAreRefused) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"server: 5\n", "server: write \"key: value\" lines"},
      {"[1, 2]\n", "write \"key: value\" lines"},
      {"just text\n", "write \"key: value\" lines"},
      {"pools: {name: a}\n", "pools: write a list"},
      {"pools: [a]\n", "pools[0]: write \"key: value\""},
      {"pools: [{policy: random}]\n", "pools[0]: has no name"},
      {"log:\n  level: loud\n", "log.level: \"loud\" is unknown: use one of debug"},
      {"log:\n  level: [debug]\n", "log.level: write a single value"},
      {"log:\n  level:\n", "log.level: has no value"},
      {"fleet: {create_pools: yes}\n", "write true or false"},
      {"fleet: {max_workers: -3}\n", "no whole number"},
      {"fleet: {max_workers: 99999999999999999999}\n", "no whole number"},
      {"fleet: {max_workers: 0}\n", "0 is out of bounds: write 1 to"},
      {"fleet: {heartbeat: 5}\n", "no duration"},
      {"server: {grpc_address: \"::1:90\"}\n", "brackets"},
      {"server: {grpc_address: \"h:70000\"}\n", "write host:port"},
      {"server: {max_message_bytes: 99999999999TiB}\n", "no size"},
      {"log: {level: info}\nlog: {level: warn}\n", "r.yaml:2: log: is given twice"},
      {"pools: [{name: a, aliases: b}]\n", "pools[0].aliases: write a list"},
      {"pools: [{name: a, aliases: [a]}]\n", "used twice"},
      {"a: [\n", "is no YAML"},
      {"a: *x\n", "is no YAML"},
      {"log: {level: warn}\n---\nlog: {level: info}\n", "second document"},
  };
  for (const auto& [yaml, message] : cases) {
    EXPECT_THAT(Load(yaml), StatusIs(kInvalid, HasSubstr(message))) << yaml;
  }
  EXPECT_THAT(Load(std::string((1 << 20) + 1, '#')), StatusIs(kInvalid, HasSubstr("1 MiB")));
  EXPECT_THAT(Load(std::string(100'000, '[')), StatusIs(kInvalid));
  EXPECT_THAT(LoadConfigFile("/nonexistent/x.yaml"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(LoadConfigFile("/"), StatusIs(kInvalid, HasSubstr("directory")));
}

// Sets everything that has bounds to one end of them.
class Extreme final : public ConfigVisitor {
 public:
  using ConfigVisitor::Integer;
  explicit Extreme(bool largest) : largest_(largest) {}

  void Text(const FieldInfo&, const TextCheck&, std::string*) override {}
  void TextList(const FieldInfo&, const TextCheck&, std::vector<std::string>*) override {}
  void Choice(const FieldInfo&, const std::vector<std::string>&, std::string*) override {}
  void Integer(const FieldInfo&, const IntegerBounds& bounds, std::uint64_t* value) override {
    *value = largest_ ? bounds.max : bounds.min;
  }
  void Time(const FieldInfo&, const DurationBounds& bounds, absl::Duration* value) override {
    *value = largest_ ? bounds.max : bounds.min;
  }
  void Switch(const FieldInfo&, bool*) override {}
  void BeginSection(const FieldInfo&) override {}
  void EndSection() override {}
  std::size_t BeginItems(const FieldInfo&, std::size_t size) override { return size; }
  void BeginItem(std::size_t) override {}
  void EndItem() override {}
  void EndItems() override {}

 private:
  const bool largest_;
};

TEST(ConfigTest, WhatTheBoundsAllowTheFleetTakes) {
  for (const bool largest : {false, true}) {
    RouterConfig config;
    Extreme extreme(largest);
    VisitConfig(extreme, config);
    EXPECT_THAT(Load(EffectiveYaml(config)), IsOk()) << "no bound is outside its field";
    EXPECT_THAT(ValidateFleetConfig(config.fleet), IsOk());
  }
}

TEST(ConfigTest, SageMakersNamesSetThePolicyAndItsKnobs) {
  const auto config = Load(R"(
pool_defaults:
  RoutingStrategy: LEAST_OUTSTANDING_REQUESTS
pools:
  - name: a
    RoutingStrategy: PREFIX_AWARE
    PrefixAwareRoutingConfig: {PrefixLength: 2048, ConcurrencyThreshold: 7}
  - {name: b, RoutingStrategy: RANDOM}
  - {name: c, policy: session}
  - {name: d}
)");
  ASSERT_THAT(config, IsOk());
  const std::vector<PoolConfig>& pools = config->fleet.pools;
  EXPECT_EQ(pools[0].policy, "prefix_aware");
  EXPECT_EQ(pools[0].prefix_aware.prefix_length, 2048u);
  EXPECT_EQ(pools[0].prefix_aware.concurrency_threshold, 7u);
  EXPECT_EQ(pools[1].policy, "random");
  EXPECT_EQ(pools[2].policy, "session");
  EXPECT_EQ(pools[3].policy, "least_outstanding");
  const std::string yaml = EffectiveYaml(*config);
  EXPECT_THAT(yaml, ::testing::Not(HasSubstr("RoutingStrategy")));
  EXPECT_THAT(yaml, ::testing::Not(HasSubstr("PrefixLength")));
  EXPECT_EQ(EffectiveYaml(*Load(yaml)), yaml);
}

TEST(ConfigTest, SageMakersNamesAreCheckedAsThereAndNotMixedWithOurs) {
  const std::string pool = "pools:\n  - name: a\n";
  const std::string knobs = "    PrefixAwareRoutingConfig:\n      PrefixLength: 1024\n";
  const std::string both = knobs + "      ConcurrencyThreshold: 1024\n";
  const std::string strategy = "    RoutingStrategy: PREFIX_AWARE\n";
  EXPECT_THAT(Load(pool + strategy + both), IsOk());
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"    RoutingStrategy: prefix_aware\n",
       "r.yaml:3: pools[0].RoutingStrategy: \"prefix_aware\" is unknown: use one of "
       "LEAST_OUTSTANDING_REQUESTS, PREFIX_AWARE, RANDOM"},
      {strategy, "r.yaml:3: pools[0].RoutingStrategy: PREFIX_AWARE needs PrefixAwareRoutingConfig"},
      {strategy + knobs, "r.yaml:4: pools[0].PrefixAwareRoutingConfig: needs both"},
      {both, "r.yaml:3: pools[0].PrefixAwareRoutingConfig: is for PREFIX_AWARE only"},
      {"    RoutingStrategy: RANDOM\n" + both,
       "PrefixAwareRoutingConfig: is for PREFIX_AWARE only"},
      {strategy + both + "    policy: prefix_aware\n",
       "r.yaml:3: pools[0].RoutingStrategy: says what policy says: remove one"},
      {strategy + both + "    prefix_aware: {prefix_length: 1024}\n",
       "r.yaml:4: pools[0].PrefixAwareRoutingConfig: says what prefix_aware says"},
      {strategy + "    PrefixAwareRoutingConfig: {PrefixLength: 1023, ConcurrencyThreshold: 1}\n",
       "r.yaml:4: pools[0].PrefixAwareRoutingConfig.PrefixLength: 1023 is out of bounds: write "
       "1024 "
       "to 65536"},
      {strategy + "    PrefixAwareRoutingConfig: {PrefixLength: 65537, ConcurrencyThreshold: 1}\n",
       "65537 is out of bounds"},
      {strategy + "    PrefixAwareRoutingConfig: {PrefixLength: 1024, ConcurrencyThreshold: 0}\n",
       "ConcurrencyThreshold: 0 is out of bounds: write 1 to 1024"},
      {strategy +
           "    PrefixAwareRoutingConfig: {PrefixLength: 1024, ConcurrencyThreshold: 1025}\n",
       "1025 is out of bounds"},
  };
  for (const auto& [lines, message] : cases) {
    EXPECT_THAT(Load(pool + lines), StatusIs(kInvalid, HasSubstr(message))) << lines;
  }
}

TEST(ConfigTest, DamagedFilesGiveAStatus) {
  const std::string yaml = EffectiveYaml(RouterConfig());
  for (std::size_t i = 0; i < yaml.size(); i += 7) {
    for (const char byte : {'\0', '\n', ':', '[', '{', '\xff', '*', '"'}) {
      std::string damaged = yaml;
      damaged[i] = byte;
      (void)Load(damaged);
    }
    (void)Load(yaml.substr(0, i));
  }
}

TEST(FlagsTest, ParsesBothSpellings) {
  const auto flags = ParseFlags(
      {"--config=a.yaml", "--ports_file", "p", "--log-level", "debug", "--check-config"});
  ASSERT_THAT(flags, IsOk());
  EXPECT_EQ(flags->config, "a.yaml");
  EXPECT_EQ(flags->ports_file, "p");
  EXPECT_EQ(flags->log_level, "debug");
  EXPECT_TRUE(flags->check_config);
}

TEST(FlagsTest, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(ParseFlags({"--nonsense"}), StatusIs(kInvalid, HasSubstr("--nonsense is unknown")));
  EXPECT_THAT(ParseFlags({"file"}), StatusIs(kInvalid, HasSubstr("no flag")));
  EXPECT_THAT(ParseFlags({"--config"}), StatusIs(kInvalid, HasSubstr("needs a value: PATH")));
  EXPECT_THAT(ParseFlags({"--version=1"}), StatusIs(kInvalid, HasSubstr("takes no value")));
  EXPECT_THAT(ParseFlags({"--"}), StatusIs(kInvalid));
}

TEST(FlagsTest, FlagsOverrideTheFile) {
  RouterFlags flags;
  flags.grpc_address = "127.0.0.1:0";
  flags.log_level = "warn";
  const auto config = ConfigFor(flags);
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->server.grpc_address, "127.0.0.1:0");
  EXPECT_EQ(config->log.level, "warn");
  flags.http_address = "bad";
  EXPECT_THAT(ConfigFor(flags), StatusIs(kInvalid, HasSubstr("--http-address bad: write")));
}

// --- Documentation is what the program prints (its defaults come from the code).

std::string ReadDoc(const std::string& name) {
  std::ifstream file(std::string(WARMPATH_SOURCE_DIR) + "/docs/" + name);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST(DocumentationTest, Fault30_ConfigurationPageMatchesTheProgram) {
  EXPECT_EQ(ReadDoc("configuration.md"), ConfigurationDocument())
      << "run: warmpath-router --print-config-docs > docs/configuration.md";
}

TEST(DocumentationTest, Fault30_MetricsPageMatchesTheProgram) {
  EXPECT_EQ(ReadDoc("metrics.md"), MetricsDocument())
      << "run: warmpath-router --print-metrics-docs > docs/metrics.md";
}

TEST(DocumentationTest, Fault30_TheExampleInThePageIsAccepted) {
  const std::string page = ConfigurationDocument();
  const std::size_t start = page.find("```yaml\n") + 8;
  EXPECT_THAT(Load(page.substr(start, page.find("```", start) - start)), IsOk());
}

TEST(DocumentationTest, Fault30_EverySettingAndFlagIsDocumentedWithItsDefault) {
  const std::string page = ConfigurationDocument();
  EXPECT_THAT(page, HasSubstr("| `server.grpc_address` | `0.0.0.0:9002` |"));
  EXPECT_THAT(page, HasSubstr("| `pool_defaults.policy` | `marginal_cost` |"));
  EXPECT_THAT(page, HasSubstr("| `pool_defaults.prefix_aware.prefix_length` | `4096` |"));
  EXPECT_THAT(page, HasSubstr("| `pools[].name` |"));
  EXPECT_THAT(page, HasSubstr("`--ports-file PATH`"));
  EXPECT_THAT(HelpText(), HasSubstr("--ports-file PATH"));
}

}  // namespace
}  // namespace warmpath
