// The agent's metrics: every name, type and help text in one table, and a page of them.
#ifndef WARMPATH_CLIENT_AGENT_AGENT_METRICS_H_
#define WARMPATH_CLIENT_AGENT_AGENT_METRICS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/agent/worker_view.h"

namespace warmpath {

struct MetricInfo {
  std::string_view name;
  bool counter;
  std::string_view help;
};

// In the order of the page.
std::span<const MetricInfo> AgentMetrics();

// Prometheus text of the given workers. Series are bounded by workers x ranks x causes.
std::string MetricsPage(const std::vector<WorkerView>& workers);

// The table as Markdown, for docs/warmpath-agent.md.
std::string AgentMetricsAsMarkdown();

}  // namespace warmpath

#endif  // WARMPATH_CLIENT_AGENT_AGENT_METRICS_H_
