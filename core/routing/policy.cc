#include "core/routing/policy.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/strings.h"
#include "core/routing/cost_policies.h"
#include "core/routing/load_policies.h"
#include "core/routing/picker.h"
#include "core/routing/sticky_policies.h"

namespace warmpath {
namespace {

constexpr MarginalCostPolicy kMarginalCost;
constexpr MinTtftPolicy kMinTtft;
constexpr RoundRobinPolicy kRoundRobin;
constexpr RandomPolicy kRandom;
constexpr LeastOutstandingPolicy kLeastOutstanding;
constexpr PowerOfTwoPolicy kPowerOfTwo;
constexpr PrefixAwarePolicy kPrefixAware;
constexpr SessionPolicy kSession;

constexpr std::array<const Policy*, 8> kPolicies = {
    &kMarginalCost,     &kMinTtft,    &kRoundRobin,  &kRandom,
    &kLeastOutstanding, &kPowerOfTwo, &kPrefixAware, &kSession};

// HyperPod's inference operator and SageMaker's RoutingStrategy: docs/sagemaker.md.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"prefixaware", "prefix_aware"},
    {"kvaware", "marginal_cost"},
    {"roundrobin", "round_robin"},
    {"RANDOM", "random"},
    {"LEAST_OUTSTANDING_REQUESTS", "least_outstanding"},
    {"PREFIX_AWARE", "prefix_aware"},
};

}  // namespace

std::string_view PickReasonName(PickReason reason) {
  switch (reason) {
    case PickReason::kPrefix:
      return "prefix";
    case PickReason::kCost:
      return "cost";
    case PickReason::kNoPrefix:
      return "no_prefix";
    case PickReason::kShortPrompt:
      return "short_prompt";
    case PickReason::kTurn:
      return "turn";
    case PickReason::kRandom:
      return "random";
    case PickReason::kLeastOutstanding:
      return "least_outstanding";
    case PickReason::kTwoChoices:
      return "two_choices";
    case PickReason::kPrefixKey:
      return "prefix_key";
    case PickReason::kOverflow:
      return "overflow";
    case PickReason::kAllAtThreshold:
      return "all_at_threshold";
    case PickReason::kSession:
      return "session";
    case PickReason::kNoSessionKey:
      return "no_session_key";
  }
  return "unknown";
}

absl::StatusOr<PolicyInput> Policy::Prepare(const Query& /*query*/,
                                            const PoolConfig& /*config*/) const {
  return PolicyInput{};
}

std::span<const Policy* const> AllPolicies() { return kPolicies; }

absl::StatusOr<std::size_t> FindPolicy(std::string_view name) {
  for (const auto& [alias, canonical] : kAliases) {
    if (name == alias) name = canonical;
  }
  for (std::size_t i = 0; i < kPolicies.size(); ++i) {
    if (kPolicies[i]->name() == name) return i;
  }
  std::string known;
  for (const Policy* policy : kPolicies) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", ToAbsl(policy->name()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("policy: \"", ToAbsl(name.substr(0, 64)), "\" is unknown; use one of ", known));
}

std::vector<std::string_view> PolicyNames() {
  std::vector<std::string_view> names;
  for (const Policy* policy : kPolicies) names.push_back(policy->name());
  return names;
}

absl::StatusOr<std::string_view> CanonicalPolicyName(std::string_view name) {
  WARMPATH_ASSIGN_OR_RETURN(const std::size_t index, FindPolicy(name));
  return kPolicies[index]->name();
}

}  // namespace warmpath
