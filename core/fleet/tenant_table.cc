#include "core/fleet/tenant_table.h"

#include <cmath>

namespace warmpath {

TenantNumber TenantTable::Find(std::string_view id) const {
  if (id.empty()) return 0;
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? 0 : it->second;
}

TenantNumber TenantTable::Enter(std::string_view id) {
  if (id.empty()) return 0;
  if (const TenantNumber known = Find(id); known != 0) return known;
  TenantNumber number = 0;
  if (tenants_.size() < kMostTenants) {
    tenants_.emplace_back();
    number = static_cast<TenantNumber>(tenants_.size());
  } else {
    for (TenantNumber other = 1; other <= tenants_.size(); ++other) {
      const Tenant& tenant = tenants_[other - 1];
      if (tenant.open > 0) continue;
      if (number == 0 || tenant.used_s < tenants_[number - 1].used_s) number = other;
    }
    if (number == 0) return 0;
    by_id_.erase(tenants_[number - 1].id);
  }
  Tenant& tenant = tenants_[number - 1];
  tenant.id = std::string(id);
  tenant.used_s = 0;
  tenant.asked = absl::InfinitePast();
  by_id_[tenant.id] = number;
  return number;
}

void TenantTable::Open(TenantNumber tenant, TargetId target) {
  if (tenant == 0) return;
  Tenant& t = tenants_[tenant - 1];
  if (target >= t.open_at.size()) t.open_at.resize(target + 1);
  ++t.open_at[target];
  ++t.open;
}

void TenantTable::Close(TenantNumber tenant, TargetId target) {
  if (tenant == 0) return;
  Tenant& t = tenants_[tenant - 1];
  --t.open_at[target];
  --t.open;
}

std::uint32_t TenantTable::OpenAt(TenantNumber tenant, TargetId target) const {
  if (tenant == 0) return 0;
  const Tenant& t = tenants_[tenant - 1];
  return target < t.open_at.size() ? t.open_at[target] : 0;
}

void TenantTable::Use(TenantNumber tenant, double prefill_s, absl::Time now) {
  if (tenant == 0) return;
  if (forgotten_ == absl::InfinitePast()) forgotten_ = now;
  // All forget at the same rate, so that shares need it now and then only.
  if (now - forgotten_ >= absl::Seconds(1)) {
    const double keep = std::exp(-absl::ToDoubleSeconds(now - forgotten_) / kForgetSeconds);
    for (Tenant& other : tenants_) other.used_s *= keep;
    forgotten_ = now;
  }
  tenants_[tenant - 1].asked = now;
  if (prefill_s > 0 && std::isfinite(prefill_s)) tenants_[tenant - 1].used_s += prefill_s;
}

double TenantTable::OverShare(TenantNumber tenant, absl::Time now) const {
  if (tenant == 0) return 0;
  double total = 0;
  double active = 0;
  const Tenant& self = tenants_[tenant - 1];
  for (const Tenant& other : tenants_) {
    total += other.used_s;
    active += &other == &self || now - other.asked <= kActive ? 1 : 0;
  }
  return total > 0 ? self.used_s / total * active : 0;
}

}  // namespace warmpath
