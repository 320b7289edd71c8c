// A worker of a benchmark's router, in the same process: its agent is only played.
#ifndef WARMPATH_TESTS_BENCH_PLAYED_WORKER_H_
#define WARMPATH_TESTS_BENCH_PLAYED_WORKER_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "core/fleet/feed.h"
#include "core/fleet/worker.h"
#include "server/app.h"

namespace warmpath::bench {

inline constexpr std::string_view kModel = "bench";  // what all of them serve

struct PlayedWorker {
  std::unique_ptr<WorkerFeed> feed;  // registered until it is destroyed
  SessionId session = 0;
};

// Registers one, of one rank; `number` makes its id and its address. Without cache events what it
// holds is predicted from the picks. Dies when the router refuses it.
PlayedWorker AddWorker(App& app, int number, std::uint32_t engine_block_size, bool has_events);

}  // namespace warmpath::bench

#endif  // WARMPATH_TESTS_BENCH_PLAYED_WORKER_H_
