#include "core/replay/competitors/affinity.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/replay/competitors/choose.h"

namespace warmpath {
namespace {

double Matched(const RequestSight& request, const WorkerSight& w) {
  if (request.prompt_tokens == 0) return 0;
  return static_cast<double>(w.cached_tokens) / static_cast<double>(request.prompt_tokens);
}

// Full blocks held over full blocks asked for: a prompt that is held whole counts as 1 although one
// token of it is always computed.
double MatchedBlocks(const RequestSight& request, const WorkerSight& w) {
  const std::uint64_t blocks = request.prompt_tokens / request.block_size;
  if (blocks == 0) return 0;
  const std::uint64_t held = (w.cached_tokens + request.block_size - 1) / request.block_size;
  return static_cast<double>(held) / static_cast<double>(blocks);
}

// Where `value` lies between the least and the greatest of the candidates.
template <typename Value>
auto Scaled(std::span<const WorkerSight> workers, Value value) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const WorkerSight& w : workers) {
    low = std::min(low, value(w));
    high = std::max(high, value(w));
  }
  return [low, high, value](const WorkerSight& w) {
    return high > low ? (value(w) - low) / (high - low) : 0.0;
  };
}

// splitmix64's finaliser.
std::uint64_t Mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

std::size_t SmgCacheAware::Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                                  Random& random) {
  constexpr std::uint32_t kAbsolute = 64;
  constexpr double kRelative = 1.5;
  constexpr double kMatch = 0.3;
  const auto load = [](const WorkerSight& w) { return static_cast<double>(w.inflight); };
  const auto [least, most] = std::minmax_element(
      workers.begin(), workers.end(),
      [&](const WorkerSight& a, const WorkerSight& b) { return load(a) < load(b); });
  const bool unbalanced =
      most->inflight - least->inflight > kAbsolute && load(*most) > kRelative * load(*least);
  if (unbalanced) return LeastOf(workers, random, load);
  const std::size_t longest = LeastOf(
      workers, random, [](const WorkerSight& w) { return -static_cast<double>(w.cached_tokens); });
  if (Matched(request, workers[longest]) > kMatch) return longest;
  return LeastOf(workers, random, load);
}

std::size_t GaieWeighted::Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                                 Random& random) {
  constexpr double kPrefix = 3;
  constexpr double kQueue = 2;
  constexpr double kKv = 2;
  const auto prefix = Scaled(workers, [&](const WorkerSight& w) { return Matched(request, w); });
  const auto queue =
      Scaled(workers, [](const WorkerSight& w) { return static_cast<double>(w.reported_waiting); });
  const auto kv = Scaled(workers, [](const WorkerSight& w) { return w.reported_kv_usage; });
  return LeastOf(workers, random, [&](const WorkerSight& w) {
    return -kPrefix * prefix(w) + kQueue * queue(w) + kKv * kv(w);
  });
}

std::size_t LlmdAffinity::Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                                 Random& random) {
  constexpr double kMatch = 0.8;
  constexpr double kPatienceSeconds = 18;
  const auto holds = [&](const WorkerSight& w) { return MatchedBlocks(request, w) >= kMatch; };
  const auto ttft = [](const WorkerSight& w) { return w.wait_s + w.copy_s + w.prefill_s; };
  const auto tokens = [](const WorkerSight& w) { return static_cast<double>(w.prompt_tokens); };
  const std::size_t holder = LeastOf(workers, random, holds, ttft);
  if (holder == workers.size()) return LeastOf(workers, random, tokens);
  const std::size_t other = LeastOf(
      workers, random, [&](const WorkerSight& w) { return !holds(w); }, ttft);
  if (other != workers.size() && ttft(workers[holder]) > ttft(workers[other]) + kPatienceSeconds) {
    return LeastOf(workers, random, tokens);
  }
  return LeastOf(workers, random, holds, tokens);
}

std::size_t PrebleE2::Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                             Random& random) {
  constexpr double kWindowSeconds = 180;
  windows_.resize(std::max(windows_.size(), workers.back().worker + 1));
  while (!placed_.empty() && placed_.front().at_s < request.now_s - kWindowSeconds) {
    const Placed& old = placed_.front();
    Window& window = windows_[old.worker];
    window.prefill_s -= old.prefill_s;
    window.prompt_tokens -= old.prompt_tokens;
    window.cached_tokens -= old.cached_tokens;
    placed_.pop_front();
  }
  std::uint64_t longest = 0;
  for (const WorkerSight& w : workers) longest = std::max(longest, w.cached_tokens);
  const auto load = [&](const WorkerSight& w) {
    return windows_[w.worker].prefill_s + w.inflight * request.decode_s;
  };
  std::size_t chosen = 0;
  if (longest > request.prompt_tokens - longest) {
    chosen = LeastOf(
        workers, random, [&](const WorkerSight& w) { return w.cached_tokens == longest; }, load);
  } else {
    chosen = LeastOf(workers, random, [&](const WorkerSight& w) {
      const Window& window = windows_[w.worker];
      // Caches are full: what is computed takes the place of as much, worth its share of hits.
      const double hits = window.prompt_tokens == 0 ? 0
                                                    : static_cast<double>(window.cached_tokens) /
                                                          static_cast<double>(window.prompt_tokens);
      return load(w) + hits * w.prefill_s + w.prefill_s;
    });
  }
  const WorkerSight& w = workers[chosen];
  const Placed placed{.at_s = request.now_s,
                      .worker = w.worker,
                      .prefill_s = w.prefill_s,
                      .prompt_tokens = request.prompt_tokens,
                      .cached_tokens = w.cached_tokens};
  Window& window = windows_[w.worker];
  window.prefill_s += placed.prefill_s;
  window.prompt_tokens += placed.prompt_tokens;
  window.cached_tokens += placed.cached_tokens;
  placed_.push_back(placed);
  return chosen;
}

std::size_t BoundedHash::Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                                Random& random) {
  constexpr double kBound = 1.25;
  double total = 1;  // with this request
  for (const WorkerSight& w : workers) total += w.inflight;
  const double limit = std::ceil(kBound * total / static_cast<double>(workers.size()));
  const std::size_t chosen = LeastOf(
      workers, random, [&](const WorkerSight& w) { return w.inflight + 1 <= limit; },
      [&](const WorkerSight& w) {
        return static_cast<double>(Mix(request.head_key ^ Mix(w.worker + 1)));
      });
  // The mean is below the bound, so somebody is.
  return chosen;
}

}  // namespace warmpath
