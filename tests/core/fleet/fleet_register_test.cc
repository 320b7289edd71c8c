// Registration: takeover, epochs, block sizes, pools and names, bounds.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/fleet/fleet_harness.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;

TEST(RegisterTest, AnswersWithSessionAndTerms) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w", 2));
  ASSERT_THAT(agent.Register(), IsOk());
  const RegisteredReply& reply = agent.registered();
  EXPECT_NE(reply.session, 0u);
  EXPECT_EQ(reply.routing_block_size, 64u);
  EXPECT_EQ(reply.hash_seed, 1337u);
  EXPECT_EQ(reply.protocol, 1u);
  EXPECT_THAT(reply.snapshot_ranks, ElementsAre(0, 1));
  const auto workers = fleet->ListWorkers("llama");
  ASSERT_EQ(workers.size(), 1u);
  EXPECT_EQ(workers[0].worker_id, "w");
  EXPECT_EQ(workers[0].agent_address, "10.0.0.1:5000");
  EXPECT_EQ(workers[0].targets.size(), 2u);
  EXPECT_THAT(fleet->ListWorkers("other"), IsEmpty());
}

TEST(RegisterTest, TheSameAgentTakesOver) {
  FleetHarness fleet;
  TestAgent first(*fleet, MakeRegistration("w"), "10.0.0.1:5000");
  TestAgent second(*fleet, MakeRegistration("w"), "10.0.0.1:6000");
  ASSERT_THAT(first.Register(), IsOk());
  ASSERT_THAT(first.Snapshot({1, 2}), IsOk());
  ASSERT_THAT(second.Register(), IsOk());
  EXPECT_NE(first.session(), second.session());
  ASSERT_TRUE(first.sink().closed().has_value());
  EXPECT_THAT(*first.sink().closed(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("superseded by 10.0.0.1:6000")));
  // The old slot serves on while the new stream owes its snapshot.
  EXPECT_EQ(fleet.Look("w"), (Glance{Lifecycle::kReady, Freshness::kDegraded, "resync"}));
  EXPECT_EQ(fleet.CreditedDepth("w", {1, 2}), 2u);
  // What the old stream still sends changes nothing, and its end ends nothing.
  EXPECT_THAT(first.Delta({1}, {}), StatusIs(absl::StatusCode::kAborted));
  first.Close();
  EXPECT_EQ(fleet->Counters().updates_wrong_session, 1u);
  EXPECT_EQ(fleet.CreditedDepth("w", {1, 2}), 2u);
  fleet.Pass(absl::Seconds(11));
  EXPECT_EQ(fleet.Look("w").lifecycle, Lifecycle::kReady);
  ASSERT_THAT(second.Snapshot({1, 3}), IsOk());
  EXPECT_EQ(fleet.Look("w"), (Glance{Lifecycle::kReady, Freshness::kExact, ""}));
  EXPECT_THAT(fleet.Dump("w"), ElementsAre(1, 3));
}

TEST(RegisterTest, AnotherAgentIsRefusedWhileTheStreamLives) {
  FleetHarness fleet;
  TestAgent first(*fleet, MakeRegistration("w"), "10.0.0.1:5000");
  Registration other = MakeRegistration("w");
  other.agent_instance = std::string(16, 'b');
  TestAgent second(*fleet, other, "10.0.0.2:5000");
  ASSERT_THAT(first.Register(), IsOk());
  fleet.clock().Advance(absl::Milliseconds(3999));
  EXPECT_THAT(second.Register(),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("10.0.0.1:5000"), HasSubstr("10.0.0.2:5000"))));
  EXPECT_FALSE(first.sink().closed().has_value());
  // Any message is a sign of life.
  ASSERT_THAT(first.Heartbeat({}), IsOk());
  fleet.clock().Advance(absl::Milliseconds(3999));
  EXPECT_THAT(second.Register(), StatusIs(absl::StatusCode::kAlreadyExists));
  // Two heartbeats of silence.
  fleet.clock().Advance(absl::Milliseconds(1));
  EXPECT_THAT(second.Register(), IsOk());
  EXPECT_THAT(*first.sink().closed(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("superseded by 10.0.0.2:5000")));
  // An ended stream holds nothing.
  second.Close();
  EXPECT_THAT(first.Register(), IsOk());
}

TEST(RegisterTest, AStaleEpochIsRefused) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w", 2));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1}), IsOk());
  agent.registration().ranks[1].epoch = 99;
  EXPECT_THAT(agent.Register(), StatusIs(kRefused, AllOf(HasSubstr("stale epoch 99"),
                                                         HasSubstr("rank 1"), HasSubstr("100"))));
  EXPECT_FALSE(agent.sink().closed().has_value()) << "the stream that is there goes on";
  ASSERT_THAT(agent.Delta({}, {2}), IsOk());
  EXPECT_THAT(fleet.Dump("w"), ElementsAre(1, 2));
  // The epoch is remembered while the worker is LOST.
  agent.Close();
  fleet.Pass(absl::Seconds(11));
  EXPECT_THAT(agent.Register(), StatusIs(kRefused, HasSubstr("stale epoch")));
}

TEST(RegisterTest, Fault01_ARestartedEngineLosesItsCreditAtOnce) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w", 2));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1, 2, 3}, 7), IsOk());
  ASSERT_THAT(agent.Snapshot({1}, 7, 1), IsOk());
  fleet.Reserve("w");
  EXPECT_EQ(fleet.CreditedDepth("w", {1, 2, 3}), 3u);
  // The agent comes back with a new process of rank 0.
  agent.registration().ranks[0].epoch = 101;
  ASSERT_THAT(agent.Register(), IsOk());
  EXPECT_EQ(fleet.CreditedDepth("w", {1, 2, 3}), 0u);
  EXPECT_THAT(fleet.Dump("w"), IsEmpty());
  EXPECT_EQ(fleet.Look("w").lifecycle, Lifecycle::kJoining);
  EXPECT_EQ(fleet.Look("w").freshness, Freshness::kNone);
  EXPECT_EQ(fleet.View("w")->engine_seq, std::nullopt);
  EXPECT_EQ(fleet.OpenReservations(), 0u);
  EXPECT_EQ(fleet.ClosedBy(CloseCause::kNewEpoch), 1u);
  EXPECT_THAT(fleet.Dump("w", Tier::kGpu, 1), ElementsAre(1)) << "the other rank keeps its blocks";
}

TEST(RegisterTest, Fault10_ARankIsATargetOfItsOwn) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("w", 2));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1, 2}, 5, 0), IsOk());
  ASSERT_THAT(agent.Snapshot({1, 9}, 6, 1), IsOk());
  EXPECT_NE(fleet.TargetOf("w", 0), fleet.TargetOf("w", 1));
  ASSERT_THAT(agent.Delta({1}, {3}, 8, Tier::kGpu, 1), IsOk());
  EXPECT_THAT(fleet.Dump("w", Tier::kGpu, 0), ElementsAre(1, 2));
  EXPECT_THAT(fleet.Dump("w", Tier::kGpu, 1), ElementsAre(3, 9));
  EXPECT_EQ(fleet.View("w", 0)->engine_seq, 5u);
  EXPECT_EQ(fleet.View("w", 1)->engine_seq, 8u);
  EXPECT_EQ(fleet.View("w", 1)->address, "10.0.0.1:8001");
  // One rank's trouble is not the other's.
  ASSERT_THAT(agent.State({}, /*reachable=*/false, 1), IsOk());
  EXPECT_TRUE(fleet.Eligible("w", 0));
  EXPECT_FALSE(fleet.Eligible("w", 1));
}

TEST(RegisterTest, Fault11_AnEngineBlockThatDoesNotDivideIsRefusedWithBothSizes) {
  FleetHarness fleet;
  TestAgent first(*fleet, MakeRegistration("a"));
  ASSERT_THAT(first.Register(), IsOk());
  Registration odd = MakeRegistration("b");
  odd.ranks[0].engine_block_size = 48;
  TestAgent second(*fleet, odd);
  EXPECT_THAT(second.Register(),
              StatusIs(kRefused, AllOf(HasSubstr("48 tokens"), HasSubstr("64 tokens"),
                                       HasSubstr("'llama'"), HasSubstr("routing_block_size"))));
  odd.ranks[0].engine_block_size = 32;
  TestAgent third(*fleet, odd);
  EXPECT_THAT(third.Register(), IsOk());
  EXPECT_EQ(third.registered().routing_block_size, 64u);
}

TEST(RegisterTest, TheBlockSizeIsFixedWhileThePoolHasWorkers) {
  FleetHarness fleet;
  TestAgent first(*fleet, MakeRegistration("a"));
  ASSERT_THAT(first.Register(), IsOk());
  Registration odd = MakeRegistration("b");
  odd.ranks[0].engine_block_size = 48;
  TestAgent second(*fleet, odd);
  first.Close();
  EXPECT_THAT(second.Register(), StatusIs(kRefused)) << "its lease runs";
  fleet.Pass(absl::Seconds(11));
  ASSERT_THAT(second.Register(), IsOk());
  EXPECT_EQ(second.registered().routing_block_size, 96u);
  EXPECT_EQ(fleet->ListPools("llama")[0].routing_block_size, 96u);
  // A lone worker may change its own.
  second.registration().ranks[0].engine_block_size = 80;
  ASSERT_THAT(second.Register(), IsOk());
  EXPECT_EQ(second.registered().routing_block_size, 80u);
  ASSERT_THAT(second.Snapshot({4}), IsOk());
  EXPECT_THAT(fleet.Dump("b"), ElementsAre(4));
  EXPECT_EQ(fleet->ListWorkers("").size(), 1u) << "the LOST worker had to go";
}

TEST(RegisterTest, AConfiguredBlockSizeRules) {
  FleetConfig config;
  config.pools.resize(1);
  config.pools[0].name = "llama";
  config.pools[0].routing_block_size = 32;
  FleetHarness fleet(config);
  Registration odd = MakeRegistration("a");
  odd.ranks[0].engine_block_size = 64;
  TestAgent refused(*fleet, odd);
  EXPECT_THAT(refused.Register(),
              StatusIs(kRefused, AllOf(HasSubstr("64 tokens"), HasSubstr("32 tokens"))));
  TestAgent accepted(*fleet, MakeRegistration("a"));
  ASSERT_THAT(accepted.Register(), IsOk());
  EXPECT_EQ(accepted.registered().routing_block_size, 32u);
}

TEST(RegisterTest, NamesResolveToPoolsAndAdapters) {
  FleetHarness fleet;
  EXPECT_THAT(fleet->Resolve("llama"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'llama' is not served here; known "
                                                              "models: none")));
  Registration registration = MakeRegistration("a");
  registration.aliases = {"llama", "llama-latest", "llama-latest"};
  registration.loras = {"sql"};
  TestAgent agent(*fleet, registration);
  ASSERT_THAT(agent.Register(), IsOk());
  const auto base = fleet->Resolve("llama");
  const auto alias = fleet->Resolve("llama-latest");
  const auto lora = fleet->Resolve("sql");
  ASSERT_THAT(base, IsOk());
  ASSERT_THAT(alias, IsOk());
  ASSERT_THAT(lora, IsOk());
  EXPECT_EQ(base->lora, std::nullopt);
  EXPECT_EQ(alias->pool, base->pool);
  EXPECT_EQ(alias->lora, std::nullopt);
  EXPECT_EQ(lora->pool, base->pool);
  EXPECT_EQ(lora->lora, "sql");
  EXPECT_THAT(fleet->Resolve("gpt"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("'gpt'"), HasSubstr("known models: llama"))));
  // A worker that registers the alias as its model joins the pool.
  Registration joining = MakeRegistration("b");
  joining.model = "llama-latest";
  TestAgent second(*fleet, joining);
  ASSERT_THAT(second.Register(), IsOk());
  EXPECT_EQ(fleet->ListWorkers("llama").size(), 2u);
  // The adapter is unloaded; its name goes.
  agent.registration().loras.clear();
  ASSERT_THAT(agent.Register(), IsOk());
  EXPECT_THAT(fleet->Resolve("sql"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(fleet->Resolve("llama-latest"), IsOk());
}

TEST(RegisterTest, AfterAStartAnUnknownModelMayStillCome) {
  FleetConfig config;
  config.warm_up = absl::Seconds(10);
  FleetHarness fleet(config);
  fleet.Pass(absl::Milliseconds(1500));
  EXPECT_THAT(fleet->Resolve("llama"),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("'llama'"), HasSubstr("started 1.5s ago"))));
  TestAgent agent(*fleet, MakeRegistration("a"));
  ASSERT_THAT(agent.Register(), IsOk());
  EXPECT_THAT(fleet->Resolve("llama"), IsOk());
  EXPECT_THAT(fleet->Resolve("gpt"), StatusIs(absl::StatusCode::kUnavailable))
      << "one pool's agents being back says nothing about another's";
  fleet.Pass(absl::Milliseconds(8500));
  EXPECT_THAT(fleet->Resolve("gpt"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(RegisterTest, APoolThatARegistrationMadeEndsWithItsLastWorker) {
  FleetConfig config;
  PoolConfig configured;
  configured.name = "mistral";
  config.pools.push_back(configured);
  config.max_pools = 3;
  FleetHarness fleet(config);
  const auto registration = [](std::string worker, std::string model) {
    Registration r = MakeRegistration(std::move(worker));
    r.model = std::move(model);
    return r;
  };
  TestAgent a(*fleet, registration("a", "llama"));
  TestAgent b(*fleet, registration("b", "gpt"));
  TestAgent c(*fleet, registration("c", "qwen"));
  ASSERT_THAT(a.Register(), IsOk());
  ASSERT_THAT(b.Register(), IsOk());
  EXPECT_THAT(c.Register(), StatusIs(absl::StatusCode::kResourceExhausted));
  const std::uint32_t number = fleet->Resolve("llama")->pool->number();
  const std::shared_ptr<Pool> kept = fleet->Resolve("llama")->pool;  // as a pick under way may

  a.Close();
  fleet.Pass(absl::Seconds(11));
  fleet.Pass(absl::Minutes(9));
  EXPECT_THAT(fleet->Resolve("llama"), IsOk()) << "LOST, but remembered";
  fleet.Pass(absl::Minutes(2));
  fleet.Pass(absl::Seconds(1));
  EXPECT_THAT(fleet->Resolve("llama"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("known models: gpt, mistral")));
  EXPECT_EQ(fleet->PoolByNumber(number), nullptr);
  EXPECT_EQ(fleet->Pools().size(), 2u);
  EXPECT_EQ(fleet->ListPools("").size(), 2u);
  EXPECT_THAT(fleet->Resolve("mistral"), IsOk()) << "configured";

  ASSERT_THAT(c.Register(), IsOk()) << "there is room for another one";
  EXPECT_EQ(fleet->PoolByNumber(number), fleet->Resolve("qwen")->pool);
  EXPECT_NE(fleet->PoolByNumber(number), kept);
  // A worker that moves to another model ends the pool that it was alone in.
  b.registration().model = "llama";
  EXPECT_THAT(b.Register(), StatusIs(absl::StatusCode::kResourceExhausted)) << "not before it left";
  b.registration().model = "mistral";
  ASSERT_THAT(b.Register(), IsOk());
  fleet.Pass(absl::Seconds(1));
  EXPECT_THAT(fleet->Resolve("gpt"), StatusIs(absl::StatusCode::kNotFound));
  b.registration().model = "llama";
  ASSERT_THAT(b.Register(), IsOk());
  EXPECT_EQ(fleet->Pools().size(), 3u);
}

TEST(RegisterTest, ANameMeansOneThing) {
  FleetHarness fleet;
  Registration registration = MakeRegistration("a");
  registration.aliases = {"small"};
  registration.loras = {"sql"};
  TestAgent agent(*fleet, registration);
  ASSERT_THAT(agent.Register(), IsOk());

  Registration other = MakeRegistration("b");
  other.model = "qwen";
  const auto register_other = [&fleet, &other] { return TestAgent(*fleet, other).Register(); };
  other.loras = {"sql"};
  EXPECT_THAT(register_other(), StatusIs(kRefused, HasSubstr("loras: 'sql' is an adapter of pool "
                                                             "'llama' already")));
  other.loras = {"llama"};
  EXPECT_THAT(register_other(), StatusIs(kRefused, HasSubstr("'llama' is the name of a pool")));
  other.loras = {};
  other.aliases = {"small"};
  EXPECT_THAT(register_other(),
              StatusIs(kRefused, HasSubstr("aliases: 'small' is an alias of pool 'llama'")));
  other.aliases = {};
  other.model = "sql";
  EXPECT_THAT(register_other(), StatusIs(kRefused, HasSubstr("model: 'sql' is an adapter")));
  other.model = "llama";
  other.aliases = {"sql"};
  EXPECT_THAT(register_other(), StatusIs(kRefused, HasSubstr("aliases: 'sql' is an adapter")));
  EXPECT_EQ(fleet->ListPools("").size(), 1u) << "nothing was made for those refused";

  // While the worker is LOST its names still resolve, but may be claimed.
  agent.Close();
  fleet.Pass(absl::Seconds(11));
  EXPECT_THAT(fleet->Resolve("sql"), IsOk());
  other.model = "qwen";
  other.aliases = {};
  other.loras = {"sql"};
  EXPECT_THAT(register_other(), IsOk());
  EXPECT_EQ(fleet->Resolve("sql")->pool->name(), "qwen");
  EXPECT_THAT(agent.Register(), StatusIs(kRefused, HasSubstr("adapter of pool 'qwen'")));
}

TEST(RegisterTest, AWorkerMovesToAnotherPool) {
  FleetHarness fleet;
  Registration registration = MakeRegistration("a");
  registration.loras = {"sql"};
  TestAgent agent(*fleet, registration);
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1}), IsOk());
  ASSERT_THAT(fleet->Drain("a", false), IsOk());
  fleet.Reserve("a");
  agent.registration().model = "qwen";
  ASSERT_THAT(agent.Register(), IsOk());
  EXPECT_THAT(fleet->ListWorkers("llama"), IsEmpty());
  EXPECT_EQ(fleet->ListWorkers("qwen").size(), 1u);
  EXPECT_EQ(fleet->Resolve("sql")->pool->name(), "qwen");
  EXPECT_EQ(fleet.OpenReservations(), 0u);
  EXPECT_EQ(fleet->ListPools("llama")[0].index.pairs, 0u);
  EXPECT_TRUE(fleet->ListWorkers("qwen")[0].draining) << "the operator's wish stands";
}

TEST(RegisterTest, AChangeOfRanksReplacesTheTargets) {
  FleetHarness fleet;
  TestAgent agent(*fleet, MakeRegistration("a", 2));
  ASSERT_THAT(agent.Register(), IsOk());
  ASSERT_THAT(agent.Snapshot({1}), IsOk());
  TestAgent again(*fleet, MakeRegistration("a", 1));
  ASSERT_THAT(again.Register(), IsOk());
  EXPECT_THAT(*agent.sink().closed(), StatusIs(absl::StatusCode::kAborted));
  EXPECT_THAT(agent.Delta({}, {2}), StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(fleet->ListWorkers("")[0].targets.size(), 1u);
  EXPECT_THAT(fleet.Dump("a"), IsEmpty());
  ASSERT_THAT(again.Snapshot({5}), IsOk());
  EXPECT_THAT(fleet.Dump("a"), ElementsAre(5));
}

TEST(RegisterTest, WorkersAndPoolsAreBounded) {
  FleetConfig config;
  config.max_workers = 2;
  config.max_pools = 2;
  FleetHarness fleet(config);
  TestAgent a(*fleet, MakeRegistration("a"));
  TestAgent b(*fleet, MakeRegistration("b"));
  TestAgent c(*fleet, MakeRegistration("c"));
  ASSERT_THAT(a.Register(), IsOk());
  ASSERT_THAT(b.Register(), IsOk());
  EXPECT_THAT(c.Register(), StatusIs(absl::StatusCode::kResourceExhausted,
                                     HasSubstr("as many as max_workers allows")));
  ASSERT_THAT(b.Register(), IsOk()) << "one that is there already needs no room";
  b.Close();
  fleet.Pass(absl::Seconds(11));
  ASSERT_THAT(c.Register(), IsOk()) << "a LOST one makes room";
  EXPECT_EQ(fleet.View("b"), std::nullopt);
  c.Close();
  for (const auto& [model, code] : std::vector<std::pair<std::string, absl::StatusCode>>{
           {"m1", absl::StatusCode::kOk}, {"m2", absl::StatusCode::kResourceExhausted}}) {
    Registration registration = MakeRegistration("c");
    registration.model = model;
    EXPECT_EQ(TestAgent(*fleet, registration).Register().code(), code) << model;
  }
}

TEST(RegisterTest, UnknownModelsMayBeRefused) {
  FleetConfig config;
  config.create_pools = false;
  config.pools.resize(1);
  config.pools[0].name = "qwen";
  config.pools[0].aliases = {"llama"};
  FleetHarness fleet(config);
  TestAgent known(*fleet, MakeRegistration("a"));
  EXPECT_THAT(known.Register(), IsOk());
  EXPECT_EQ(fleet->ListWorkers("qwen").size(), 1u);
  Registration registration = MakeRegistration("b");
  registration.model = "gpt";
  EXPECT_THAT(TestAgent(*fleet, registration).Register(),
              StatusIs(kRefused, HasSubstr("model: 'gpt' is not configured")));
}

TEST(RegisterTest, PoolsAreFoundByNumber) {
  FleetHarness fleet;
  TestAgent a(*fleet, MakeRegistration("a"));
  ASSERT_THAT(a.Register(), IsOk());
  Registration registration = MakeRegistration("b");
  registration.model = "qwen";
  TestAgent b(*fleet, registration);
  ASSERT_THAT(b.Register(), IsOk());
  const auto pools = fleet->Pools();
  ASSERT_EQ(pools.size(), 2u);
  EXPECT_EQ(fleet->PoolByNumber(1), pools[1]);
  EXPECT_EQ(pools[1]->number(), 1u);
  EXPECT_EQ(fleet->PoolByNumber(2), nullptr);
  EXPECT_EQ(fleet->Resolve("qwen")->pool, pools[1]);
}

}  // namespace
}  // namespace warmpath::testing
