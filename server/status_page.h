// The page at "/": pools, workers with freshness, cause and remedy, load, index. Plain HTML that
// needs no network, no script and no other file.
#ifndef WARMPATH_SERVER_STATUS_PAGE_H_
#define WARMPATH_SERVER_STATUS_PAGE_H_

#include <span>
#include <string>

#include "core/fleet/fleet.h"
#include "core/fleet/worker.h"

namespace warmpath {

// Everything that workers sent is escaped. At most `max_workers` rows.
std::string StatusPage(std::span<const PoolView> pools, std::span<const WorkerView> workers,
                       bool ready, std::size_t max_workers);

// Why nothing is known of a target with freshness NONE, and what to do about it.
std::string_view NoKnowledgeRemedy(const TargetView& target);

}  // namespace warmpath

#endif  // WARMPATH_SERVER_STATUS_PAGE_H_
