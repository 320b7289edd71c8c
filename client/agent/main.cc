// warmpath-agent: runs beside engines, streams what their KV caches hold to the routers.

#include <grpc/support/log.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/agent/agent_config.h"
#include "client/agent/app.h"
#include "client/agent/config_load.h"
#include "client/agent/engine_facts.h"
#include "core/base/clock.h"
#include "core/base/log.h"

namespace {

// gRPC's own lines, in our format. It reports each failed connection as an error; the publisher
// says that already, once per interval.
void LogOfGrpc(gpr_log_func_args* args) {
  if (args->severity == GPR_LOG_SEVERITY_ERROR) {
    warmpath::Log(warmpath::LogLevel::kDebug, "grpc", {{"message", args->message}});
  }
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "warmpath-agent: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const absl::StatusOr<warmpath::CommandLine> line = warmpath::ParseCommandLine(arguments);
  if (!line.ok()) return Fail(line.status());
  if (line->help) return std::fputs(warmpath::HelpText().c_str(), stdout) < 0;
  if (line->print_keys) {
    return std::fputs(warmpath::ConfigKeysAsMarkdown().c_str(), stdout) < 0;
  }
  if (line->version) {
    return std::printf("warmpath-agent %s\n", std::string(warmpath::AgentVersion()).c_str()) < 0;
  }
  if (line->check) return 0;

  // Before the first thread, so that only sigwait below ever sees them.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  gpr_set_log_function(&LogOfGrpc);
  warmpath::SetMinLogLevel(line->config.log_level);

  auto app = warmpath::AgentApp::Start(line->config, warmpath::SystemClock());
  if (!app.ok()) return Fail(app.status());
  int signal_number = 0;
  // Who sends SIGHUP wants a reload, and least of all an end.
  while (sigwait(&signals, &signal_number) != 0 || signal_number == SIGHUP) {
    warmpath::Log(warmpath::LogLevel::kWarn,
                  "SIGHUP ignored: the configuration is read at the start only; restart");
  }
  warmpath::Log(warmpath::LogLevel::kInfo, "stopping", {{"signal", signal_number}});
  app->reset();
  return 0;
}
