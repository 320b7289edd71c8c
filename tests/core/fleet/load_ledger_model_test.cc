// The ledger against a model that keeps a plain list and computes everything anew from it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/random.h"
#include "core/fleet/load_ledger.h"
#include "gtest/gtest.h"

namespace warmpath {
namespace {

using Chain = std::vector<ChainHash>;

constexpr std::uint32_t kBlock = 16;
constexpr TargetId kTargets = 4;

bool HasEvents(TargetId target) { return target % 2 == 0; }

class Model {
 public:
  struct Open {
    Reservation r;
    Chain chain;
    bool pending = true;
    std::uint64_t order = 0;  // in pend_w of its target
  };

  std::map<ReservationId, Open> open;
  std::array<absl::Time, kTargets> anchor{};
  std::uint64_t opened = 0;
  std::array<std::uint64_t, kCloseCauseCount> closed{};
  double output_mean = 0, residence_mean = 0, prefill_mean = 0, rho = 0;
  std::uint64_t outputs = 0, finished = 0, picks = 0;
  absl::Time rho_at;
  struct Lingering {
    absl::Time until;
    TargetId target;
    Chain chain;
  };
  std::vector<Lingering> lingering;

  // To be called before each change: the share of busy targets held since the last one.
  void Pass(absl::Time now) {
    int busy = 0;
    for (TargetId t = 0; t < kTargets; ++t) busy += Pending(t).empty() ? 0 : 1;
    const double share = busy / static_cast<double>(kTargets);
    rho = share + (rho - share) * std::exp(-absl::ToDoubleSeconds(now - rho_at) / 30);
    rho_at = now;
  }

  std::vector<const Open*> Pending(TargetId target) const {
    std::vector<const Open*> pending;
    for (const auto& [id, o] : open) {
      if (o.r.target == target && o.pending) pending.push_back(&o);
    }
    std::sort(pending.begin(), pending.end(),
              [](const Open* a, const Open* b) { return a->order < b->order; });
    return pending;
  }

  void Add(const Reservation& r, Chain chain, absl::Time now) {
    if (Pending(r.target).empty()) anchor[r.target] = now;
    open[r.id] = Open{.r = r, .chain = std::move(chain), .pending = true, .order = next_order_++};
    ++opened;
    ++picks;
    prefill_mean +=
        std::max(0.005, 1.0 / static_cast<double>(picks)) * (r.prefill_s - prefill_mean);
  }

  void FirstToken(ReservationId id, absl::Time now) {
    Open& o = open[id];
    if (!o.pending) return;
    o.pending = false;
    anchor[o.r.target] = now;
  }

  void Move(ReservationId id, TargetId to, absl::Time now) {
    Open& o = open[id];
    if (o.r.target == to) return;
    if (o.pending) {
      if (Pending(o.r.target).front() == &o) anchor[o.r.target] = now;
      if (Pending(to).empty()) anchor[to] = now;
      o.order = next_order_++;
    }
    o.r.target = to;
  }

  void Close(ReservationId id, CloseCause cause, absl::Time now, std::optional<std::uint64_t> out) {
    const Open o = open[id];
    if (o.pending && Pending(o.r.target).front()->r.id == id) anchor[o.r.target] = now;
    open.erase(id);
    ++closed[static_cast<std::size_t>(cause)];
    if (cause == CloseCause::kFinished) {
      ++finished;
      residence_mean += std::max(0.005, 1.0 / static_cast<double>(finished)) *
                        (absl::ToDoubleSeconds(now - o.r.picked_at) - residence_mean);
      if (out.has_value()) {
        ++outputs;
        output_mean += std::max(0.002, 1.0 / static_cast<double>(outputs)) *
                       (static_cast<double>(*out) - output_mean);
      }
    }
    if (HasEvents(o.r.target)) {
      lingering.push_back({now + absl::Milliseconds(500), o.r.target, o.chain});
    }
  }

  TargetLoad Load(TargetId target, absl::Time now) const {
    TargetLoad load;
    double wait = 0;
    const auto pending = Pending(target);
    for (std::size_t i = 0; i < pending.size(); ++i) {
      const double drained = i == 0 ? absl::ToDoubleSeconds(now - anchor[target]) : 0;
      wait += std::max(0.0, pending[i]->r.prefill_s - drained);
    }
    load.wait_s = wait;
    std::set<ChainHash> blocks;
    std::uint64_t loose = 0;
    double outputs_held = 0;
    const bool cold = finished < 20;
    for (const auto& [id, o] : open) {
      if (o.r.target != target) continue;
      ++load.own_inflight;
      blocks.insert(o.chain.begin(), o.chain.end());
      loose += o.r.prompt_tokens - o.chain.size() * kBlock;
      outputs_held += !cold && outputs > 0              ? output_mean
                      : cold && o.r.expected_output > 0 ? static_cast<double>(o.r.expected_output)
                                                        : 256;
    }
    load.inflight = load.own_inflight;
    load.kv_tokens =
        blocks.size() * kBlock + loose + static_cast<std::uint64_t>(std::llround(outputs_held));
    return load;
  }

  std::uint64_t InFlightBlocks() const {
    std::set<std::pair<TargetId, ChainHash>> pairs;
    for (const auto& [id, o] : open) {
      for (const ChainHash hash : o.chain) pairs.emplace(o.r.target, hash);
    }
    for (const Lingering& l : lingering) {
      for (const ChainHash hash : l.chain) pairs.emplace(l.target, hash);
    }
    return pairs.size();
  }

 private:
  std::uint64_t next_order_ = 0;
};

// Prefix-closed chains: a hash says everything before it.
Chain AnyChain(Random& random) {
  Chain chain;
  ChainHash hash = 0;
  const std::uint64_t length = random.Below(6);
  for (std::uint64_t i = 0; i < length; ++i) chain.push_back(hash = hash * 3 + 1 + random.Below(2));
  return chain;
}

void Compare(std::uint64_t seed) {
  SCOPED_TRACE(seed);
  Random random(seed);
  LoadLedger::Options options;
  options.block_size = kBlock;
  options.id_seed = seed;
  options.infer_first_tokens = false;  // the model believes only what it is told
  const std::unique_ptr<LoadLedger> ledger = LoadLedger::Create(options);
  Model model;
  absl::Time now = absl::FromUnixSeconds(1000);
  model.rho_at = now;
  for (TargetId t = 0; t < kTargets; ++t) ledger->AddTarget(t, HasEvents(t), 20);
  ledger->Tick(now);

  for (int step = 0; step < 600; ++step) {
    now += absl::Milliseconds(random.Below(400));
    model.Pass(now);
    ReservationId any = 0;
    if (!model.open.empty()) {
      auto it = model.open.begin();
      std::advance(it, static_cast<std::ptrdiff_t>(random.Below(model.open.size())));
      any = it->first;
    }
    switch (random.Below(9)) {
      case 0:
      case 1:
      case 2: {
        Reservation r;
        r.target = static_cast<TargetId>(random.Below(kTargets));
        Chain chain = AnyChain(random);
        r.prompt_tokens = chain.size() * kBlock + random.Below(kBlock);
        r.prefill_s = static_cast<double>(random.Below(2000)) / 1000;
        r.expected_output = random.Below(2) * random.Below(100);
        r.lease = absl::Seconds(5 + random.Below(60));
        r.id = ledger->Open(r, chain, now);
        r.picked_at = now;
        r.lease_until = now + r.lease;
        ASSERT_NE(r.id, 0u);
        model.Add(r, std::move(chain), now);
        break;
      }
      case 3:
        if (any == 0) break;
        ledger->FirstToken(any, now);
        model.FirstToken(any, now);
        break;
      case 4: {
        if (any == 0) break;
        const auto to = static_cast<TargetId>(random.Below(kTargets));
        ledger->Move(any, to, now);
        model.Move(any, to, now);
        break;
      }
      case 5:
        if (any == 0) break;
        ledger->RenewLease(any, now);
        model.open[any].r.lease_until = now + model.open[any].r.lease;
        break;
      case 6:
      case 7: {
        if (any == 0) break;
        const bool finished = random.Below(3) > 0;
        std::optional<std::uint64_t> out;
        if (random.Below(2) == 0) out = random.Below(500);
        const CloseCause cause = finished ? CloseCause::kFinished : CloseCause::kFailed;
        ASSERT_TRUE(ledger->Close(any, cause, now, out).has_value());
        model.Close(any, cause, now, out);
        break;
      }
      case 8: {
        if (random.Below(30) > 0) break;
        const auto target = static_cast<TargetId>(random.Below(kTargets));
        ledger->ClearTarget(target, CloseCause::kNewEpoch, now);
        std::vector<ReservationId> ids;
        for (const auto& [id, o] : model.open) {
          if (o.r.target == target) ids.push_back(id);
        }
        for (const ReservationId id : ids) model.Close(id, CloseCause::kNewEpoch, now, {});
        std::erase_if(model.lingering, [&](const auto& l) { return l.target == target; });
        break;
      }
    }
    while (ledger->Tick(now)) {
    }
    std::vector<ReservationId> expired;
    for (const auto& [id, o] : model.open) {
      if (o.r.lease_until <= now) expired.push_back(id);
    }
    // In the order of their ends, as the ledger does: a head's closing re-anchors.
    std::stable_sort(expired.begin(), expired.end(), [&](ReservationId a, ReservationId b) {
      return model.open[a].r.lease_until < model.open[b].r.lease_until;
    });
    for (const ReservationId id : expired) model.Close(id, CloseCause::kLeaseExpired, now, {});
    std::erase_if(model.lingering, [&](const auto& l) { return l.until <= now; });

    ASSERT_EQ(ledger->opened(), model.opened);
    ASSERT_EQ(ledger->open(), model.open.size());
    ASSERT_EQ(ledger->closed(), model.closed);
    ASSERT_EQ(ledger->opened(),
              ledger->open() +
                  std::accumulate(model.closed.begin(), model.closed.end(), std::uint64_t{0}));
    ASSERT_EQ(ledger->InFlightBlocks(), model.InFlightBlocks()) << "step " << step;
    for (TargetId t = 0; t < kTargets; ++t) {
      const TargetLoad load = ledger->Load(t, now);
      const TargetLoad expected = model.Load(t, now);
      ASSERT_NEAR(load.wait_s, expected.wait_s, 1e-6) << "step " << step << " target " << t;
      ASSERT_EQ(load.own_inflight, expected.own_inflight);
      ASSERT_EQ(load.inflight, expected.inflight);
      // One token apart where a product and a sum round differently.
      ASSERT_NEAR(static_cast<double>(load.kv_tokens), static_cast<double>(expected.kv_tokens), 1)
          << "step " << step << " target " << t;
    }
    const PoolAverages averages = ledger->Averages();
    ASSERT_NEAR(averages.prefill_s, model.prefill_mean, 1e-6);
    ASSERT_EQ(averages.finished, model.finished);
    if (model.finished < 20) {
      ASSERT_EQ(averages.rho, 0);
      continue;
    }
    ASSERT_NEAR(averages.rho, model.rho, 1e-9);
    ASSERT_NEAR(averages.residence_s, model.residence_mean, 1e-6);
    if (model.outputs > 0) {
      ASSERT_NEAR(averages.output_tokens, model.output_mean, 1e-6);
    }
  }
}

TEST(LoadLedgerModelTest, AgreesWithThePlainModel) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Compare(seed);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace warmpath
