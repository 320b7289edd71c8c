#include "core/routing/endpoint_filter.h"

#include <string_view>

namespace warmpath {

std::string_view HostOf(std::string_view address) {
  if (address.starts_with('[')) {
    const std::size_t end = address.find(']');
    return end == std::string_view::npos ? address : address.substr(1, end - 1);
  }
  const std::size_t colon = address.find(':');
  // More than one colon and no brackets: a bare IPv6 address.
  if (colon == std::string_view::npos || address.find(':', colon + 1) != std::string_view::npos) {
    return address;
  }
  return address.substr(0, colon);
}

EndpointFilter::EndpointFilter(const Query& query)
    : has_subset_(query.subset_present),
      subset_(query.subset.begin(), query.subset.end()),
      exclude_(query.exclude.begin(), query.exclude.end()) {}

bool EndpointFilter::InSubset(const TargetState& target) const {
  return !has_subset_ || subset_.contains(std::string_view(target.spec.address)) ||
         subset_.contains(HostOf(target.spec.address));
}

bool EndpointFilter::Excluded(const TargetState& target) const {
  return !exclude_.empty() && (exclude_.contains(std::string_view(target.spec.address)) ||
                               exclude_.contains(std::string_view(target.worker_id)));
}

}  // namespace warmpath
