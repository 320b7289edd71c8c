// Any course of changes, breaks, resyncs and epochs must end with both sides equal.
#include <algorithm>
#include <cstdint>
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

TEST(RouterSessionRandomTest, AnyCourseOfEventsEndsInEqualState) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Random random(seed);
    RouterSession session({.window = 1 + random.Below(6), .max_pending = 4096}, seed);
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
    absl::Time now = absl::FromUnixSeconds(1);
    std::uint64_t sessions = 0;
    bool open = false;
    const auto write_one = [&] {
      if (const auto rank = session.SnapshotWanted(now)) {
        RankSnapshot snapshot{.rank = *rank, .engine_seq = seq[*rank]};
        for (const ChainHash hash : held[*rank]) {
          snapshot.held[0].push_back(hash);
          snapshot.digests[0].Insert(hash);
        }
        session.GiveSnapshot(std::move(snapshot));
      }
      v1::WorkerUpdate update;
      if (!session.Next(now, &update)) return false;
      model.Apply(update);
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
            session.NewEpoch(rank, ++epochs[rank]);
          }
          break;
        case 5:
        case 6:
        case 7:
          if (open) write_one();
          break;
        default: {
          BlockChanges changes;
          const bool flood = random.Below(40) == 0;
          for (std::uint64_t i = 0; i < (flood ? 3000 : random.Below(20)); ++i) {
            const ChainHash hash = random.Below(flood ? 100000 : 200);
            if (held[rank].insert(hash).second) {
              changes.stored.push_back(hash);
            } else if (std::find(changes.stored.begin(), changes.stored.end(), hash) ==
                       changes.stored.end()) {
              held[rank].erase(hash);
              changes.removed.push_back(hash);
            }
          }
          // A hash stored again after its removal in one batch is no change.
          std::erase_if(changes.stored,
                        [&](ChainHash hash) { return std::erase(changes.removed, hash) != 0; });
          seq[rank] = seq[rank] ? *seq[rank] + 1 : 0;
          session.Offer(rank, {&changes, 1}, seq[rank]);
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
    }
    ASSERT_THAT(model.breaches, IsEmpty());
    ASSERT_GT(model.digests, 0);
  }
}

}  // namespace
}  // namespace warmpath
