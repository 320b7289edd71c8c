// A load ledger with one target that has events and one that has none.
#ifndef WARMPATH_TESTS_CORE_FLEET_LEDGER_FIXTURE_H_
#define WARMPATH_TESTS_CORE_FLEET_LEDGER_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/fleet/load_ledger.h"
#include "gtest/gtest.h"

namespace warmpath::testing {

using Chain = std::vector<ChainHash>;

inline constexpr std::uint32_t kBlock = 64;

inline absl::Time At(double seconds) {
  return absl::FromUnixSeconds(1000) + absl::Seconds(seconds);
}

class LedgerFixture : public ::testing::Test {
 protected:
  LedgerFixture() {
    LoadLedger::Options options;
    options.block_size = kBlock;
    options.pool_number = 3;
    options.id_seed = 12345;
    ledger_ = LoadLedger::Create(options);
    ledger_->AddTarget(0, /*has_events=*/true, 100);
    ledger_->AddTarget(1, /*has_events=*/false, 100);
  }
  ~LedgerFixture() override {
    // Whatever a test did: every reservation that was opened is open or was closed, once.
    const auto closed = ledger_->closed();
    EXPECT_EQ(ledger_->opened() - std::accumulate(closed.begin(), closed.end(), std::uint64_t{0}),
              ledger_->open());
  }

  // What Open is called with.
  struct Asked : Reservation {
    Chain chain;
  };
  static Asked Request(TargetId target, std::uint64_t tokens, double prefill_s, Chain chain = {}) {
    Asked r;
    r.target = target;
    r.prompt_tokens = tokens;
    r.prefill_s = prefill_s;
    r.prefill_work = prefill_s * 10'000;
    r.chain = std::move(chain);
    return r;
  }
  ReservationId Open(const Asked& asked, absl::Time now) {
    return ledger_->Open(asked, asked.chain, now);
  }
  std::uint64_t Closed(CloseCause cause) const {
    return ledger_->closed()[static_cast<std::size_t>(cause)];
  }
  void Finish(ReservationId id, double at) {
    EXPECT_TRUE(ledger_->Close(id, CloseCause::kFinished, At(at), 10).has_value());
  }
  std::uint32_t Depth(TargetId target, const Chain& chain,
                      ChainKind kind = ChainKind::kTokens) const {
    std::vector<std::uint32_t> depth(2, 0);
    ledger_->KnownDepths(kind, chain, depth);
    return depth[target];
  }
  static Asked TextRequest(TargetId target, Chain chain) {
    Asked r = Request(target, chain.size() * kBlock, 1, std::move(chain));
    r.chain_kind = ChainKind::kText;
    return r;
  }
  EngineLoad Report(std::uint32_t requests, double at) const {
    return EngineLoad{.running = requests, .waiting = 0, .kv_usage = 0, .as_of = At(at)};
  }

  std::unique_ptr<LoadLedger> ledger_;
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CORE_FLEET_LEDGER_FIXTURE_H_
