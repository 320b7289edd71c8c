#include "client/replay/sim_command.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/replay/html_report.h"
#include "client/replay/progress.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/replay/competitors/competitor.h"
#include "core/replay/sim_report.h"
#include "core/replay/sim_router.h"
#include "core/replay/simulator.h"
#include "core/replay/tenant_report.h"
#include "core/replay/tenants.h"
#include "core/replay/trace.h"
#include "core/replay/workload_generator.h"

ABSL_DECLARE_FLAG(std::string, trace);
ABSL_DECLARE_FLAG(uint64_t, requests);
ABSL_DECLARE_FLAG(double, rate);
ABSL_DECLARE_FLAG(uint64_t, seed);
ABSL_DECLARE_FLAG(std::string, profile);
ABSL_DECLARE_FLAG(double, speed_factor);
ABSL_DECLARE_FLAG(uint32_t, block_size);
ABSL_DECLARE_FLAG(uint32_t, chats);
ABSL_DECLARE_FLAG(uint32_t, turns);
ABSL_DECLARE_FLAG(uint32_t, agent_loops);
ABSL_DECLARE_FLAG(uint32_t, siblings);
ABSL_DECLARE_FLAG(uint32_t, agent_steps);
ABSL_DECLARE_FLAG(std::string, json);
ABSL_DECLARE_FLAG(bool, progress);

ABSL_FLAG(std::string, html, "", "sim: file for a report with plots; opens offline");
ABSL_FLAG(std::string, workers, "8", "sim: fleet sizes, comma-separated");
ABSL_FLAG(std::string, load, "0.7", "sim: loads as shares of --full-rate, comma-separated");
ABSL_FLAG(double, full_rate, 0,
          "sim: requests per second and worker at load 1; 0: 0.61737 for a trace on 32b-2xh100, "
          "else what takes 66 % of a worker's time to prefill without hits");
ABSL_FLAG(std::string, policies, "all",
          "sim: policies, comma-separated; 'all' without the bound, the ablations and the tenant "
          "rules; 'ablations'; 'tenant_rules'");
ABSL_FLAG(uint32_t, seeds, 1, "sim: runs per cell, with seeds --seed, --seed + 1, ...");
ABSL_FLAG(std::string, speeds, "1",
          "sim: speed of each worker as a multiple of the profile's, in turn, comma-separated");
ABSL_FLAG(double, believed_speed, 1,
          "sim: prefill rate that workers register, as a multiple of the true one; 0: none");
ABSL_FLAG(
    uint64_t, host_kv_tokens, 0,
    "sim: KV cache of each worker in host memory, in tokens, for what its GPU evicts; 0: none");
ABSL_FLAG(double, host_copy_rate, 80'000,
          "sim: tokens per second that a worker copies from host memory into its GPU");
ABSL_FLAG(double, believed_copy_rate, 0,
          "sim: copy rate that workers register, as a multiple of the true one; 0: none");
ABSL_FLAG(bool, competitors_see_host, true,
          "sim: competitors take prefixes in host memory for cached; false: those in GPUs only");
ABSL_FLAG(double, event_lag_ms, 50, "sim: from an engine's step to its cache events in the index");
ABSL_FLAG(double, event_loss, 0, "sim: share of steps whose cache events are lost, 0 to 1");
ABSL_FLAG(double, report_lag_ms, 0, "sim: age of an engine's load report when it arrives");
ABSL_FLAG(double, signal_lag_ms, 5, "sim: from a first token or finish to the router");
ABSL_FLAG(uint32_t, agent_context, 0,
          "sim: of the generator: tokens that the siblings of an agent loop share; 0: 128 to 384");
ABSL_FLAG(uint32_t, tool_result, 0,
          "sim: of the generator: tokens that each step of a sibling adds; 0: 1,536 to 2,048");
ABSL_FLAG(
    bool, overlay, true,
    "sim: prompts in flight are known before their cache events arrive; false shows what that "
    "is worth");
ABSL_FLAG(std::string, compare, "marginal_cost",
          "sim: policy that the others are compared with, pair by pair of seeds; empty: none");
ABSL_FLAG(uint32_t, tenants, 1, "sim: tenants that the conversations belong to");
ABSL_FLAG(double, tenant_zipf, 1, "sim: the n-th tenant has 1 / n^this as many as the first");
ABSL_FLAG(bool, tenant_fairness, false, "sim: the router's setting of this name");
ABSL_FLAG(double, batch_share, 0,
          "sim: adds a batch tenant whose prefills, all of them new, take this share of the "
          "engines' time; every run is then repeated without it, to know what it costs others");
ABSL_FLAG(uint32_t, batch_prompt, 16'384, "sim: tokens of each of the batch tenant's prompts");
ABSL_FLAG(uint32_t, batch_output, 64, "sim: and of its answers");
ABSL_FLAG(uint32_t, batch_burst, 1, "sim: requests of the batch tenant that come at one moment");
ABSL_FLAG(uint64_t, skip, 0,
          "sim: leaves the first N requests out of the figures, and what came before the rest out "
          "of those of the run without the batch tenant");
ABSL_FLAG(bool, next_turns, true, "sim: next turns of a trace find the answers before them cached");

namespace warmpath::replay {
namespace {

constexpr double kTraceFullRate = 0.61737;
constexpr double kFullUtilisation = 0.66;
// Load 1 is a matter of N workers per copy of the conversation trace.
constexpr std::uint32_t kWorkersPerCopy = 8;

absl::StatusOr<std::vector<double>> ReadNumbers(std::string_view flag, const std::string& list) {
  std::vector<double> numbers;
  for (const auto& part : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    double value = 0;
    if (!absl::SimpleAtod(part, &value) || !(value > 0) || value > 1e6) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", ToAbsl(flag), ": \"", part, "\" must be a number above 0"));
    }
    numbers.push_back(value);
  }
  if (numbers.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--", ToAbsl(flag), " names nothing"));
  }
  return numbers;
}

std::vector<std::string> ReadPolicies(const std::string& list) {
  std::vector<std::string> names;
  const auto add = [&](const std::vector<std::string_view>& more) {
    for (const std::string_view name : more) names.emplace_back(name);
  };
  for (const auto& part : absl::StrSplit(list, ',', absl::SkipWhitespace())) {
    if (part == "all") {
      add(SimPolicyNames());
    } else if (part == "ablations") {
      add(AblationNames());
    } else if (part == "tenant_rules") {
      add(TenantRuleNames());
    } else {
      names.push_back(std::string(part));
    }
  }
  return names;
}

// Makes the workload of one fleet size, load and seed. Policies of a cell share it: comparisons
// are between equal arrivals.
class WorkloadSource {
 public:
  static absl::StatusOr<WorkloadSource> Open() {
    WorkloadSource source;
    WARMPATH_ASSIGN_OR_RETURN(source.profile_, FindEngineProfile(absl::GetFlag(FLAGS_profile)));
    const std::string trace = absl::GetFlag(FLAGS_trace);
    if (!trace.empty()) {
      WARMPATH_ASSIGN_OR_RETURN(source.rows_, ReadTrace(trace, absl::GetFlag(FLAGS_requests)));
    }
    source.block_size_ = absl::GetFlag(FLAGS_block_size);
    if (source.block_size_ == 0) source.block_size_ = trace.empty() ? 64 : kTraceBlockTokens;
    return source;
  }

  const EngineProfile& profile() const { return profile_; }
  std::uint32_t block_size() const { return block_size_; }

  struct Made {
    Workload workload = {};
    double load = 0;
    double rate_rps = 0;
  };
  // Rates and loads are those of the workload without the batch tenant.
  absl::StatusOr<Made> Make(std::uint32_t workers, double load, std::uint64_t seed,
                            bool with_batch) const {
    WARMPATH_ASSIGN_OR_RETURN(
        Made made, rows_.empty() ? Generate(workers, load, seed) : FromTrace(workers, load, seed));
    WARMPATH_RETURN_IF_ERROR(
        AssignTenants({.seed = seed,
                       .tenants = absl::GetFlag(FLAGS_tenants),
                       .zipf = absl::GetFlag(FLAGS_tenant_zipf),
                       .batch_share = with_batch ? absl::GetFlag(FLAGS_batch_share) : 0,
                       .batch_prompt = absl::GetFlag(FLAGS_batch_prompt),
                       .batch_output = absl::GetFlag(FLAGS_batch_output),
                       .batch_burst = absl::GetFlag(FLAGS_batch_burst),
                       .profile = profile_,
                       .engines = workers * absl::GetFlag(FLAGS_speed_factor)},
                      &made.workload));
    return made;
  }

 private:
  absl::StatusOr<Made> FromTrace(std::uint32_t workers, double load, std::uint64_t seed) const {
    TraceWorkloadOptions options{.seed = seed,
                                 .block_size = block_size_,
                                 .copies = std::max(1u, workers / kWorkersPerCopy),
                                 .next_turns = absl::GetFlag(FLAGS_next_turns)};
    const double full = workers * FullRate() * absl::GetFlag(FLAGS_speed_factor);
    Made made{.load = load, .rate_rps = absl::GetFlag(FLAGS_rate)};
    if (made.rate_rps > 0) {
      made.load = made.rate_rps / full;
    } else {
      made.rate_rps = load * full;
    }
    options.requests_per_s = made.rate_rps;
    WARMPATH_ASSIGN_OR_RETURN(made.workload, WorkloadFromTrace(rows_, options));
    return made;
  }

  absl::StatusOr<Made> Generate(std::uint32_t workers, double load, std::uint64_t seed) const {
    GeneratorOptions options;
    options.seed = seed;
    options.chats = absl::GetFlag(FLAGS_chats);
    options.turns = absl::GetFlag(FLAGS_turns);
    options.agent_loops = absl::GetFlag(FLAGS_agent_loops);
    options.siblings = absl::GetFlag(FLAGS_siblings);
    options.agent_steps = absl::GetFlag(FLAGS_agent_steps);
    if (const std::uint32_t tokens = absl::GetFlag(FLAGS_agent_context); tokens > 0) {
      options.agent_context = {tokens, tokens};
    }
    if (const std::uint32_t tokens = absl::GetFlag(FLAGS_tool_result); tokens > 0) {
      options.tool_result = {tokens, tokens};
    }
    options.block_size = block_size_;
    options.profile = profile_;
    options.engines = workers;
    options.speed_factor = absl::GetFlag(FLAGS_speed_factor);
    options.cold_utilisation = load * kFullUtilisation;
    Made made{.load = load};
    WARMPATH_ASSIGN_OR_RETURN(made.workload, GenerateWorkload(options));
    const auto count = static_cast<double>(made.workload.requests.size());
    const double wanted = absl::GetFlag(FLAGS_rate) > 0
                              ? absl::GetFlag(FLAGS_rate)
                              : absl::GetFlag(FLAGS_full_rate) * load * workers;
    made.rate_rps = count / made.workload.duration_s;
    if (wanted > 0) {
      const double scale = made.rate_rps / wanted;
      for (ReplayRequest& request : made.workload.requests) request.arrival_s *= scale;
      made.workload.duration_s *= scale;
      made.rate_rps = wanted;
    }
    return made;
  }

  double FullRate() const {
    if (absl::GetFlag(FLAGS_full_rate) > 0) return absl::GetFlag(FLAGS_full_rate);
    if (profile_.name == kProfile32b.name) return kTraceFullRate;
    double seconds = 0;
    for (const TraceRow& row : rows_) {
      const double length = row.input_length;
      seconds +=
          length / profile_.prefill_tokens_per_s * (1 + length / 2 / profile_.ctx_half_tokens);
    }
    return seconds > 0 ? kFullUtilisation * static_cast<double>(rows_.size()) / seconds : 1;
  }

  EngineProfile profile_;
  std::vector<TraceRow> rows_;
  std::uint32_t block_size_ = 0;
};

absl::StatusOr<SimOptions> OptionsFromFlags(const WorkloadSource& source) {
  SimOptions options;
  options.profile = source.profile();
  options.block_size = source.block_size();
  WARMPATH_ASSIGN_OR_RETURN(options.speeds, ReadNumbers("speeds", absl::GetFlag(FLAGS_speeds)));
  for (double& speed : options.speeds) speed *= absl::GetFlag(FLAGS_speed_factor);
  options.hint_factor = absl::GetFlag(FLAGS_believed_speed);
  options.host_kv_tokens = absl::GetFlag(FLAGS_host_kv_tokens);
  options.host_copy_tokens_per_s = absl::GetFlag(FLAGS_host_copy_rate);
  options.copy_hint_factor = absl::GetFlag(FLAGS_believed_copy_rate);
  options.competitors_see_host = absl::GetFlag(FLAGS_competitors_see_host);
  options.event_lag_s = absl::GetFlag(FLAGS_event_lag_ms) / 1e3;
  options.event_loss = absl::GetFlag(FLAGS_event_loss);
  options.report_lag_s = absl::GetFlag(FLAGS_report_lag_ms) / 1e3;
  options.signal_lag_s = absl::GetFlag(FLAGS_signal_lag_ms) / 1e3;
  options.overlay = absl::GetFlag(FLAGS_overlay);
  options.tenant_fairness = absl::GetFlag(FLAGS_tenant_fairness);
  return options;
}

absl::Status WriteFile(const std::string& path, const std::string& content) {
  if (path == "-") {
    std::cout << content << "\n";
    return absl::OkStatus();
  }
  std::ofstream out(path);
  out << content << "\n";
  out.close();
  if (!out) return absl::InternalError(absl::StrCat("can not write the file ", path));
  return absl::OkStatus();
}

std::string SettingsJson(const SimOptions& options, std::uint32_t seeds) {
  std::string speeds;
  for (const double speed : options.speeds) {
    absl::StrAppend(&speeds, speeds.empty() ? "" : ", ", speed);
  }
  std::string host;
  if (options.host_kv_tokens > 0) {
    host = absl::StrCat(
        ", \"host_kv_tokens\": ", options.host_kv_tokens,
        ", \"host_copy_rate\": ", options.host_copy_tokens_per_s,
        ", \"believed_copy_rate\": ", options.copy_hint_factor,
        ", \"competitors_see_host\": ", options.competitors_see_host ? "true" : "false");
  }
  std::string tenants;
  const double batch_share = absl::GetFlag(FLAGS_batch_share);
  if (absl::GetFlag(FLAGS_tenants) > 1 || batch_share > 0) {
    tenants = absl::StrCat(", \"tenants\": ", absl::GetFlag(FLAGS_tenants),
                           ", \"tenant_zipf\": ", absl::GetFlag(FLAGS_tenant_zipf),
                           ", \"tenant_fairness\": ", options.tenant_fairness ? "true" : "false",
                           ", \"batch_share\": ", batch_share);
    if (batch_share > 0) {
      absl::StrAppend(&tenants, ", \"batch_prompt\": ", absl::GetFlag(FLAGS_batch_prompt),
                      ", \"batch_output\": ", absl::GetFlag(FLAGS_batch_output),
                      ", \"batch_burst\": ", absl::GetFlag(FLAGS_batch_burst));
    }
  }
  return absl::StrCat(
      "{\"profile\": \"", ToAbsl(options.profile.name), "\", \"block_size\": ", options.block_size,
      ", \"speeds\": [", speeds, "], \"believed_speed\": ", options.hint_factor, host, tenants,
      ", \"event_lag_ms\": ", options.event_lag_s * 1e3, ", \"event_loss\": ", options.event_loss,
      ", \"report_lag_ms\": ", options.report_lag_s * 1e3,
      ", \"signal_lag_ms\": ", options.signal_lag_s * 1e3,
      ", \"overlay\": ", options.overlay ? "true" : "false",
      ", \"skip\": ", absl::GetFlag(FLAGS_skip), ", \"seed\": ", absl::GetFlag(FLAGS_seed),
      ", \"seeds\": ", seeds, "}");
}

}  // namespace

absl::Status RunSim() {
  WARMPATH_ASSIGN_OR_RETURN(const WorkloadSource source, WorkloadSource::Open());
  WARMPATH_ASSIGN_OR_RETURN(const std::vector<double> workers,
                            ReadNumbers("workers", absl::GetFlag(FLAGS_workers)));
  WARMPATH_ASSIGN_OR_RETURN(const std::vector<double> loads,
                            ReadNumbers("load", absl::GetFlag(FLAGS_load)));
  const std::vector<std::string> policies = ReadPolicies(absl::GetFlag(FLAGS_policies));
  const std::uint32_t seeds = absl::GetFlag(FLAGS_seeds);
  if (policies.empty() || seeds == 0) {
    return absl::InvalidArgumentError("--policies and --seeds must name at least one");
  }
  WARMPATH_ASSIGN_OR_RETURN(SimOptions options, OptionsFromFlags(source));

  const bool plots = !absl::GetFlag(FLAGS_html).empty();
  std::optional<ProgressBar> bar;
  std::size_t before = 0;
  std::vector<SimCell> cells;
  for (const double fleet : workers) {
    options.workers = static_cast<std::uint32_t>(fleet);
    for (const double load : loads) {
      const std::size_t first = cells.size();
      for (const std::string& policy : policies) cells.push_back({.policy = policy});
      for (std::uint32_t s = 0; s < seeds; ++s) {
        options.seed = absl::GetFlag(FLAGS_seed) + s;
        WARMPATH_ASSIGN_OR_RETURN(
            const WorkloadSource::Made made,
            source.Make(options.workers, load, options.seed, /*with_batch=*/true));
        std::optional<WorkloadSource::Made> alone;
        if (absl::GetFlag(FLAGS_batch_share) > 0) {
          WARMPATH_ASSIGN_OR_RETURN(
              alone, source.Make(options.workers, load, options.seed, /*with_batch=*/false));
        }
        if (!bar.has_value() && absl::GetFlag(FLAGS_progress)) {
          // Other fleet sizes may have more requests: an estimate.
          bar.emplace("sim", made.workload.requests.size() * policies.size() * seeds *
                                 loads.size() * workers.size());
        }
        for (std::size_t p = 0; p < policies.size(); ++p) {
          options.policy = policies[p];
          if (bar.has_value()) {
            options.on_progress = [&](std::size_t done) { bar->Update(before + done, 0); };
          }
          WARMPATH_ASSIGN_OR_RETURN(SimResult result, Simulate(made.workload, options));
          before += result.requests.size();
          const double from_s = LeaveOutFirst(absl::GetFlag(FLAGS_skip), made.workload, &result);
          SimCell& cell = cells[first + p];
          cell.workers = options.workers;
          cell.load = made.load;
          cell.rate_rps = made.rate_rps;
          if (plots && cell.seeds.empty()) cell.plots = PlotsOf(result, options.workers);
          cell.seeds.push_back(Summarise(result, options.workers, SimObjective()));
          if (!alone.has_value()) continue;
          options.on_progress = nullptr;
          WARMPATH_ASSIGN_OR_RETURN(SimResult without, Simulate(alone->workload, options));
          if (absl::GetFlag(FLAGS_skip) > 0) LeaveOutBefore(from_s, alone->workload, &without);
          CompareWithAlone(Summarise(without, options.workers, SimObjective()), &cell.seeds.back());
        }
      }
    }
  }
  if (bar.has_value()) bar->Finish();
  const std::string json = absl::GetFlag(FLAGS_json);
  if (json != "-") {
    std::cout << SimTable(cells);
    const std::string comparison = SimComparison(cells, absl::GetFlag(FLAGS_compare));
    if (!comparison.empty()) std::cout << "\n" << comparison;
    const std::string tenants = SimTenantTable(cells);
    if (!tenants.empty()) std::cout << "\n" << tenants;
  }
  const std::string settings = SettingsJson(options, seeds);
  if (const std::string html = absl::GetFlag(FLAGS_html); !html.empty()) {
    WARMPATH_RETURN_IF_ERROR(WriteFile(html, HtmlReport(cells, settings)));
  }
  if (json.empty()) return absl::OkStatus();
  return WriteFile(
      json, absl::StrCat("{\"settings\": ", settings, ",\n\"cells\": ", SimCellsJson(cells), "}"));
}

}  // namespace warmpath::replay
