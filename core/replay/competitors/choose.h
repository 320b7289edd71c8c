// The least score wins, ties uniformly, as in the router's picker.
#ifndef WARMPATH_CORE_REPLAY_COMPETITORS_CHOOSE_H_
#define WARMPATH_CORE_REPLAY_COMPETITORS_CHOOSE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/random.h"
#include "core/replay/competitors/competitor.h"

namespace warmpath {

// Position of the worker with the least `score(worker)` among those that `take(worker)`; the size
// of `workers` when it takes none.
template <typename Take, typename Score>
std::size_t LeastOf(std::span<const WorkerSight> workers, Random& random, Take&& take,
                    Score&& score) {
  std::size_t best = workers.size();
  double best_score = 0;
  std::uint64_t ties = 0;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!take(workers[i])) continue;
    const double value = score(workers[i]);
    if (best == workers.size() || value < best_score) {
      best = i;
      best_score = value;
      ties = 1;
    } else if (value == best_score && random.Below(++ties) == 0) {
      best = i;
    }
  }
  return best;
}

template <typename Score>
std::size_t LeastOf(std::span<const WorkerSight> workers, Random& random, Score&& score) {
  return LeastOf(
      workers, random, [](const WorkerSight&) { return true; }, score);
}

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_COMPETITORS_CHOOSE_H_
