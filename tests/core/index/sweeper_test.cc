// What the sweep may reuse and when, with the moments of readers and writers set by hand.
#include "core/index/sweeper.h"

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath::index_internal {
namespace {

class SweeperTest : public ::testing::Test {
 protected:
  // The set with just these GPU members.
  SetId Intern(const std::vector<Slot>& slots, MemoryUse use = MemoryUse::kStore) {
    builder_.Clear();
    for (const Slot slot : slots) builder_.Add(MakeMember(slot, Tier::kGpu));
    sweeper_.dead_slots().Strip(&builder_);
    return builder_.count() == 0 ? kEmptySet : sets_.Intern(*builder_.Finish(), use);
  }
  void Put(ChainHash hash, SetId id) {
    const EpochDomain::Pin pin(&epochs_);
    const auto update = table_.Apply<Writing::kAlone>(
        table_.PlaceToWrite(hash), hash, MemoryUse::kStore, [id](SetId) { return id; });
    ASSERT_NE(update.outcome, BucketTable::Outcome::kNoMemory);
    if (update.outcome == BucketTable::Outcome::kInserted) table_.AddEntries(1);
    if (update.outcome == BucketTable::Outcome::kErased) table_.AddEntries(-1);
  }
  std::set<Slot> SlotsOf(SetId id) {
    std::set<Slot> slots;
    for (Slot slot = 0; slot < 1000 && id != kEmptySet; ++slot) {
      if (sets_.Node(id).Contains(MakeMember(slot, Tier::kGpu))) slots.insert(slot);
    }
    return slots;
  }
  SetId Find(ChainHash hash) {
    const EpochDomain::Pin pin(&epochs_);
    return table_.Find(hash);
  }
  // False if the cycle is still waiting after many steps.
  bool Finish() {
    for (int i = 0; i < 1000; ++i) {
      if (!sweeper_.Step(1 << 20)) return true;
    }
    return false;
  }

  MemoryAccount account_{0};
  EpochDomain epochs_;
  PageArena pages_{std::size_t{1} << 34, &account_};
  SetTable sets_{&pages_, &account_};
  BucketTable table_{1, &pages_, &epochs_};
  SlotMap slots_{&account_};
  Sweeper sweeper_{&table_, &sets_, &slots_, &epochs_, &account_};
  SetBuilder builder_;
};

TEST_F(SweeperTest, EqualSetsShareAnId) {
  const SetId a = Intern({1, 2, 3});
  EXPECT_EQ(Intern({3, 1, 2}), a);
  EXPECT_NE(Intern({1, 2}), a);
  EXPECT_EQ(sets_.sets(), 2u);
}

TEST_F(SweeperTest, KeepsSetsInUseAndReusesTheOthers) {
  const SetId used = Intern({1, 2});
  const SetId unused = Intern({3, 4});
  Put(10, used);
  sweeper_.CollectNow();
  EXPECT_EQ(sets_.sets(), 1u);
  EXPECT_EQ(Intern({1, 2}), used);
  EXPECT_EQ(Intern({5, 6}), unused) << "the room of the unused one";
}

// A set id that a reader took from the table must mean the same until the reader is gone.
// This one came before the cycle, the next one after the marks were cleared. (Without the wait at
// the cycle's end the next one sees its set {3, 4} become {5, 6}.)
TEST_F(SweeperTest, ASetIdIsNotReusedUnderAReader) {
  Put(10, Intern({1, 2}));
  std::optional<EpochDomain::Pin> reader(std::in_place, &epochs_);
  const SetId seen = table_.Find(10);
  Put(10, Intern({7}));
  for (Slot slot = 0; slot < 200; ++slot) {
    // Enough garbage that the sweep begins by itself.
    for (Slot other = 0; other < 30; ++other) Intern({300 + slot, 600 + other});
  }
  EXPECT_FALSE(Finish()) << "the cycle waits for the reader";
  for (Slot slot = 0; slot < 50; ++slot) EXPECT_NE(Intern({800, 900 + slot % 90}), seen);
  EXPECT_EQ(SlotsOf(seen), (std::set<Slot>{1, 2}));
  reader.reset();
  EXPECT_TRUE(Finish());
  std::set<SetId> fresh;
  for (Slot slot = 0; slot < 9000; ++slot) fresh.insert(Intern({slot % 900, 900 + slot / 900}));
  EXPECT_TRUE(fresh.contains(seen)) << "and afterwards it is";
}

// A writer that began before the cycle may still put a set into the table that nobody marked.
TEST_F(SweeperTest, ASetIdIsNotReusedUnderAReaderThatCameDuringTheWalk) {
  const SetId kept = Intern({1, 2});
  const SetId old = Intern({3, 4});
  Random random(1);
  std::set<ChainHash> hashes;
  while (hashes.size() < 20'000) hashes.insert(random());  // several segments
  for (const ChainHash hash : hashes) Put(hash, kept);
  {
    const EpochDomain::Pin pin(&epochs_);
    table_.VisitSegment(0, [&](ChainHash hash, SetId) { hashes.erase(hash); });
  }
  const ChainHash late = *hashes.begin();  // not in the first segment
  Put(late, old);
  slots_.Close(*slots_.Open());  // gives the sweep something to do
  EXPECT_TRUE(sweeper_.Step(1)) << "the first segment is done";

  std::optional<EpochDomain::Pin> reader(std::in_place, &epochs_);
  const SetId seen = table_.Find(late);
  EXPECT_EQ(seen, old);
  Put(late, kept);  // so that the walk will not meet the old set
  EXPECT_FALSE(Finish()) << "it waits for the reader";
  EXPECT_NE(Intern({5, 6}), old);
  EXPECT_EQ(SlotsOf(seen), (std::set<Slot>{3, 4}));
  reader.reset();
  EXPECT_TRUE(Finish());
  EXPECT_EQ(Intern({7, 8}), old) << "now it is reused";
}

TEST_F(SweeperTest, TheWalkWaitsForWritersAtWork) {
  const SetId kept = Intern({1, 2});
  {
    std::optional<EpochDomain::Pin> writer(std::in_place, &epochs_);
    slots_.Close(*slots_.Open());  // gives the sweep something to do
    EXPECT_FALSE(Finish());
    // The writer found `kept` in its cache before the cycle began.
    const auto update = table_.Apply<Writing::kAlone>(
        table_.PlaceToWrite(10), 10, MemoryUse::kStore, [kept](SetId) { return kept; });
    EXPECT_EQ(update.outcome, BucketTable::Outcome::kInserted);
    writer.reset();
  }
  EXPECT_TRUE(Finish());
  EXPECT_EQ(SlotsOf(Find(10)), (std::set<Slot>{1, 2}));
  EXPECT_EQ(Intern({1, 2}), kept);
}

TEST_F(SweeperTest, AClosedSlotIsRemovedEverywhereBeforeItsNumberIsReused) {
  std::vector<Slot> slots;
  for (int i = 0; i < 100; ++i) slots.push_back(*slots_.Open());
  std::vector<Slot> all(slots.begin(), slots.end());
  Put(1, Intern({slots[3], slots[4]}));
  Put(2, Intern({slots[3]}));
  Put(3, Intern({slots[4]}));
  Put(4, Intern(all));
  slots_.Close(slots[3]);
  EXPECT_FALSE(slots_.IsOpen(slots[3]));
  EXPECT_EQ(slots_.Open(), Slot{100}) << "not the number that is still in sets";
  {
    const EpochDomain::Pin reader(&epochs_);
    EXPECT_FALSE(Finish());
    EXPECT_EQ(slots_.Open(), Slot{101});
  }
  EXPECT_TRUE(Finish());
  EXPECT_EQ(SlotsOf(Find(1)), (std::set<Slot>{slots[4]}));
  EXPECT_EQ(Find(2), kEmptySet);
  EXPECT_EQ(Find(3), Find(1));
  EXPECT_EQ(SlotsOf(Find(4)).size(), 99u);
  EXPECT_EQ(table_.entries(), 3u);
  EXPECT_EQ(slots_.Open(), slots[3]);
}

// While a cycle is under way, a writer works from entries that the walk has not reached yet.
TEST_F(SweeperTest, WritersLeaveDeadSlotsOut) {
  const Slot dead = *slots_.Open();
  const Slot live = *slots_.Open();
  const SetId dirty = Intern({dead, live});
  Put(1, dirty);
  slots_.Close(dead);
  std::optional<EpochDomain::Pin> reader(std::in_place, &epochs_);
  sweeper_.Step(1);
  EXPECT_EQ(SlotsOf(Intern({dead, live, 500})), (std::set<Slot>{live, 500}));
  reader.reset();
  EXPECT_TRUE(Finish());
  // The number in its new life is not left out.
  EXPECT_EQ(slots_.Open(), dead);
  EXPECT_EQ(SlotsOf(Intern({dead, 500})), (std::set<Slot>{dead, 500}));
}

TEST_F(SweeperTest, AnArenaOfHolesIsCompacted) {
  Random random(1);
  constexpr ChainHash kBlocks = 150'000;
  const auto set_of = [](ChainHash hash) {
    return std::vector<Slot>{static_cast<Slot>(hash % 900), static_cast<Slot>(hash / 900 % 900 + 1),
                             static_cast<Slot>(950 + hash % 7)};
  };
  for (ChainHash hash = 1; hash <= kBlocks; ++hash) Put(hash, Intern(set_of(hash)));
  EXPECT_TRUE(Finish());
  const std::uint64_t full = account_.used();
  const std::uint64_t arena = sets_.arena_bytes();
  for (ChainHash hash = 1; hash <= kBlocks; ++hash) {
    if (hash % 20 != 0) Put(hash, kEmptySet);
  }
  sweeper_.CollectNow();  // finds the garbage
  EXPECT_TRUE(Finish());  // and then the holes
  EXPECT_LT(sets_.arena_bytes(), arena / 8);
  EXPECT_LT(account_.used(), full / 4);
  for (ChainHash hash = 20; hash <= kBlocks; hash += 20) {
    const auto expected = set_of(hash);
    ASSERT_EQ(SlotsOf(Find(hash)), std::set<Slot>(expected.begin(), expected.end()));
    ASSERT_EQ(Intern(expected), Find(hash)) << "still one id for one set";
  }
  // And once more, back into the first half.
  for (ChainHash hash = 1; hash <= kBlocks; ++hash) Put(hash, Intern(set_of(hash)));
  for (ChainHash hash = 1; hash <= kBlocks; ++hash) {
    if (hash % 50 != 0) Put(hash, kEmptySet);
  }
  sweeper_.CollectNow();
  EXPECT_TRUE(Finish());
  EXPECT_LT(sets_.arena_bytes(), arena / 8);
  for (ChainHash hash = 50; hash <= kBlocks; hash += 50) {
    const auto expected = set_of(hash);
    ASSERT_EQ(SlotsOf(Find(hash)), std::set<Slot>(expected.begin(), expected.end()));
  }
}

}  // namespace
}  // namespace warmpath::index_internal
