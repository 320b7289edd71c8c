// A fleet that does what the test says and remembers what it was told.
#ifndef WARMPATH_TESTS_SERVER_FAKE_FLEET_H_
#define WARMPATH_TESTS_SERVER_FAKE_FLEET_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/fleet/fleet.h"
#include "core/fleet/pool.h"

namespace warmpath::testing {

// Not thread-safe.
class FakeFleet final : public Fleet {
 public:
  // --- For the test.
  absl::Status register_status;
  absl::Status update_status;
  std::function<void(FeedSink&)> on_register = [](FeedSink& to) {
    to.Send(RegisteredReply{.session = 7, .routing_block_size = 64, .hash_seed = 1337});
  };
  std::vector<Registration> registrations;
  std::string peer;
  std::shared_ptr<FeedSink> sink;
  std::vector<std::pair<SessionId, std::size_t>> updates;  // session, variant's index
  int closed = 0;
  std::vector<WorkerView> workers;
  std::vector<PoolView> pools;
  FleetCounters counters;

  // --- Fleet
  absl::StatusOr<std::unique_ptr<WorkerFeed>> Register(const Registration& registration,
                                                       std::string_view agent,
                                                       std::shared_ptr<FeedSink> to) override {
    registrations.push_back(registration);
    peer = agent;
    if (!register_status.ok()) return register_status;
    sink = std::move(to);
    on_register(*sink);
    return std::make_unique<Feed>(this);
  }
  absl::StatusOr<ModelRef> Resolve(std::string_view) const override {
    return absl::NotFoundError("model: unknown");
  }
  std::vector<std::shared_ptr<Pool>> Pools() const override { return {}; }
  std::shared_ptr<Pool> PoolByNumber(std::uint32_t) const override { return nullptr; }
  std::vector<WorkerView> ListWorkers(std::string_view) const override { return workers; }
  std::vector<PoolView> ListPools(std::string_view) const override { return pools; }
  absl::StatusOr<std::uint32_t> Drain(std::string_view, bool) override { return 0u; }
  absl::StatusOr<DumpHeader> Dump(std::string_view, Rank, Tier, KnowledgeSource,
                                  std::vector<ChainHash>*) const override {
    return DumpHeader{};
  }
  bool Ready() const override { return true; }
  void Tick() override {}
  bool MaintainIndexes(std::size_t) override { return false; }
  FleetCounters Counters() const override { return counters; }

 private:
  class Feed final : public WorkerFeed {
   public:
    explicit Feed(FakeFleet* fleet) : fleet_(fleet) {}
    absl::Status OnUpdate(SessionId session, const FeedUpdate& update) override {
      fleet_->updates.emplace_back(session, update.index());
      return fleet_->update_status;
    }
    void OnClosed() override { ++fleet_->closed; }

   private:
    FakeFleet* const fleet_;
  };
};

}  // namespace warmpath::testing

#endif  // WARMPATH_TESTS_SERVER_FAKE_FLEET_H_
