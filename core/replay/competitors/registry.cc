#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/strings.h"
#include "core/replay/competitors/affinity.h"
#include "core/replay/competitors/competitor.h"
#include "core/replay/competitors/cost_rules.h"
#include "core/replay/competitors/tenant_rules.h"

namespace warmpath {
namespace {

using Maker = std::unique_ptr<Competitor> (*)();

template <typename T>
std::unique_ptr<Competitor> Make() {
  return std::make_unique<T>();
}
template <Ablation::Without kTerm>
std::unique_ptr<Competitor> MakeAblation() {
  return std::make_unique<Ablation>(kTerm);
}

constexpr std::array<std::pair<std::string_view, Maker>, 8> kCompetitors = {{
    {"smg_cache_aware", &Make<SmgCacheAware>},
    {"gaie_weighted", &Make<GaieWeighted>},
    {"llmd_affinity", &Make<LlmdAffinity>},
    {"dynamo", &Make<Dynamo>},
    {"preble_e2", &Make<PrebleE2>},
    {"lmetric", &Make<LMetric>},
    {"smetric", &Make<SMetric>},
    {"bounded_hash", &Make<BoundedHash>},
}};

constexpr std::array<std::pair<std::string_view, Maker>, 4> kAblations = {{
    {"without_price", &MakeAblation<Ablation::Without::kPrice>},
    {"without_stall", &MakeAblation<Ablation::Without::kStall>},
    {"without_pressure", &MakeAblation<Ablation::Without::kPressure>},
    {"without_kv_wait", &MakeAblation<Ablation::Without::kKvWait>},
}};

template <TenantRule::Kind kKind>
std::unique_ptr<Competitor> MakeTenantRule() {
  return std::make_unique<TenantRule>(kKind);
}

constexpr std::array<std::pair<std::string_view, Maker>, 5> kTenantRules = {{
    {"tenant_price", &MakeTenantRule<TenantRule::Kind::kPrice>},
    {"tenant_apart", &MakeTenantRule<TenantRule::Kind::kApart>},
    {"tenant_cap", &MakeTenantRule<TenantRule::Kind::kCap>},
    {"tenant_shed", &MakeTenantRule<TenantRule::Kind::kShedHeavy>},
    {"shed", &MakeTenantRule<TenantRule::Kind::kShedAll>},
}};

template <typename Table>
std::vector<std::string_view> Names(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& [name, maker] : table) names.push_back(name);
  return names;
}

}  // namespace

std::vector<std::string_view> CompetitorNames() { return Names(kCompetitors); }
std::vector<std::string_view> AblationNames() { return Names(kAblations); }
std::vector<std::string_view> TenantRuleNames() { return Names(kTenantRules); }

absl::StatusOr<std::unique_ptr<Competitor>> MakeCompetitor(std::string_view name) {
  for (const auto& [known, maker] : kCompetitors) {
    if (known == name) return maker();
  }
  for (const auto& [known, maker] : kAblations) {
    if (known == name) return maker();
  }
  for (const auto& [known, maker] : kTenantRules) {
    if (known == name) return maker();
  }
  return absl::NotFoundError(absl::StrCat("no competitor is named \"", ToAbsl(name), "\""));
}

}  // namespace warmpath
