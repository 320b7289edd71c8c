// What simulations measured: one run summarised, and cells of runs over seeds as table and JSON.
#ifndef WARMPATH_CORE_REPLAY_SIM_REPORT_H_
#define WARMPATH_CORE_REPLAY_SIM_REPORT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/replay/simulator.h"

namespace warmpath {

// What a good answer is: first token below the one, time per output token below the other.
struct SimObjective {
  double ttft_s = 2.0;
  double tpot_s = 0.050;
};

// One tenant of a run of several. Means over seeds are of the same form, hence no integers.
struct TenantSummary {
  double requests = 0;
  double refused = 0;
  double share = 0;  // of the prompt tokens that were computed
  double ttft_mean_s = 0;
  double ttft_p99_s = 0;
  double goodput = 0;
  double slowdown = 0;  // of the mean TTFT against a run without the batch tenant; 0: not known
};

// One run. Fractions are 0..1; percentiles by nearest rank.
struct SimSummary {
  std::uint64_t requests = 0;
  std::uint64_t refused = 0;  // in no other figure but goodput
  double ttft_mean_s = 0;
  double ttft_p50_s = 0;
  double ttft_p90_s = 0;
  double ttft_p99_s = 0;
  double tpot_mean_ms = 0;                  // mean over requests with more than one output token
  double long_tpot_mean_ms = 0;             // of them, prompts of 32,768 tokens and more
  double goodput = 0;                       // share of all requests that met the objective
  double token_hit_rate = 0;                // cached prompt tokens / prompt tokens
  double host_hit_rate = 0;                 // of these: from host memory, by a copy
  double busiest_share = 0;                 // of the prompt tokens, on the worker that got most
  double prediction_error = 0;              // mean of |predicted - cached| / prompt tokens
  double jain_goodput = 0;                  // Jain's index of the tenants' goodput
  std::vector<TenantSummary> tenants = {};  // by tenant; none when there is a single one
};

SimSummary Summarise(const SimResult& result, std::uint32_t workers, const SimObjective& objective);

// What plots show of one run.
struct SimPlots {
  std::vector<double> ttft_s = {};  // quantiles 0, 1/200, ... 1 of requests that were served
  std::vector<SimSample> load = {};
  std::vector<double> worker_shares = {};  // of the prompt tokens, by worker
};
SimPlots PlotsOf(const SimResult& result, std::uint32_t workers);

// All runs of one policy under one load: one summary per seed, seeds in the same order everywhere,
// so that policies can be compared pair by pair.
struct SimCell {
  std::uint32_t workers = 0;
  double load = 0;
  double rate_rps = 0;
  std::string policy = {};
  std::vector<SimSummary> seeds = {};
  SimPlots plots = {};  // of the first seed
};

// Cells of equal fleet and load stand side by side.
bool SameBlock(const SimCell& a, const SimCell& b);

// Mean and its standard error over seeds; the error is 0 for a single one.
struct MeanError {
  double mean = 0;
  double error = 0;
};
MeanError OverSeeds(const SimCell& cell, double SimSummary::*field);
// Of the differences a - b, pair by pair. REQUIRES: as many seeds in both.
MeanError PairedDifference(const SimCell& a, const SimCell& b, double SimSummary::*field);

// One block of lines per (workers, load); within it one line per policy.
std::string SimTable(const std::vector<SimCell>& cells);

// What each policy does differently from `reference`, seed by seed, in percent or points with the
// half width of a 95 % confidence interval; '*' marks what is no chance. Empty when no block has
// the reference and another policy, both with two seeds or more.
std::string SimComparison(const std::vector<SimCell>& cells, std::string_view reference);

// [{"workers": ..., "load": ..., ...}, ...]; docs/warmpath-replay.md lists the fields. Where the
// block has a cell of marginal_cost, the others tell their paired differences from it.
std::string SimCellsJson(const std::vector<SimCell>& cells);

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_SIM_REPORT_H_
