#include "client/agent/engine_facts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#ifndef WARMPATH_VERSION
#define WARMPATH_VERSION "unknown"
#endif

namespace warmpath {

std::string_view AgentVersion() { return WARMPATH_VERSION; }

absl::StatusOr<EngineFacts> FactsOf(const EngineConfig& config, const EngineReport& report) {
  EngineFacts facts;
  facts.model = config.model;
  facts.engine_version = report.engine_version;
  if (report.models) {
    for (const std::string& name : report.models->base) {
      if (facts.model.empty()) facts.model = name;
      if (name != facts.model) facts.aliases.push_back(name);
    }
    facts.loras = report.models->loras;
    // The order is the engine's mood; a change of it is no news for the router.
    std::sort(facts.aliases.begin(), facts.aliases.end());
    std::sort(facts.loras.begin(), facts.loras.end());
  }
  if (facts.model.empty()) {
    return absl::UnavailableError("the engine's model is not known yet; model sets it");
  }
  for (Rank rank = 0; rank < config.ranks; ++rank) {
    const RankMetrics metrics = report.metrics.ForRank(rank, config.ranks);
    RankFacts& own = facts.ranks.emplace_back();
    own.block_size = config.block_size != 0 ? config.block_size : metrics.block_size.value_or(0);
    if (own.block_size == 0) {
      return absl::UnavailableError(
          absl::StrCat("the block size of rank ", rank,
                       " is not known yet: no vllm:cache_config_info; block_size sets it"));
    }
    const std::uint64_t blocks =
        config.num_blocks != 0 ? config.num_blocks : metrics.num_blocks.value_or(0);
    own.num_blocks = blocks > config.reserved_blocks ? blocks - config.reserved_blocks : 0;
  }
  return facts;
}

v1::Register MakeRegister(const EngineConfig& config, const EngineFacts& facts,
                          const AgentInstance& instance, std::span<const Epoch> epochs) {
  v1::Register message;
  message.set_protocol_min(1);
  message.set_protocol_max(1);
  message.set_agent_instance(instance.data(), instance.size());
  message.set_worker_id(config.worker_id);
  message.set_model(facts.model);
  for (const std::string& alias : facts.aliases) message.add_aliases(alias);
  for (const std::string& lora : facts.loras) message.add_loras(lora);
  message.set_engine(config.engine);
  message.set_engine_version(facts.engine_version);
  message.set_agent_version(std::string(AgentVersion()));
  for (const auto& [key, value] : config.labels) (*message.mutable_labels())[key] = value;
  for (Rank rank = 0; rank < config.ranks; ++rank) {
    v1::RankInfo* info = message.add_ranks();
    info->set_rank(rank);
    info->set_address(config.advertise.size() == 1 ? config.advertise[0] : config.advertise[rank]);
    info->set_epoch(epochs[rank]);
    info->set_engine_block_size(facts.ranks[rank].block_size);
    info->set_kv_capacity_tokens(facts.ranks[rank].capacity_tokens());
    info->set_has_events(config.has_events());
    info->set_prefill_tokens_per_s(config.prefill_tokens_per_s);
    info->set_host_copy_tokens_per_s(config.host_copy_tokens_per_s);
    info->set_shares_address(config.advertise.size() == 1 && config.ranks > 1);
  }
  return message;
}

}  // namespace warmpath
