// What each tenant of a simulation got, over seeds: as a table, JSON and HTML.
#ifndef WARMPATH_CORE_REPLAY_TENANT_REPORT_H_
#define WARMPATH_CORE_REPLAY_TENANT_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "core/replay/sim_report.h"
#include "core/replay/simulator.h"
#include "core/replay/workload.h"

namespace warmpath {

// Fills summary->tenants and jain_goodput from the requests. Nothing for a single tenant.
void SummariseTenants(const SimResult& result, const SimObjective& objective, SimSummary* summary);

// Leaves the first `count` requests out of the workload's result. Returns when the first of those
// that stay arrived, infinity if none does.
double LeaveOutFirst(std::uint64_t count, const Workload& workload, SimResult* result);
// Leaves out what arrived before: for the same stretch of a run with fewer requests.
void LeaveOutBefore(double arrival_s, const Workload& workload, SimResult* result);

// Sets the slowdown of each tenant that `alone`, a run without the batch tenant, has too.
void CompareWithAlone(const SimSummary& alone, SimSummary* summary);

// (sum x)^2 / (n * sum x^2): 1 when all are equal, 1 / n when one has everything.
double JainIndex(const std::vector<double>& values);

// Means over seeds, by tenant; empty for a single tenant.
std::vector<TenantSummary> TenantsOverSeeds(const SimCell& cell);

// Lines of all policies of one block; empty where there is a single tenant.
std::string SimTenantTable(const std::vector<SimCell>& cells);
std::string TenantHtml(const SimCell* first, std::size_t count);
// Of one cell: `, "jain_goodput": ..., "tenants": [...]`; empty for a single tenant.
std::string TenantJson(const SimCell& cell);

}  // namespace warmpath

#endif  // WARMPATH_CORE_REPLAY_TENANT_REPORT_H_
