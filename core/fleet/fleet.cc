#include "core/fleet/fleet.h"

#include <utility>

#include "core/base/status.h"
#include "core/fleet/fleet_impl.h"
#include "core/fleet/registration.h"

namespace warmpath {

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(FleetConfig config, const Clock* clock,
                                                     std::uint64_t random_seed) {
  WARMPATH_RETURN_IF_ERROR(ValidateFleetConfig(config));
  return std::make_unique<FleetImpl>(std::move(config), clock, random_seed, CreateIndex);
}

}  // namespace warmpath
