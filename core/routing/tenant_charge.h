// What a tenant that uses more than its share is charged for going where others are.
//
//   F = 0.05 * min(1, u - 1) * (D - D_own) * P      for u > 1
//
// u: the tenant's recent prefill seconds as a multiple of an equal share among all that ask. Each
// of the D - D_own requests of others in flight there waits for P. docs/policy.md has what it is
// worth.
#ifndef WARMPATH_CORE_ROUTING_TENANT_CHARGE_H_
#define WARMPATH_CORE_ROUTING_TENANT_CHARGE_H_

#include <algorithm>

#include "absl/time/time.h"
#include "core/fleet/tenant_table.h"
#include "core/fleet/worker.h"
#include "core/routing/cost.h"

namespace warmpath {

inline constexpr double kOthersWait = 0.05;  // price of a second that a request of others waits

// For one pick, under the pool's mutex.
class TenantCharge {
 public:
  TenantCharge() = default;  // charges nothing
  TenantCharge(const TenantTable* table, TenantNumber tenant, absl::Time now)
      : table_(table),
        tenant_(tenant),
        weight_(kOthersWait * std::clamp(table->OverShare(tenant, now) - 1, 0.0, 1.0)) {}

  bool charges() const { return weight_ > 0; }
  // F, seconds.
  double Seconds(TargetId target, const CostInput& input) const {
    if (!charges()) return 0;
    // Requests that came around the router are others' too.
    const double others = static_cast<double>(input.inflight) - table_->OpenAt(tenant_, target);
    return weight_ * std::max(0.0, others) * MarginalCost(input).prefill_s;
  }

 private:
  const TenantTable* table_ = nullptr;
  TenantNumber tenant_ = 0;
  double weight_ = 0;
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_TENANT_CHARGE_H_
