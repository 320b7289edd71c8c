// The index against the plain model, on random histories.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/index/index.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

struct Shape {
  std::size_t max_slots;
  std::size_t trunks;        // chains share no block across trunks
  std::size_t chain_blocks;  // at most
  int tiers;                 // 1: GPU only
  bool closed_prefixes;      // each tier of a slot always holds whole prefixes
  int operations;
  // With closed_prefixes: the index is told, for most slots, that they have no holes.
  bool declared = false;
  // Then one slot in so many is an exception that has holes, and may; 0: none.
  std::size_t exceptions = 0;
  // The other tiers than the GPU's may have holes all the same.
  bool other_tiers_free = false;
};

// Blocks form a random forest; a chain is the path to a node.
class Forest {
 public:
  Forest(const Shape& shape, Random* random) {
    for (std::size_t trunk = 0; trunk < shape.trunks; ++trunk) Grow(kNoParent, random);
    const std::size_t nodes = shape.trunks * shape.chain_blocks;
    while (parents_.size() < nodes) {
      // Mostly long unbranched runs, as prompts are.
      const std::size_t from =
          random->Below(8) == 0 ? random->Below(parents_.size()) : parents_.size() - 1;
      if (depth_[from] < shape.chain_blocks)
        Grow(from, random);
      else
        Grow(random->Below(shape.trunks), random);
    }
  }

  std::vector<ChainHash> Path(std::size_t node) const {
    std::vector<ChainHash> path;
    for (; node != kNoParent; node = parents_[node]) path.push_back(hashes_[node]);
    std::reverse(path.begin(), path.end());
    return path;
  }
  std::size_t size() const { return hashes_.size(); }
  std::size_t trunk(std::size_t node) const { return trunk_[node]; }
  ChainHash hash(std::size_t node) const { return hashes_[node]; }

 private:
  static constexpr std::size_t kNoParent = ~std::size_t{0};

  void Grow(std::size_t parent, Random* random) {
    parents_.push_back(parent);
    depth_.push_back(parent == kNoParent ? 1 : depth_[parent] + 1);
    trunk_.push_back(parent == kNoParent ? parents_.size() - 1 : trunk_[parent]);
    hashes_.push_back((*random)());
  }

  std::vector<std::size_t> parents_;
  std::vector<std::size_t> depth_;
  std::vector<std::size_t> trunk_;
  std::vector<ChainHash> hashes_;
};

class Pair {
 public:
  // Chains here are short: most of each is left to the search if `exact_blocks` is small.
  explicit Pair(std::uint32_t exact_blocks)
      : exact_blocks_(exact_blocks),
        real_(CreateIndex({.exact_blocks = exact_blocks})),
        model_(CreateReferenceIndex({})) {}

  void Open() {
    const auto real = real_->OpenSlot();
    const auto model = model_->OpenSlot();
    ASSERT_TRUE(real.ok() && model.ok());
    for (const auto& [r, m] : open_) ASSERT_NE(r, *real) << "a slot that is in use";
    open_.emplace_back(*real, *model);
    EXPECT_TRUE(with_holes_.insert(*real).second) << "a new slot may have holes";
  }
  void SetMayHaveHoles(std::size_t i, bool may) {
    real_->SetMayHaveHoles(open_[i].first, may);
    if (may) {
      with_holes_.insert(open_[i].first);
    } else {
      with_holes_.erase(open_[i].first);
    }
  }
  bool MayHaveHoles(std::size_t i) const { return with_holes_.contains(open_[i].first); }
  void Close(std::size_t i) {
    real_->CloseSlot(open_[i].first);
    model_->CloseSlot(open_[i].second);
    with_holes_.erase(open_[i].first);
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void Apply(std::size_t i, Tier tier, std::span<const ChainHash> removed,
             std::span<const ChainHash> stored) {
    EXPECT_EQ(real_->Apply(open_[i].first, tier, removed, stored),
              model_->Apply(open_[i].second, tier, removed, stored));
  }
  void Maintain(std::size_t budget) {
    real_->Maintain(budget);
    model_->Maintain(budget);
  }
  std::size_t open() const { return open_.size(); }
  bool ModelHolds(std::size_t i, Tier tier, ChainHash hash) const {
    return model_->Holds(open_[i].second, tier, hash);
  }

  // `expect_exact`: every slot holds whole prefixes, declared or not.
  void CompareLookup(std::span<const ChainHash> chain, bool expect_exact) {
    MatchResult result;
    model_->Match(chain, &result);
    std::map<Slot, SlotMatch> truth;
    for (const auto& [real, model] : open_) {
      for (SlotMatch match : result.slots) {
        if (match.slot != model) continue;
        match.slot = real;
        truth[real] = match;
      }
    }
    real_->MatchExact(chain, &result);
    EXPECT_EQ(BySlot(result), truth);

    real_->Match(chain, &result);
    const auto found = BySlot(result);
    const std::size_t searched = with_holes_.size();
    EXPECT_GE(result.exact_to, searched > 0 && searched <= open_.size() / 8
                                   ? 0
                                   : std::min<std::size_t>(chain.size(), exact_blocks_));
    for (const auto& [slot, match] : truth) {
      ASSERT_TRUE(found.contains(slot));
      EXPECT_GE(found.at(slot).gpu_depth, match.gpu_depth);
      EXPECT_GE(found.at(slot).usable_depth, match.usable_depth);
    }
    for (const auto& [slot, match] : found) {
      // Each depth is a place at which the slot really stops.
      ASSERT_GT(match.usable_depth, 0u);
      EXPECT_TRUE(HeldInAnyTier(slot, chain[match.usable_depth - 1]));
      EXPECT_TRUE(match.usable_depth == chain.size() ||
                  !HeldInAnyTier(slot, chain[match.usable_depth]));
      if (match.gpu_depth > 0) {
        EXPECT_TRUE(real_->Holds(slot, Tier::kGpu, chain[match.gpu_depth - 1]));
      }
      EXPECT_TRUE(match.gpu_depth == chain.size() ||
                  !real_->Holds(slot, Tier::kGpu, chain[match.gpu_depth]));
      EXPECT_LE(match.gpu_depth, match.usable_depth);
      EXPECT_EQ(match.by_tier[0] + match.by_tier[1] + match.by_tier[2] + match.by_tier[3],
                match.usable_depth);
      const SlotMatch exact = truth.contains(slot) ? truth.at(slot) : SlotMatch{};
      if (expect_exact || match.gpu_depth <= result.exact_to || !with_holes_.contains(slot)) {
        EXPECT_EQ(match.gpu_depth, exact.gpu_depth);
      }
      if (expect_exact || match.usable_depth <= result.exact_to) {
        EXPECT_EQ(match.usable_depth, exact.usable_depth);
        EXPECT_TRUE(expect_exact || match.by_tier == exact.by_tier);
      }
    }

    MatchSegments segments;
    const bool gpu_only = real_->MatchGpu(chain, &segments);
    std::map<Slot, std::uint32_t> gpu_depth;
    std::uint32_t last = 0;
    for (const auto& segment : segments.segments) {
      EXPECT_GT(segment.depth, last);
      last = segment.depth;
      segments.ForEachSlot(segment, [&](Slot slot) {
        EXPECT_TRUE(segments.Contains(segment, slot));
        EXPECT_TRUE(gpu_depth.emplace(slot, segment.depth).second);
      });
    }
    for (const auto& [real, model] : open_) {
      const std::size_t verified = real_->VerifiedGpuDepth(real, chain, 0, chain.size());
      EXPECT_EQ(verified, model_->VerifiedGpuDepth(model, chain, 0, chain.size()));
      for (const std::size_t from : {std::size_t{0}, chain.size() / 3, chain.size()}) {
        SlotMatch match = real_->VerifiedMatch(real, chain, from);
        EXPECT_EQ(match.slot, real);
        match.slot = model;
        EXPECT_EQ(match, model_->VerifiedMatch(model, chain, from));
        EXPECT_GE(match.usable_depth, from);
        if (from == 0 && gpu_only && segments.exact_to == chain.size()) {
          EXPECT_EQ(match.usable_depth, match.gpu_depth);
        }
      }
      const std::uint32_t depth = gpu_depth.contains(real) ? gpu_depth[real] : 0;
      EXPECT_GE(depth, verified);
      if (expect_exact || depth <= segments.exact_to || !with_holes_.contains(real)) {
        EXPECT_EQ(depth, verified);
      }
      if (depth == 0) continue;
      const std::size_t from = depth / 2;
      EXPECT_EQ(real_->VerifiedGpuDepth(real, chain, from, depth),
                model_->VerifiedGpuDepth(model, chain, from, depth));
    }
  }

  void CompareContent() {
    for (const auto& [real, model] : open_) {
      for (const Tier tier : kAllTiers) {
        EXPECT_EQ(real_->Digest(real, tier), model_->Digest(model, tier));
        EXPECT_EQ(Content(*real_, real, tier), Content(*model_, model, tier));
      }
    }
    EXPECT_EQ(real_->Stats().pairs, model_->Stats().pairs);
    EXPECT_EQ(real_->Stats().open_slots, open_.size());
    EXPECT_EQ(real_->Stats().slots_with_holes, with_holes_.size());
  }

  // After the sweep nothing is left of closed slots.
  void CompareAtRest() {
    for (int i = 0; i < 1000 && real_->Maintain(1 << 20); ++i) {
    }
    CompareContent();
    EXPECT_EQ(real_->Stats().blocks, model_->Stats().blocks);
    EXPECT_EQ(real_->Stats().closed_slots_unswept, 0u);
  }

 private:
  static std::map<Slot, SlotMatch> BySlot(const MatchResult& result) {
    std::map<Slot, SlotMatch> by_slot;
    for (const SlotMatch& match : result.slots) {
      EXPECT_TRUE(by_slot.emplace(match.slot, match).second) << "a slot twice";
    }
    return by_slot;
  }
  static std::set<ChainHash> Content(const Index& index, Slot slot, Tier tier) {
    std::set<ChainHash> content;
    index.ForEach(slot, tier, [&](ChainHash hash) { content.insert(hash); });
    return content;
  }
  bool HeldInAnyTier(Slot slot, ChainHash hash) const {
    return std::any_of(kAllTiers.begin(), kAllTiers.end(),
                       [&](Tier tier) { return real_->Holds(slot, tier, hash); });
  }

  const std::size_t exact_blocks_;
  std::unique_ptr<Index> real_;
  std::unique_ptr<Index> model_;
  std::vector<std::pair<Slot, Slot>> open_;
  std::set<Slot> with_holes_;  // of the real one, as declared
};

void RunHistory(const Shape& shape, std::uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  const Forest forest(shape, &random);
  Pair pair(std::uint32_t{1} << random.Below(9));
  std::uint64_t opened = 0;
  const auto open = [&] {
    pair.Open();
    const bool exception = shape.exceptions != 0 && opened++ % shape.exceptions == 0;
    if (shape.declared && !exception) pair.SetMayHaveHoles(pair.open() - 1, false);
  };
  for (std::size_t i = 0; i < std::max<std::size_t>(1, shape.max_slots / 2); ++i) open();
  for (int operation = 0; operation < shape.operations; ++operation) {
    const std::uint64_t dice = random.Below(100);
    if (pair.open() == 0 || (dice < 3 && pair.open() < shape.max_slots)) {
      open();
    } else if (dice < 6) {
      pair.Close(random.Below(pair.open()));
    } else if (dice < 14) {
      pair.Maintain(1 + random.Below(300));
    } else if (dice < 50) {
      pair.CompareLookup(forest.Path(random.Below(forest.size())),
                         shape.closed_prefixes && shape.tiers == 1 && shape.exceptions == 0);
    } else {
      const std::size_t slot = random.Below(pair.open());
      const Tier tier = kAllTiers[random.Below(static_cast<std::uint64_t>(shape.tiers))];
      auto path = forest.Path(random.Below(forest.size()));
      std::vector<ChainHash> removed;
      std::vector<ChainHash> stored;
      const bool closed = shape.closed_prefixes &&
                          (shape.exceptions == 0 || !pair.MayHaveHoles(slot)) &&
                          (tier == Tier::kGpu || !shape.other_tiers_free);
      if (closed) {
        if (random.Below(3) != 0) {
          stored = path;
        } else {
          // Youngest nodes first, so that children go before their parents.
          const std::size_t trunk = random.Below(shape.trunks);
          const std::size_t most = 1 + random.Below(shape.chain_blocks);
          for (std::size_t node = forest.size(); node-- > 0 && removed.size() < most;) {
            if (forest.trunk(node) == trunk && pair.ModelHolds(slot, tier, forest.hash(node))) {
              removed.push_back(forest.hash(node));
            }
          }
        }
      } else if (random.Below(2) == 0) {
        // A hole, or the filling of one.
        const std::size_t begin = random.Below(path.size());
        const std::size_t end = begin + random.Below(path.size() - begin) + 1;
        auto& hashes = random.Below(3) == 0 ? removed : stored;
        hashes.assign(path.begin() + static_cast<std::ptrdiff_t>(begin),
                      path.begin() + static_cast<std::ptrdiff_t>(end));
      } else {
        for (const ChainHash hash : path) {
          if (random.Below(4) == 0) removed.push_back(hash);
          if (random.Below(3) != 0) stored.push_back(hash);
        }
      }
      pair.Apply(slot, tier, removed, stored);
    }
    if (dice == 99) pair.CompareContent();
    if (::testing::Test::HasFailure()) return;
  }
  pair.CompareAtRest();
}

// Mostly short chains, and some that reach beyond the blocks that are looked at one by one.
std::size_t ChainBlocks(std::uint64_t seed) {
  return seed % 5 == 0 ? 150 + seed % 400 : 1 + seed % 70;
}

// While the content of each slot is a union of whole prefixes, searching must be exact.
TEST(PrefixIndexDiffTest, WholePrefixesAreMatchedExactly) {
  for (std::uint64_t seed = 1; seed <= 1000 && !HasFailure(); ++seed) {
    RunHistory({.max_slots = 1 + seed % 9,
                .trunks = 1 + seed % 5,
                .chain_blocks = ChainBlocks(seed),
                .tiers = 1,
                .closed_prefixes = true,
                .operations = 120},
               seed);
  }
}

// The index has been told so, and jumps over blocks.
TEST(PrefixIndexDiffTest, SlotsWithoutHolesAreSearchedExactly) {
  for (std::uint64_t seed = 1; seed <= 2000 && !HasFailure(); ++seed) {
    RunHistory({.max_slots = 1 + seed % 20,
                .trunks = 1 + seed % 5,
                .chain_blocks = ChainBlocks(seed),
                .tiers = seed % 3 == 0 ? 4 : 1,
                .closed_prefixes = true,
                .operations = 120,
                .declared = true,
                .other_tiers_free = seed % 2 == 0},
               seed);
  }
}

// A few slots that may have holes are searched with the others, and credited no less than they
// hold.
TEST(PrefixIndexDiffTest, FewSlotsWithHolesAmongOthers) {
  for (std::uint64_t seed = 1; seed <= 1000 && !HasFailure(); ++seed) {
    RunHistory({.max_slots = 30,
                .trunks = 1 + seed % 5,
                .chain_blocks = ChainBlocks(seed),
                .tiers = seed % 3 == 0 ? 2 : 1,
                .closed_prefixes = true,
                .operations = 120,
                .declared = true,
                .exceptions = 4 + seed % 20},
               seed);
  }
}

// One long chain, and longer than all that the search can look at in a few rounds; its holders end
// everywhere.
TEST(PrefixIndexDiffTest, LongChainsWithoutHoles) {
  for (std::uint64_t seed = 1; seed <= 20 && !HasFailure(); ++seed) {
    RunHistory({.max_slots = 200,
                .trunks = 1,
                .chain_blocks = 3000,
                .tiers = 1,
                .closed_prefixes = true,
                .operations = 600,
                .declared = true},
               seed);
  }
}

TEST(PrefixIndexDiffTest, HolesAndOneTier) {
  for (std::uint64_t seed = 1; seed <= 1000 && !HasFailure(); ++seed) {
    RunHistory({.max_slots = 1 + seed % 20,
                .trunks = 1 + seed % 5,
                .chain_blocks = ChainBlocks(seed),
                .tiers = 1,
                .closed_prefixes = false,
                .operations = 120},
               seed);
  }
}

TEST(PrefixIndexDiffTest, AllTiers) {
  for (std::uint64_t seed = 1; seed <= 1000 && !HasFailure(); ++seed) {
    RunHistory({.max_slots = 1 + seed % 12,
                .trunks = 1 + seed % 5,
                .chain_blocks = ChainBlocks(seed),
                .tiers = 4,
                .closed_prefixes = seed % 2 == 0,
                .operations = 120},
               seed);
  }
}

// More than 28 members make a bitmap; slots past 64 make it longer than a word.
TEST(PrefixIndexDiffTest, ManySlots) {
  for (std::uint64_t seed = 1; seed <= 40 && !HasFailure(); ++seed) {
    RunHistory({.max_slots = 150,
                .trunks = 2,
                .chain_blocks = 12,
                .tiers = seed % 2 == 0 ? 4 : 1,
                .closed_prefixes = false,
                .operations = 800},
               seed);
  }
}

// Enough blocks that segments grow and split, and enough churn that sets are swept.
TEST(PrefixIndexDiffTest, LargeTables) {
  for (std::uint64_t seed = 1; seed <= 3 && !HasFailure(); ++seed) {
    RunHistory({.max_slots = 40,
                .trunks = 400,
                .chain_blocks = 100,
                .tiers = 2,
                .closed_prefixes = false,
                .operations = 3000},
               seed);
  }
}

}  // namespace
}  // namespace warmpath
