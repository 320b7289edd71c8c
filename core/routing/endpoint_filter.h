// Which targets a request allows: its subset hint and its exclusions.
#ifndef WARMPATH_CORE_ROUTING_ENDPOINT_FILTER_H_
#define WARMPATH_CORE_ROUTING_ENDPOINT_FILTER_H_

#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "core/base/strings.h"
#include "core/fleet/pool.h"
#include "core/routing/query.h"

namespace warmpath {

// Built before the pool's mutex is taken; borrows the query's strings.
class EndpointFilter {
 public:
  explicit EndpointFilter(const Query& query);

  // Every target passes both.
  bool AllowsAll() const { return !has_subset_ && exclude_.empty(); }
  // "ip:port" of the target, or its "ip" alone, is in the subset; or there is no subset.
  bool InSubset(const TargetState& target) const;
  // By "ip:port" or worker id.
  bool Excluded(const TargetState& target) const;

 private:
  using NameSet = absl::flat_hash_set<std::string_view, StringHash, std::equal_to<>>;

  bool has_subset_;
  NameSet subset_;
  NameSet exclude_;
};

// "10.0.0.1" of "10.0.0.1:8000", "::1" of "[::1]:8000"; the whole when there is no port.
std::string_view HostOf(std::string_view address);

}  // namespace warmpath

#endif  // WARMPATH_CORE_ROUTING_ENDPOINT_FILTER_H_
