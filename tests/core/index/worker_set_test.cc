#include "core/index/worker_set.h"

#include <cstring>
#include <set>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath::index_internal {
namespace {

std::vector<std::byte> Bytes(const SetNode& node) {
  std::vector<std::byte> bytes(node.bytes());
  std::memcpy(bytes.data(), &node, node.bytes());
  return bytes;
}

void ExpectEqual(const SetNode& node, const std::set<Member>& truth, Slot slots) {
  ASSERT_EQ(node.count, truth.size());
  std::uint32_t hash = 0;
  for (const Member member : truth) hash += HashMember(member);
  EXPECT_EQ(node.hash, hash);
  const std::size_t words = slots / 64 + 1;
  std::uint8_t tiers = 0;
  std::vector<std::uint64_t> mask(words);
  for (const Tier tier : kAllTiers) {
    node.TierMask(static_cast<std::size_t>(tier), mask.data(), words);
    for (Slot slot = 0; slot < words * 64; ++slot) {
      const Member member = MakeMember(slot, tier);
      const bool holds = truth.contains(member);
      EXPECT_EQ(node.Contains(member), holds);
      EXPECT_EQ((mask[slot / 64] >> (slot % 64)) & 1, holds ? 1u : 0u);
      if (holds) tiers = static_cast<std::uint8_t>(tiers | (1u << static_cast<unsigned>(tier)));
    }
  }
  EXPECT_EQ(node.tiers, tiers);
  EXPECT_EQ(node.GpuOnly(), tiers == 1);
}

TEST(WorkerSetTest, MembersAreSlotsAndTiers) {
  const Member member = MakeMember(kMaxSlots - 1, Tier::kExternal);
  EXPECT_EQ(SlotOf(member), kMaxSlots - 1);
  EXPECT_EQ(TierOf(member), 3u);
}

TEST(WorkerSetTest, SmallSetsAreSmall) {
  SetBuilder builder;
  for (Slot slot = 0; slot < 4; ++slot) builder.Add(MakeMember(slot * 1000, Tier::kGpu));
  EXPECT_EQ(builder.Finish()->bytes(), 16u);
}

// Every set must have one form only, however it was reached: equal sets are found by their bytes.
TEST(WorkerSetTest, AgreesWithAStandardSetAndHasOneForm) {
  for (const Slot slots : {Slot{5}, Slot{30}, Slot{70}, Slot{400}}) {
    Random random(slots);
    SetBuilder builder;
    SetBuilder other;
    std::set<Member> truth;
    builder.Clear();
    for (int i = 0; i < 3000; ++i) {
      const Member member = MakeMember(static_cast<Slot>(random.Below(slots)),
                                       kAllTiers[random.Below(random.Below(4) + 1)]);
      // Long phases of growing and of shrinking, across the border between the two forms.
      if (random.Below(100) < (i / 300 % 2 == 0 ? 80u : 20u)) {
        EXPECT_EQ(builder.Add(member), truth.insert(member).second);
      } else {
        EXPECT_EQ(builder.Remove(member), truth.erase(member) == 1);
      }
      ASSERT_EQ(builder.count(), truth.size());
      if (truth.empty()) continue;
      const auto bytes = Bytes(*builder.Finish());
      const auto* const node = reinterpret_cast<const SetNode*>(bytes.data());
      if (i % 50 == 0) ExpectEqual(*node, truth, slots);
      // From nothing, in another order.
      if (i % 10 == 0) {
        other.Clear();
        for (auto it = truth.rbegin(); it != truth.rend(); ++it) other.Add(*it);
        EXPECT_EQ(Bytes(*other.Finish()), bytes);
      }
      builder.Load(*node);
    }
  }
}

TEST(WorkerSetTest, RemovesAllTiersOfSlots) {
  for (const Slot slots : {Slot{6}, Slot{300}}) {
    SetBuilder builder;
    builder.Clear();
    std::set<Member> truth;
    std::vector<std::uint64_t> mask(kMaxWords);
    for (Slot slot = 0; slot < slots; ++slot) {
      for (const Tier tier : kAllTiers) {
        builder.Add(MakeMember(slot, tier));
        if (slot % 3 != 0) truth.insert(MakeMember(slot, tier));
      }
      if (slot % 3 == 0) mask[slot / 64] |= std::uint64_t{1} << (slot % 64);
    }
    builder.RemoveSlots(mask);
    const auto bytes = Bytes(*builder.Finish());
    ExpectEqual(*reinterpret_cast<const SetNode*>(bytes.data()), truth, slots);
  }
}

}  // namespace
}  // namespace warmpath::index_internal
