// Rules that look for the prefix first and for load when that has gone too far.
#ifndef WARMPATH_CORE_REPLAY_COMPETITORS_AFFINITY_H_
#define WARMPATH_CORE_REPLAY_COMPETITORS_AFFINITY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/base/random.h"
#include "core/replay/competitors/competitor.h"

namespace warmpath {

// SGLang Model Gateway's cache_aware with its defaults: balance when the loads differ by more than
// 64 requests and 1.5 times, else the longest match if it is over 30 % of the prompt, else the
// least loaded.
class SmgCacheAware final : public Competitor {
 public:
  std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                     Random& random) override;
};

// Gateway API Inference Extension's weighted scorers with precise prefixes: 3 prefix, 2 queue, 2 KV
// use, each scaled to [0, 1] over the candidates; queue and KV use as the engines reported.
class GaieWeighted final : public Competitor {
 public:
  std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                     Random& random) override;
};

// llm-d's affinity filter: only workers that hold at least 80 % of the prompt, unless waiting there
// costs 18 s more than elsewhere; of those left the one with the fewest tokens in flight.
class LlmdAffinity final : public Competitor {
 public:
  std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                     Random& random) override;
};

// Preble's E2: exploit when more of the prompt is held than missing (the holder with the least
// load), else explore: the least sum of load, what the placement evicts, and the missing prefill.
// Load: the prefills of the last three minutes, and for each request in flight the time that an
// answer takes to decode, as in its authors' implementation. All in seconds.
class PrebleE2 final : public Competitor {
 public:
  std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                     Random& random) override;

 private:
  struct Placed {
    double at_s = 0;
    std::size_t worker = 0;
    double prefill_s = 0;
    std::uint64_t prompt_tokens = 0;
    std::uint64_t cached_tokens = 0;
  };
  struct Window {
    double prefill_s = 0;
    std::uint64_t prompt_tokens = 0;
    std::uint64_t cached_tokens = 0;
  };

  std::deque<Placed> placed_;
  std::vector<Window> windows_;  // by worker
};

// Consistent hashing of the prompt's head with bounded load: no worker takes more than 1.25 times
// the mean number of requests in flight; who is full passes on to the key's next worker.
class BoundedHash final : public Competitor {
 public:
  std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                     Random& random) override;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_COMPETITORS_AFFINITY_H_
