#include "core/fleet/reservation_table.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/random.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

TEST(ReservationTableTest, AnIdNamesOneReservationOnly) {
  ReservationTable table(/*pool_number=*/5, /*id_seed=*/99, /*max_open=*/10);
  const Place place = table.Add(Reservation{.prompt_tokens = 1});
  const ReservationId id = table[place].reservation.id;
  EXPECT_EQ(PoolNumberOf(id), 5u);
  EXPECT_EQ(table.Find(id), place);
  EXPECT_EQ(table.Remove(place).prompt_tokens, 1u);
  EXPECT_EQ(table.Find(id), 0u);
  // The same place again, under another id.
  const Place again = table.Add(Reservation{});
  EXPECT_EQ(again, place);
  EXPECT_NE(table[again].reservation.id, id);
  EXPECT_EQ(table.Find(id), 0u);
}

TEST(ReservationTableTest, IdsOfAnEarlierProcessFindNothing) {
  ReservationTable before(0, /*id_seed=*/1, 10);
  ReservationTable after(0, /*id_seed=*/2, 10);
  const ReservationId id = before[before.Add(Reservation{})].reservation.id;
  after.Add(Reservation{});
  EXPECT_EQ(after.Find(id), 0u);
  EXPECT_EQ(after.Find(0), 0u);
  EXPECT_EQ(after.Find(~ReservationId{0}), 0u);
}

TEST(ReservationTableTest, ZeroIsNoIdAndNoPlace) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    ReservationTable table(0, seed, 2);
    const Place place = table.Add(Reservation{});
    EXPECT_NE(place, 0u);
    EXPECT_NE(table[place].reservation.id, 0u);
  }
}

TEST(ReservationTableTest, FullIsFull) {
  ReservationTable table(0, 0, 2);
  const Place first = table.Add(Reservation{});
  EXPECT_NE(table.Add(Reservation{}), 0u);
  EXPECT_EQ(table.Add(Reservation{}), 0u);
  table.Remove(first);
  EXPECT_NE(table.Add(Reservation{}), 0u);
}

TEST(ReservationTableTest, LeasesComeInTheOrderOfTheirEnds) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    ReservationTable table(0, seed, 1000);
    std::set<std::pair<absl::Time, Place>> model;
    std::vector<Place> places;
    for (int step = 0; step < 2000; ++step) {
      const absl::Time until = absl::UnixEpoch() + absl::Seconds(random.Below(100));
      const std::uint64_t what = random.Below(4);
      if (what <= 1 || places.empty()) {
        const Place place = table.Add(Reservation{});
        if (place == 0) continue;
        table.SetLease(place, until);
        model.emplace(until, place);
        places.push_back(place);
      } else {
        const std::size_t i = random.Below(places.size());
        const Place place = places[i];
        model.erase({table[place].reservation.lease_until, place});
        if (what == 2) {
          table.SetLease(place, until);
          model.emplace(until, place);
        } else {
          table.DropLease(place);
          table.Remove(place);
          places[i] = places.back();
          places.pop_back();
        }
      }
      if (model.empty()) {
        ASSERT_EQ(table.FirstLease(), 0u);
      } else {
        ASSERT_EQ(table[table.FirstLease()].reservation.lease_until, model.begin()->first);
      }
    }
    for (const auto& [until, place] : model) {
      const Place first = table.FirstLease();
      ASSERT_EQ(table[first].reservation.lease_until, until);
      table.DropLease(first);
    }
    EXPECT_EQ(table.FirstLease(), 0u);
  }
}

}  // namespace
}  // namespace warmpath
