// A fleet without streams, for tests and benchmarks of picks.
#ifndef WARMPATH_TESTS_CORE_ROUTING_POOLS_ONLY_H_
#define WARMPATH_TESTS_CORE_ROUTING_POOLS_ONLY_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/fleet/fleet.h"
#include "core/fleet/pool.h"

namespace warmpath::testing {

// A fleet of given pools, as far as the picker needs one.
class PoolsOnly final : public Fleet {
 public:
  void Add(std::shared_ptr<Pool> pool) { pools_.push_back(std::move(pool)); }

  std::vector<std::shared_ptr<Pool>> Pools() const override { return pools_; }
  std::shared_ptr<Pool> PoolByNumber(std::uint32_t number) const override {
    return number < pools_.size() ? pools_[number] : nullptr;
  }

  absl::StatusOr<std::unique_ptr<WorkerFeed>> Register(const Registration&, std::string_view,
                                                       std::shared_ptr<FeedSink>) override {
    return absl::UnimplementedError("Register");
  }
  absl::StatusOr<ModelRef> Resolve(std::string_view) const override {
    return absl::UnimplementedError("Resolve");
  }
  std::vector<WorkerView> ListWorkers(std::string_view) const override { return {}; }
  std::vector<PoolView> ListPools(std::string_view) const override { return {}; }
  absl::StatusOr<std::uint32_t> Drain(std::string_view, bool) override { return 0; }
  absl::StatusOr<DumpHeader> Dump(std::string_view, Rank, Tier, KnowledgeSource,
                                  std::vector<ChainHash>*) const override {
    return absl::UnimplementedError("Dump");
  }
  bool Ready() const override { return true; }
  void Tick() override {}
  bool MaintainIndexes(std::size_t) override { return false; }
  FleetCounters Counters() const override { return {}; }

 private:
  std::vector<std::shared_ptr<Pool>> pools_;
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_CORE_ROUTING_POOLS_ONLY_H_
