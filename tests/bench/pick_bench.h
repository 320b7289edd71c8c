// The parts of pick_bench: what is asked, the fleet that is asked about, and the caller.
#ifndef WARMPATH_TESTS_BENCH_PICK_BENCH_H_
#define WARMPATH_TESTS_BENCH_PICK_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/app.h"
#include "tests/bench/played_worker.h"
#include "warmpath/v1/router.pb.h"

namespace warmpath::bench {

inline constexpr char kFloorMethod[] = "/warmpath.bench.Floor/Pick";
inline constexpr int kRequests = 256;  // distinct prompts, used in turn

struct Settings {
  bool json = false;
  bool unary_outcomes = false;
  bool floor_reads_as_pick = false;
  int rounds = 5;
  double seconds = 5;
  int inflight = 32;
  std::size_t tokens = 2000;
  std::uint32_t block_size = 16;
  int workers = 64;
  std::size_t blocks = 1'000'000;
  int open = 10'000;
};

// The numbers count the prompts; three quarters of each are a hit.
v1::PickRequest MakeRequest(std::uint64_t number, const Settings& settings);
void FillOutcome(std::uint64_t reservation, v1::OutcomeRequest* outcome);

// Workers that hold `settings.blocks` between them, and `settings.open` reservations.
std::vector<PlayedWorker> AddWorkers(App& app, const Settings& settings);
void OpenReservations(App& app, const Settings& settings);

// The caller: a process of its own.
int RunClient(int port, const Settings& settings);

}  // namespace warmpath::bench

#endif  // WARMPATH_TESTS_BENCH_PICK_BENCH_H_
