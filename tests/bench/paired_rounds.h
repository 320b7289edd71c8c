// What the benchmarks over gRPC share: a client in a process of its own, rounds of a constant
// answer and of picks in turn, and the medians of the pairs.
#ifndef WARMPATH_TESTS_BENCH_PAIRED_ROUNDS_H_
#define WARMPATH_TESTS_BENCH_PAIRED_ROUNDS_H_

#include <grpcpp/channel.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace warmpath::bench {

// Prints the reason behind the program's name, and ends it.
[[noreturn]] void Die(const std::string& why);

struct Round {
  std::size_t calls = 0;
  double rps = 0;
  double p99_us = 0;
  // Processor time of a call, of all threads of the process: what a call costs, however much of
  // the machine others take meanwhile.
  double server_us = 0;
  double client_us = 0;
};

// Of the latencies of all calls of a round that took so long.
Round RoundOf(std::vector<double> latencies_us, double elapsed_s);

// To a server on loopback, each with a connection of its own.
std::vector<std::shared_ptr<grpc::Channel>> MakeChannels(int port, int count);

// Each number's median over the rounds.
struct Medians {
  Round constant;
  Round pick;
  double ratio = 0;      // of calls/s, pick to constant
  double cpu_ratio = 0;  // of calls per processor time of both ends: as the ratio, with less noise
};

// In the client: warms up, runs the rounds, tells each on stderr, and prints the medians for
// RunClientProcess to read. `run` takes whether to pick, and the seconds.
void RunRounds(const std::function<Round(bool, double)>& run, int rounds, double seconds);

// In the server: runs this program again with `flags` and waits for its medians.
Medians RunClientProcess(const std::string& flags);

}  // namespace warmpath::bench

#endif  // WARMPATH_TESTS_BENCH_PAIRED_ROUNDS_H_
