// Any course of changes, breaks, resyncs and epochs must end with both sides equal; and when a
// message says that there are no holes, each block that the router holds comes of a state of the
// engine, no older than the last one that was told as a whole, which holds the chain up to it.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/agent/publish/router_session.h"
#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/agent/publish/router_model.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

using ::testing::IsEmpty;
using testing::IsOk;
using testing::RouterModel;

// Hashes are of chains of ten blocks: 0 to 9, 10 to 19, ...
bool HasChainTo(const RouterModel::Set& held, ChainHash hash) {
  for (ChainHash at = hash - hash % 10; at <= hash; ++at) {
    if (!held.contains(at)) return false;
  }
  return true;
}
bool HasHoles(const RouterModel::Set& held) {
  std::optional<ChainHash> before;
  for (const ChainHash hash : held) {
    if (hash % 10 != 0 && before != hash - 1) return true;
    before = hash;
  }
  return false;
}

// All states of one engine process by their sequence.
using States = std::map<std::uint64_t, RouterModel::Set>;

void ExpectNoHoles(const RouterModel::Set& router, std::optional<std::uint64_t> told,
                   const States& states) {
  if (!HasHoles(router)) return;
  for (const ChainHash hash : router) {
    const bool explained =
        std::any_of(states.lower_bound(told.value_or(0)), states.end(),
                    [hash](const auto& state) { return HasChainTo(state.second, hash); });
    ASSERT_TRUE(explained) << "block " << hash;
  }
}

TEST(RouterSessionRandomTest, AnyCourseOfEventsEndsInEqualState) {
  int whole = 0;
  int parts = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    RouterSession session({.window = 1 + random.Below(6), .max_pending = 400}, seed);
    v1::Register registration;
    for (Rank rank = 0; rank < 2; ++rank) {
      registration.add_ranks()->set_rank(rank);
      registration.mutable_ranks(static_cast<int>(rank))->set_has_events(true);
      registration.mutable_ranks(static_cast<int>(rank))->set_epoch(1);
    }
    session.SetRegister(registration);
    RouterModel model;
    std::vector<RouterModel::Set> held(2);
    std::vector<std::optional<std::uint64_t>> seq(2);
    std::vector<Epoch> epochs(2, 1);
    std::vector<States> states(2);
    absl::Time now = absl::FromUnixSeconds(1);
    std::uint64_t sessions = 0;
    bool open = false;
    const auto write_one = [&] {
      if (const auto rank = session.SnapshotWanted(now)) {
        RankSnapshot snapshot{
            .rank = *rank, .engine_seq = seq[*rank], .no_holes = !HasHoles(held[*rank])};
        for (const ChainHash hash : held[*rank]) {
          snapshot.held[0].push_back(hash);
          snapshot.digests[0].Insert(hash);
        }
        session.GiveSnapshot(std::move(snapshot));
      }
      v1::WorkerUpdate update;
      if (!session.Next(now, &update)) return false;
      model.Apply(update);
      if (update.has_delta() || update.has_snapshot_end()) {
        const Rank rank = update.has_delta() ? update.delta().rank() : update.snapshot_end().rank();
        const RouterModel::Rank& told = model.ranks[rank];
        if (told.no_holes && told.epoch == epochs[rank]) {
          ExpectNoHoles(model.held(rank), told.engine_seq, states[rank]);
          ++(HasHoles(model.held(rank)) ? parts : whole);
        }
        states[rank].erase(states[rank].begin(),
                           states[rank].lower_bound(told.engine_seq.value_or(0)));
      }
      return true;
    };
    const auto begin = [&] {
      session.OnStreamStart(now);
      model.Begin(++sessions);
      write_one();
      v1::RouterUpdate update;
      update.mutable_registered()->set_session(sessions);
      update.mutable_registered()->set_routing_block_size(16);
      update.mutable_registered()->set_hash_seed(1337);
      update.mutable_registered()->set_protocol(1);
      update.mutable_registered()->set_max_hashes_per_message(seed % 2 == 0 ? 4096 : 50);
      // A router keeps what it has, as long as it is of the same epoch.
      for (Rank rank = 0; rank < 2; ++rank) {
        if (!model.ranks[rank].whole || random.Below(3) == 0) {
          update.mutable_registered()->add_snapshot_ranks(rank);
        }
      }
      EXPECT_THAT(session.OnMessage(update, now), IsOk());
      open = true;
    };
    const auto ack = [&] {
      v1::RouterUpdate update;
      update.mutable_ack()->set_delta_seq(model.delta_seq());
      EXPECT_THAT(session.OnMessage(update, now), IsOk());
    };
    for (int step = 0; step < 600; ++step) {
      const Rank rank = static_cast<Rank>(random.Below(2));
      now += absl::Milliseconds(static_cast<std::int64_t>(random.Below(50)));
      switch (random.Below(12)) {
        case 0:
          if (open) session.OnStreamEnd();
          open = false;
          break;
        case 1:
          if (!open) begin();
          break;
        case 2:
          if (open) ack();
          break;
        case 3:
          if (open && random.Below(4) == 0) {
            v1::RouterUpdate update;
            update.mutable_resync()->set_rank(rank);
            EXPECT_THAT(session.OnMessage(update, now), IsOk());
          }
          break;
        case 4:
          if (random.Below(8) == 0) {
            held[rank].clear();
            seq[rank].reset();
            states[rank].clear();
            session.NewEpoch(rank, ++epochs[rank]);
          }
          break;
        case 5:
        case 6:
        case 7:
          if (open) write_one();
          break;
        default: {
          const RouterModel::Set before = held[rank];
          const bool flood = random.Below(40) == 0;
          for (std::uint64_t i = 0; i < (flood ? 100 : random.Below(20)); ++i) {
            const ChainHash hash = random.Below(flood ? 2000 : 200);
            // Mostly with all that it hangs on, or all that hangs on it.
            const bool alone = random.Below(300) == 0;
            if (held[rank].contains(hash)) {
              const ChainHash end = alone ? hash + 1 : hash - hash % 10 + 10;
              for (ChainHash at = hash; at < end; ++at) held[rank].erase(at);
            } else {
              for (ChainHash at = alone ? hash : hash - hash % 10; at <= hash; ++at) {
                held[rank].insert(at);
              }
            }
          }
          BlockChanges changes;
          std::set_difference(before.begin(), before.end(), held[rank].begin(), held[rank].end(),
                              std::back_inserter(changes.removed));
          std::set_difference(held[rank].begin(), held[rank].end(), before.begin(), before.end(),
                              std::back_inserter(changes.stored));
          // Tails first: the worst order.
          std::reverse(changes.stored.begin(), changes.stored.end());
          seq[rank] = seq[rank] ? *seq[rank] + 1 : 0;
          states[rank][*seq[rank]] = held[rank];
          session.Offer(rank, {&changes, 1}, seq[rank], !HasHoles(held[rank]));
        }
      }
    }
    if (!open) begin();
    ack();
    for (int i = 0; i < 4; ++i, now += absl::Seconds(3)) {
      while (write_one()) ack();
    }
    for (Rank rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(model.held(rank), held[rank]);
      ASSERT_EQ(model.ranks[rank].engine_seq, seq[rank]);
      ASSERT_EQ(model.ranks[rank].epoch, epochs[rank]);
      ASSERT_EQ(model.ranks[rank].no_holes, !HasHoles(held[rank]));
    }
    ASSERT_THAT(model.breaches, IsEmpty());
    ASSERT_GT(model.digests, 0);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(whole, 1000);
  EXPECT_GT(parts, 10) << "of a change that was written in several messages";
}

}  // namespace
}  // namespace warmpath
