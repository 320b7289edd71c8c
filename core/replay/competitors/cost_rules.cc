#include "core/replay/competitors/cost_rules.h"

#include <algorithm>

#include "core/replay/competitors/choose.h"

namespace warmpath {

std::size_t Dynamo::Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                           Random& random) {
  const double block = request.block_size;
  return LeastOf(workers, random, [&](const WorkerSight& w) {
    const auto tokens = static_cast<double>(w.pending_uncached_tokens + request.prompt_tokens);
    const auto overlap = static_cast<double>(w.cached_tokens / request.block_size);
    return std::max(tokens / block - overlap, 0.0) +
           static_cast<double>(w.active_blocks + w.new_blocks);
  });
}

std::size_t LMetric::Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                            Random& random) {
  return LeastOf(workers, random, [&](const WorkerSight& w) {
    const std::uint64_t uncached = request.prompt_tokens - w.cached_tokens;
    return static_cast<double>(w.pending_uncached_tokens + uncached) * (w.inflight + 1.0);
  });
}

std::size_t SMetric::Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                            Random& random) {
  constexpr double kObjectiveSeconds = 2;
  if (request.follow_up) {
    const std::size_t best = LeastOf(workers, random, [](const WorkerSight& w) {
      return -static_cast<double>(w.cached_tokens);
    });
    const WorkerSight& w = workers[best];
    if (w.wait_s + w.copy_s + w.prefill_s <= kObjectiveSeconds) return best;
  }
  return LMetric().Choose(request, workers, random);
}

std::size_t Ablation::Choose(const RequestSight& /*request*/, std::span<const WorkerSight> workers,
                             Random& random) {
  const auto unless = [&](Without term, double seconds) {
    return term == without_ ? 0.0 : seconds;
  };
  return LeastOf(workers, random, [&](const WorkerSight& w) {
    return w.wait_s + w.copy_s + w.prefill_s + unless(Without::kPrice, w.pool_price_s) +
           unless(Without::kStall, w.decode_stall_s) + unless(Without::kPressure, w.kv_pressure_s) +
           unless(Without::kKvWait, w.kv_wait_s);
  });
}

}  // namespace warmpath
