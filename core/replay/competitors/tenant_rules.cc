#include "core/replay/competitors/tenant_rules.h"

#include <algorithm>
#include <cmath>

#include "core/replay/competitors/choose.h"

namespace warmpath {
namespace {

constexpr double kForgetSeconds = 30;
constexpr double kActiveSeconds = 60;
constexpr double kShedSeconds = 2;
constexpr double kApart = 0.05;  // of the others' wait

double Cost(const WorkerSight& w) {
  return w.wait_s + w.copy_s + w.prefill_s + w.pool_price_s + w.decode_stall_s + w.kv_pressure_s +
         w.kv_wait_s;
}

}  // namespace

void TenantUse::Forget(double now_s) {
  const double keep = std::exp((at_s_ - now_s) / kForgetSeconds);
  at_s_ = now_s;
  total_ = 0;
  for (auto& [tenant, use] : used_) total_ += use.seconds *= keep;
}

std::size_t TenantUse::Active(std::uint32_t asks, double now_s) {
  Forget(now_s);
  std::size_t active = used_.contains(asks) ? 0 : 1;
  for (const auto& [tenant, use] : used_) {
    active += tenant == asks || now_s - use.asked_s <= kActiveSeconds ? 1 : 0;
  }
  return active;
}

double TenantUse::OverShare(std::uint32_t tenant, double now_s) {
  const auto active = static_cast<double>(Active(tenant, now_s));
  const auto it = used_.find(tenant);
  return total_ > 0 && it != used_.end() ? it->second.seconds / total_ * active : 0;
}

void TenantUse::Add(std::uint32_t tenant, double now_s, double prefill_s) {
  Forget(now_s);
  Use& use = used_[tenant];
  use.seconds += prefill_s;
  use.asked_s = now_s;
  total_ += prefill_s;
}

std::size_t TenantRule::Choose(const RequestSight& request, std::span<const WorkerSight> workers,
                               Random& random) {
  const double over = use_.OverShare(request.tenant, request.now_s);
  const bool heavy = over > 1.0001;
  const auto least_wait = std::min_element(
      workers.begin(), workers.end(),
      [](const WorkerSight& a, const WorkerSight& b) { return a.wait_s < b.wait_s; });
  const bool late = least_wait->wait_s > kShedSeconds;
  if (late && (kind_ == Kind::kShedAll || (kind_ == Kind::kShedHeavy && heavy))) return kShed;
  std::size_t chosen = workers.size();
  if (kind_ == Kind::kCap && heavy) {
    const std::size_t active = use_.Active(request.tenant, request.now_s);
    const std::size_t most = std::max<std::size_t>(1, workers.size() / active);
    const auto waits = [](const WorkerSight& w) { return w.tenant_pending > 0; };
    const auto held =
        static_cast<std::size_t>(std::count_if(workers.begin(), workers.end(), waits));
    if (held >= most) chosen = LeastOf(workers, random, waits, Cost);
  }
  if (chosen == workers.size()) {
    chosen = LeastOf(workers, random, [&](const WorkerSight& w) {
      double cost = Cost(w);
      if (heavy && kind_ == Kind::kPrice) cost += (over - 1) * w.pool_price_s;
      if (heavy && kind_ == Kind::kApart) {
        cost += kApart * std::min(over - 1, 1.0) * (w.inflight - w.tenant_inflight) * w.prefill_s;
      }
      return cost;
    });
  }
  use_.Add(request.tenant, request.now_s, workers[chosen].prefill_s);
  return chosen;
}

}  // namespace warmpath
