// Who is no candidate, and what is said when nobody is one.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/routing/picker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/core/routing/pool_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::StatusIs;

class RefusalTest : public testing::PoolFixture {};

TEST_F(RefusalTest, SubsetIsHonouredByAddressAndByHost) {
  AddTargets(3);
  AddTarget({.worker_id = "six", .address = "[fd00::6]:9000"});
  const std::vector<ChainHash> chain = Chain(1, 50);
  Store(0, chain);
  Query query = Ask(chain);
  query.subset_present = true;
  query.subset = {"10.0.0.1:8000"};
  EXPECT_EQ(Where(query), "w1");
  query.subset = {"10.0.0.2"};
  EXPECT_EQ(Where(query), "w2");
  query.subset = {"fd00::6"};
  EXPECT_EQ(Where(query), "six");
  query.subset = {"10.0.0.1:8001", "10.0.0"};
  EXPECT_THAT(Pick(query), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    AllOf(HasSubstr("subset"), HasSubstr("2 endpoints"))));
  query.subset = {};
  EXPECT_THAT(Pick(query), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("subset")));
}

TEST_F(RefusalTest, ExclusionsByAddressAndByWorker) {
  AddTargets(2);
  const std::vector<ChainHash> chain = Chain(1, 50);
  Store(0, chain);
  Query query = Ask(chain);
  query.exclude = {"10.0.0.0:8000"};
  EXPECT_EQ(Where(query), "w1");
  query.exclude = {"w0"};
  EXPECT_EQ(Where(query), "w1");
  query.exclude = {"w0", "10.0.0.1:8000"};
  EXPECT_THAT(Pick(query), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("exclude")));
}

TEST_F(RefusalTest, OnlyWorkersWithTheAdapterServeIt) {
  AddTargets(2);
  AddTarget({.loras = {"a", "b"}});
  Query query = Ask(Chain(1, 4));
  query.lora = "b";
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Where(query), "w2");
  query.lora = "c";
  EXPECT_THAT(Pick(query), StatusIs(absl::StatusCode::kUnavailable,
                                    AllOf(HasSubstr("lora"), HasSubstr("\"c\""))));
}

TEST_F(RefusalTest, NoWorkerIsUnavailable) {
  EXPECT_THAT(Pick(Ask(Chain(1, 4))),
              StatusIs(absl::StatusCode::kUnavailable, "pool m has no ready worker; 0 joining"));
  AddTarget({.lifecycle = Lifecycle::kLost});
  AddTarget({.lifecycle = Lifecycle::kNotReady});
  AddTargets(3);
  EditTarget(2, [](TargetState& t) { t.draining = true; });
  EditTarget(3, [](TargetState& t) { t.engine_reachable = false; });
  EditTarget(4, [](TargetState& t) {
    t.lifecycle = Lifecycle::kJoining;
    t.engine_reachable = false;
  });
  EXPECT_THAT(Pick(Ask(Chain(1, 4))),
              StatusIs(absl::StatusCode::kUnavailable, "pool m has no ready worker; 1 joining"));
}

TEST_F(RefusalTest, APoolThatNeverHadAWorkerIsUnavailable) {
  Pool fresh({.name = "new"}, CreateReferenceIndex({}), 1, 10, 1);
  EXPECT_THAT(picker_.Pick(fresh, Ask(Chain(1, 4))),
              StatusIs(absl::StatusCode::kUnavailable, "pool new has no ready worker; 0 joining"));
}

TEST_F(RefusalTest, APromptThatFitsNoCacheIsRefusedByName) {
  AddTarget({.kv_capacity_tokens = 10'000});
  AddTarget({.kv_capacity_tokens = 20'000});
  Query query;
  query.prompt_tokens = 12'000;
  EXPECT_EQ(Where(query), "w1");
  query.prompt_tokens = 20'001;
  absl::Duration retry_after = absl::Seconds(1);
  EXPECT_THAT(Pick(query, &retry_after), StatusIs(absl::StatusCode::kResourceExhausted,
                                                  AllOf(HasSubstr("20001"), HasSubstr("20000"))));
  EXPECT_EQ(retry_after, absl::ZeroDuration());  // waiting does not help
  query.prompt_tokens = 20'000;
  EXPECT_EQ(Where(query), "w1");
  // Nor does the output that a caller announces: it is the most that one will take.
  query.expected_output_tokens = 4'294'967'295;
  EXPECT_EQ(Where(query), "w1");
  // An estimate refuses nobody.
  query.prompt_tokens = 50'000;
  query.length_is_estimate = true;
  EXPECT_THAT(Pick(query), IsOk());
  query.length_is_estimate = false;
  AddTarget({.kv_capacity_tokens = 0});  // unknown: may hold anything
  EXPECT_EQ(Where(query), "w2");
  query.prompt_tokens = std::uint64_t{1} << 40;
  EXPECT_THAT(Pick(query), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prompt")));
}

TEST_F(RefusalTest, AnOutcomeThatLiesAboutItsOutputDoesNotCloseThePool) {
  AddTarget({.kv_capacity_tokens = 10'000});
  for (int i = 0; i < 30; ++i) {
    const absl::StatusOr<Decision> decision = Pick(Ask(Chain(1, 4)));
    ASSERT_THAT(decision, IsOk());
    Outcome outcome;
    outcome.reservation_id = decision->reservation_id;
    outcome.kind = OutcomeKind::kFinished;
    outcome.output_tokens = 4'294'967'295;
    ASSERT_THAT(Report(outcome), IsOk());
  }
}

TEST_F(RefusalTest, MaxWaitShedsWithATimeToRetry) {
  AddTargets(2);
  Occupy(0, 3);
  Occupy(1, 5);
  Query query = Ask(Chain(1, 4));
  query.max_wait = absl::Seconds(2);
  absl::Duration retry_after;
  EXPECT_THAT(Pick(query, &retry_after),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("3000 ms")));
  EXPECT_EQ(retry_after, absl::Seconds(1));
  EXPECT_EQ(TrafficOf(*fleet_)[0].shed, 1u);
  query.max_wait = absl::Seconds(4);
  const absl::StatusOr<Decision> decision = Pick(query, &retry_after);
  ASSERT_THAT(decision, IsOk());
  EXPECT_EQ(decision->endpoint.worker_id, "w0");
  EXPECT_THAT(decision->fallbacks, IsEmpty());  // w1 is at its limit
  EXPECT_EQ(retry_after, absl::ZeroDuration());
}

TEST_F(RefusalTest, ThePoolsMaxWaitCountsWhenTheRequestHasNone) {
  PoolConfig config = DefaultConfig();
  config.max_wait = absl::Seconds(1);
  Rebuild(config, 1, CreateReferenceIndex({}));
  AddTargets(1);
  Occupy(0, 3);
  EXPECT_THAT(Pick(Ask(Chain(1, 4))), StatusIs(absl::StatusCode::kResourceExhausted));
  Query query = Ask(Chain(1, 4));
  query.max_wait = absl::Seconds(10);
  EXPECT_THAT(Pick(query), IsOk());
}

}  // namespace
}  // namespace warmpath
