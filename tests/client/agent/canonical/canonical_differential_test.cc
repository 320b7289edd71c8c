// A simulated engine cache against Canonical: what the events say must add up to what a plain
// model, which knows the tokens of every block, computes from scratch after each batch.
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "client/agent/canonical/canonical.h"
#include "core/base/random.h"
#include "core/hashing/chain_hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace warmpath {
namespace {

constexpr std::uint32_t kEngineBlock = 16;

// A block's place: its domain (0: none, else LoRA and salt by number) and the content of each
// block down to it. One number stands for one content of 16 tokens.
struct Path {
  int domain = 0;
  std::vector<int> contents;

  friend auto operator<=>(const Path&, const Path&) = default;
};

std::optional<std::string> LoraOf(int domain) {
  return domain == 1 || domain == 3 ? std::optional<std::string>("lora") : std::nullopt;
}
std::optional<std::string> SaltOf(int domain) {
  return domain >= 2 ? std::optional<std::string>("salt") : std::nullopt;
}

void AppendTokens(int content, std::vector<TokenId>* tokens) {
  for (std::uint32_t i = 0; i < kEngineBlock; ++i) {
    tokens->push_back(static_cast<TokenId>(content * 1000) + i);
  }
}

// An engine with copies per (tier, block), least recently used out first, and its events.
class SimulatedEngine {
 public:
  SimulatedEngine(Random& random, std::size_t capacity) : random_(random), capacity_(capacity) {}

  // Computes one prompt: stores what is missing along it, evicting as needed.
  void Prompt(const Path& prompt, std::vector<EngineEvent>* events) {
    Path at{prompt.domain, {}};
    BlockStored run;
    for (const int content : prompt.contents) {
      const Path parent = at;
      at.contents.push_back(content);
      const bool present = Copies(Tier::kGpu, at) > 0;
      if (present && random_.Below(20) != 0) {
        Touch(at);
        FlushRun(&run, events);
        continue;
      }
      // Missing, or computed twice at once: a second copy under the same hash.
      while (order_.size() >= capacity_) Evict(events, &run);
      Add(Tier::kGpu, at);
      order_.push_back(at);
      Extend(parent, at, &run, events);
    }
    FlushRun(&run, events);
  }

  void Reset(std::vector<EngineEvent>* events) {
    copies_[0].clear();
    order_.clear();
    events->push_back(AllBlocksCleared{});
  }

  // Takes one block out of the middle, as no LRU would: a hole.
  void EvictAny(std::vector<EngineEvent>* events) {
    if (order_.empty()) return;
    std::swap(order_.front(), order_[random_.Below(order_.size())]);
    Evict(events, nullptr);
  }

  // Routing blocks of `routing_block` tokens that the tier holds, from tokens alone.
  std::set<ChainHash> Truth(Tier tier, std::uint32_t routing_block) {
    const std::size_t per_block = routing_block / kEngineBlock;
    std::set<ChainHash> held;
    for (const auto& [path, count] : copies_[static_cast<std::size_t>(tier)]) {
      const std::size_t depth = path.contents.size();
      if (depth % per_block != 0) continue;
      bool covered = true;
      Path at = path;
      for (std::size_t i = 1; i < per_block; ++i) {
        at.contents.pop_back();
        covered &= Copies(tier, at) > 0;
      }
      if (!covered) continue;
      std::vector<TokenId> tokens;
      for (const int content : path.contents) AppendTokens(content, &tokens);
      std::vector<ChainHash> chain;
      AppendChain(DomainSeed(LoraOf(path.domain), SaltOf(path.domain)), routing_block, tokens, {},
                  &chain);
      held.insert(chain.back());
      if (chain.size() > 1) before_[chain.back()] = chain[chain.size() - 2];
    }
    return held;
  }

  // How many of these, which must have been in Truth some time, lack the block before them.
  std::uint64_t HolesIn(const std::set<ChainHash>& held) const {
    std::uint64_t holes = 0;
    for (const ChainHash hash : held) {
      const auto before = before_.find(hash);
      holes += before != before_.end() && !held.contains(before->second) ? 1 : 0;
    }
    return holes;
  }

 private:
  int Copies(Tier tier, const Path& path) const {
    const auto& copies = copies_[static_cast<std::size_t>(tier)];
    const auto it = copies.find(path);
    return it == copies.end() ? 0 : it->second;
  }
  void Add(Tier tier, const Path& path) { ++copies_[static_cast<std::size_t>(tier)][path]; }
  void Drop(Tier tier, const Path& path) {
    auto& copies = copies_[static_cast<std::size_t>(tier)];
    if (--copies[path] == 0) copies.erase(path);
  }
  EngineHash HashOf(const Path& path) {
    const auto [it, inserted] = hashes_.try_emplace(path, 0);
    if (inserted) it->second = random_();
    return it->second;
  }
  void Touch(const Path& path) {
    const auto it = std::find(order_.begin(), order_.end(), path);
    if (it != order_.end()) std::rotate(it, it + 1, order_.end());
  }

  void Extend(const Path& parent, const Path& at, BlockStored* run,
              std::vector<EngineEvent>* events) {
    if (!run->block_hashes.empty() && run->block_hashes.back() != HashOf(parent)) {
      FlushRun(run, events);
    }
    if (run->block_hashes.empty()) {
      *run = BlockStored();
      run->block_size = kEngineBlock;
      run->medium = "GPU";
      run->lora_name = LoraOf(at.domain);
      run->extra_keys.emplace();
      if (!parent.contents.empty()) run->parent_block_hash = HashOf(parent);
    }
    run->block_hashes.push_back(HashOf(at));
    AppendTokens(at.contents.back(), &run->token_ids);
    std::vector<ExtraKey> keys;
    if (const auto lora = LoraOf(at.domain)) keys.push_back({ExtraKey::Kind::kBare, *lora, 0});
    const auto salt = SaltOf(at.domain);
    if (salt && parent.contents.empty()) keys.push_back({ExtraKey::Kind::kBare, *salt, 0});
    run->extra_keys->push_back(std::move(keys));
  }

  static void FlushRun(BlockStored* run, std::vector<EngineEvent>* events) {
    if (!run->block_hashes.empty()) events->push_back(std::exchange(*run, BlockStored()));
  }

  void Evict(std::vector<EngineEvent>* events, BlockStored* run) {
    if (run != nullptr) FlushRun(run, events);
    const Path path = order_.front();
    order_.erase(order_.begin());
    // Offload some to the host tier, which has the same hashes and its own evictions.
    if (random_.Below(3) == 0 && (path.contents.size() == 1 || ParentKnown(path))) {
      Path parent = path;
      parent.contents.pop_back();
      BlockStored offload;
      Extend(parent, path, &offload, events);
      offload.medium = "CPU";
      offload.tier = Tier::kHost;
      events->push_back(std::move(offload));
      Add(Tier::kHost, path);
      host_.push_back(path);
    }
    Drop(Tier::kGpu, path);
    BlockRemoved removed;
    removed.block_hashes = {HashOf(path)};
    events->push_back(removed);
    if (host_.size() > capacity_ / 2) {
      removed.block_hashes = {HashOf(host_.front())};
      removed.tier = Tier::kHost;
      events->push_back(removed);
      Drop(Tier::kHost, host_.front());
      host_.erase(host_.begin());
    }
  }

  bool ParentKnown(const Path& path) const {
    Path parent = path;
    parent.contents.pop_back();
    return Copies(Tier::kGpu, parent) > 0 || Copies(Tier::kHost, parent) > 0;
  }

  Random& random_;
  const std::size_t capacity_;
  std::array<std::map<Path, int>, kTierCount> copies_;
  std::vector<Path> order_;  // GPU copies, least recently used first
  std::vector<Path> host_;
  std::map<Path, EngineHash> hashes_;
  std::map<ChainHash, ChainHash> before_;  // of routing blocks that were held some time
};

Path RandomPrompt(Random& random, int branches) {
  Path prompt{static_cast<int>(random.Below(4)), {}};
  for (std::uint64_t depth = 1 + random.Below(14); depth > 0; --depth) {
    prompt.contents.push_back(static_cast<int>(random.Below(branches)) + 1);
  }
  return prompt;
}

std::set<ChainHash> HeldSet(const Canonical& canonical, Tier tier) {
  const std::vector<ChainHash> held = canonical.Held(tier);
  return {held.begin(), held.end()};
}

class CanonicalDifferentialTest : public ::testing::TestWithParam<std::uint32_t> {};

void RunSeed(std::uint64_t seed, std::uint32_t routing_block) {
  Random random(seed);
  SimulatedEngine engine(random, 8 + random.Below(60));
  CanonicalOptions options;
  options.routing_block = routing_block;
  options.engine_block = kEngineBlock;
  auto canonical = std::make_unique<Canonical>(options);
  std::array<std::set<ChainHash>, kTierCount> router;
  const int branches = 1 + static_cast<int>(random.Below(3));
  for (int batch = 0; batch < 40; ++batch) {
    EngineBatch events;
    for (std::uint64_t n = 1 + random.Below(3); n > 0; --n) {
      engine.Prompt(RandomPrompt(random, branches), &events.events);
    }
    if (random.Below(8) == 0) engine.EvictAny(&events.events);
    if (random.Below(25) == 0) engine.Reset(&events.events);
    for (const BlockChanges& change : canonical->Apply(events)) {
      auto& view = router[static_cast<std::size_t>(change.tier)];
      for (const ChainHash hash : change.removed) ASSERT_EQ(view.erase(hash), 1u);
      for (const ChainHash hash : change.stored) ASSERT_TRUE(view.insert(hash).second);
    }
    for (const Tier tier : {Tier::kGpu, Tier::kHost}) {
      const std::set<ChainHash> truth = engine.Truth(tier, routing_block);
      ASSERT_EQ(HeldSet(*canonical, tier), truth) << "batch " << batch;
      ASSERT_EQ(router[static_cast<std::size_t>(tier)], truth) << "batch " << batch;
      SetDigest digest;
      for (const ChainHash hash : truth) digest.Insert(hash);
      ASSERT_EQ(canonical->digest(tier), digest);
      if (tier == Tier::kGpu) {
        ASSERT_EQ(canonical->holes(), engine.HolesIn(truth)) << "batch " << batch;
      }
    }
    ASSERT_EQ(canonical->skipped().Total(), 0u);
    ASSERT_TRUE(canonical->causes().empty());
    if (random.Below(10) == 0) {
      const std::string state = canonical->Serialize();
      canonical = std::make_unique<Canonical>(options);
      ASSERT_THAT(canonical->Restore(state), testing::IsOk());
    }
  }
}

TEST_P(CanonicalDifferentialTest, HoldsWhatTheEngineHolds) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    RunSeed(seed, GetParam());
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Whatever was lost, the holes are those of what is believed to be held.
void RunLossySeed(std::uint64_t seed, std::uint32_t routing_block, std::uint64_t* holes) {
  Random random(seed);
  const std::size_t capacity = 8 + random.Below(60);
  SimulatedEngine engine(random, capacity);
  CanonicalOptions options;
  options.routing_block = routing_block;
  options.engine_block = kEngineBlock;
  options.capacity[0] = capacity;
  auto canonical = std::make_unique<Canonical>(options);
  const int branches = 1 + static_cast<int>(random.Below(3));
  for (int batch = 0; batch < 40; ++batch) {
    EngineBatch events;
    for (std::uint64_t n = 1 + random.Below(3); n > 0; --n) {
      engine.Prompt(RandomPrompt(random, branches), &events.events);
      engine.Truth(Tier::kGpu, routing_block);
    }
    if (random.Below(3) == 0) engine.EvictAny(&events.events);
    if (random.Below(25) == 0) engine.Reset(&events.events);
    engine.Truth(Tier::kGpu, routing_block);
    if (random.Below(10) == 0) {
      canonical->MarkLoss(random.Below(2) == 0 ? LossKind::kGap : LossKind::kMissedStart);
    } else {
      canonical->Apply(events);
    }
    ASSERT_EQ(canonical->holes(), engine.HolesIn(HeldSet(*canonical, Tier::kGpu)))
        << "batch " << batch;
    *holes += canonical->holes();
    if (random.Below(10) == 0) {
      const std::string state = canonical->Serialize();
      const std::uint64_t before = canonical->holes();
      if (random.Below(2) == 0) canonical = std::make_unique<Canonical>(options);
      ASSERT_THAT(canonical->Restore(state), testing::IsOk());
      ASSERT_EQ(canonical->holes(), before);
    }
    if (random.Below(40) == 0) {
      canonical->Clear();
      ASSERT_EQ(canonical->holes(), 0u);
    }
  }
}

TEST_P(CanonicalDifferentialTest, HolesAreCountedAsHeld) {
  std::uint64_t holes = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    RunLossySeed(seed, GetParam(), &holes);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(holes, 200u);
}

// Two groups that count: what both hold may have holes only if one of them has some.
TEST_P(CanonicalDifferentialTest, NoHoleOfSeveralGroupsIsMissed) {
  int whole = 0;
  int holed = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    SimulatedEngine engines[] = {{random, 30}, {random, 30}};
    CanonicalOptions options;
    options.routing_block = GetParam();
    options.engine_block = kEngineBlock;
    Canonical canonical(options);
    for (int batch = 0; batch < 30; ++batch) {
      const Path prompt = RandomPrompt(random, 2);
      EngineBatch events;
      for (std::uint32_t group = 0; group < 2; ++group) {
        EngineBatch of_group;
        engines[group].Prompt(prompt, &of_group.events);
        engines[group].Truth(Tier::kGpu, GetParam());
        if (random.Below(30) == 0) engines[group].EvictAny(&of_group.events);
        for (EngineEvent& event : of_group.events) {
          if (auto* stored = std::get_if<BlockStored>(&event)) stored->group_idx = group;
          if (auto* removed = std::get_if<BlockRemoved>(&event)) removed->group_idx = group;
          events.events.push_back(std::move(event));
        }
      }
      canonical.Apply(events);
      std::set<ChainHash> both = engines[0].Truth(Tier::kGpu, GetParam());
      const std::set<ChainHash> other = engines[1].Truth(Tier::kGpu, GetParam());
      std::erase_if(both, [&other](ChainHash hash) { return !other.contains(hash); });
      ASSERT_EQ(HeldSet(canonical, Tier::kGpu), both);
      const bool has_holes = engines[0].HolesIn(both) != 0;
      ASSERT_TRUE(!has_holes || canonical.holes() != 0) << "seed " << seed << " batch " << batch;
      ++(canonical.holes() != 0 ? holed : whole);
    }
  }
  EXPECT_GT(whole, 100);
  EXPECT_GT(holed, 100);
}

INSTANTIATE_TEST_SUITE_P(RoutingBlocks, CanonicalDifferentialTest,
                         ::testing::Values(16, 32, 64, 112));

}  // namespace
}  // namespace warmpath
