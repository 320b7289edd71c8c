// warmpath-replay: replays traces and generated workloads; docs/warmpath-replay.md.
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/replay/live_runner.h"
#include "client/replay/progress.h"
#include "client/replay/result.h"
#include "client/replay/sim_command.h"
#include "core/base/clock.h"
#include "core/base/flag_names.h"
#include "core/base/status.h"
#include "core/replay/trace.h"
#include "core/replay/workload_generator.h"
#include "warmpath/client.h"

ABSL_FLAG(std::string, trace, "", "Mooncake-format trace file; empty: the generator's workload");
ABSL_FLAG(uint64_t, requests, 0, "of a trace: only the first N rows; 0: all");
ABSL_FLAG(double, rate, 0, "of a trace: mean requests per second; 0: --utilisation decides");
ABSL_FLAG(uint64_t, seed, 1, "seed of the generator and of the spread of a trace's arrivals");
ABSL_FLAG(std::string, profile, "32b-2xh100", "speed of the engines: 32b-2xh100 or 8b-1xh100");
ABSL_FLAG(double, speed_factor, 1, "how many times faster than the profile the engines run");
ABSL_FLAG(uint32_t, engines, 4, "number of engines that the arrivals are meant for");
ABSL_FLAG(double, utilisation, 0.6,
          "arrivals as a share of the fleet's prefill capacity without hits");
ABSL_FLAG(uint32_t, block_size, 0,
          "tokens per block: for the count of distinct blocks (0: 16), for the engines and the "
          "router of sim (0: 512 for a trace, else 64)");
ABSL_FLAG(uint32_t, chats, 240, "generator: chats");
ABSL_FLAG(uint32_t, turns, 6, "generator: turns of each chat");
ABSL_FLAG(uint32_t, agent_loops, 20, "generator: agent loops");
ABSL_FLAG(uint32_t, siblings, 8, "generator: siblings of each agent loop");
ABSL_FLAG(uint32_t, agent_steps, 8, "generator: steps of each sibling");
ABSL_FLAG(std::string, router, "127.0.0.1:9002", "live: gRPC address of the router");
ABSL_FLAG(std::string, model, "warmpath-demo", "live: model name");
ABSL_FLAG(std::string, policy, "", "live: policy sent with each pick; empty: the pool's");
ABSL_FLAG(std::string, json, "", "file for the result as JSON; '-' for standard output");
ABSL_FLAG(bool, progress, true, "live and sim: show progress on standard error");

namespace warmpath::replay {
namespace {

constexpr char kUsage[] =
    "replays requests with shared prefixes.\n"
    "  warmpath-replay [FLAGS] describe   the workload in one line (and --json): tokens, blocks, "
    "time\n"
    "  warmpath-replay [FLAGS] live       runs it against a live router and engines as a thin "
    "proxy\n"
    "  warmpath-replay [FLAGS] sim        simulates fleets under several policies and compares "
    "them";

// Blocks that are only counted.
std::uint32_t CountedBlockSize() {
  const std::uint32_t size = absl::GetFlag(FLAGS_block_size);
  return size == 0 ? 16 : size;
}

absl::StatusOr<Workload> BuildWorkload() {
  WARMPATH_ASSIGN_OR_RETURN(const EngineProfile profile,
                            FindEngineProfile(absl::GetFlag(FLAGS_profile)));
  const double speed = absl::GetFlag(FLAGS_speed_factor);
  const std::uint32_t engines = absl::GetFlag(FLAGS_engines);
  const double utilisation = absl::GetFlag(FLAGS_utilisation);
  if (absl::GetFlag(FLAGS_trace).empty()) {
    GeneratorOptions options;
    options.seed = absl::GetFlag(FLAGS_seed);
    options.chats = absl::GetFlag(FLAGS_chats);
    options.turns = absl::GetFlag(FLAGS_turns);
    options.agent_loops = absl::GetFlag(FLAGS_agent_loops);
    options.siblings = absl::GetFlag(FLAGS_siblings);
    options.agent_steps = absl::GetFlag(FLAGS_agent_steps);
    options.block_size = CountedBlockSize();
    options.profile = profile;
    options.engines = engines;
    options.speed_factor = speed;
    options.cold_utilisation = utilisation;
    return GenerateWorkload(options);
  }
  if (!(speed > 0) || !(utilisation > 0) || engines == 0) {
    return absl::InvalidArgumentError(
        "--speed-factor, --utilisation and --engines must be above 0");
  }
  WARMPATH_ASSIGN_OR_RETURN(const std::vector<TraceRow> rows,
                            ReadTrace(absl::GetFlag(FLAGS_trace), absl::GetFlag(FLAGS_requests)));
  TraceWorkloadOptions options{.seed = absl::GetFlag(FLAGS_seed),
                               .requests_per_s = absl::GetFlag(FLAGS_rate),
                               .block_size = CountedBlockSize(),
                               .next_turns = false};
  WARMPATH_ASSIGN_OR_RETURN(Workload workload, WorkloadFromTrace(rows, options));
  if (options.requests_per_s == 0) {
    const double seconds = ColdPrefillSeconds(workload, profile) / speed / engines / utilisation;
    options.requests_per_s = static_cast<double>(workload.requests.size()) / seconds;
    return WorkloadFromTrace(rows, options);
  }
  return workload;
}

std::string WorkloadLine(const Workload& w) {
  return absl::StrCat(w.description, "; ", w.requests.size(), " requests, ", w.prompt_tokens,
                      " prompt and ", w.output_tokens, " output tokens, ", w.distinct_blocks,
                      " distinct blocks of ", w.block_size, " tokens, ",
                      static_cast<int>(w.duration_s + 0.5), " s");
}

std::string WorkloadJson(const Workload& w) {
  return absl::StrCat(
      "{\"description\": \"", w.description, "\", \"seed\": ", absl::GetFlag(FLAGS_seed),
      ", \"requests\": ", w.requests.size(), ", \"prompt_tokens\": ", w.prompt_tokens,
      ", \"output_tokens\": ", w.output_tokens, ", \"distinct_blocks\": ", w.distinct_blocks,
      ", \"block_size\": ", w.block_size, ", \"duration_s\": ", w.duration_s, "}");
}

absl::Status WriteJson(const std::string& json) {
  const std::string path = absl::GetFlag(FLAGS_json);
  if (path.empty()) return absl::OkStatus();
  if (path == "-") {
    std::cout << json << "\n";
    return absl::OkStatus();
  }
  std::ofstream out(path);
  out << json << "\n";
  out.close();
  if (!out) return absl::InternalError(absl::StrCat("can not write --json file ", path));
  return absl::OkStatus();
}

absl::Status Describe() {
  WARMPATH_ASSIGN_OR_RETURN(const Workload workload, BuildWorkload());
  if (absl::GetFlag(FLAGS_json) != "-") std::cout << "workload: " << WorkloadLine(workload) << "\n";
  return WriteJson(WorkloadJson(workload));
}

absl::Status Live() {
  WARMPATH_ASSIGN_OR_RETURN(const Workload workload, BuildWorkload());
  WARMPATH_ASSIGN_OR_RETURN(const auto router,
                            client::Client::Create({.address = absl::GetFlag(FLAGS_router)}));
  WARMPATH_RETURN_IF_ERROR(router->WaitConnected(absl::Seconds(10)));
  const std::string policy = absl::GetFlag(FLAGS_policy);
  const std::string name = policy.empty() ? "default" : policy;
  ProgressBar bar(name, workload.requests.size());
  LiveOptions options{.model = absl::GetFlag(FLAGS_model), .policy = policy};
  if (absl::GetFlag(FLAGS_progress)) {
    options.on_progress = [&](std::size_t done, std::size_t errors) { bar.Update(done, errors); };
  }
  const absl::Time start = SystemClock().Now();
  auto results = RunLive(workload, router.get(), options);
  if (absl::GetFlag(FLAGS_progress)) bar.Finish();
  if (!results.ok()) return results.status();
  const Summary summary = Summarise(*results, absl::ToDoubleSeconds(SystemClock().Now() - start));
  if (absl::GetFlag(FLAGS_json) != "-") {
    std::cout << SummaryTable({{name, summary}}) << "workload: " << WorkloadLine(workload) << "\n";
    if (summary.errors > 0) std::cout << "first error: " << summary.first_error << "\n";
  }
  return WriteJson(absl::StrCat("{\"workload\": ", WorkloadJson(workload), ", \"policies\": {\"",
                                name, "\": ", SummaryJson(summary), "}}"));
}

absl::Status Run(const std::vector<char*>& args) {
  if (args.size() != 2)
    return absl::InvalidArgumentError("exactly one command is needed; see --help");
  const std::string command = args[1];
  if (command == "describe") return Describe();
  if (command == "live") return Live();
  if (command == "sim") return RunSim();
  return absl::InvalidArgumentError(absl::StrCat("unknown command \"", command, "\"; see --help"));
}

}  // namespace
}  // namespace warmpath::replay

int main(int argc, char** argv) {
  absl::FlagsUsageConfig usage;
  usage.contains_help_flags = [](absl::string_view file) {
    return absl::StrContains(file, "client/replay/");
  };
  absl::SetFlagsUsageConfig(usage);
  absl::SetProgramUsageMessage(warmpath::replay::kUsage);
  warmpath::AcceptDashesInFlagNames(argc, argv);
  const std::vector<char*> args = absl::ParseCommandLine(argc, argv);
  const absl::Status status = warmpath::replay::Run(args);
  if (status.ok()) return 0;
  std::cerr << "warmpath-replay: " << absl::StatusCodeToString(status.code()) << ": "
            << status.message() << "\n";
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}
