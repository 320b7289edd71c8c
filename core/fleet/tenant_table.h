// Who asks: the tenants of a pool, what each had of its prefill time lately, and where its requests
// are. Only in pools with PoolConfig::tenant_fairness.
#ifndef WARMPATH_CORE_FLEET_TENANT_TABLE_H_
#define WARMPATH_CORE_FLEET_TENANT_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "core/base/strings.h"
#include "core/fleet/worker.h"

namespace warmpath {

// A tenant's place in the table. 0: none.
using TenantNumber = std::uint32_t;

// Bounded, whatever ids callers make up. A place is given to another tenant when nothing of its own
// is in flight, that of the one who used least first; when something is everywhere, a newcomer gets
// none and is treated like a request without a tenant.
//
// Not thread-safe: part of the ledger, guarded by Pool::mu().
class TenantTable {
 public:
  static constexpr std::size_t kMostTenants = 256;
  static constexpr double kForgetSeconds = 30;  // time constant of recent use
  // Who asked for anything since then counts as one who shares, however little it was: the charge
  // is for the wait of others' requests, and those of a small tenant wait as well. Long enough that
  // who asks now and then does not come and go.
  static constexpr absl::Duration kActive = absl::Seconds(60);

  // 0 when it has no place, and always for an empty id.
  TenantNumber Find(std::string_view id) const;
  // Gives it a place if it has none; 0 when there is none to give.
  TenantNumber Enter(std::string_view id);

  // A request of the tenant is in flight at the target, and no more. Nothing for tenant 0.
  void Open(TenantNumber tenant, TargetId target);
  void Close(TenantNumber tenant, TargetId target);
  std::uint32_t OpenAt(TenantNumber tenant, TargetId target) const;

  // A request of the tenant was given `prefill_s` seconds of prefill, or none.
  void Use(TenantNumber tenant, double prefill_s, absl::Time now);
  // Its recent use as a multiple of an equal share among all that asked within kActive: 1 for a
  // tenant that is alone, 0 for one without a place or use. For a request that is being placed: the
  // tenant itself is one who asks, however long it was silent, while the prefill to come is not yet
  // use, as it depends on the target. O(kMostTenants).
  double OverShare(TenantNumber tenant, absl::Time now) const;

  std::size_t size() const { return by_id_.size(); }

 private:
  struct Tenant {
    std::string id;
    double used_s = 0;  // forgotten as of forgotten_
    absl::Time asked = absl::InfinitePast();
    std::uint32_t open = 0;              // requests in flight
    std::vector<std::uint32_t> open_at;  // of them, by target
  };

  std::vector<Tenant> tenants_;  // [number - 1]
  StringMap<TenantNumber> by_id_;
  absl::Time forgotten_ = absl::InfinitePast();
};

}  // namespace warmpath

#endif  // WARMPATH_CORE_FLEET_TENANT_TABLE_H_
