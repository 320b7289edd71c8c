// Rules that weigh what is queued against what is cached in one formula.
#ifndef WARMPATH_CORE_REPLAY_COMPETITORS_COST_RULES_H_
#define WARMPATH_CORE_REPLAY_COMPETITORS_COST_RULES_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/random.h"
#include "core/replay/competitors/competitor.h"

namespace warmpath {

// NVIDIA Dynamo's KV router with its defaults (overlap weight 1, temperature 0): blocks to prefill,
// those of requests ahead included, plus blocks that decode with this request.
class Dynamo final : public Competitor {
 public:
  std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                     Random& random) override;
};

// LMetric: (uncached tokens queued + new ones) * requests there, this one included.
class LMetric final : public Competitor {
 public:
  std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                     Random& random) override;
};

// SMetric: first turns by LMetric; later ones go where most of the prompt is held while the
// predicted TTFT there keeps the objective of 2 s, else by LMetric too.
class SMetric final : public Competitor {
 public:
  std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                     Random& random) override;
};

// The default policy without one of its terms: what is that term worth?
class Ablation final : public Competitor {
 public:
  enum class Without : std::uint8_t { kPrice, kStall, kPressure, kKvWait };
  explicit Ablation(Without without) : without_(without) {}
  std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                     Random& random) override;

 private:
  const Without without_;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_COMPETITORS_COST_RULES_H_
