#include "tests/bench/paired_rounds.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace warmpath::bench {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

void Die(const std::string& why) {
  // Not argv[0]: the client is started by another path.
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).filename();
  std::fprintf(stderr, "%s: %s\n", program.c_str(), why.c_str());
  std::exit(1);
}

Round RoundOf(std::vector<double> latencies_us, double elapsed_s) {
  if (latencies_us.empty()) Die("no call succeeded");
  const auto count = latencies_us.size();
  const auto p99 = latencies_us.begin() + static_cast<std::ptrdiff_t>(count * 99 / 100);
  std::nth_element(latencies_us.begin(), p99, latencies_us.end());
  return {.rps = static_cast<double>(count) / elapsed_s, .p99_us = *p99};
}

std::vector<std::shared_ptr<grpc::Channel>> MakeChannels(int port, int count) {
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  for (int i = 0; i < count; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channels.push_back(grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port),
                                                 grpc::InsecureChannelCredentials(), arguments));
  }
  return channels;
}

void RunRounds(const std::function<Round(bool, double)>& run, int rounds, double seconds) {
  run(false, 0.5);
  run(true, 0.5);
  std::vector<double> constant_rps, pick_rps, ratio, constant_p99, pick_p99;
  for (int i = 0; i < rounds; ++i) {
    const Round constant = run(false, seconds);
    const Round pick = run(true, seconds);
    std::fprintf(stderr, "round %d: constant %.0f/s p99 %.0f us, pick %.0f/s p99 %.0f us\n", i + 1,
                 constant.rps, constant.p99_us, pick.rps, pick.p99_us);
    constant_rps.push_back(constant.rps);
    pick_rps.push_back(pick.rps);
    ratio.push_back(pick.rps / constant.rps);
    constant_p99.push_back(constant.p99_us);
    pick_p99.push_back(pick.p99_us);
  }
  std::printf("%f %f %f %f %f\n", Median(constant_rps), Median(pick_rps), Median(ratio),
              Median(constant_p99), Median(pick_p99));
}

Medians RunClientProcess(const std::string& flags) {
  const std::string command = absl::StrCat("/proc/", getpid(), "/exe ", flags);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) Die("can not start the client");
  char line[256] = "";
  const bool read = std::fgets(line, sizeof(line), pipe) != nullptr;
  if (pclose(pipe) != 0 || !read) Die("the client failed");
  Medians m;
  if (std::sscanf(line, "%lf %lf %lf %lf %lf", &m.constant_rps, &m.pick_rps, &m.ratio,
                  &m.constant_p99_us, &m.pick_p99_us) != 5) {
    Die("the client printed nonsense");
  }
  return m;
}

}  // namespace warmpath::bench
