// warmpathctl: what operators ask a router. Usage text below; docs/warmpathctl.md.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/ctl/commands.h"
#include "client/lib/channel.h"
#include "core/base/flag_names.h"

ABSL_FLAG(std::string, router, "127.0.0.1:9002", "gRPC address of the router, host:port");
ABSL_FLAG(std::string, router_ca, "",
          "PEM file of the CA that signed the router's certificate; empty: plaintext");
ABSL_FLAG(bool, json, false, "print JSON instead of a table");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(10), "deadline of the call");
ABSL_FLAG(std::string, pool, "", "workers, index: only this pool");
ABSL_FLAG(std::string, model, "", "pick, explain: model name");
ABSL_FLAG(std::string, tokens, "", "pick, explain: prompt as comma-separated token ids");
ABSL_FLAG(std::string, tokens_file, "",
          "pick, explain: file with token ids separated by commas or white space");
ABSL_FLAG(std::string, text, "", "pick, explain: prompt as text");
ABSL_FLAG(std::string, body_file, "", "pick, explain: file with an OpenAI-style JSON body");
ABSL_FLAG(std::string, path, "/v1/chat/completions",
          "pick, explain: path that belongs to --body-file");
ABSL_FLAG(std::string, policy, "", "pick, explain: policy instead of the pool's");
ABSL_FLAG(std::string, session_key, "", "pick, explain: sticky key for policy session");
ABSL_FLAG(std::string, tenant, "",
          "pick, explain: whose request it is, for pools with tenant_fairness");
ABSL_FLAG(bool, keep, false, "pick: keep the reservation (it ends with its lease)");
ABSL_FLAG(std::string, worker, "", "index dump: worker id");
ABSL_FLAG(uint32_t, rank, 0, "index dump: data-parallel rank");
ABSL_FLAG(std::string, tier, "gpu", "index dump: gpu, host, disk or external");
ABSL_FLAG(std::string, source, "events", "index dump: events, in_flight or predicted");
ABSL_FLAG(absl::Duration, every, absl::ZeroDuration(),
          "workers, index: ask again and again with this period, errors included, until stopped");
ABSL_FLAG(bool, undo, false, "drain: end the drain");

namespace {

constexpr char kUsage[] =
    "asks a warmpath-router.\n"
    "  warmpathctl [FLAGS] workers            targets with state, knowledge and load\n"
    "  warmpathctl [FLAGS] pick               choose an endpoint (released at once unless --keep)\n"
    "  warmpathctl [FLAGS] explain            score all candidates, reserve nothing\n"
    "  warmpathctl [FLAGS] index [stats]      size and memory of the index\n"
    "  warmpathctl [FLAGS] index dump --worker W [--rank R] [--tier T] [--source S]\n"
    "  warmpathctl [FLAGS] drain WORKER       no new picks for WORKER (--undo ends it)\n"
    "  warmpathctl [FLAGS] config             the router's effective configuration";

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("can not read ", path));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

absl::Status FillTokens(const std::string& list, warmpath::v1::PickRequest* request) {
  for (const absl::string_view item :
       absl::StrSplit(list, absl::ByAnyChar(", \n\t\r"), absl::SkipEmpty())) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(item, &id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id \"", item, "\" is no number below 2^32"));
    }
    request->mutable_tokens()->add_ids(id);
  }
  return absl::OkStatus();
}

absl::StatusOr<warmpath::v1::PickRequest> BuildPick() {
  warmpath::v1::PickRequest request;
  request.set_model(absl::GetFlag(FLAGS_model));
  request.set_policy(absl::GetFlag(FLAGS_policy));
  request.set_session_key(absl::GetFlag(FLAGS_session_key));
  request.set_tenant(absl::GetFlag(FLAGS_tenant));
  if (!absl::GetFlag(FLAGS_tokens_file).empty()) {
    auto content = ReadFile(absl::GetFlag(FLAGS_tokens_file));
    if (!content.ok()) return content.status();
    absl::Status status = FillTokens(*content, &request);
    if (!status.ok()) return status;
  } else if (!absl::GetFlag(FLAGS_tokens).empty()) {
    absl::Status status = FillTokens(absl::GetFlag(FLAGS_tokens), &request);
    if (!status.ok()) return status;
  } else if (!absl::GetFlag(FLAGS_body_file).empty()) {
    auto content = ReadFile(absl::GetFlag(FLAGS_body_file));
    if (!content.ok()) return content.status();
    request.mutable_openai()->set_path(absl::GetFlag(FLAGS_path));
    request.mutable_openai()->set_json(*std::move(content));
  } else if (!absl::GetFlag(FLAGS_text).empty()) {
    request.set_text(absl::GetFlag(FLAGS_text));
  }
  return request;
}

void PrintError(const absl::Status& status) {
  std::cerr << "warmpathctl: " << absl::StatusCodeToString(status.code()) << ": "
            << status.message() << "\n";
}

absl::Status RunCommand(const warmpath::ctl::Context& context, const std::string& command,
                        const std::string& argument) {
  namespace ctl = warmpath::ctl;
  if (command == "workers") return ctl::Workers(context, absl::GetFlag(FLAGS_pool));
  if (command == "pick" || command == "explain") {
    const auto request = BuildPick();
    if (!request.ok()) return request.status();
    return ctl::Pick(context, *request, command == "explain", absl::GetFlag(FLAGS_keep));
  }
  if (command == "index" && argument == "dump") {
    return ctl::IndexDump(context, {.worker = absl::GetFlag(FLAGS_worker),
                                    .rank = absl::GetFlag(FLAGS_rank),
                                    .tier = absl::GetFlag(FLAGS_tier),
                                    .source = absl::GetFlag(FLAGS_source)});
  }
  if (command == "index" && (argument.empty() || argument == "stats")) {
    return ctl::IndexStats(context, absl::GetFlag(FLAGS_pool));
  }
  if (command == "drain") {
    if (argument.empty()) return absl::InvalidArgumentError("drain needs a worker id");
    return ctl::Drain(context, argument, absl::GetFlag(FLAGS_undo));
  }
  if (command == "config") return ctl::Config(context);
  return absl::InvalidArgumentError(absl::StrCat("unknown command \"", command, "\"; see --help"));
}

// Until the process is stopped. A router that is down is no reason to end: it may come back.
absl::Status Repeat(const warmpath::ctl::Context& context, const std::string& command,
                    const std::string& argument, absl::Duration period) {
  absl::Time next = absl::Now();
  while (true) {
    absl::Status status = RunCommand(context, command, argument);
    if (absl::IsInvalidArgument(status)) return status;
    if (!status.ok()) PrintError(status);
    context.out->flush();
    next = std::max(next + period, absl::Now());
    absl::SleepFor(next - absl::Now());
  }
}

absl::Status Run(const std::vector<char*>& args) {
  namespace ctl = warmpath::ctl;
  if (args.size() < 2) return absl::InvalidArgumentError("no command given; see --help");
  std::string root_ca;
  if (!absl::GetFlag(FLAGS_router_ca).empty()) {
    auto content = ReadFile(absl::GetFlag(FLAGS_router_ca));
    if (!content.ok()) return content.status();
    root_ca = *std::move(content);
  }
  const auto channel = warmpath::client::MakeRouterChannel(absl::GetFlag(FLAGS_router), root_ca);
  const auto admin = warmpath::v1::Admin::NewStub(channel);
  const auto router = warmpath::v1::Router::NewStub(channel);
  const ctl::Context context{.admin = admin.get(),
                             .router = router.get(),
                             .json = absl::GetFlag(FLAGS_json),
                             .timeout = absl::GetFlag(FLAGS_timeout),
                             .out = &std::cout};
  const std::string command = args[1];
  const std::string argument = args.size() > 2 ? args[2] : "";
  if (absl::GetFlag(FLAGS_every) > absl::ZeroDuration()) {
    if (command != "workers" && command != "index") {
      return absl::InvalidArgumentError(
          absl::StrCat("--every: \"", command, "\" changes something; only workers and index can"));
    }
    return Repeat(context, command, argument, absl::GetFlag(FLAGS_every));
  }
  return RunCommand(context, command, argument);
}

}  // namespace

int main(int argc, char** argv) {
  absl::FlagsUsageConfig usage;
  usage.contains_help_flags = [](absl::string_view file) {
    return absl::StrContains(file, "client/ctl/");
  };
  absl::SetFlagsUsageConfig(usage);
  absl::SetProgramUsageMessage(kUsage);
  warmpath::AcceptDashesInFlagNames(argc, argv);
  const std::vector<char*> args = absl::ParseCommandLine(argc, argv);
  const absl::Status status = Run(args);
  if (status.ok()) return 0;
  PrintError(status);
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}
