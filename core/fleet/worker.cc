#include "core/fleet/worker.h"

#include <bit>

namespace warmpath {

std::string_view LifecycleName(Lifecycle lifecycle) {
  switch (lifecycle) {
    case Lifecycle::kJoining:
      return "joining";
    case Lifecycle::kReady:
      return "ready";
    case Lifecycle::kNotReady:
      return "not_ready";
    case Lifecycle::kDraining:
      return "draining";
    case Lifecycle::kLost:
      return "lost";
  }
  return "unknown";
}

std::string_view FreshnessName(Freshness freshness) {
  switch (freshness) {
    case Freshness::kNone:
      return "NONE";
    case Freshness::kDegraded:
      return "DEGRADED";
    case Freshness::kExact:
      return "EXACT";
  }
  return "unknown";
}

std::string_view FreshnessCauseName(FreshnessCause cause) {
  switch (cause) {
    case FreshnessCause::kAgentGone:
      return "agent_gone";
    case FreshnessCause::kResync:
      return "resync";
    case FreshnessCause::kGap:
      return "gap";
    case FreshnessCause::kMissedStart:
      return "missed_start";
    case FreshnessCause::kLateJoin:
      return "late_join";
    case FreshnessCause::kHiddenDomain:
      return "hidden_domain";
    case FreshnessCause::kIndexFull:
      return "index_full";
    case FreshnessCause::kSilent:
      return "silent";
    case FreshnessCause::kDrift:
      return "drift";
  }
  return "unknown";
}

std::string_view FreshnessCauseRemedy(FreshnessCause cause) {
  switch (cause) {
    case FreshnessCause::kAgentGone:
      return "The agent's stream is lost or silent: check that warmpath-agent runs beside the "
             "engine and "
             "reaches the router; the worker is dropped when its lease ends.";
    case FreshnessCause::kResync:
      return "A snapshot or replay is under way: wait, it ends by itself; if it lasts for minutes "
             "read the agent's log.";
    case FreshnessCause::kGap:
      return "Engine events were lost and could not be replayed: configure the engine's replay "
             "endpoint, or wait until the blocks from before the gap are evicted.";
    case FreshnessCause::kMissedStart:
      return "The engine had cached blocks before its first event was seen: start the agent "
             "before the engine or configure the replay endpoint; resetting the prefix cache "
             "cures it at once.";
    case FreshnessCause::kLateJoin:
      return "The agent met an engine that had been running: configure the replay endpoint, or "
             "wait until the old blocks are evicted.";
    case FreshnessCause::kHiddenDomain:
      return "The engine separates prompts by a key that its events do not carry: upgrade the "
             "engine to one that sends extra_keys, or map its LoRA ids in the agent.";
    case FreshnessCause::kIndexFull:
      return "The index refused blocks at its memory bound: raise the pool's index_bound_bytes; "
             "a new snapshot is taken when it is below 90 % again.";
    case FreshnessCause::kSilent:
      return "The event source does not answer: check the engine's KV event settings and the "
             "endpoint given to the agent.";
    case FreshnessCause::kDrift:
      return "The engine's cached tokens or block size disagree with what was registered: compare "
             "the engine's block size, tokenizer and cache settings with the agent's.";
  }
  return "";
}

FreshnessCause CauseSet::First() const {
  return static_cast<FreshnessCause>(std::countr_zero(static_cast<unsigned>(bits_)));
}

std::vector<FreshnessCause> CauseSet::ToVector() const {
  std::vector<FreshnessCause> causes;
  for (std::size_t i = 0; i < kFreshnessCauseCount; ++i) {
    const auto cause = static_cast<FreshnessCause>(i);
    if (Has(cause)) causes.push_back(cause);
  }
  return causes;
}

}  // namespace warmpath
