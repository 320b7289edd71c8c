// The comparison of policies as one HTML page that opens offline: tables with standard errors, and
// charts of time to first token, load over time, hit rate, goodput and the workers' shares.
#ifndef WARMPATH_CLIENT_REPLAY_HTML_REPORT_H_
#define WARMPATH_CLIENT_REPLAY_HTML_REPORT_H_

#include <string>
#include <vector>

#include "core/replay/sim_report.h"

namespace warmpath::replay {

// `settings`: one line that says how the cells came about.
std::string HtmlReport(const std::vector<SimCell>& cells, const std::string& settings);

}  // namespace warmpath::replay

#endif  // WARMPATH_CLIENT_REPLAY_HTML_REPORT_H_
