// warmpath-engine: a stand-in inference engine for demos and tests. See docs/warmpath-engine.md.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/flag_names.h"
#include "core/base/json_quote.h"
#include "core/base/log.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "tests/fakes/engine/engine.h"
#include "tests/fakes/engine/http_api.h"
#include "tests/fakes/engine/json_text.h"

ABSL_FLAG(std::string, host, "127.0.0.1", "Address of the HTTP port.");
ABSL_FLAG(int, port, 0, "HTTP port; 0 takes a free one.");
ABSL_FLAG(uint32_t, ranks, 1, "Data-parallel ranks, each with a scheduler and a cache of its own.");
ABSL_FLAG(uint64_t, blocks, 0, "KV blocks per rank; 0 takes the profile's capacity.");
ABSL_FLAG(uint32_t, block_size, 16, "Tokens per KV block.");
ABSL_FLAG(std::string, model, "warmpath-test-model", "Name of the base model.");
ABSL_FLAG(std::vector<std::string>, lora, {}, "Names of LoRA adapters, served as models.");
ABSL_FLAG(std::string, profile, "32b-2xh100", "Speed and capacity: 32b-2xh100 or 8b-1xh100.");
ABSL_FLAG(double, speed_factor, 1, "The engine runs this many times faster than its profile.");
ABSL_FLAG(uint32_t, step_token_budget, 8192, "Tokens computed per step, at most.");
ABSL_FLAG(uint32_t, max_sequences, 256, "Requests that run at the same time per rank, at most.");
ABSL_FLAG(bool, duplicate_blocks, true,
          "Keep physical copies of equal blocks, as vLLM does; false: share one.");
ABSL_FLAG(std::string, events_endpoint, "tcp://127.0.0.1:0",
          "ZeroMQ PUB endpoint of rank 0; rank r is at port + r. \"off\": no events.");
ABSL_FLAG(std::string, replay_endpoint, "off",
          "ZeroMQ replay endpoint of rank 0; rank r is at port + r. \"off\": no replay.");
ABSL_FLAG(std::string, topic, "", "Topic frame of event messages.");
ABSL_FLAG(std::string, event_format, "map",
          "Form of events: map (since June 2026) or positional (before).");
ABSL_FLAG(std::string, replay_shape, "new",
          "Form of replay replies: new (with topic frame) or old (without).");
ABSL_FLAG(uint64_t, replay_buffer_steps, 10000, "Messages kept for replay.");
ABSL_FLAG(int, replay_hwm, 1000,
          "Replay messages queued per reader; more are lost, as in vLLM. 0: no bound.");
ABSL_FLAG(double, drop_rate, 0, "Share of event messages lost on purpose, 0 to 1.");
ABSL_FLAG(uint64_t, drop_seed, 1, "Seed of the draws for --drop-rate.");
ABSL_FLAG(std::vector<std::string>, drop_seqs, {}, "Sequence numbers lost on purpose.");
ABSL_FLAG(uint64_t, hash_seed, 0, "Seed of engine block hashes; 0 draws one per process.");
ABSL_FLAG(uint32_t, stream_interval, 1, "Tokens per streamed chunk, after the first.");
ABSL_FLAG(uint64_t, http_threads, 512, "Connections served at the same time, at most.");
ABSL_FLAG(uint64_t, max_body_bytes, 16777216, "Size of a request body, at most.");
ABSL_FLAG(uint64_t, history_batches, 20000, "Batches that /debug/cache?at_seq reaches back.");

namespace warmpath::engine {
namespace {

std::string OffIsEmpty(std::string value) { return value == "off" ? "" : value; }

absl::StatusOr<EngineOptions> OptionsFromFlags() {
  EngineOptions options;
  options.host = absl::GetFlag(FLAGS_host);
  options.port = absl::GetFlag(FLAGS_port);
  options.ranks = absl::GetFlag(FLAGS_ranks);
  options.models = {absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_lora)};
  options.stream_interval = absl::GetFlag(FLAGS_stream_interval);
  options.http_threads = absl::GetFlag(FLAGS_http_threads);
  options.max_body_bytes = absl::GetFlag(FLAGS_max_body_bytes);

  RankOptions& rank = options.rank;
  WARMPATH_ASSIGN_OR_RETURN(rank.model.profile, FindEngineProfile(absl::GetFlag(FLAGS_profile)));
  rank.model.block_size = absl::GetFlag(FLAGS_block_size);
  rank.model.blocks = absl::GetFlag(FLAGS_blocks);
  rank.model.step_token_budget = absl::GetFlag(FLAGS_step_token_budget);
  rank.model.max_sequences = absl::GetFlag(FLAGS_max_sequences);
  rank.model.duplicates = absl::GetFlag(FLAGS_duplicate_blocks) ? BlockCache::Duplicates::kKeep
                                                                : BlockCache::Duplicates::kShare;
  rank.speed_factor = absl::GetFlag(FLAGS_speed_factor);
  rank.history_batches = absl::GetFlag(FLAGS_history_batches);
  rank.hash_seed = absl::GetFlag(FLAGS_hash_seed);
  if (rank.hash_seed == 0) {
    // Real entropy: a restarted engine must not repeat its hashes.
    std::random_device device;
    rank.hash_seed = std::uint64_t{device()} << 32 | device();
  }
  WARMPATH_ASSIGN_OR_RETURN(rank.event_format, ParseEventFormat(absl::GetFlag(FLAGS_event_format)));

  PublisherOptions& events = options.events;
  events.endpoint = OffIsEmpty(absl::GetFlag(FLAGS_events_endpoint));
  events.replay_endpoint = OffIsEmpty(absl::GetFlag(FLAGS_replay_endpoint));
  events.topic = absl::GetFlag(FLAGS_topic);
  events.buffer_steps = absl::GetFlag(FLAGS_replay_buffer_steps);
  events.replay_hwm = absl::GetFlag(FLAGS_replay_hwm);
  events.drop_rate = absl::GetFlag(FLAGS_drop_rate);
  events.drop_seed = absl::GetFlag(FLAGS_drop_seed);
  WARMPATH_ASSIGN_OR_RETURN(events.replay_shape,
                            ParseReplayShape(absl::GetFlag(FLAGS_replay_shape)));
  for (const std::string& text : absl::GetFlag(FLAGS_drop_seqs)) {
    std::uint64_t seq = 0;
    if (!absl::SimpleAtoi(text, &seq)) {
      return absl::InvalidArgumentError("drop_seqs: must be numbers separated by commas");
    }
    events.drop_seqs.push_back(seq);
  }
  return options;
}

// One line of JSON, so that whoever started the engine learns its ports.
void PrintReadyLine(const Engine& engine, int port) {
  std::string line = "{\"http\":";
  AppendJsonQuoted(absl::StrCat("http://", engine.options().host, ":", port), &line);
  absl::StrAppend(&line, ",\"pid\":", getpid());
  const auto append = [&](const char* name, auto&& endpoint_of) {
    absl::StrAppend(&line, ",\"", name, "\":[");
    const char* separator = "";
    for (std::size_t r = 0; r < engine.rank_count(); ++r) {
      const EventPublisher* publisher = engine.publisher(r);
      if (publisher == nullptr || endpoint_of(*publisher).empty()) continue;
      line.append(separator);
      separator = ",";
      AppendJsonQuoted(endpoint_of(*publisher), &line);
    }
    line.push_back(']');
  };
  append("events", [](const EventPublisher& p) -> const std::string& { return p.endpoint(); });
  append("replay",
         [](const EventPublisher& p) -> const std::string& { return p.replay_endpoint(); });
  line.append("}\n");
  std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
}

int Main() {
  // Blocked before the first thread exists, so that every thread inherits it.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  const absl::StatusOr<EngineOptions> options = OptionsFromFlags();
  if (!options.ok()) {
    Log(LogLevel::kError, "bad flags", {{"status", options.status()}});
    return 2;
  }
  const absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(*options);
  if (!engine.ok()) {
    Log(LogLevel::kError, "cannot start", {{"status", engine.status()}});
    return absl::IsInvalidArgument(engine.status()) ? 2 : 1;
  }
  const absl::StatusOr<std::unique_ptr<HttpApi>> http = HttpApi::Start(engine->get());
  if (!http.ok()) {
    Log(LogLevel::kError, "cannot start", {{"status", http.status()}});
    return 1;
  }
  PrintReadyLine(**engine, (*http)->port());
  int caught = 0;
  sigwait(&signals, &caught);
  Log(LogLevel::kInfo, "stopping", {{"signal", caught}});
  return 0;
}

}  // namespace
}  // namespace warmpath::engine

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "A stand-in inference engine: OpenAI HTTP API, vLLM-shaped KV events and metrics, a real "
      "block cache, simulated time. Prints its ports as one line of JSON when it is ready.");
  // Flags are documented with dashes; abseil knows them with underscores.
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    if (argv[i][0] != '-') continue;
    for (char* c = argv[i] + 2; argv[i][1] == '-' && *c != '\0' && *c != '='; ++c) {
      if (*c == '-') *c = '_';
    }
  }
  warmpath::AcceptDashesInFlagNames(argc, argv);
  absl::ParseCommandLine(argc, argv);
  return warmpath::engine::Main();
}
