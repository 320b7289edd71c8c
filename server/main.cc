// warmpath-router: flags, signals, start, wait, drain.
#include <signal.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "core/base/log.h"
#include "server/app.h"
#include "server/config/document.h"
#include "server/flags.h"
#include "server/grpc_server.h"
#include "server/metrics.h"
#include "server/version.h"

namespace warmpath {
namespace {

int Fail(const absl::Status& status) {
  std::cerr << "warmpath-router: " << std::string(status.message()) << "\n";
  return 2;
}

// Whole or not at all: readers wait for the file to appear.
bool WritePorts(const std::string& path, const App& app) {
  const std::string temporary = path + ".tmp";
  std::ofstream(temporary) << "{\"grpc\":" << app.grpc_port() << ",\"http\":" << app.http_port()
                           << ",\"pick\":" << app.pick_port() << "}\n";
  return std::rename(temporary.c_str(), path.c_str()) == 0;
}

int Run(const std::vector<std::string>& arguments) {
  const absl::StatusOr<RouterFlags> flags = ParseFlags(arguments);
  if (!flags.ok()) return Fail(flags.status());
  if (flags->help) return std::cout << HelpText(), 0;
  if (flags->version) return std::cout << "warmpath-router " << kVersion << "\n", 0;
  if (flags->print_config_docs) return std::cout << ConfigurationDocument(), 0;
  if (flags->print_metrics_docs) return std::cout << MetricsDocument(), 0;
  const absl::StatusOr<RouterConfig> config = ConfigFor(*flags);
  if (!config.ok()) return Fail(config.status());
  if (flags->print_config) return std::cout << EffectiveYaml(*config), 0;
  if (flags->check_config) return 0;
  SetMinLogLevel(ParseLogLevel(config->log.level).value_or(LogLevel::kInfo));

  // Before the first thread, so that all inherit it: only sigwait below sees these signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGHUP);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  InstallGrpcLog();
#ifdef NDEBUG
  // Debian's abseil is built with checks that look for lock cycles at every lock, gRPC's own
  // included; they take a good part of the time of a pick. Tests keep them.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif

  std::random_device entropy;
  absl::StatusOr<std::unique_ptr<App>> app =
      App::Start({.config = *config, .random_seed = (std::uint64_t{entropy()} << 32) | entropy()});
  if (!app.ok()) return Fail(app.status());
  Log(LogLevel::kInfo, "warmpath-router listens",
      {{"version", kVersion},
       {"grpc", (*app)->grpc_port()},
       {"http", (*app)->http_port()},
       {"pick", (*app)->pick_port()}});
  if (!flags->ports_file.empty() && !WritePorts(flags->ports_file, **app)) {
    return Fail(absl::UnavailableError(absl::StrCat("can not write ", flags->ports_file)));
  }
  int received = 0;
  // Who sends SIGHUP wants a reload, and least of all an end without draining.
  while (sigwait(&signals, &received) != 0 || received == SIGHUP) {
    Log(LogLevel::kWarn, "SIGHUP ignored: the configuration is read at the start only; restart");
  }
  Log(LogLevel::kInfo, "signal received: shutting down", {{"signal", received}});
  (*app)->Drain(config->server.drain_delay, config->server.drain_deadline);
  return 0;
}

}  // namespace
}  // namespace warmpath

int main(int argc, char** argv) {
  return warmpath::Run(std::vector<std::string>(argv + 1, argv + argc));
}
