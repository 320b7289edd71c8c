#include "client/agent/agent_config.h"

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/agent/agent_metrics.h"
#include "client/agent/config_load.h"
#include "core/base/strings.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IsOk;
using ::testing::Pair;
using testing::StatusIs;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

absl::StatusOr<AgentConfig> FromYaml(std::string_view text) {
  AgentConfig config;
  if (absl::Status status = ApplyYaml(text, "a.yaml", &config); !status.ok()) return status;
  if (absl::Status status = CompleteConfig(&config); !status.ok()) return status;
  return config;
}

absl::StatusOr<AgentConfig> FromFlags(const std::vector<std::string>& arguments) {
  auto line = ParseCommandLine(arguments);
  if (!line.ok()) return line.status();
  return line->config;
}

constexpr char kWhole[] = R"(
router: [10.0.0.1:9002, 10.0.0.2:9002]
router_ca: /etc/ca.pem
metrics_host: 0.0.0.0
metrics_port: 0
log_level: debug
engines:
  - worker_id: gpu-0
    engine_http: http://127.0.0.1:8000/
    events: tcp://127.0.0.1:5557
    replay: tcp://127.0.0.1:5657
    topic: kv@
    ranks: 2
    advertise: 10.0.0.9:8000
    model: org/model
    state_file: /var/lib/warmpath-agent/gpu-0
    lora_id_map: {1: sql, 2: "chat"}
    labels: {zone: a}
    reports_reuse: true
    prefill_tokens_per_s: 9500.5
    host_copy_tokens_per_s: 80000
  - engine_http: http://127.0.0.1:8001
    advertise: [10.0.0.9:8001]
)";

TEST(AgentConfigTest, ReadsAWholeFile) {
  const auto config = FromYaml(kWhole);
  ASSERT_THAT(config, IsOk());
  ASSERT_EQ(config->routers.size(), 2U);
  EXPECT_EQ(config->routers[1].address, "10.0.0.2:9002");
  EXPECT_EQ(config->routers[1].ca_file, "/etc/ca.pem");
  EXPECT_EQ(config->metrics_port, 0U);
  EXPECT_EQ(config->log_level, LogLevel::kDebug);
  ASSERT_EQ(config->engines.size(), 2U);
  const EngineConfig& engine = config->engines[0];
  EXPECT_EQ(engine.worker_id, "gpu-0");
  EXPECT_EQ(engine.http, "http://127.0.0.1:8000");
  EXPECT_EQ(engine.ranks, 2U);
  EXPECT_THAT(engine.lora_id_map, ElementsAre(Pair(1, "sql"), Pair(2, "chat")));
  EXPECT_THAT(engine.labels, ElementsAre(Pair("zone", "a")));
  EXPECT_TRUE(engine.reports_reuse);
  EXPECT_EQ(engine.prefill_tokens_per_s, 9500.5);
  EXPECT_EQ(engine.host_copy_tokens_per_s, 80'000);
  EXPECT_EQ(config->engines[1].worker_id, "10.0.0.9:8001");
  EXPECT_FALSE(config->engines[1].has_events());
}

TEST(AgentConfigTest, UnknownKeysAreRefusedWithTheirLine) {
  AgentConfig config;
  EXPECT_THAT(
      ApplyYaml("router: a:1\nrouterr: b:1\nengines:\n  - engine_http: http://a:1\n"
                "    evnts: tcp://a:1\n    router: x:1\nmodel: m\n",
                "a.yaml", &config),
      StatusIs(kInvalid, AllOf(HasSubstr("a.yaml:2: unknown key \"routerr\"; known: router"),
                               HasSubstr("a.yaml:5: unknown key \"evnts\""),
                               HasSubstr("a.yaml:6: \"router\" belongs to the top"),
                               HasSubstr("a.yaml:7: \"model\" belongs into an entry"))));
}

TEST(AgentConfigTest, BadValuesAreRefusedWithTheirLine) {
  AgentConfig config;
  EXPECT_THAT(ApplyYaml("metrics_port: 70000\nlog_level: loud\nrouter: {}\nmetrics_host: [a]\n"
                        "engines:\n  - ranks: -1\n    reports_reuse: maybe\n    labels: [x]\n"
                        "    lora_id_map: {a: b}\n    prefill_tokens_per_s: fast\n  - 7\n",
                        "a.yaml", &config),
              StatusIs(kInvalid, AllOf(HasSubstr("a.yaml:1: metrics_port: \"70000\" is not"),
                                       HasSubstr("a.yaml:2: log_level"),
                                       HasSubstr("a.yaml:4: metrics_host: must be one value"),
                                       HasSubstr("a.yaml:6: ranks: \"-1\""),
                                       HasSubstr("a.yaml:7: reports_reuse: \"maybe\""),
                                       HasSubstr("a.yaml:8: labels: \"x\" is not KEY=VALUE"),
                                       HasSubstr("a.yaml:9: lora_id_map: \"a\" is not a LoRA"),
                                       HasSubstr("a.yaml:10: prefill_tokens_per_s"),
                                       HasSubstr("a.yaml:11: engines: each entry"))));
}

TEST(AgentConfigTest, TextThatIsNoYamlIsRefused) {
  AgentConfig config;
  for (const char* text :
       {"{", "a: [", "\t- x", "- a\n- b\n", "just words", "a: b: c", "? [x]\n: y"}) {
    EXPECT_THAT(ApplyYaml(text, "a.yaml", &config), StatusIs(kInvalid, HasSubstr("a.yaml:")))
        << text;
  }
  EXPECT_THAT(ApplyYaml("router: a:1\nrouter: b:1\n", "a.yaml", &config),
              StatusIs(kInvalid, HasSubstr("a.yaml:2: \"router\" is there twice")));
  EXPECT_THAT(ApplyYaml(std::string(2 << 20, ' '), "a.yaml", &config),
              StatusIs(kInvalid, HasSubstr("larger")));
  EXPECT_THAT(ApplyYaml("", "a.yaml", &config), IsOk());
}

TEST(AgentConfigTest, AllMistakesOfTheWholeAreListed) {
  EXPECT_THAT(FromYaml("engines:\n"
                       "  - {engine_http: 'ftp://a', worker_id: 'sp ace'}\n"
                       "  - {engine_http: 'http://a:1', replay: 'tcp://a:2'}\n"
                       "  - {engine_http: 'http://a:1', ranks: 3, advertise: [a:1, a:2]}\n"),
              StatusIs(kInvalid, AllOf(HasSubstr("router: missing"),
                                       HasSubstr("engines[0].engine_http: \"ftp://a\" is no URL"),
                                       HasSubstr("engines[0].worker_id: \"sp ace\""),
                                       HasSubstr("engines[1].replay: set without events"),
                                       HasSubstr("engines[2].advertise: 2 addresses for 3 ranks"),
                                       HasSubstr("engines[2].worker_id: \"a:1\" is there twice"))));
}

TEST(AgentConfigTest, PortsOfRanksMustNotMeet) {
  const std::string head = "router: a:1\nengines:\n  - engine_http: http://a:1\n    ranks: 4\n";
  EXPECT_THAT(
      FromYaml(head + "    events: tcp://a:5557\n    replay: tcp://a:5560\n"),
      StatusIs(kInvalid,
               HasSubstr("replay: tcp://a:5560 of rank 0 is the events endpoint of rank 3")));
  EXPECT_THAT(FromYaml(head + "    events: tcp://a:5557\n    replay: tcp://a:5561\n"), IsOk());
  EXPECT_THAT(FromYaml(head + "    events: 127.0.0.1:5557\n"),
              StatusIs(kInvalid, HasSubstr("no ZeroMQ endpoint")));
  EXPECT_THAT(FromYaml(head + "    events: ipc:///tmp/x\n"),
              StatusIs(kInvalid, HasSubstr("no endpoint for rank 3")));
  EXPECT_THAT(FromYaml(head + "    events: tcp://a:65533\n"),
              StatusIs(kInvalid, HasSubstr("rank 3")));
}

TEST(AgentConfigTest, EndpointsOfRanks) {
  EXPECT_EQ(*EndpointOfRank("tcp://h:5557", 0), "tcp://h:5557");
  EXPECT_EQ(*EndpointOfRank("tcp://h:5557", 3), "tcp://h:5560");
  EXPECT_EQ(*EndpointOfRank("tcp://[::1]:5557", 1), "tcp://[::1]:5558");
  EXPECT_EQ(*EndpointOfRank("inproc://kv", 2), "inproc://kv_dp2");
  EXPECT_EQ(*EndpointOfRank("ipc:///tmp/kv", 0), "ipc:///tmp/kv");
  EXPECT_FALSE(EndpointOfRank("ipc:///tmp/kv", 1).ok());
}

TEST(AgentConfigTest, FlagsMakeOneEngine) {
  const auto config = FromFlags({"--router", "a:1,b:2", "--engine-http=http://127.0.0.1:8000",
                                 "--events", "tcp://127.0.0.1:5557", "--lora-id-map", "1=x,2=y",
                                 "--metrics-port=0", "--worker-id", "w"});
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->routers.size(), 2U);
  ASSERT_EQ(config->engines.size(), 1U);
  EXPECT_EQ(config->engines[0].worker_id, "w");
  EXPECT_THAT(config->engines[0].advertise, ElementsAre("127.0.0.1:8000"));
  EXPECT_EQ(config->engines[0].lora_id_map.size(), 2U);
}

TEST(AgentConfigTest, FlagsRuleOverTheFile) {
  const std::string path = ::testing::TempDir() + "/agent_config_test.yaml";
  std::ofstream(path) << "router: a:1\nengines:\n  - {engine_http: 'http://a:1', model: m}\n";
  const auto config = FromFlags({"--model=n", "--config", path, "--router-ca", "/ca"});
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->engines[0].model, "n");
  EXPECT_EQ(config->engines[0].http, "http://a:1");
  EXPECT_EQ(config->routers[0].ca_file, "/ca");
  std::ofstream(path) << kWhole;
  EXPECT_THAT(FromFlags({"--config", path, "--model=n"}),
              StatusIs(kInvalid, HasSubstr("--model: the configuration file has 2 engines")));
  std::remove(path.c_str());
  EXPECT_THAT(FromFlags({"--config", path}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("can not read")));
}

TEST(AgentConfigTest, BadFlags) {
  EXPECT_THAT(FromFlags({"--nonsense", "1"}), StatusIs(kInvalid, HasSubstr("--nonsense: unknown")));
  EXPECT_THAT(FromFlags({"--router"}), StatusIs(kInvalid, HasSubstr("value is missing")));
  EXPECT_THAT(FromFlags({"word"}), StatusIs(kInvalid, HasSubstr("is no flag")));
  EXPECT_THAT(FromFlags({"--ranks=0"}), StatusIs(kInvalid, HasSubstr("--ranks: \"0\"")));
  EXPECT_THAT(FromFlags({}), StatusIs(kInvalid, HasSubstr("router: missing")));
  EXPECT_THAT(FromFlags({"--router-cert=/c", "--router=a:1", "--engine-http=http://a:1"}),
              StatusIs(kInvalid, HasSubstr("router_cert and router_key")));
}

TEST(AgentConfigTest, SwitchesNeedNoWholeConfiguration) {
  const std::vector<std::string> help = {"--help"};
  EXPECT_TRUE(ParseCommandLine(help)->help);
  const std::vector<std::string> keys = {"--print-keys"};
  EXPECT_TRUE(ParseCommandLine(keys)->print_keys);
}

// Setting a key to its documented default must change nothing.
TEST(AgentConfigTest, Fault30_DocumentedDefaultsAreTheCodes) {
  const AgentConfig agent;
  const EngineConfig engine;
  for (const ConfigKey& key : ConfigKeys()) {
    SCOPED_TRACE(key.name);
    EXPECT_NE(HelpText().find(absl::StrCat("--", std::string(key.name).substr(0, 3))),
              std::string::npos);
    if (key.default_value.empty() || key.default_value.front() == '(') continue;
    AgentConfig agent_set;
    EngineConfig engine_set;
    const std::vector<std::string> items = {std::string(key.default_value)};
    ASSERT_THAT(key.set(items, &agent_set, &engine_set), IsOk());
    EXPECT_EQ(agent_set.metrics_host, agent.metrics_host);
    EXPECT_EQ(agent_set.metrics_port, agent.metrics_port);
    EXPECT_EQ(agent_set.log_level, agent.log_level);
    EXPECT_EQ(engine_set.engine, engine.engine);
    EXPECT_EQ(engine_set.ranks, engine.ranks);
    EXPECT_EQ(engine_set.block_size, engine.block_size);
    EXPECT_EQ(engine_set.num_blocks, engine.num_blocks);
    EXPECT_EQ(engine_set.reserved_blocks, engine.reserved_blocks);
    EXPECT_EQ(engine_set.routing_block, engine.routing_block);
    EXPECT_EQ(engine_set.prefill_tokens_per_s, engine.prefill_tokens_per_s);
    EXPECT_EQ(engine_set.host_copy_tokens_per_s, engine.host_copy_tokens_per_s);
    EXPECT_EQ(engine_set.reports_reuse, engine.reports_reuse);
    EXPECT_EQ(engine_set.scrape_interval_ms, engine.scrape_interval_ms);
    EXPECT_EQ(engine_set.event_queue, engine.event_queue);
    EXPECT_EQ(engine_set.max_blocks, engine.max_blocks);
    EXPECT_EQ(engine_set.max_pending, engine.max_pending);
  }
}

TEST(AgentConfigTest, Fault30_TheDocumentHoldsTheTables) {
  std::ifstream file(WARMPATH_AGENT_DOC);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_NE(text.str().find(ConfigKeysAsMarkdown()), std::string::npos)
      << "docs/warmpath-agent.md must hold:\n"
      << ConfigKeysAsMarkdown();
  EXPECT_NE(text.str().find(AgentMetricsAsMarkdown()), std::string::npos)
      << "docs/warmpath-agent.md must hold:\n"
      << AgentMetricsAsMarkdown();
}

TEST(AgentMetricsTest, PageHasEveryMetricOfTheTable) {
  WorkerView worker;
  worker.worker = "w\"1";
  worker.ranks.push_back({.rank = 0, .running = true, .engine_seq = 41});
  worker.ranks.push_back({.rank = 1});  // not begun: no series
  worker.ranks[0].causes.Set(FeedCause::kGap);
  worker.routers.push_back({.router = "r:1", .registered = true});
  const std::string page = MetricsPage({worker});
  for (const MetricInfo& metric : AgentMetrics()) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat("# TYPE ", ToAbsl(metric.name),
                                             metric.counter ? " counter" : " gauge")));
    EXPECT_EQ(metric.counter, metric.name.ends_with("_total")) << metric.name;
  }
  EXPECT_THAT(page, HasSubstr("warmpath_agent_engine_seq{worker=\"w\\\"1\",rank=\"0\"} 41"));
  EXPECT_THAT(page, HasSubstr("cause=\"gap\"} 1"));
  EXPECT_THAT(page, HasSubstr("warmpath_agent_exact{worker=\"w\\\"1\",rank=\"0\"} 0"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("rank=\"1\"")));
}

}  // namespace
}  // namespace warmpath
