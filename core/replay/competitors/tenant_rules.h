// What was tried so that one heavy tenant does not slow all others down. docs/policy.md has the
// results; no router offers these.
#ifndef WARMPATH_CORE_REPLAY_COMPETITORS_TENANT_RULES_H_
#define WARMPATH_CORE_REPLAY_COMPETITORS_TENANT_RULES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "core/base/random.h"
#include "core/replay/competitors/competitor.h"

namespace warmpath {

// Who had how much of the pool's recent prefill seconds, each as an average that forgets with a
// time constant of 30 s.
class TenantUse {
 public:
  // What the tenant, which asks now, uses as a multiple of its equal share among the tenants that
  // asked in the last 60 s; 1 when it is alone.
  double OverShare(std::uint32_t tenant, double now_s);
  // How many asked in the last 60 s, with the one who asks now.
  std::size_t Active(std::uint32_t asks, double now_s);
  void Add(std::uint32_t tenant, double now_s, double prefill_s);

 private:
  struct Use {
    double seconds = 0;
    double asked_s = 0;
  };
  void Forget(double now_s);

  std::map<std::uint32_t, Use> used_;
  double total_ = 0;
  double at_s_ = 0;
};

// The default policy with one of:
class TenantRule final : public Competitor {
 public:
  enum class Kind : std::uint8_t {
    kPrice,      // a * P' as often as the tenant uses its share
    kApart,      // beyond its share it pays for the wait of others' requests where it goes
    kCap,        // beyond its share it may wait on no more targets than its share of them
    kShedHeavy,  // beyond its share it is refused when nobody could begin within 2 s
    kShedAll,    // everybody is
  };
  explicit TenantRule(Kind kind) : kind_(kind) {}
  std::size_t Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                     Random& random) override;

 private:
  const Kind kind_;
  TenantUse use_;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_COMPETITORS_TENANT_RULES_H_
