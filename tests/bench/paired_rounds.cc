#include "tests/bench/paired_rounds.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace warmpath::bench {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

constexpr double Round::*kNumbers[] = {&Round::rps, &Round::p99_us, &Round::server_us,
                                       &Round::client_us};

// The processor time of all threads of a process.
class CpuClock {
 public:
  explicit CpuClock(pid_t process) {
    if (clock_getcpuclockid(process, &id_) != 0) Die("can not read a process's clock");
  }
  double Micros() const {
    timespec now{};
    clock_gettime(id_, &now);
    return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
  }

 private:
  clockid_t id_ = 0;
};

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
  return {.calls = count, .rps = static_cast<double>(count) / elapsed_s, .p99_us = *p99};
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
  const CpuClock client(getpid());
  const CpuClock server(getppid());
  const auto measured = [&](bool pick) {
    const double client_before = client.Micros();
    const double server_before = server.Micros();
    Round round = run(pick, seconds);
    const double calls = static_cast<double>(round.calls);
    round.client_us = (client.Micros() - client_before) / calls;
    round.server_us = (server.Micros() - server_before) / calls;
    return round;
  };
  run(false, 0.5);
  run(true, 0.5);
  std::vector<Round> constants, picks;
  for (int i = 0; i < rounds; ++i) {
    const Round& constant = constants.emplace_back(measured(false));
    const Round& pick = picks.emplace_back(measured(true));
    std::fprintf(stderr,
                 "round %d: constant %.0f/s p99 %.0f us, CPU %.1f + %.1f us; pick %.0f/s p99 %.0f "
                 "us, CPU %.1f + %.1f us\n",
                 i + 1, constant.rps, constant.p99_us, constant.server_us, constant.client_us,
                 pick.rps, pick.p99_us, pick.server_us, pick.client_us);
  }
  for (const std::vector<Round>* const kind : {&constants, &picks}) {
    for (double Round::*const number : kNumbers) {
      std::vector<double> values;
      for (const Round& round : *kind) values.push_back(round.*number);
      std::printf("%f ", Median(std::move(values)));
    }
  }
  std::vector<double> ratios, cpu_ratios;
  for (std::size_t i = 0; i < picks.size(); ++i) {
    ratios.push_back(picks[i].rps / constants[i].rps);
    cpu_ratios.push_back((constants[i].server_us + constants[i].client_us) /
                         (picks[i].server_us + picks[i].client_us));
  }
  std::printf("%f %f\n", Median(std::move(ratios)), Median(std::move(cpu_ratios)));
}

Medians RunClientProcess(const std::string& flags) {
  // exec: the client looks at its parent's processor time, which must not be a shell's.
  const std::string command = absl::StrCat("exec /proc/", getpid(), "/exe ", flags);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) Die("can not start the client");
  Medians medians;
  std::vector<double*> numbers;
  for (Round* const round : {&medians.constant, &medians.pick}) {
    for (double Round::*const number : kNumbers) numbers.push_back(&(round->*number));
  }
  numbers.insert(numbers.end(), {&medians.ratio, &medians.cpu_ratio});
  bool read = true;
  for (double* const number : numbers) read = read && std::fscanf(pipe, "%lf", number) == 1;
  if (pclose(pipe) != 0 || !read) Die("the client failed");
  return medians;
}

}  // namespace warmpath::bench
