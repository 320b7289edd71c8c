// What a session says of holes in each message.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/publish/router_session_fixture.h"
#include "tests/testing/status_matchers.h"

namespace warmpath::testing {
namespace {

using ::testing::ElementsAre;

TEST_F(RouterSessionTest, SnapshotsDeltasAndSequencesSayWhetherThereAreHoles) {
  no_holes_ = {true};
  Change({}, {1});
  Begin(7);
  Write();
  Change({}, {2});
  Write();
  Change({}, {});
  now_ += absl::Milliseconds(100);
  Write();
  EXPECT_THAT(said_, ElementsAre(true, true, true));
  said_.clear();
  no_holes_ = {false};
  Change({1}, {});
  Write();
  Change({}, {});
  now_ += absl::Milliseconds(100);
  Write();
  no_holes_ = {true};
  Change({2}, {});
  Write();
  EXPECT_THAT(said_, ElementsAre(false, false, true));
}

TEST_F(RouterSessionTest, PartsOfAPieceSayNoHolesOnlyIfThereWereNone) {
  Begin(7);
  v1::RouterUpdate small = Registered(8);
  small.mutable_registered()->set_max_hashes_per_message(10);
  Write();
  session_.OnStreamEnd();
  session_.OnStreamStart(now_);
  v1::WorkerUpdate update;
  session_.Next(now_, &update);
  model_.Begin(8);
  model_.Apply(update);
  ASSERT_THAT(session_.OnMessage(small, now_), IsOk());
  Write();
  said_.clear();
  no_holes_ = {true};
  Change({}, Range(1, 25));
  Write();
  EXPECT_THAT(said_, ElementsAre(false, false, true)) << "the snapshot had some";
  said_.clear();
  Change({}, Range(101, 25));
  Write();
  EXPECT_THAT(said_, ElementsAre(true, true, true));
  said_.clear();
  no_holes_ = {false};
  Change(Range(1, 15), {});
  Write();
  EXPECT_THAT(said_, ElementsAre(false, false));
}

TEST_F(RouterSessionTest, WhatIsLeftOfAChangeThatWasUndoneIsNamedAtOnce) {
  no_holes_ = {true};
  Begin(7);
  Write();
  said_.clear();
  const std::vector<ChainHash> all = Range(1, 5000);
  Change({}, all);
  ASSERT_EQ(Write(1), 1);
  // Half of it went out; now the engine takes back just the other half.
  std::vector<ChainHash> rest;
  for (const ChainHash hash : all) {
    if (!model_.held(0).contains(hash)) rest.push_back(hash);
  }
  ASSERT_FALSE(rest.empty());
  no_holes_ = {false};
  Change(std::move(rest), {});
  ASSERT_EQ(Write(), 1) << "without waiting for a sequence to be due, and once";
  EXPECT_THAT(said_, ElementsAre(true, false));
  ExpectEqual();
}

TEST_F(RouterSessionTest, ThePartsThatMakeUpForABrokenStreamPromiseNothingButTheLast) {
  no_holes_ = {true};
  Begin(7);
  Write();
  Change({}, Range(1, 4000));
  Change({}, Range(5001, 4000));
  Write(1 << 20, /*ack=*/false);
  said_.clear();
  session_.OnStreamEnd();
  Begin(8, {});
  Write();
  ExpectEqual();
  EXPECT_THAT(said_, ElementsAre(false, true));
}

}  // namespace
}  // namespace warmpath::testing
