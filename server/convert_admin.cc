#include "server/convert_admin.h"

#include <string>

namespace warmpath {
namespace {

void TargetToProto(const TargetView& target, absl::Time now, v1::TargetInfo* m) {
  m->set_rank(target.rank);
  m->set_address(target.address);
  // Values are those of core's enums plus one.
  m->set_lifecycle(static_cast<v1::Lifecycle>(static_cast<int>(target.lifecycle) + 1));
  m->set_freshness(FreshnessToProto(target.freshness));
  for (const FreshnessCause cause : target.causes.ToVector()) {
    v1::CauseInfo* info = m->add_causes();
    info->set_cause(static_cast<v1::FreshnessCause>(static_cast<int>(cause) + 1));
    info->set_remedy(std::string(FreshnessCauseRemedy(cause)));
  }
  m->set_epoch(target.epoch);
  m->set_engine_seq_valid(target.engine_seq.has_value());
  m->set_engine_seq(target.engine_seq.value_or(0));
  m->set_event_lag_s(target.event_lag_s);
  for (const Tier tier : kAllTiers) {
    const std::uint64_t blocks = target.blocks[static_cast<std::size_t>(tier)];
    if (blocks == 0 && tier != Tier::kGpu) continue;
    v1::TierBlocks* entry = m->add_blocks();
    entry->set_tier(static_cast<v1::Tier>(static_cast<int>(tier) + 1));
    entry->set_blocks(blocks);
  }
  m->set_inflight(target.inflight);
  m->set_external_inflight(target.external_inflight);
  m->set_wait_ms(target.wait_s * 1000);
  m->set_kv_tokens(target.kv_tokens);
  m->set_kv_capacity_tokens(target.kv_capacity_tokens);
  m->set_prefill_tokens_per_s(target.prefill_tokens_per_s);
  m->set_report_age_s(-1);
  if (target.load.has_value()) {
    m->set_reported_running(target.load->running);
    m->set_reported_waiting(target.load->waiting);
    m->set_reported_kv_usage(target.load->kv_usage);
    m->set_report_age_s(absl::ToDoubleSeconds(now - target.load->as_of));
  }
  m->set_engine_block_size(target.engine_block_size);
  m->set_has_events(target.has_events);
  m->set_predicted_blocks(target.predicted_blocks);
  m->set_may_have_holes(target.may_have_holes);
}

}  // namespace

v1::Freshness FreshnessToProto(Freshness freshness) {
  return static_cast<v1::Freshness>(static_cast<int>(freshness) + 1);
}

v1::FreshnessCause CauseToProto(CauseSet causes) {
  if (causes.empty()) return v1::FRESHNESS_CAUSE_UNSPECIFIED;
  return static_cast<v1::FreshnessCause>(static_cast<int>(causes.First()) + 1);
}

void WorkerToProto(const WorkerView& worker, absl::Time now, v1::WorkerInfo* m) {
  m->set_worker_id(worker.worker_id);
  m->set_pool(worker.pool);
  m->set_engine(worker.engine);
  m->set_engine_version(worker.engine_version);
  m->set_agent_address(worker.agent_address);
  m->set_agent_version(worker.agent_version);
  m->set_draining(worker.draining);
  for (const std::string& lora : worker.loras) m->add_loras(lora);
  for (const auto& [key, value] : worker.labels) (*m->mutable_labels())[key] = value;
  for (const TargetView& target : worker.targets) TargetToProto(target, now, m->add_targets());
}

void PoolStatsToProto(const PoolView& pool, v1::PoolIndexStats* m) {
  m->set_pool(pool.name);
  m->set_routing_block_size(pool.routing_block_size);
  m->set_blocks(pool.index.blocks);
  m->set_pairs(pool.index.pairs);
  m->set_sets(pool.index.sets);
  m->set_bytes(pool.index.bytes);
  m->set_bound_bytes(pool.index.bound_bytes);
  m->set_refused_stores(pool.index.refused_stores);
  m->set_inflight_blocks(pool.inflight_blocks);
  m->set_predicted_blocks(pool.predicted_blocks);
  m->set_audit_failures(pool.audit_failures);
  m->set_open_reservations(pool.open_reservations);
  m->set_slots_with_holes(pool.index.slots_with_holes);
}

}  // namespace warmpath
