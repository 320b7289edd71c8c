#include "client/agent/events/engine_event.h"

#include <algorithm>
#include <cctype>

namespace warmpath {
namespace {

struct MediumName {
  std::string_view name;
  Tier tier;
};

// Names in the field: vLLM GPU, CPU, STORAGE (earlier FS, OBJ); SGLang CPU_PINNED, CPU_TIER1,
// CPU_TIER2, DISK, EXTERNAL; llm-d SHARED_STORAGE, OBJECT_STORE.
constexpr MediumName kMediumNames[] = {
    {"GPU", Tier::kGpu},          {"DEVICE", Tier::kGpu},
    {"CPU", Tier::kHost},         {"CPU_PINNED", Tier::kHost},
    {"CPU_TIER1", Tier::kHost},   {"HOST", Tier::kHost},
    {"CPU_TIER2", Tier::kDisk},   {"DISK", Tier::kDisk},
    {"NVME", Tier::kDisk},        {"FS", Tier::kDisk},
    {"STORAGE", Tier::kDisk},     {"EXTERNAL", Tier::kExternal},
    {"NETWORK", Tier::kExternal}, {"REMOTE", Tier::kExternal},
    {"SHARED", Tier::kExternal},  {"SHARED_STORAGE", Tier::kExternal},
    {"OBJ", Tier::kExternal},     {"OBJECT_STORE", Tier::kExternal},
};

bool EqualsIgnoringCase(std::string_view a, std::string_view upper) {
  return a.size() == upper.size() &&
         std::equal(a.begin(), a.end(), upper.begin(), [](char x, char y) {
           return std::toupper(static_cast<unsigned char>(x)) == y;
         });
}

}  // namespace

std::string_view SkipCauseName(SkipCause cause) {
  switch (cause) {
    case SkipCause::kMalformed:
      return "malformed";
    case SkipCause::kUnknownType:
      return "unknown_type";
    case SkipCause::kUnknownMedium:
      return "unknown_medium";
    case SkipCause::kGroup:
      return "group";
    case SkipCause::kPlaceholder:
      return "placeholder";
    case SkipCause::kMasked:
      return "masked";
    case SkipCause::kBlockSize:
      return "block_size";
    case SkipCause::kBadParent:
      return "bad_parent";
    case SkipCause::kOrphanBound:
      return "orphan_bound";
    case SkipCause::kBlockBound:
      return "block_bound";
    case SkipCause::kUnderflow:
      return "underflow";
    case SkipCause::kHiddenDomain:
      return "hidden_domain";
    case SkipCause::kUnknownKey:
      return "unknown_key";
    case SkipCause::kCount:
      break;
  }
  return "unknown";
}

bool ParseTier(std::optional<std::string_view> medium, std::optional<std::string_view> locality,
               Tier* tier) {
  Tier found = Tier::kGpu;
  if (medium.has_value()) {
    const auto* const it =
        std::find_if(std::begin(kMediumNames), std::end(kMediumNames),
                     [&](const MediumName& m) { return EqualsIgnoringCase(*medium, m.name); });
    if (it == std::end(kMediumNames)) return false;
    found = it->tier;
  }
  if (locality.has_value() && EqualsIgnoringCase(*locality, "REMOTE")) found = Tier::kExternal;
  *tier = found;
  return true;
}

}  // namespace warmpath
