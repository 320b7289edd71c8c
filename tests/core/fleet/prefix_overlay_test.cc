#include "core/fleet/prefix_overlay.h"

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Chain = std::vector<ChainHash>;

std::uint32_t DepthOf(const PrefixOverlay& overlay, TargetId target, const Chain& chain) {
  std::vector<std::uint32_t> depth(target + 1, 0);
  overlay.Depths(chain, depth);
  return depth[target];
}

Chain PredictedOf(const PrefixOverlay& overlay, TargetId target) {
  Chain hashes;
  overlay.ForEachPredicted(target, &hashes);
  return hashes;
}

TEST(PrefixOverlayTest, OneChainIsOneNodeAndGoesWithItsClose) {
  PrefixOverlay overlay;
  const Chain chain = {1, 2, 3, 4};
  const PrefixOverlay::PathEnd path = overlay.Open(7, chain);
  EXPECT_EQ(overlay.node_count(), 1u);
  EXPECT_EQ(DepthOf(overlay, 7, chain), 4u);
  EXPECT_EQ(DepthOf(overlay, 7, {1, 2, 9}), 2u);
  EXPECT_EQ(DepthOf(overlay, 7, {2, 3}), 0u);
  EXPECT_EQ(DepthOf(overlay, 6, chain), 0u);
  EXPECT_EQ(overlay.OpenBlocks(7), 4u);
  EXPECT_EQ(overlay.InFlightBlocks(), 4u);
  overlay.Close(7, path, /*linger=*/false);
  EXPECT_EQ(DepthOf(overlay, 7, chain), 0u);
  EXPECT_EQ(overlay.OpenBlocks(7), 0u);
  EXPECT_EQ(overlay.InFlightBlocks(), 0u);
  EXPECT_EQ(overlay.node_count(), 0u);
}

TEST(PrefixOverlayTest, SiblingsShareTheirHeadAndCountItOnce) {
  PrefixOverlay overlay;
  const PrefixOverlay::PathEnd first = overlay.Open(0, Chain{1, 2, 3, 4});
  const PrefixOverlay::PathEnd second = overlay.Open(0, Chain{1, 2, 5});
  overlay.Open(1, Chain{1, 2});
  EXPECT_EQ(overlay.OpenBlocks(0), 5u);
  EXPECT_EQ(overlay.OpenBlocks(1), 2u);
  EXPECT_EQ(overlay.InFlightBlocks(), 7u);
  std::vector<std::uint32_t> depth(2, 0);
  overlay.Depths(Chain{1, 2, 5, 6}, depth);
  EXPECT_THAT(depth, ElementsAre(3, 2));
  // The first one's node was split meanwhile, and still ends the same chain.
  EXPECT_THAT(overlay.ChainOf(first, 9), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(overlay.ChainOf(second, 9), ElementsAre(1, 2, 5));
  EXPECT_THAT(overlay.ChainOf(first, 3), ElementsAre(1, 2, 3));
  overlay.Close(0, first, /*linger=*/false);
  EXPECT_EQ(overlay.OpenBlocks(0), 3u);
  EXPECT_EQ(DepthOf(overlay, 0, {1, 2, 3, 4}), 2u);
}

TEST(PrefixOverlayTest, LingeringIsKnownButNotOpen) {
  PrefixOverlay overlay;
  const Chain chain = {1, 2, 3};
  const PrefixOverlay::PathEnd path = overlay.Open(0, chain);
  overlay.Close(0, path, /*linger=*/true);
  EXPECT_EQ(overlay.OpenBlocks(0), 0u);
  EXPECT_EQ(overlay.InFlightBlocks(), 3u);
  EXPECT_EQ(DepthOf(overlay, 0, chain), 3u);
  overlay.EndLinger(0, path);
  EXPECT_EQ(DepthOf(overlay, 0, chain), 0u);
  EXPECT_EQ(overlay.node_count(), 0u);
}

TEST(PrefixOverlayTest, PredictedDropsTheLeastRecentAndOfItTheTail) {
  PrefixOverlay overlay;
  overlay.Predict(0, Chain{1, 2, 3, 4}, 8);
  overlay.Predict(0, Chain{1, 2, 5, 6, 7}, 8);
  EXPECT_EQ(overlay.PredictedBlocks(0), 7u);
  EXPECT_THAT(PredictedOf(overlay, 0), UnorderedElementsAre(1, 2, 3, 4, 5, 6, 7));
  // Three more than fit: 4 and 3, the tail of the older chain, then 7, the tail of the newer.
  overlay.Predict(0, Chain{8, 9, 10, 11}, 8);
  EXPECT_EQ(overlay.PredictedBlocks(0), 8u);
  EXPECT_THAT(PredictedOf(overlay, 0), UnorderedElementsAre(1, 2, 5, 6, 8, 9, 10, 11));
  EXPECT_EQ(DepthOf(overlay, 0, {1, 2, 3, 4}), 2u);
  EXPECT_EQ(DepthOf(overlay, 0, {1, 2, 5, 6, 7}), 4u);
}

TEST(PrefixOverlayTest, AChainLongerThanTheBoundKeepsItsHead) {
  PrefixOverlay overlay;
  overlay.Predict(0, Chain{1, 2, 3, 4}, 3);
  EXPECT_THAT(PredictedOf(overlay, 0), UnorderedElementsAre(1, 2, 3));
  overlay.Predict(1, Chain{1, 2}, 0);
  EXPECT_EQ(overlay.PredictedBlocks(1), 0u);
}

TEST(PrefixOverlayTest, ForgettingOneTargetLeavesTheOthers) {
  PrefixOverlay overlay;
  overlay.Predict(0, Chain{1, 2, 3}, 10);
  overlay.Predict(1, Chain{1, 2, 3}, 10);
  overlay.Open(0, Chain{1, 2});
  overlay.ForgetPredicted(0);
  EXPECT_EQ(overlay.PredictedBlocks(0), 0u);
  EXPECT_EQ(DepthOf(overlay, 0, {1, 2, 3}), 2u);  // still in flight
  EXPECT_EQ(DepthOf(overlay, 1, {1, 2, 3}), 3u);
}

TEST(PrefixOverlayTest, AnEmptyChainIsNothing) {
  PrefixOverlay overlay;
  const PrefixOverlay::PathEnd path = overlay.Open(0, {});
  EXPECT_EQ(path, PrefixOverlay::kEmpty);
  EXPECT_THAT(overlay.ChainOf(path, 9), IsEmpty());
  overlay.OpenAgain(1, path);
  overlay.Predict(0, Chain(), 10);
  overlay.Predict(0, path, 10);
  overlay.Close(0, path, /*linger=*/true);
  overlay.EndLinger(0, path);
  EXPECT_EQ(overlay.node_count(), 0u);
}

TEST(PrefixOverlayTest, AnUnpairedCloseHarmsNothing) {
  PrefixOverlay overlay;
  const PrefixOverlay::PathEnd path = overlay.Open(0, Chain{1, 2});
  overlay.Close(1, path, false);
  overlay.EndLinger(0, path);
  EXPECT_EQ(overlay.OpenBlocks(0), 2u);
  EXPECT_EQ(overlay.InFlightBlocks(), 2u);
}

// What Depths came to is a hint only: between it and Open the tree may be another one.
TEST(PrefixOverlayTest, WhatWasLookedUpMayHaveGoneBeforeItIsOpened) {
  PrefixOverlay overlay;
  const Chain chain = {1, 2, 3, 4};
  const PrefixOverlay::PathEnd gone = overlay.Open(0, chain);
  EXPECT_EQ(DepthOf(overlay, 0, chain), 4u);
  overlay.Close(0, gone, false);
  const PrefixOverlay::PathEnd other = overlay.Open(0, Chain{5, 6});  // in the same node's place
  EXPECT_THAT(overlay.ChainOf(overlay.Open(0, chain), 9), ElementsAre(1, 2, 3, 4));
  // Now it is there, and split by another chain, and its head's place is not what was seen.
  EXPECT_EQ(DepthOf(overlay, 0, chain), 4u);
  overlay.Open(1, Chain{1, 2, 7});
  EXPECT_THAT(overlay.ChainOf(overlay.Open(1, chain), 9), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(DepthOf(overlay, 1, chain), 4u);
  EXPECT_THAT(overlay.ChainOf(other, 9), ElementsAre(5, 6));
}

// Blocks by their whole prefix, so that the model needs no property of hashes at all.
class Model {
 public:
  void Open(TargetId t, const Chain& chain) {
    ForPrefixes(chain, [&](const Chain& p) { ++blocks_[{t, p}].open; });
  }
  void Close(TargetId t, const Chain& chain, bool linger) {
    ForPrefixes(chain, [&](const Chain& p) {
      Counts& c = blocks_[{t, p}];
      --c.open;
      if (linger) ++c.lingering;
    });
  }
  void EndLinger(TargetId t, const Chain& chain) {
    ForPrefixes(chain, [&](const Chain& p) { --blocks_[{t, p}].lingering; });
  }
  void Predict(TargetId t, Chain chain, std::uint64_t bound) {
    chain.resize(std::min<std::size_t>(chain.size(), bound));
    if (chain.empty()) return;
    std::list<Chain>& lru = lru_[t];
    for (std::size_t n = chain.size(); n > 0; --n) {
      const Chain prefix(chain.begin(), chain.begin() + static_cast<std::ptrdiff_t>(n));
      lru.remove(prefix);
      lru.push_back(prefix);
    }
    while (lru.size() > bound) lru.pop_front();
  }
  void Forget(TargetId t) { lru_[t].clear(); }

  std::uint32_t Depth(TargetId t, const Chain& chain) const {
    std::uint32_t depth = 0;
    Chain prefix;
    for (const ChainHash hash : chain) {
      prefix.push_back(hash);
      const auto it = blocks_.find({t, prefix});
      const bool in_flight = it != blocks_.end() && it->second.open + it->second.lingering > 0;
      if (!in_flight && !Predicted(t, prefix)) break;
      ++depth;
    }
    return depth;
  }
  std::uint64_t OpenBlocks(TargetId t) const {
    return static_cast<std::uint64_t>(std::count_if(
        blocks_.begin(), blocks_.end(),
        [t](const auto& entry) { return entry.first.first == t && entry.second.open > 0; }));
  }
  std::uint64_t InFlight() const {
    return static_cast<std::uint64_t>(std::count_if(
        blocks_.begin(), blocks_.end(),
        [](const auto& entry) { return entry.second.open + entry.second.lingering > 0; }));
  }
  std::uint64_t PredictedBlocks(TargetId t) const {
    const auto it = lru_.find(t);
    return it == lru_.end() ? 0 : it->second.size();
  }

 private:
  struct Counts {
    int open = 0;
    int lingering = 0;
  };
  template <typename F>
  static void ForPrefixes(const Chain& chain, F f) {
    Chain prefix;
    for (const ChainHash hash : chain) {
      prefix.push_back(hash);
      f(prefix);
    }
  }
  bool Predicted(TargetId t, const Chain& prefix) const {
    const auto it = lru_.find(t);
    return it != lru_.end() &&
           std::find(it->second.begin(), it->second.end(), prefix) != it->second.end();
  }

  std::map<std::pair<TargetId, Chain>, Counts> blocks_;
  std::map<TargetId, std::list<Chain>> lru_;  // least recently used first
};

// Few hashes, so that chains share heads, repeat blocks and use one hash in many places, which
// honest chain hashes never do.
TEST(PrefixOverlayTest, AgreesWithThePlainModel) {
  constexpr TargetId kTargets = 3;
  constexpr std::uint64_t kBound = 9;
  constexpr std::uint64_t kSmallBound = 5;  // less than the longest chain
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    PrefixOverlay overlay;
    Model model;
    struct Held {
      TargetId target;
      Chain chain;
      PrefixOverlay::PathEnd path;
    };
    std::vector<Held> open;
    std::vector<Held> lingering;
    const auto any_chain = [&random] {
      Chain chain(random.Below(8));
      for (ChainHash& hash : chain) hash = random.Below(3);
      return chain;
    };
    const auto take = [&random](std::vector<Held>& from) {
      const std::size_t i = random.Below(from.size());
      std::swap(from[i], from.back());
      Held taken = std::move(from.back());
      from.pop_back();
      return taken;
    };
    for (int step = 0; step < 400; ++step) {
      const auto target = static_cast<TargetId>(random.Below(kTargets));
      switch (random.Below(10)) {
        case 0:
        case 1:
        case 2: {
          const Chain chain = any_chain();
          // Looked up before, as picks do, or this one not, or long ago.
          if (random.Below(2) == 0) DepthOf(overlay, target, chain);
          open.push_back({target, chain, overlay.Open(target, chain)});
          model.Open(target, chain);
          break;
        }
        case 3:
        case 4: {
          if (open.empty()) break;
          const Held held = take(open);
          ASSERT_EQ(overlay.ChainOf(held.path, 9), held.chain);
          const bool linger = random.Below(2) == 0;
          overlay.Close(held.target, held.path, linger);
          model.Close(held.target, held.chain, linger);
          if (linger) lingering.push_back(held);
          break;
        }
        case 5: {
          if (lingering.empty()) break;
          const Held held = take(lingering);
          overlay.EndLinger(held.target, held.path);
          model.EndLinger(held.target, held.chain);
          break;
        }
        case 6: {
          const Chain chain = any_chain();
          overlay.Predict(target, chain, kBound);
          model.Predict(target, chain, kBound);
          break;
        }
        case 7:
          if (random.Below(20) > 0) break;
          overlay.ForgetPredicted(target);
          model.Forget(target);
          break;
        case 8: {
          if (open.empty()) break;
          Held& held = open[random.Below(open.size())];
          overlay.OpenAgain(target, held.path);
          model.Open(target, held.chain);
          overlay.Close(held.target, held.path, /*linger=*/false);
          model.Close(held.target, held.chain, /*linger=*/false);
          held.target = target;
          break;
        }
        case 9: {
          if (open.empty()) break;
          const Held& held = open[random.Below(open.size())];
          overlay.Predict(target, held.path, kSmallBound);
          model.Predict(target, held.chain, kSmallBound);
          break;
        }
      }
      ASSERT_EQ(overlay.InFlightBlocks(), model.InFlight());
      const Chain probe = any_chain();
      std::vector<std::uint32_t> depth(kTargets, 0);
      overlay.Depths(probe, depth);
      for (TargetId t = 0; t < kTargets; ++t) {
        ASSERT_EQ(depth[t], model.Depth(t, probe)) << "step " << step << " target " << t;
        ASSERT_EQ(overlay.OpenBlocks(t), model.OpenBlocks(t));
        ASSERT_EQ(overlay.PredictedBlocks(t), model.PredictedBlocks(t));
        Chain predicted = PredictedOf(overlay, t);
        ASSERT_EQ(predicted.size(), model.PredictedBlocks(t));
      }
    }
    for (const Held& held : open) overlay.Close(held.target, held.path, /*linger=*/false);
    for (const Held& held : lingering) overlay.EndLinger(held.target, held.path);
    for (TargetId t = 0; t < kTargets; ++t) overlay.ForgetPredicted(t);
    EXPECT_EQ(overlay.InFlightBlocks(), 0u);
    EXPECT_EQ(overlay.node_count(), 0u);
  }
}

}  // namespace
}  // namespace warmpath
